"""A federation over Flower's messages trains the model that its simulation trains."""

import re
import shutil
import warnings

import lightning as L
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.evaluation import read_records
from fedgen.flower.app.app_sides import run_server
from fedgen.flower.app.apps import client_app
from fedgen.flower.server.client_registry import ClientRegistry
from fedgen.flower.wire.serialization import from_bytes
from fedgen.statistics.statistic_messages import MessageError
from tests.flower.loopback import Loopback, Node, Odd
from tests.flower.runs import (
    NOISE,
    app_of,
    deploy,
    go_back,
    node_of,
    read,
    recipe,
    same_weights,
    scores_of,
    simulate,
    small_gan,
    write_images,
)

FEDERATED = "fedgen.federated"
# some rules together: the model is the simulation's only if each of them does what it does there
VARIANTS = {
    "cohort, uniform, sparse, server adam, schedules": {
        "cohort_size": 2,
        "compression": {"class_path": f"{FEDERATED}.compression.TopK"},
        "client_weights": "uniform",
        "server_optimizer": {"class_path": f"{FEDERATED}.FedAdam", "init_args": {"lr": 0.01}},
        "client_schedule": {"class_path": f"{FEDERATED}.ExponentialDecay", "init_args": {"rate": 0.5, "rounds": 1}},
        "server_schedule": {"class_path": f"{FEDERATED}.ExponentialDecay", "init_args": {"rate": 0.9, "rounds": 1}},
    },
    "median, fedrep, lazy layers": {
        "aggregator": {"class_path": f"{FEDERATED}.Median"},
        "client_algorithm": {"class_path": f"{FEDERATED}.FedRep", "init_args": {"head_steps": 1}},
        "personal": ["net.4.*"],
        "model": {"class_path": "tests.flower.stateful.Lazy"},
    },
    "quantised, shifts": {
        "compression": {"class_path": f"{FEDERATED}.compression.QSGD", "init_args": {"bits": 4}},
        "sampler": {
            "class_path": "fedgen.clients.samplers.AvailabilitySampler",
            "init_args": {"trace": {"class_path": "tests.flower.stateful.Second"}},
        },
        "cohort_size": 2,
    },
    "signs, by size": {
        "compression": {"class_path": f"{FEDERATED}.compression.ScaledSign"},
        "sampler": {"class_path": "fedgen.clients.samplers.SizeSampler"},
        "client_weights": "uniform",
        "optimizer_state": "average",
        "cohort_size": 2,
    },
    "low rank, keep, personal, prox": {
        "compression": {"class_path": f"{FEDERATED}.compression.PowerSGD"},
        "optimizer_state": "keep",
        "personal": ["critic.*"],
        "client_algorithm": {"class_path": f"{FEDERATED}.FedProx", "init_args": {"mu": 0.1}},
        "cohort_size": 2,
    },
    "scaffold, generator trained by the server": {
        "client_algorithm": {"class_path": f"{FEDERATED}.Scaffold"},
        "cohort_size": 2,
        "model": small_gan(generator_trained_by="server"),
    },
}
FAIR = {
    "aggregator": {"class_path": f"{FEDERATED}.QFedAvg", "init_args": {"q": 1.0, "lr": 0.1}},
    "model": {"class_path": "tests.flower.stateful.Stateful"},
}
# what a round has of the one before is in the second; some variants say in the third who trains, or keep more
ROUNDS = dict.fromkeys(("quantised, shifts", "cohort, uniform, sparse, server adam, schedules"), 3)
TURNS = {"signs, by size": 3, "quantised, shifts": 3}  # where not all of a cohort's size train


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"), {"a": 12, "b": 25, "c": 16})


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_the_model_is_that_of_the_simulation(name, images, tmp_path):
    rounds = ROUNDS.get(name, 2)
    settings = recipe(rounds, **VARIANTS[name])
    simulated = simulate(settings, images, tmp_path / "simulated")
    deployed, grid = deploy(settings, images, tmp_path / "deployed")
    same_weights(simulated, deployed)
    assert deployed["fedavg"]["iterations"] == simulated["fedavg"]["iterations"]
    trained = sum(node.calls.count("train") for node in grid.nodes.values())
    assert trained == TURNS.get(name, rounds * VARIANTS[name].get("cohort_size", 3))
    assert deployed["fedavg"]["left_out"] == []


@pytest.mark.slow
def test_clocks_and_counters_are_those_of_the_simulation_under_a_rule_that_weighs_by_losses(images, tmp_path):
    settings = recipe(2, **FAIR)
    simulated = simulate(settings, images, tmp_path / "simulated")
    deployed, _ = deploy(settings, images, tmp_path / "deployed")
    assert simulated["global_step"] == deployed["global_step"] == 2 * 3
    outside = [one["fedavg"]["outside"]["values"] for one in (simulated, deployed)]
    heats = [values.pop("heat") for values in outside]
    assert heats == [pytest.approx(heats[1])] * 2
    assert heats[1] < 0.9**6  # six times some 0.8
    assert outside == [{"steps": 6}] * 2
    drawn = [one["fedavg"]["local"]["continuing"]["1.num_generated"] for one in (simulated, deployed)]
    assert drawn == [2 * 3] * 2
    assert simulated["fedavg"]["clock"] == deployed["fedavg"]["clock"] == {"total_steps": 2 * 3 * 3}
    assert simulated["fedavg"]["exchange"] == deployed["fedavg"]["exchange"] == {"moving": ["average", "shift"]}
    rates = [one["lr_schedulers"][0]["_last_lr"] for one in (simulated, deployed)]
    assert rates[0] == rates[1] == [0.0]
    same_weights(simulated, deployed)


@pytest.mark.slow
def test_losses_are_refused_where_a_run_promises_privacy(images, tmp_path):
    with pytest.raises(MisconfigurationException, match="QFedAvg"):
        deploy(recipe(1, **FAIR), images, tmp_path / "run", config=NOISE)


@pytest.mark.slow
def test_means_outside_state_dict_are_those_of_the_simulation(images, tmp_path):
    settings = recipe(2, model={"class_path": "tests.flower.stateful.Annealed"})
    simulated = simulate(settings, images, tmp_path / "simulated")
    deployed, _ = deploy(settings, images, tmp_path / "deployed")
    values = [one["fedavg"]["outside"]["values"] for one in (simulated, deployed)]
    assert set(values[0]) == {"heat", "average.shadow.0"}
    assert 0 < values[0]["heat"] == values[1]["heat"] < 1
    assert torch.equal(values[0]["average.shadow.0"], values[1]["average.shadow.0"])
    same_weights(simulated, deployed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client ")
def test_a_mean_that_the_server_has_no_place_for_is_named_with_the_remedy(images, tmp_path):
    settings = recipe(1, model={"class_path": "tests.flower.stateful.Late"})
    with pytest.raises(RuntimeError, match="mean"):
        deploy(settings, images, tmp_path / "deployed")


@pytest.mark.slow
def test_lazy_layers_of_batches_that_a_server_cannot_make_are_refused(images, tmp_path):
    settings = recipe(1, model={"class_path": "tests.flower.stateful.LazyOfTexts"})
    with pytest.raises(MisconfigurationException, match="uninitialised"):
        deploy(settings, images, tmp_path / "deployed")


@pytest.mark.slow
def test_clients_own_models_stay_with_them_and_are_those_of_the_simulation(images, tmp_path):
    """In each client's state folder, also of a run that goes on; none is in the server's checkpoint."""
    settings = [recipe(rounds, client_algorithm=ditto(), cohort_size=2) for rounds in (2, 3)]
    expected = simulate(settings[1], images, tmp_path / "simulated")
    _, (deployed, _) = (deploy(one, images, tmp_path / "run") for one in settings)
    same_weights(expected, deployed)
    assert deployed["fedavg"]["iterations"] == expected["fedavg"]["iterations"]
    simulated = expected["fedavg"]["algorithm"]["clients"]
    assert deployed["fedavg"]["algorithm"]["clients"] == {}
    assert sorted(simulated) == [0, 1, 2]
    for number, name in enumerate("abc"):
        path = max((tmp_path / f"run-{name}").rglob("round=*.safetensors"))
        kept = from_bytes(path.read_bytes(), str(path), sealed=True)["algorithm"]["clients"]
        assert kept.keys() == {number}
        for key, value in simulated[number].items():
            torch.testing.assert_close(kept[number][key], value, rtol=0, atol=5e-6)


def ditto(**options):
    return {"class_path": f"{FEDERATED}.Ditto", "init_args": options}


@pytest.mark.slow
def test_scores_of_own_models_are_refused(images, tmp_path):
    scores = {"every_n_rounds": 1, "num_images": 60, "embeddings": ["pixels"], "scores": ["fid"]}
    with pytest.raises(MisconfigurationException, match="themselves"):
        deploy(recipe(1, scores, client_algorithm=ditto()), images, tmp_path / "own")


@pytest.mark.slow
def test_a_damaged_last_checkpoint_is_named_and_the_one_before_it_is_used_when_asked(images, tmp_path):
    """Its server asks for the last round anew, which clients have taken already: it is the same."""
    keeping = {"class_path": "fedgen.callbacks.RoundCheckpoint", "init_args": {"every_n_rounds": 1}}
    settings = recipe(2, **KEEPING)
    settings["trainer"]["callbacks"].append(keeping)
    straight, _ = deploy(settings, images, tmp_path / "run")
    last = tmp_path / "run" / "last.ckpt"
    last.unlink()  # a link to the round's own
    last.write_bytes((tmp_path / "run" / "round=00001.ckpt").read_bytes()[:-1000])
    remedy = """--run-config 'ckpt-path="previous"' resumes from round=00001.ckpt, the one before it"""
    with pytest.raises(ValueError, match=re.escape(remedy)):
        deploy(settings, images, tmp_path / "run")
    (tmp_path / "run" / "round=00001.ckpt").unlink()
    again, grid = deploy(settings, images, tmp_path / "run", config={"ckpt-path": "previous"})
    assert straight["epoch"] == again["epoch"]
    assert sum(node.calls.count("train") for node in grid.nodes.values()) == 3
    same_weights(straight, again, atol=0)


@pytest.mark.slow
def test_scores_are_those_of_the_simulation_also_where_clients_have_models_of_their_own(images, tmp_path):
    scores = {"every_n_rounds": 1, "num_images": 60, "embeddings": ["pixels"], "scores": ["fid", "kid", "kid-rbf"]}
    settings = recipe(1, evaluation=scores, client_algorithm=ditto(scored="server"))
    simulate(settings, images, tmp_path / "simulated")
    deploy(settings, images, tmp_path / "deployed")
    found = [scores_of(tmp_path / run) for run in ("simulated", "deployed")]
    assert found[0].keys() == found[1].keys()
    assert len(found[0]) == 2 * 3 * 3
    for (split, name), value in found[0].items():
        estimated = name in ("kid_all", "kid-rbf_all")  # the constant that a sketch estimates
        assert found[1][split, name] == pytest.approx(value, rel=2e-2 if estimated else 1e-4), (split, name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:c did not come:UserWarning", "ignore:client 'c' is left out:UserWarning")
@pytest.mark.filterwarnings("ignore:.*is of no use:UserWarning", "ignore:kid are left out of this:UserWarning")
def test_a_run_whose_client_has_left_for_good_goes_on_with_what_that_client_told(images, tmp_path):
    scores = {"every_n_rounds": 1, "num_images": 60, "embeddings": ["pixels"]}
    deploy(recipe(1, scores), images, tmp_path / "run")
    told = {path: path.read_bytes() for path in (tmp_path / "run" / "told").iterdir()}
    assert len(told) == 3 * 2 * 2  # a summary and a sketch of two splits
    others = shutil.copytree(images, tmp_path / "others", ignore=shutil.ignore_patterns("c"))
    found, grid = deploy(recipe(2, scores), others, tmp_path / "run", config={"wait": 0.2})
    assert found["epoch"] == 1
    assert sum(node.calls.count("evaluate") for node in grid.nodes.values()) == 2  # the last round's KID, of each
    last = {r.name: r for r in read_records(tmp_path / "run" / "scores.jsonl") if r.round == 1 and r.split == "train"}
    assert {"fid_avg", "fid_all"} <= last.keys()
    assert not any(name.startswith("kid") for name in last)
    assert last["fid_avg"].num_clients == 3
    assert {path: path.read_bytes() for path in told} == told
    path = min(told)
    path.write_bytes(told[path][:-100])
    with pytest.raises(MessageError, match="client 'c'"):  # what is damaged is asked for again
        deploy(recipe(3, scores), others, tmp_path / "run", config={"wait": 0.2})


@pytest.mark.slow
@pytest.mark.usefixtures("by_flowers_simulation")
@pytest.mark.filterwarnings("ignore:node 13 cannot take part:UserWarning")
def test_simulated_nodes_take_the_folders_in_order(images, tmp_path):
    """Nodes of Flower's simulation have a number and no folder; what clients keep lies beside their folders, hidden."""
    copied = shutil.copytree(images, tmp_path / "clients")
    settings = recipe(1, **KEEPING)
    run = {"clients": 3, "output": str(tmp_path / "run"), "wait": 1.0, "simulation-data": str(copied)}
    path = app_of(settings, tmp_path / "app", 3)
    nodes = {10 + k: Node(client_app(path), {"partition-id": k, "num-partitions": 4}, run) for k in range(4)}
    run_server(path, Loopback(nodes), run)
    assert len([one for one in copied.iterdir() if one.name.startswith(".")]) == 3
    same_weights(simulate(settings, images, tmp_path / "simulated"), read(tmp_path / "run"))


# ---- clients that fail ----


def weights_of(reply):
    return reply.content.array_records["weights"]


def changed(change):
    """A reply whose first tensor of weights is changed."""

    def breaks(reply):
        state = weights_of(reply).to_torch_state_dict()
        name = next(iter(state))
        state[name] = change(state[name])
        reply.content["weights"] = ArrayRecord(state)
        return reply

    return breaks


def raises(reply):
    raise MemoryError("the client's machine is full")


def garbage(reply):
    reply.content["fedgen"] = ConfigRecord({"rest": b"no message", "dtypes": []})
    return reply


FAULTS = {
    "raises": (raises, "MemoryError: the client's machine is full"),
    "vanishes": (lambda reply: None, "it did not answer within 0.5 seconds"),
    "nan": (changed(lambda t: t * float("nan")), "holds NaN or infinity"),
    "shape": (changed(lambda t: t[:1]), "is torch.float32 [1"),
    "dtype": (changed(lambda t: t.double()), "is torch.float64"),
    "garbage": (garbage, "the answer cannot be read"),
}


def left_out_of(images, folder, faults):
    """Who was left out, by round and name, with the reason, where clients' turns of rounds 1 and 2 have faults."""
    settings, nodes = recipe(3, optimizer_state="average"), {}
    for number, name in enumerate("abcd", 10):
        if name in faults:
            breaks = iter([FAULTS[fault][0] for fault in faults[name]])
            change = lambda _, reply, breaks=breaks: next(breaks)(reply)  # noqa: E731
            nodes[number] = node_of(Odd, settings, images, folder, name, change, turns=(1, 2))
    found, _ = deploy(settings, images, folder, nodes, config={"round-deadline": 0.5})
    assert all(torch.isfinite(t).all() for t in found["state_dict"].values() if t.is_floating_point())
    assert found["epoch"] == 2
    return {(one["round"], one["name"]): one["reason"] for one in found["fedavg"]["left_out"]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client .* is left out of round:UserWarning")
def test_a_round_goes_on_without_clients_that_fail_each_in_its_own_way(tmp_path):
    images = write_images(tmp_path / "clients")
    faults = {"b": ("vanishes", "nan"), "c": ("shape", "dtype"), "d": ("garbage", "raises")}
    assert {fault for both in faults.values() for fault in both} == FAULTS.keys()
    found = left_out_of(images, tmp_path / "run", faults)
    assert found.keys() == {(round, name) for round in (1, 2) for name in faults}
    for (round, name), reason in found.items():
        assert FAULTS[faults[name][round - 1]][1] in reason, (round, name)


class FailsInRoundOne(L.Callback):
    """Ends client b's turn of round 1 in an error."""

    def on_before_optimizer_step(self, trainer, module, optimizer):
        if trainer.current_epoch == 1 and trainer.strategy.round.turn.client == 1:
            raise RuntimeError("this turn fails")


KEEPING = {"optimizer_state": "keep", "personal": ["critic.*"]}


@pytest.fixture(scope="module")
def failing(images, tmp_path_factory):
    """The simulation of three rounds under `KEEPING` in which client b's turn of round 1 fails."""
    settings = recipe(3, **KEEPING)
    settings["trainer"]["callbacks"] = [{"class_path": f"{__name__}.FailsInRoundOne"}]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "client 'b' is left out of round 1")
        return simulate(settings, images, tmp_path_factory.mktemp("failing"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client 'b' is left out of round 1:UserWarning")
def test_a_turn_that_the_server_does_not_hear_of_in_time_is_void_for_its_client_too_whose_next_is_counted(
    failing, images, tmp_path, monkeypatch
):
    """Its answer is there when it is asked for round 2, and nobody takes it for that of round 2."""
    push, pull, asked, late = Loopback._push, Loopback.pull_messages, [], set()

    def held_back(self, message):
        name, node = push(self, message), message.metadata.dst_node_id
        if (node, message.metadata.message_type) == (11, "train"):
            asked.append(name)
            late.clear()
            late.update([name] if len(asked) == 2 else [])
        return name

    monkeypatch.setattr(Loopback, "_push", held_back)
    monkeypatch.setattr(Loopback, "pull_messages", lambda self, names: pull(self, [n for n in names if n not in late]))
    found, grid = deploy(recipe(3, **KEEPING), images, tmp_path / "run", config={"round-deadline": 0.5})
    (entry,) = found["fedavg"]["left_out"]
    assert [(one["round"], one["name"]) for one in (entry, *failing["fedavg"]["left_out"])] == [(1, "b")] * 2
    assert entry["reason"].endswith("it did not answer within 0.5 seconds")
    assert grid.replies.keys() == {asked[1]}
    assert found["fedavg"]["iterations"] == failing["fedavg"]["iterations"]
    same_weights(failing, found)


@pytest.mark.slow
def test_a_server_may_go_back_by_rounds_where_clients_keep_nothing(images, tmp_path):
    settings = recipe(2)
    first = go_back(settings, images, tmp_path / "run")
    again, _ = deploy(settings, images, tmp_path / "run")
    same_weights(first, again, atol=0)
    assert again["fedavg"]["iterations"] == first["fedavg"]["iterations"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client .* is left out of round 2:UserWarning")
def test_a_server_that_goes_back_further_than_clients_remember_is_told_so(images, tmp_path):
    settings = recipe(3, **KEEPING)
    go_back(settings, images, tmp_path / "run")
    with (
        pytest.warns(UserWarning, match="iterations"),
        pytest.raises(RuntimeError, match="left"),
    ):
        deploy(settings, images, tmp_path / "run")
    for name in "abc":
        shutil.rmtree(tmp_path / f"run-{name}")
    settings["trainer"]["max_epochs"] = 2
    with pytest.warns(UserWarning, match="iterations"):
        found, _ = deploy(settings, images, tmp_path / "run")
    assert found["epoch"] == 1


class Deaf(Node):
    """A node from which nothing comes the second and third time that it is asked to train."""

    def answer(self, message, number):
        reply = super().answer(message, number)
        return None if self.calls.count("train") in (2, 3) and message.metadata.message_type == "train" else reply


def deaf(settings, images, folder):
    """The nodes of a federation whose line is cut for a while."""
    return {10 + k: node_of(Deaf, settings, images, folder / "run", name) for k, name in enumerate("abc")}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:nothing came from any client of round 1 .it did not answer within:UserWarning")
def test_a_round_from_which_nothing_comes_is_asked_for_again(images, tmp_path, monkeypatch):
    monkeypatch.setattr("fedgen.flower.server.connection.AGAIN", 0.01)
    settings = recipe(2, optimizer_state="keep")
    config = {"round-deadline": 0.5, "wait": 60.0}
    found, _ = deploy(settings, images, tmp_path / "run", deaf(settings, images, tmp_path), config)
    assert found["fedavg"]["left_out"] == []
    same_weights(simulate(settings, images, tmp_path / "simulated"), found)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client .* is left out of round 1:UserWarning")
def test_a_server_that_nobody_hears_ends_and_keeps_its_rounds(images, tmp_path):
    settings = recipe(2)
    config = {"round-deadline": 0.2, "wait": 0.0}
    with pytest.raises(RuntimeError, match="left"):
        deploy(settings, images, tmp_path / "run", deaf(settings, images, tmp_path), config)
    assert read(tmp_path / "run")["epoch"] == 0


@pytest.mark.slow
def test_a_client_with_another_release_is_named(images, tmp_path, monkeypatch):
    monkeypatch.setattr("fedgen.flower.server.client_registry.__version__", "9.9")
    path = app_of(recipe(1), tmp_path / "app", 1)
    node = Node(client_app(path), {"data-path": str(images / "a"), "state-path": str(tmp_path / "a")}, {})
    with pytest.warns(UserWarning, match="install"):
        ClientRegistry(Loopback({7: node})).wait_for_clients(tmp_path, 1, 1.0)
