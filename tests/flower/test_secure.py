"""Secure aggregation: the server's mean is the simulation's, and it sees no client's update."""

import csv

import pytest
import torch
from flwr.app import ArrayRecord
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.federated import Mean
from fedgen.flower.server import connection
from tests.federated.kit_rules import aggregators
from tests.flower.loopback import Node, Odd, empty, keep_replies
from tests.flower.runs import HIDDEN, deploy, node_of, recipe, same_weights, simulate, write_images
from tests.flower.test_bad_updates import rule
from tests.flower.test_stage_replies import noise, with_parts

INTERVAL = 3  # of the recipes


class WithoutB(Mean):
    """The mean without client 1."""

    def add(self, client, update, weight):
        if client != 1:
            super().add(client, update, weight)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"), {"a": 12, "b": 25, "c": 16})


def simulated_round(images, folder, **options):
    """A simulated round of clients that all weigh the same."""
    return simulate(recipe(1, client_weights="uniform", **options), images, folder)


@pytest.fixture(scope="module")
def with_all(images, tmp_path_factory):
    return simulated_round(images, tmp_path_factory.mktemp("all"))


@pytest.fixture(scope="module")
def without_b(images, tmp_path_factory):
    own = {"class_path": "tests.flower.test_secure.WithoutB"}
    return simulated_round(images, tmp_path_factory.mktemp("without-b"), aggregator=own)


@pytest.fixture
def heard(monkeypatch):
    """Every reply that reaches the server."""
    return keep_replies(monkeypatch)


def with_log(settings, folder):
    """The recipe with a logger in a folder."""
    own = {"save_dir": str(folder), "name": "", "version": ""}
    settings["trainer"]["logger"] = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": own}
    return settings


def logged_quantisation(folder):
    """A round's step and error."""
    with (folder / "metrics.csv").open() as file:
        (row,) = [row for row in csv.DictReader(file) if row["quantisation_error"]]
    step, error = float(row["quantisation_step"]), float(row["quantisation_error"])
    assert step == pytest.approx(2 * 0.5 / 2**22)
    return step, error


@pytest.mark.slow
def test_the_mean_is_the_simulations_to_the_stated_step_and_the_server_sees_no_update(images, tmp_path, heard):
    settings = recipe(1)
    simulated = simulate(settings, images, tmp_path / "simulated")
    deployed, _ = deploy(with_log(settings, tmp_path / "logs"), images, tmp_path / "deployed", config=HIDDEN)
    step, error = logged_quantisation(tmp_path / "logs")
    # a step for each of three clients, wider by the largest weight over the mean one, and the weights' own rounding
    assert 3 / (42 / 20) < error / step < 4.5 / (42 / 20)
    same_weights(simulated, deployed, atol=error + 1e-7, interval=INTERVAL)  # float32's own
    assert deployed["fedavg"]["left_out"] == []
    masked = [reply for reply in heard if "masked_params" in str(reply.content.config_records)]
    assert len(masked) == 3
    for reply in heard:
        for record in reply.content.array_records.values():
            assert isinstance(record, ArrayRecord)
            assert sum(tensor.numel() for tensor in record.to_torch_state_dict().values()) == 0


@pytest.mark.slow
def test_a_model_in_bfloat16_is_averaged(images, tmp_path):
    settings = recipe(1, client_weights="uniform")
    settings["trainer"]["precision"] = "bf16-true"
    simulated = simulate(settings, images, tmp_path / "simulated")
    deployed, _ = deploy(settings, images, tmp_path / "deployed", config=HIDDEN)
    assert {tensor.dtype for tensor in deployed["state_dict"].values()} >= {torch.bfloat16}
    assert deployed["fedavg"]["left_out"] == []
    same_weights(simulated, deployed, atol=2**-8, interval=INTERVAL)  # of numbers below 1


@pytest.mark.slow
def test_a_complex_model_is_averaged_in_both_parts(images, tmp_path):
    """A step halves the distance to 1 + 1j, for every client."""
    settings = recipe(1, model={"class_path": "tests.federated.test_strategy.Complex"}, client_weights="uniform")
    deployed, _ = deploy(settings, images, tmp_path / "run", config={**HIDDEN, "update-range": 1.0})
    assert deployed["state_dict"]["w"].tolist() == pytest.approx([0.875 + 0.875j] * 2, abs=1e-6)


class Failing(Node):
    """A node whose turn cannot be taken."""

    def answer(self, message, number):
        if "fitins.parameters" in message.content.array_records:
            raise MemoryError("full")
        return super().answer(message, number)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:client 'b' is left out of round:UserWarning", "ignore:round 0, client 'b'. its reply:UserWarning"
)
@pytest.mark.parametrize("stage", range(4))
def test_a_round_goes_on_without_a_client_whose_reply_to_a_stage_is_empty(stage, with_all, without_b, images, tmp_path):
    """From the last stage its update is in the sum, as the others' shares unmask it."""
    settings = recipe(1, client_weights="uniform")
    run, change = tmp_path / "run", lambda message, _: empty(message)
    odd = {11: node_of(Odd, settings, images, run, "b", change, {stage}, config=HIDDEN)}
    found, _ = deploy(settings, images, run, odd, config=HIDDEN)
    left_out = {one["name"]: one["reason"] for one in found["fedavg"]["left_out"]}
    last = stage == 3
    assert left_out.keys() == (set() if last else {"b"})
    assert last or "of secure aggregation is unusable: " in left_out["b"]
    same_weights(with_all if last else without_b, found, atol=3 * 2 * 0.5 / 2**22, interval=INTERVAL)


class Deaf(Node):
    """A node from which nothing comes when it is first asked to train."""

    def answer(self, message, number):
        reply = super().answer(message, number)
        return None if message.metadata.message_type == "train" and self.calls.count("train") == 1 else reply


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:nothing came from any client of round 0:UserWarning")
def test_a_round_from_which_nothing_comes_is_asked_for_again(with_all, images, tmp_path, monkeypatch):
    """Of equal weights, a step for each client is the error."""
    monkeypatch.setattr(connection, "AGAIN", 0.01)
    settings = with_log(recipe(1, client_weights="uniform"), tmp_path / "logs")
    config = {**HIDDEN, "round-deadline": 0.5, "wait": 60.0}
    run = tmp_path / "run"
    nodes = {10 + k: node_of(Deaf, settings, images, run, name, config=config) for k, name in enumerate("abc")}
    found, _ = deploy(settings, images, run, nodes, config=config)
    assert found["fedavg"]["left_out"] == []
    step, error = logged_quantisation(tmp_path / "logs")
    assert error == pytest.approx(step)
    same_weights(with_all, found, atol=error + 1e-7, interval=INTERVAL)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:client 'b' is left out of round:UserWarning",
    "ignore:no sum is made of what clients sent:UserWarning",
    "ignore:nothing came from any client of round 0:UserWarning",
)
def test_a_client_that_drops_out_leaves_the_others_mean_also_of_a_round_whose_sum_is_spoilt_and_asked_for_again(
    with_all, without_b, images, tmp_path, monkeypatch
):
    monkeypatch.setattr(connection, "AGAIN", 0.01)
    settings, config = recipe(1, client_weights="uniform"), {**HIDDEN, "wait": 60.0}
    own, spoils = (settings, images, tmp_path / "run"), with_parts(masked_params=noise)
    failing, odd = node_of(Failing, *own, "b", config=config), node_of(Odd, *own, "c", spoils, {2}, config=config)
    found, _ = deploy(*own, {11: failing, 12: odd}, config=config)
    assert [one["name"] for one in found["fedavg"]["left_out"]] == ["b"]
    step = 2 * 0.5 / 2**22
    floats = {name: tensor for name, tensor in found["state_dict"].items() if tensor.is_floating_point()}
    assert max((with_all["state_dict"][name] - tensor).abs().max() for name, tensor in floats.items()) > 100 * step
    same_weights(without_b, found, atol=3 * step, interval=INTERVAL)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* update was beyond update-range:UserWarning")
def test_what_is_beyond_the_range_is_cut_off_and_said(images, tmp_path):
    with pytest.warns(UserWarning, match="update"):
        deploy(recipe(1), images, tmp_path / "run", config={**HIDDEN, "update-range": 1e-4})


REFUSED = {
    "Median": (rule("Median"), {}, "Median, which looks at each"),
    "TrimmedMean": (rule("TrimmedMean", fraction=0.25), {}, "TrimmedMean, which looks at each"),
    "Krum": (rule("Krum", bad=0), {}, "Krum, which looks at each"),
    "NormClipping": (rule("NormClipping", max_norm=1.0), {}, "NormClipping, which looks at each"),
    "QFedAvg": (rule("QFedAvg", q=1.0, lr=0.1), {}, "QFedAvg, which looks at each"),
    "private": (
        {
            "aggregator": {
                "class_path": "fedgen.federated.PrivateMean",
                "init_args": {"max_norm": 1, "noise_multiplier": 1},
            },
            "client_weights": "uniform",
        },
        {},
        "PrivateMean, which looks at each",
    ),
    "optimizers": ({"optimizer_state": "average"}, {}, "optimizer_state='reset'"),
    "variates": ({"client_algorithm": {"class_path": "fedgen.federated.Scaffold"}}, {}, "control variates"),
    "compression": (
        {"compression": {"class_path": "fedgen.federated.compression.QSGD"}},
        {},
        "compression=QSGD: compressed messages cannot be summed",
    ),
    "samplers": (
        {"sampler": {"class_path": "fedgen.clients.samplers.SizeSampler"}, "client_weights": "uniform"},
        {},
        "leave `sampler` out",
    ),
    "no range": ({}, {"update-range": 0.0}, "by how much an entry"),
}


def test_of_the_kits_aggregators_the_mean_alone_needs_no_single_updates():
    named = {said.partition(",")[0] for *_, said in REFUSED.values() if said.endswith("looks at each")}
    assert named == set(aggregators()) - {"Mean"}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_single_updates_is_refused_at_start(name, images, tmp_path):
    variant, config, said = REFUSED[name]
    with pytest.raises(MisconfigurationException, match=said):
        deploy(recipe(1, **variant), images, tmp_path / "run", config={**HIDDEN, **config})
