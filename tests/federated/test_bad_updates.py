"""Updates that are ten times too long, or stale, against each rule: by hand, and over a run beside an honest one."""

import logging
from functools import cache

import lightning as L
import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

from fedgen import FedAvgStrategy, FederatedDataModule
from fedgen.clients.partitions import Natural
from fedgen.data import Examples
from fedgen.federated import FedAdam, Krum, Mean, Median, NormClipping, TrimmedMean
from fedgen.federated.client_state.memory import ClientMemory
from tests.trainers import quiet_trainer

BAD = 4
POINTS = [[4.0, 3.0], [3.0, 4.0], [5.0, 5.0], [4.0, 4.0], [4.0, 4.0]]  # one each of clients a to e


class Point(L.LightningModule):
    """Goes half of the way from where it is to its client's point in a step; starts at 0.

    Args:
        fault: what the bad client sends: None for its update, "long" for ten times it, "opposite" for that in the other
            direction, "none" for the weights that it was sent, "first" for those of the first round.
    """

    def __init__(self, fault=None):
        super().__init__()
        self.point, self.fault = nn.Parameter(torch.zeros(2)), fault

    def on_turn_start(self, turn):
        self.is_bad, self.sent = turn.client == BAD, self.trainer.strategy.exchange.server["point"]

    def training_step(self, batch, batch_idx):
        return (batch[0] - self.point).square().sum(1).mean()

    def on_turn_end(self, completed):
        if self.is_bad and self.fault:
            scale = {"long": 10.0, "opposite": -10.0, "none": 0.0}.get(self.fault)
            with torch.no_grad():
                self.point.copy_(torch.zeros(2) if scale is None else self.sent + scale * (self.point - self.sent))

    def configure_optimizers(self):
        return torch.optim.SGD([self.point], 0.25)


def fit(model, rule, rounds, **options):
    """The strategy after a run of the model."""
    own = torch.arange(5).repeat_interleave(4)
    examples = Examples(
        torch.tensor(POINTS)[own], torch.zeros(20, dtype=torch.int64), "points", (), own, tuple("abcde")
    )
    data = FederatedDataModule(examples, Natural(), batch_size=4, held_out=0.0, seed=0)
    strategy = FedAvgStrategy(communication_interval=1, aggregator=rule, **options)
    quiet_trainer(rounds, strategy=strategy).fit(model, data)
    return strategy


def run(fault, rule, rounds):
    model = Point(fault)
    strategy = fit(model, rule, rounds)
    assert strategy.left_out == []  # it is finite and of the right form: for the rule to judge
    return model.point.detach()


# After one round clients a to d send (2, 1.5), (1.5, 2), (2.5, 2.5) and (2, 2), and an honest e (2, 2).
ROUND_1 = {
    "long": {  # e sends (20, 20)
        "mean": [(2 + 1.5 + 2.5 + 2 + 20) / 5, (1.5 + 2 + 2.5 + 2 + 20) / 5],
        "median": [2.0, 2.0],
        "trimmed": [(2 + 2.5 + 2) / 3, (2 + 2.5 + 2) / 3],
        # squared distances of d: 0.25 to a, 0.25 to b, 0.5 to c; a and b have 0.25 and 0.5 as their least two
        "krum": [2.0, 2.0],
        # nobody honest moves further than 3.54 = |(2.5, 2.5)|; (20, 20) becomes 4 / 28.3 of itself
        "clipped": [(2 + 1.5 + 2.5 + 2 + 8**0.5) / 5, (1.5 + 2 + 2.5 + 2 + 8**0.5) / 5],
    },
    "none": {  # e sends (0, 0)
        "mean": [8 / 5, 8 / 5],
        "median": [2.0, 2.0],
        "trimmed": [(2 + 1.5 + 2) / 3, (1.5 + 2 + 2) / 3],
        "krum": [2.0, 2.0],
        "clipped": [8 / 5, 8 / 5],  # it is short
    },
}


def rules():
    return {
        "mean": Mean(),
        "median": Median(),
        "trimmed": TrimmedMean(0.2),
        "krum": Krum(bad=1),
        "clipped": NormClipping(4.0),
    }


@pytest.mark.parametrize("name", rules())
@pytest.mark.parametrize("fault", ROUND_1)
def test_one_round_by_hand(fault, name):
    assert run(fault, rules()[name], 1).tolist() == pytest.approx(ROUND_1[fault][name], rel=1e-6)


@pytest.mark.parametrize("factor", [10.0, 1e6, 1e30])
def test_clipping_bounds_what_one_client_moves_the_mean_by(factor):
    """By max_norm / 5, however long its update is."""
    rule = NormClipping(1.0)
    rule.start([torch.zeros(2)])
    for client in range(5):
        rule.add(client, [torch.full((2,), factor) if client == BAD else torch.zeros(2)], 1.0)
    assert rule.result()[0].norm().item() == pytest.approx(1 / 5)
    assert rule.clipped == [BAD]


@cache
def under_the_mean(fault):
    """Where 30 rounds end."""
    return run(fault, None, 30)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["median", "trimmed", "krum", "clipped"])
@pytest.mark.parametrize(("fault", "mean_is_off"), [("opposite", 2**0.5 * 4 * 1.6**30), ("first", 2**0.5 * 4 / 3)])
def test_a_run_under_each_rule_ends_nearer_to_the_honest_one_than_under_the_mean(fault, mean_is_off, name):
    """After 30 rounds five honest clients are at their mean, (4, 4), d = 0 away from it; each would go d / 2 a round.

    Against ten times that in the other direction the mean moves by (4 d / 2 - 10 d / 2) / 5, away from it: d grows by
    1.6 a round. Weights of the first round hold it back for good, where 4 d / 2 = (4 sqrt 2 - d).
    """
    honest = under_the_mean(None)
    assert honest.tolist() == pytest.approx([4.0, 4.0], abs=2e-3)
    assert (under_the_mean(fault) - honest).norm() == pytest.approx(mean_is_off, rel=1e-2)
    rule = NormClipping(2.0) if name == "clipped" else rules()[name]
    off = (run(fault, rule, 30) - honest).norm()
    assert off < 0.6 * mean_is_off
    if name == "clipped":  # where the four pull back as hard as the one may push: 4 d / 2 = 2
        assert off == pytest.approx(1.0, rel=1e-2)


def test_clients_whose_updates_were_shortened_are_logged_by_name(caplog):
    caplog.set_level(logging.INFO)
    run("long", NormClipping(4.0), 1)
    said = [record.getMessage() for record in caplog.records if "shortened" in record.getMessage()]
    assert said[0] == "round 0: client 'e' moved by 28.3, shortened to 4"
    assert said[1:] == ["  'e', round 0: moved by 28.3, shortened to 4"]  # at the end


# ---- rounds with too few clients for the rule ----


class Full(Point):
    """The bad client has no memory in some rounds."""

    def __init__(self, rounds):
        super().__init__()
        self.rounds = rounds

    def training_step(self, batch, batch_idx):
        if self.is_bad and self.current_epoch in self.rounds:
            raise MemoryError("full")
        return super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:client 'e' is left out of round 1:UserWarning")
def test_a_round_with_too_few_clients_for_krum_is_dropped_and_the_run_goes_on():
    """Five clients are as few as it takes, so one that fails costs the round: three are as good as two without it."""
    model, averaged = Full({1}), {"server_optimizer": lambda p: FedAdam(p, lr=0.1)}
    said = (
        r"round 1 is dropped and the server's model stays as it was: Krum\(bad=1, keep=1\) needs 5 clients and 4 sent"
    )
    with pytest.warns(UserWarning, match=said):
        strategy = fit(model, Krum(bad=1), 3, **averaged)
    expected = Full(())
    fit(expected, Krum(bad=1), 2, **averaged)
    assert torch.equal(model.point, expected.point)
    assert [(entry["round"], entry["name"]) for entry in strategy.left_out] == [(1, name) for name in "eabcd"]
    assert strategy.left_out[0]["reason"] == "MemoryError: full"
    assert all("the round was dropped: Krum" in entry["reason"] for entry in strategy.left_out[1:])


def test_a_cohort_that_can_never_suffice_is_refused_at_start():
    with pytest.raises(MisconfigurationException, match="cohort"):
        fit(Point(), Krum(bad=2), 1)
    with pytest.raises(MisconfigurationException, match="cohort"):
        fit(Point(), Krum(bad=1), 1, cohort_size=4)


# ---- who is remarked on ----


def remarks(fault, rule, rounds):
    """Reasons by round and name."""
    strategy = fit(Point(fault), rule, rounds)
    assert strategy.left_out == []  # it was part of the round
    assert all(entry["kind"] == "remark" for entry in strategy.report)
    return {(entry["round"], entry["name"]): entry["reason"] for entry in strategy.report}


FAR = "is 25.5 away from the combined weights, the median client 0.5"  # (20, 20) of (2, 2); a and b are 0.5 away


@pytest.mark.parametrize("name", ["median", "trimmed"])
def test_a_client_that_is_far_from_what_is_combined_is_remarked_on_by_name(name):
    far = remarks("long", rules()[name], 1)
    assert far.keys() == {(0, "e")}
    trimmed = "is 25.2 away from the combined weights, the median client 0.687"  # of (2.17, 2.17)
    assert far[0, "e"] == (FAR if name == "median" else trimmed)
    stale = remarks("first", rules()[name], 4)
    assert stale.keys() == {(round, "e") for round in range(4)}
    assert remarks(None, rules()[name], 4) == {}


def test_clients_that_krum_did_not_choose_are_remarked_on_the_far_one_first():
    found = remarks("long", Krum(bad=1), 1)  # d, at (2, 2), is chosen
    rest = {(0, name): "was not chosen" for name in "abc"}
    assert list(found.items()) == [((0, "e"), f"was not chosen: it {FAR}"), *rest.items()]
    stale = remarks("first", Krum(bad=1), 4)
    assert "away from the combined weights" in stale[3, "e"]
    both = remarks("long", NormClipping(4.0, Krum(bad=1)), 1)
    assert both[0, "e"] == "moved by 28.3, shortened to 4; was not chosen"


def test_clients_that_agree_but_for_rounding_are_not_told_apart():
    rule = Median()
    rule.start([torch.zeros(2)])
    for client in range(4):
        rule.add(client, [torch.tensor([3.0, 4.0]) * (1 + 1e-7 * (client == 2))], 1.0)
    rule.result()
    assert rule.remarks() == {}


def test_the_run_says_its_remarks_and_ends_with_them(caplog):
    caplog.set_level(logging.INFO)
    fit(Point("long"), Median(), 1)
    said = [record.getMessage() for record in caplog.records if "away" in record.getMessage()]
    assert said == [f"round 0: client 'e' {FAR}", f"  'e', round 0: {FAR}"]
    assert "part of their rounds and remarked on: 1 client, 1 time" in caplog.text


def test_the_latest_remarks_are_kept_and_restored():
    memory = ClientMemory()
    memory.remark([{"round": round, "client": 0, "name": "a", "reason": "", "kind": "remark"} for round in range(2001)])
    assert [memory.remarks[0]["round"], len(memory.remarks)] == [1, 2000]
    again = ClientMemory()
    again.load_state_dict(memory.state_dict(), None)
    assert again.remarks == memory.remarks
