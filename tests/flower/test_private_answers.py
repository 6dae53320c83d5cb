"""What clients' answers say beside their weights: nothing that the server knows better, nothing under a promise."""

import csv
from dataclasses import replace

import pytest
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.clients import sample_cohort
from fedgen.federated.aggregators.private_mean import Participations
from fedgen.flower.client.client_node import is_promised
from fedgen.flower.server.flower_strategy import RESERVED
from fedgen.flower.wire.flower_records import METRICS, from_records, to_records
from fedgen.flower.wire.messages import Answer
from fedgen.models import WGANGP
from fedgen.statistics import spent_epsilon
from tests.flower.loopback import Node, keep_replies
from tests.flower.runs import HIDDEN, NOISE, deploy, go_back, node_of, recipe, simulate, write_images

MEAN = {"max_norm": 0.5, "noise_multiplier": 2.0, "delta": 1e-3}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"), {"a": 12, "b": 25, "c": 16})


def private(noise="secret"):
    """Settings of a strategy of two clients a round, of three."""
    aggregator = {"class_path": "fedgen.federated.PrivateMean", "init_args": {**MEAN, "noise": noise}}
    return {"cohort_size": 2, "client_weights": "uniform", "aggregator": aggregator}


def logging(settings, folder):
    """The recipe with a logger in a folder."""
    own = {"save_dir": str(folder), "name": "", "version": ""}
    logger = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": own}
    return {**settings, "trainer": {**settings["trainer"], "logger": logger}}


def logged(folder, *names):
    """All values of each name in a logger's file, in order."""
    with (folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows if row.get(name)] for name in names}


def spent(rounds):
    """The epsilon of the client drawn most often in these rounds."""
    drawn = [client for round in rounds for client in sample_cohort(3, 2, 3, round)]
    return spent_epsilon([MEAN["noise_multiplier"] / 2] * max(map(drawn.count, drawn)), MEAN["delta"], "rdp")


class Liar(Node):
    """A node that says of its turns what it likes."""

    def __init__(self, app, config, run, **metrics):
        super().__init__(app, config, run)
        self.metrics = metrics

    def answer(self, message, number):
        reply = super().answer(message, number)
        if message.metadata.message_type == "train":
            answer = from_records(Answer, reply)
            reply.content = to_records(replace(answer, metrics={**answer.metrics, **self.metrics}))
        return reply


def with_liars(settings, images, folder, **metrics):
    """Deploys with clients a and b lying."""
    nodes = {10 + k: node_of(Liar, settings, images, folder, name, **metrics) for k, name in enumerate("ab")}
    return deploy(settings, images, folder, nodes)


# ---- what the server knows better ----


@pytest.mark.slow
def test_epsilon_is_the_simulations_in_every_round_whatever_clients_say(images, tmp_path):
    names = ("epsilon", "delta")
    simulate(logging(recipe(3, **private("seeded")), tmp_path / "simulated-logs"), images, tmp_path / "simulated")
    expected = logged(tmp_path / "simulated-logs", *names)
    assert expected["epsilon"] == pytest.approx([spent(range(rounds)) for rounds in range(1, 4)])
    assert len(set(expected["epsilon"])) > 1
    assert expected["delta"] == [pytest.approx(1e-3)] * 3

    lies = {"epsilon": 0.01, "delta": 1e-9, "clipped": 0.5}
    with_liars(logging(recipe(3, **private()), tmp_path / "forged-logs"), images, tmp_path / "forged", **lies)
    assert logged(tmp_path / "forged-logs", *names) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Experiment logs directory:UserWarning")
def test_rounds_that_a_deployed_run_does_again_are_counted_and_who_was_clipped_is_not_told(images, tmp_path):
    """From a checkpoint of round 0 on: rounds 1 and 2 get fresh noise, so they are further releases."""
    whole = logging(recipe(3, **private()), tmp_path / "logs")
    go_back(whole, images, tmp_path / "run")
    deploy(whole, images, tmp_path / "run")
    found = logged(tmp_path / "logs", "epsilon", "clipped")
    assert found["epsilon"] == pytest.approx([spent([0, 1, 2, 1]), spent([0, 1, 2, 1, 2])])
    assert found["clipped"] == []
    assert list(tmp_path.rglob("releases.json")) == [tmp_path / "run" / "releases.json"]  # clients count nothing


@pytest.mark.slow
def test_what_a_simulation_released_where_a_client_works_is_not_the_deployments_affair(images, tmp_path):
    Participations(7, 2, seed=0).save(tmp_path / "simulated", noise_multiplier=1.0)
    settings = recipe(1, **private())
    settings["trainer"]["default_root_dir"] = str(tmp_path / "simulated")
    found, _ = deploy(settings, images, tmp_path / "run")
    assert found["fedavg"]["left_out"] == []


@pytest.mark.slow
def test_a_client_has_no_say_in_what_the_server_logs(images, tmp_path):
    schedule = {"class_path": "fedgen.federated.ExponentialDecay", "init_args": {"rate": 0.5, "rounds": 1}}
    scores = {"every_n_rounds": 2, "num_images": 20, "embeddings": ["pixels"], "scores": ["fid"]}
    settings = logging(recipe(2, scores, client_schedule=schedule), tmp_path / "logs")
    lies = {"client_lr_factor": 99.0, "fid_avg": 1e-3, "report/fid_all": 1e-3, "epoch": 77.0, "critic_loss": 3.0}
    reserved = dict.fromkeys(RESERVED - {"epoch", "step"}, 1e-3)
    with_liars(settings, images, tmp_path / "run", **lies, **reserved)
    assert not any(logged(tmp_path / "logs", *reserved).values())
    found = logged(tmp_path / "logs", "client_lr_factor", "fid_avg", "report/fid_all", "critic_loss", "epoch")
    assert found["client_lr_factor"] == [1.0, 0.5]
    assert len(found["fid_avg"]) == len(found["report/fid_all"]) == 1
    assert found["fid_avg"][0] > 0.1
    assert len(found["critic_loss"]) == 2  # what clients alone measure is theirs to say
    assert max(found["epoch"]) == 1


@pytest.mark.slow
def test_noise_that_every_client_could_draw_again_is_refused_at_start(images, tmp_path):
    """The recipe is with the clients, and the seed in it."""
    with pytest.raises(MisconfigurationException, match="nobody"):
        deploy(recipe(1, **private("seeded")), images, tmp_path / "run")


# ---- what stays with a client ----

PROMISES = {
    "none": ({}, {}),
    "updates": ({**private(), "cohort_size": None}, {}),
    "statistics": ({}, NOISE),
    "masked": ({}, {**NOISE, **HIDDEN}),
}


class Failing(WGANGP):
    """Fails at client b, in words that are about its images."""

    def on_turn_start(self, turn):
        super().on_turn_start(turn)
        self.fails = turn.name == "b"

    def training_step(self, batch, batch_idx):
        if self.fails:
            raise ValueError("the scan of patient 17 is empty")
        return super().training_step(batch, batch_idx)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client 'b' is left out:UserWarning", "ignore:the server is told of:UserWarning")
@pytest.mark.parametrize("name", PROMISES)
def test_under_a_promise_neither_logs_nor_texts_of_errors_leave(name, images, tmp_path, monkeypatch):
    variant, config = PROMISES[name]
    heard, settings = keep_replies(monkeypatch), recipe(1, **variant)
    settings["model"]["class_path"] = f"{__name__}.Failing"
    found, _ = deploy(settings, images, tmp_path / "run", config=config)
    (entry,) = found["fedavg"]["left_out"]
    promised = name != "none"
    assert entry["name"] == "b"
    assert "ValueError" in entry["reason"]
    assert ("patient 17" in entry["reason"]) is not promised
    said = [str(reply.error if reply.has_error() else reply.content) for reply in heard]
    assert any("patient 17" in one for one in said) is not promised
    if name == "masked":
        assert not any("critic_loss" in one for one in said)
        return
    answers = [reply for reply in heard if reply.metadata.message_type == "train"]
    for reply in answers:
        assert reply.content[METRICS].keys() == {"num-examples"}  # what is logged is sent once, if at all
        answer = from_records(Answer, reply)
        assert bool(answer.metrics) is not (promised or bool(answer.failure))
    assert len(answers) == 3


def test_a_promise_is_found_wherever_a_recipe_has_it():
    nested = {"class_path": "fedgen.federated.NormClipping", "init_args": {"then": {"class_path": "PrivateMean"}}}
    for aggregator, promised in (({"class_path": "PrivateMean"}, True), (nested, True), ({"class_path": "X"}, False)):
        strategy = {"class_path": "FedAvgStrategy", "init_args": {"aggregator": aggregator}}
        assert is_promised({"trainer": {"strategy": strategy}}, {}) is promised
    assert not is_promised({"trainer": {"strategy": "auto"}}, {"statistics-epsilon": 0.0})
    assert is_promised({"trainer": {}}, NOISE)
