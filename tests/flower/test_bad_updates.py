"""Clients elsewhere that fail or send bad updates, under the rules against them."""

import lightning as L
import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

from fedgen.federated.left_out import read_left_out
from tests.flower.loopback import Odd
from tests.flower.runs import deploy, node_of, recipe, same_weights, write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"), {"a": 12, "b": 25, "c": 16})


def with_odd(settings, images, folder, change, turns, config=()):
    """Deploys with client b's node odd; the last checkpoint."""
    odd = node_of(Odd, settings, images, folder, "b", change, turns, config=config)
    return deploy(settings, images, folder, {11: odd}, config)[0]


def rule(name, **settings):
    return {"aggregator": {"class_path": f"fedgen.federated.{name}", "init_args": settings}}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client 'b' is left out of round 1:UserWarning")
def test_a_node_that_vanishes_costs_krum_a_round_and_not_the_run(images, tmp_path):
    first, _ = deploy(recipe(1, **rule("Krum", bad=0)), images, tmp_path / "first")
    settings = recipe(2, **rule("Krum", bad=0))
    with pytest.warns(UserWarning, match="dropped"):
        found = with_odd(settings, images, tmp_path / "run", lambda *_: None, {1}, {"round-deadline": 0.5})
    assert found["epoch"] == 1
    assert [(one["round"], one["name"]) for one in found["fedavg"]["left_out"]] == [(1, "b"), (1, "a"), (1, "c")]
    same_weights(first, found, atol=0)


# ---- what looks right and is not ----


class Centre(L.LightningModule):
    """Goes half of the way to the mean of a batch's images in a step; starts at grey."""

    def __init__(self):
        super().__init__()
        self.point = nn.Parameter(torch.zeros(64))

    def training_step(self, batch, batch_idx):
        return (batch[0].flatten(1).mean(0) - self.point).square().sum()

    def configure_optimizers(self):
        return torch.optim.SGD([self.point], 0.25)


def point_of(message):
    return message.content.array_records["weights"].to_torch_state_dict()["point"]


def answers(change):
    """A reply with the point that `change` makes of what the client was sent and what it answers."""

    def changed(message, reply):
        reply.content["weights"] = ArrayRecord({"point": change(point_of(message), point_of(reply))})
        return reply

    return changed


ten_times = answers(lambda sent, own: sent + 10 * (own - sent))
stale = answers(lambda sent, own: torch.zeros(64))  # the weights of the first round


@pytest.mark.slow
def test_an_update_of_ten_times_the_norm_is_shortened_and_its_client_named(images, tmp_path):
    """Honest steps, half of the way to a client's mean, are all shorter than 5."""
    deployed = recipe(2, model={"class_path": f"{__name__}.Centre"}, **rule("NormClipping", max_norm=5.0))
    honest, _ = deploy(deployed, images, tmp_path / "honest")
    found = with_odd(deployed, images, tmp_path / "run", ten_times, {0})
    (entry,) = read_left_out(tmp_path / "run")
    assert (entry["round"], entry["client"], entry["name"], entry["kind"]) == (0, 1, "b", "remark")
    assert "shortened to 5" in entry["reason"]
    plain = recipe(2, model={"class_path": f"{__name__}.Centre"})
    moved = with_odd(plain, images, tmp_path / "mean", ten_times, {0})
    ends = [one["state_dict"]["point"] for one in (honest, found, moved)]
    assert (ends[1] - ends[0]).norm() < (ends[2] - ends[0]).norm() / 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Median", "TrimmedMean", "Krum"])
def test_bad_updates_are_reported_by_name_and_round(name, images, tmp_path):
    """Of client b ten times its update in the first round, and in the third one the weights of the first."""
    faults = {0: ten_times, 2: stale}
    left = iter(faults.values())
    settings = {"Median": {}, "TrimmedMean": {"fraction": 0.34}, "Krum": {"bad": 0}}[name]
    deployed = recipe(3, model={"class_path": f"{__name__}.Centre"}, **rule(name, **settings))
    found = with_odd(deployed, images, tmp_path / "run", lambda *sent: next(left)(*sent), set(faults))
    assert found["fedavg"]["left_out"] == []
    report = read_left_out(tmp_path / "run")
    assert report == found["fedavg"]["remarks"]
    assert all(entry["kind"] == "remark" for entry in report)
    far = [(one["round"], one["client"], one["name"]) for one in report if "away from the combined" in one["reason"]]
    assert far == [(round, 1, "b") for round in faults]
