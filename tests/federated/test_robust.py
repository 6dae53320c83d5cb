"""Aggregators under bad clients, on numbers that can be checked by hand."""

import warnings

import lightning as L
import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

from fedgen import FedAvgStrategy, FederatedDataModule
from fedgen.clients.partitions import Natural
from fedgen.data import Examples
from fedgen.federated import Krum, Mean, Median, NormClipping, PrivateMean, Scaffold, TrimmedMean
from tests.federated.kit_rules import aggregators
from tests.federated.modules import TwoOptimizers, make_data, make_trainer
from tests.trainers import quiet_trainer

HONEST = [[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]]
BAD = [1000.0, -1000.0]


def combined(aggregator, updates, server=(0.0, 0.0), weights=None):
    """The result for updates of two tensors of one coordinate each."""
    aggregator.start([torch.tensor([value]) for value in server])
    for client, update in enumerate(updates):
        aggregator.add(client, [torch.tensor([value]) for value in update], 1.0 if weights is None else weights[client])
    return [tensor.item() for tensor in aggregator.result()]


def test_the_median_is_the_middle_value_or_the_mean_of_the_middle_two():
    assert combined(Median(), [*HONEST, BAD]) == [3.0, 20.0]
    assert combined(Median(), HONEST) == [2.5, 25.0]
    assert combined(Median(), HONEST[:1]) == [1.0, 10.0]


def test_weights_are_claims_that_count_for_nothing():
    for rule in (Median(), TrimmedMean(0.25), Krum(bad=0)):
        assert combined(rule, HONEST, weights=[1.0, 1.0, 1.0, 1e9]) == combined(rule, HONEST)


def test_a_trimmed_mean_leaves_out_as_many_on_either_side():
    assert combined(TrimmedMean(0.2), [*HONEST, BAD]) == [3.0, 20.0]  # of 2, 3, 4 and of 10, 20, 30
    assert combined(TrimmedMean(0.19), [*HONEST, BAD]) == pytest.approx([202.0, -180.0])  # of all
    assert combined(TrimmedMean(0.29), [[float(k), 0.0] for k in range(100)])[0] == 49.5


def test_krum_takes_the_client_whose_neighbours_are_closest():
    rule = Krum(bad=1)
    # squared distances to the two nearest others: 1 + 4, 1 + 1, 1 + 1, 1 + 4, and far away; ties go to the first
    assert combined(rule, [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0], BAD]) == [2.0, 0.0]
    assert rule.chosen == [1]
    several = Krum(bad=1, keep=2)
    assert combined(several, [[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0], BAD]) == [2.5, 0.0]
    assert several.chosen == [1, 2]


def test_krum_measures_all_tensors_as_one_vector():
    updates = [[0.0, 0.0], [0.1, 9.0], [0.2, 0.3], [0.0, 0.1], [0.3, 0.2]]
    rule = Krum(bad=1)
    combined(rule, updates)
    points = torch.tensor(updates, dtype=torch.float64)
    squares = torch.cdist(points, points).square()
    scores = squares.sort(1).values[:, 1:3].sum(1)
    assert rule.chosen == [int(scores.argmin())]


def test_krum_needs_enough_clients():
    rule = Krum(bad=1)
    with pytest.raises(ValueError, match="update"):
        combined(rule, HONEST)
    assert "4 sent" in NormClipping(1.0, rule).shortfall()
    for made, least in ((Krum(bad=1), 5), (Krum(bad=0, keep=7), 7), (NormClipping(1.0, Krum(bad=1)), 5)):
        made.check_cohort(least)
        with pytest.raises(MisconfigurationException, match=f"needs {least} clients a round and a cohort has"):
            made.check_cohort(least - 1)


def test_a_long_update_is_shortened_and_keeps_its_direction():
    rule = NormClipping(5.0)
    assert combined(rule, [[4.0, 5.0], [31.0, 42.0]], server=(1.0, 2.0)) == pytest.approx([4.0, 5.5])
    # moved by (3, 3), which is short enough, and by (30, 40), which becomes (3, 4)
    assert rule.clipped == [1]
    assert combined(rule, [[4.0, 5.0]], server=(1.0, 2.0)) == [4.0, 5.0]
    assert rule.clipped == []


def test_clipping_goes_before_another_rule():
    assert combined(NormClipping(5.0, Median()), [[3.0, 0.0], [300.0, 0.0], [4.0, 0.0]]) == [4.0, 0.0]


def test_a_trimmed_mean_says_that_it_leaves_out_nobody_of_few_clients():
    with pytest.warns(UserWarning, match="fraction"):
        TrimmedMean().check_cohort(9)
    with pytest.warns(UserWarning, match="cohort_size"):
        TrimmedMean().check_cohort(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TrimmedMean().check_cohort(10)
        TrimmedMean(0.112).check_cohort(9)
        TrimmedMean(0).check_cohort(2)  # a plain mean is asked for


RULES = [Median(), TrimmedMean(0.25), Krum(bad=0, keep=4), NormClipping(1e9)]  # of four clients


def test_every_robust_rule_of_the_kit_is_tried_below():
    assert {type(rule).__name__ for rule in RULES} == {name for name, kind in aggregators().items() if kind.robust}


@pytest.mark.parametrize("rule", RULES)
def test_half_precision_is_combined_in_float32_and_live_tensors_are_copied(rule):
    parameter = nn.Parameter(torch.ones(1, dtype=torch.float16))
    rule.start([torch.zeros(1, dtype=torch.float16)])
    for client in range(4):
        rule.add(client, [parameter], 1.0)
        with torch.no_grad():
            parameter.fill_(1 + 2**-10)
    (result,) = rule.result()
    assert result.dtype == torch.float32
    assert 1 <= result.item() <= 1 + 2**-10
    assert not result.requires_grad


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: NormClipping(0.0), "max_norm=0.0"),
        (lambda: NormClipping(1.0, PrivateMean(1.0, 1.0)), "PrivateMean clips updates itself"),
        (lambda: TrimmedMean(0.5), "fraction=0.5"),
        (lambda: Krum(bad=-1), "bad=-1, keep=1"),
        (lambda: Krum(keep=0), "bad=1, keep=0"),
    ],
)
def test_numbers_out_of_range_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


class Point(L.LightningModule):
    """Descends to the mean of its client's points; one client's points are far away."""

    def __init__(self):
        super().__init__()
        self.point = nn.Parameter(torch.zeros(2))

    def training_step(self, batch, batch_idx):
        return (batch[0] - self.point).square().sum(1).mean()

    def configure_optimizers(self):
        return torch.optim.SGD([self.point], 0.5)  # at the mean after one step


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (None, [201.6, 1.0]),
        (Median(), [2.0, 1.0]),
        (TrimmedMean(0.2), [7 / 3, 1.0]),
        (Krum(bad=1), [2.0, 1.0]),
        (NormClipping(2.5), None),
    ],
)
def test_one_bad_client_of_five_under_the_strategy(rule, expected):
    where = torch.tensor([[1.0, 1.0], [2.0, 1.0], [2.0, 1.0], [3.0, 1.0], [1000.0, 1.0]])
    own, names = torch.arange(5).repeat_interleave(4), tuple("abcde")
    examples = Examples(where[own], torch.zeros(20, dtype=torch.int64), "points", (), own, names)
    data = FederatedDataModule(examples, Natural(), batch_size=4, held_out=0.0, seed=0)
    model, strategy = Point(), FedAvgStrategy(communication_interval=1, aggregator=rule)
    quiet_trainer(strategy=strategy).fit(model, data)
    if expected is None:  # nobody moved further than 2.5 from the start
        assert float(model.point.detach().norm()) <= 2.5
    else:
        assert model.point.tolist() == pytest.approx(expected, rel=1e-5)
    assert isinstance(strategy.aggregator, Mean if rule is None else type(rule))


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_what_clients_would_send_past_a_robust_rule_is_refused(rule):
    """A mean of optimizer states or a sum of control variates would let one client set what the rule keeps it from."""
    past = {
        "optimizer_state='average' takes the plain mean .*: pass 'reset'": {"optimizer_state": "average"},
        "sums clients' control variates .*: leave it out": {"client_algorithm": Scaffold()},
    }
    for said, options in past.items():
        trainer = make_trainer(FedAvgStrategy(1, aggregator=rule, **options), 1)
        with pytest.raises(MisconfigurationException, match=f"{type(rule).__name__} bounds .* {said}"):
            trainer.fit(TwoOptimizers(), make_data())


def test_complex_tensors_are_measured_by_both_parts():
    def combined(rule, values):
        rule.start([torch.zeros(1, dtype=torch.complex64)])
        for client, value in enumerate(values):
            rule.add(client, [torch.tensor([value], dtype=torch.complex64)], weight=1.0)
        return rule.result()[0].item()

    assert combined(NormClipping(1.0), [3 + 4j]) == pytest.approx(0.6 + 0.8j)
    assert combined(Median(), [1 + 1j, 2 + 9j, 3 + 2j]) == 2 + 2j
    assert combined(TrimmedMean(0.4), [0j, 1 + 1j, 9j]) == 0 + 1j
    krum = Krum(bad=1)
    combined(krum, [0j, 0.1j, 0.2j, 0.3j, 100j])
    assert set(krum.remarks()) >= {4}


def test_the_rule_behind_clipping_keeps_its_state_in_checkpoints():
    class Counting(Mean):
        count = 0

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    rule = NormClipping(1.0, Counting())
    rule.load_state_dict({"count": 3})
    assert rule.then.count == 3
    assert rule.state_dict() == {"count": 3}
