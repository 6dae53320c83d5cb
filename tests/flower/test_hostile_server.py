"""A server that asks for more than its recipe has, or more than a client has memory or a policy for, is refused."""

import math
import sys
from types import ModuleType

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from flwr.app import Message as FlowerMessage

from fedgen.embeddings import load_embedding
from fedgen.flower.app.apps import client_app
from fedgen.flower.app.run_config import LEDGER
from fedgen.flower.client.client_node import failure_of
from fedgen.flower.client.policy import Policy, RefusedError
from fedgen.flower.wire.flower_records import from_records, to_records
from fedgen.flower.wire.messages import MOST_CLIENTS, Item, LossQuestion, Question, Task, Told, check_types
from fedgen.losses import Nystrom, PooledMoments, Sketches
from fedgen.statistics import Privacy
from fedgen.statistics.private import promise_of
from fedgen.statistics.statistic_messages import Message, MessageError
from tests.flower.fine_tuning import fine_tuning
from tests.flower.loopback import Loopback, Node
from tests.flower.runs import app_of, recipe, write_images
from tests.flower.test_private_statistics import NOISE, questioned

SCORES = {"every_n_rounds": 1, "num_images": 60, "embeddings": ["pixels"], "scores": ["fid", "kid"]}
CLASSES = tuple("0123456789")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"))


class Asked:
    """Client a of a recipe, and what it says."""

    def __init__(self, settings, images, folder, **own):
        self.path, self.state = app_of(settings, folder / "app", 4), folder / "a"
        self.own = {"data-path": str(images / "a"), "state-path": str(self.state), **own}

    def say(self, message, kind, config=()):
        node = Node(client_app(self.path), self.own, {"output": "first", **dict(config)})
        (reply,) = Loopback({10: node}).send_and_receive([FlowerMessage(to_records(message), 10, kind)])
        return from_records(Told, reply)

    def loss(self, kind, tensors, meta=(), weight=1.0):
        asked = Message(kind, tensors, dict(meta)).to_bytes()
        fingerprint = load_embedding("pixels").fingerprint()
        return self.say(LossQuestion(asked, "pixels", fingerprint, weight, "float64", 0, CLASSES), "query.loss")

    def statistic(self, ask, config=(), score="", promise="", times=1, **tensors):
        item = Item(ask, "train", "pixels", load_embedding("pixels").fingerprint(), score, promise)
        return self.say(Question(tensors, [tuple(item)] * times, 0, CLASSES), "evaluate", config)


def task(**changes):
    own = {"round": 0, "client": 0, "clients": 4, "share": 0.25, "classes": CLASSES, "local": {}, "algorithm": {}}
    return Task(weights={}, **{**own, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"clients": MOST_CLIENTS + 1},
        {"clients": 0},
        {"share": math.nan},
        {"share": 2.0},
        {"share": -0.5},
        {"classes": ("\x1b[2J",)},
        {"classes": ("a" * 300,)},
    ],
    ids=str,
)
def test_a_task_of_absurd_numbers_is_none(changes):
    """A client makes a list of all clients' weights: of 2^28 it took 2 GB."""
    check_types(task())
    with pytest.raises(MessageError, match=f"{next(iter(changes))} of the task"):
        check_types(task(**changes))


@pytest.mark.parametrize(
    ("summary", "kind", "tensors", "meta", "fits"),
    [
        (Sketches(20), "sketch", {"centre": torch.zeros(0)}, {"number": "20", "seed": "0", "dim": "4"}, True),
        (Sketches(20), "sketch", {"centre": torch.zeros(0)}, {"number": "10000000", "seed": "0", "dim": "4"}, False),
        (Sketches(20), "sketch", {"centre": torch.zeros(0)}, {"number": "20", "seed": "1", "dim": "4"}, False),
        (Sketches(20), "sketch", {"centre": torch.zeros(0)}, {}, False),
        (Sketches(20), "landmarks", {"landmarks": torch.zeros(0, 4)}, {}, True),
        (Sketches(20), "landmarks", {"landmarks": torch.zeros(1, 4)}, {}, False),
        (Sketches(20), "moments", {}, {}, True),
        (Nystrom(3), "landmarks", {"landmarks": torch.zeros(3, 4)}, {}, True),
        (Nystrom(3), "landmarks", {"landmarks": torch.zeros(4, 4)}, {}, False),
        (Nystrom(3), "moments", {}, {}, False),
        (PooledMoments(), "moments", {}, {}, True),
        (PooledMoments(), "landmarks", {"landmarks": torch.zeros(1, 4)}, {}, False),
    ],
)
def test_a_summary_knows_what_it_asks(summary, kind, tensors, meta, fits):
    assert summary.asks(Message(kind, tensors, meta)) is fits


@pytest.mark.slow
def test_a_client_answers_of_a_loss_what_its_recipe_asks_and_no_more(images, tmp_path):
    """A hundred thousand landmarks in one question say where each image lies; sketches without end fill the memory."""
    asked = Asked(fine_tuning("message"), images, tmp_path)
    for kind, tensors, meta in (
        ("landmarks", {"landmarks": torch.rand(9, 64)}, {}),
        ("sketch", {"centre": torch.zeros(0)}, {"dim": "64", "number": "10000000", "seed": "0"}),
    ):
        assert "the recipe's loss asks for Sketches(number=20" in asked.loss(kind, tensors, meta).failure
    assert asked.loss("moments", {}).messages


def test_a_question_of_a_loss_is_about_one_batch(images, tmp_path):
    asked = Asked(fine_tuning("exact"), images, tmp_path)
    told = asked.loss("features", {"features": torch.rand(9, 64)}, {"gradient": "yes"})
    assert "features of 8 images at most (batch), and not for 'features' of {'features': [9, 64]}" in told.failure
    assert "weighs a number from 0" in asked.loss("features", {"features": torch.rand(2, 64)}, weight=math.inf).failure
    assert asked.loss("features", {"features": torch.rand(8, 64)}, {"gradient": "yes"}).messages


@pytest.mark.slow
def test_a_question_asks_each_thing_once_and_scores_as_many_images_as_the_recipe_makes(images, tmp_path):
    """Twenty thousand times the same took minutes, and so did two hundred thousand images."""
    asked = Asked(recipe(1, SCORES), images, tmp_path)
    assert "one thing is asked twice" in asked.statistic("statistics", times=2).failure
    told = asked.statistic("kid", score="kid", **{"train/pixels": torch.rand(61, 64)})
    assert "61 generated images are to be scored, and the recipe's evaluation has 60" in told.failure
    assert "no score 'other' of pixels" in asked.statistic("kid", score="other").failure
    assert asked.statistic("kid", score="kid", **{"train/pixels": torch.rand(60, 64)}).messages


def test_noise_and_a_loss_are_not_both_told_in_a_run(images, tmp_path):
    """Sums with noise promise nothing once a loss was answered without, and the other way round."""
    settings = fine_tuning("exact", evaluation={**SCORES, "scores": ["fid"]})
    features = {"features": torch.rand(3, 64)}
    first = Asked(settings, images, tmp_path / "first")
    assert first.say(questioned(), "evaluate", NOISE).messages
    assert "have been released with noise" in first.loss("features", features).failure
    second = Asked(settings, images, tmp_path / "second")
    assert second.loss("features", features).messages
    assert "has told statistics without noise" in second.say(questioned(), "evaluate", NOISE).failure


@pytest.mark.parametrize("delta", [0.999999, 0.01])
def test_a_promise_with_a_large_delta_is_none(delta, images, tmp_path):
    """With delta near 1 there is hardly noise for the smallest epsilon, which is what a policy bounds."""
    (tmp_path / "policy.yaml").write_text("most_epsilon: 10")
    asked = Asked(recipe(1, SCORES), images, tmp_path, **{"policy-path": str(tmp_path / "policy.yaml")})
    config = {**NOISE, "statistics-epsilon": 1e-3, "statistics-delta": delta}
    promise = promise_of(Privacy(1e-3, delta, 6.0, "replace", "public"))
    assert "promises nothing of 10 images: give less than 0.01" in (
        asked.statistic("private-sums", config, promise=promise).failure
    )
    assert not (asked.state / LEDGER).exists()


@pytest.mark.parametrize("content", ["nan", "-1e9", "", "inf", "x"])
def test_a_release_whose_epsilon_is_lost_lets_no_other_be_made(content, tmp_path):
    (tmp_path / "old.json").write_text(content)
    with pytest.raises(RefusedError, match="damaged"):
        Policy(most_epsilon=10.0).spend(1.0, "new", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]


@pytest.mark.parametrize("given", ["", " "])
def test_a_policy_that_is_named_by_nothing_allows_nothing(given):
    with (
        pytest.raises(RefusedError),
        pytest.warns(UserWarning, match="policy"),
    ):
        Policy.of_node({"policy-path": given})


@pytest.mark.parametrize("own", ["policy", "state-path", "a SuperNode", "no Ray", ""])
@pytest.mark.usefixtures("by_flowers_simulation")
def test_a_run_names_no_folder_of_a_node_that_is_not_simulated(own, images, tmp_path, monkeypatch):
    """Or `simulation-data` would be the server's choice of a folder on somebody's disk."""
    if own == "a SuperNode":  # which may have Ray installed and say by a simulation's keys which client it is
        monkeypatch.setitem(sys.modules, "flwr.supernode.runtime.run_clientapp", ModuleType("run_clientapp"))
    if own == "no Ray":
        monkeypatch.delitem(sys.modules, "ray")
    (tmp_path / "policy.yaml").write_text("masking: false")
    config = {"partition-id": 0, "num-partitions": 4, **({own: str(tmp_path / "x")} if own == "state-path" else {})}
    if own == "policy":
        monkeypatch.setenv("FEDGEN_POLICY", str(tmp_path / "policy.yaml"))
    app = client_app(app_of(recipe(1, SCORES), tmp_path / "app", 4))
    grid = Loopback({10: Node(app, config, {"output": "first", "simulation-data": str(images)})})
    (reply,) = grid.send_and_receive([FlowerMessage(RecordDict({"hello": ConfigRecord()}), 10, "query")])
    assert reply.has_error() == bool(own)
    assert not own or "does not say where its data lie" in reply.error.reason


def test_what_a_server_says_does_nothing_on_the_clients_terminal():
    with pytest.warns(UserWarning, match="x1b"):
        assert "\x1b" not in failure_of(ValueError("embedding \x1b]0;x\x07"), promised=True)


def test_no_run_is_called_as_what_a_client_keeps_of_all_runs(images, tmp_path):
    asked = Asked(recipe(1, SCORES), images, tmp_path)
    with pytest.raises(MessageError, match="epsilon"):
        asked.statistic("statistics", {"output": "runs/epsilon"})
