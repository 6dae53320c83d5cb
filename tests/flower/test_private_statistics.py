"""FID-all from sums with noise: what the statistics module gives by hand, released once a run."""

import csv
import json
import logging
import shutil
from dataclasses import replace

import pytest
import torch
from flwr.app import Message as FlowerMessage
from flwr.app import RecordDict
from flwr.common import FitIns, ndarrays_to_parameters
from flwr.compat.common.recorddict_compat import fitins_to_recorddict

from fedgen.embeddings import Embedding, embed, load_embedding
from fedgen.embeddings.base import Pixels
from fedgen.embeddings.registry import WITHOUT_WEIGHTS
from fedgen.evaluation import read_records
from fedgen.flower.app.apps import client_app
from fedgen.flower.client.client_node import ClientNode
from fedgen.flower.client.local_data import NodeData
from fedgen.flower.client.pins import release_once
from fedgen.flower.client.policy import RefusedError
from fedgen.flower.evaluation.summed_answers import PooledScore
from fedgen.flower.secure_aggregation.secure_strategy import summand
from fedgen.flower.wire.flower_records import from_records, to_records
from fedgen.flower.wire.messages import Item, Question, Told, pack
from fedgen.flower.wire.serialization import to_bytes
from fedgen.scores import frechet_distance
from fedgen.statistics import Message, MessageError, Privacy, add, private, private_gaussian, private_sums, summarize
from fedgen.statistics.private import promise_of
from fedgen.training.fit import FedgenCLI
from tests.flower.loopback import Loopback, Node
from tests.flower.runs import HIDDEN, NOISE, app_of, deploy, node_of, of_owners, recipe, write_images
from tests.quick import first_quick

SCORES = {"every_n_rounds": 1, "num_images": 70, "embeddings": ["pixels"], "scores": ["fid"]}
NAMES = ("count", "sum", "outer", "clients")
AMONG = {"10": "a", "11": "b", "12": "c", "13": "d"}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"), {"a": 12, "b": 25, "c": 16})


def seeded(patch):
    """Noise that repeats itself in place of the system's secure source."""
    draws = torch.Generator().manual_seed(7)
    patch.setattr(private, "secure_normal", lambda n: torch.randn(n, dtype=torch.float64, generator=draws))


def by_hand(images, privacy, patch):
    """The clients' training images' noisy sums, of the draws that the deployment had."""
    seeded(patch)
    data = FedgenCLI(args=of_owners(recipe(1), images)).datamodule
    pixels, found = load_embedding("pixels"), []
    for client in data.clients:  # each is asked for both splits
        features = [embed(pixels, part.inputs) for part in (client.train_examples, client.held_out_examples)]
        train, _ = (private_sums(part, privacy) for part in features)
        found.append(train)
    return private_gaussian(add(*found), privacy)


@pytest.mark.slow
@pytest.mark.parametrize(("config", "sharers"), [({}, 1), (HIDDEN, 3)], ids=["open", "secure"])
def test_fid_all_is_that_of_the_noisy_sums(config, sharers, images, tmp_path, monkeypatch):
    """Epsilon and delta are logged every round, however seldom scores are."""
    seeded(monkeypatch)
    made, score = [], PooledScore.score

    def keeping(self, generated, *args, **kwargs):
        made.append(generated)
        return score(self, generated, *args, **kwargs)

    monkeypatch.setattr(PooledScore, "score", keeping)
    settings = recipe(2, {**SCORES, "every_n_rounds": 2})
    logger = {"save_dir": str(tmp_path / "logs"), "name": "", "version": ""}
    settings["trainer"]["logger"] = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": logger}
    deploy(settings, images, tmp_path / "run", config={**config, **NOISE})
    found = {(r.split, r.name): r for r in read_records(tmp_path / "run" / "scores.jsonl")}
    assert found.keys() == {("train", "fid_all"), ("report", "fid_all")}
    record = found["train", "fid_all"]

    privacy = Privacy(8.0, 1e-3, 6.0, "replace", "public", sharers=sharers)
    expected, _ = frechet_distance(by_hand(images, privacy, monkeypatch), summarize(made[0]))
    assert record.value == pytest.approx(expected, rel=1e-9)
    assert record.score_settings == {"epsilon": 8.0, "delta": 1e-3, "radius": 6.0}
    assert "epsilon=8, delta=0.001" in record.note
    assert record.standard_error is None  # nothing is known of what noise does
    assert record.error_parts.keys() == {"generated"}
    with (tmp_path / "logs" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["statistics_epsilon"]]
    logged = [(row["step"], row["statistics_epsilon"], row["statistics_delta"]) for row in rows]
    assert logged == [(str(round), "8.0", "0.001") for round in range(2)]


@pytest.mark.slow
def test_a_promise_is_held_against_dp_accountings_count_before_anybody_is_asked(images, tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    deploy(recipe(1, SCORES), images, tmp_path / "run", config=NOISE)
    assert "epsilon=8, delta=0.001 for each image, as dp-accounting counts them" in caplog.text
    plain = Privacy.sigma.func
    too_little = property(lambda self: plain(self) * 0.99)
    monkeypatch.setattr(Privacy, "sigma", too_little)
    with pytest.raises(ValueError, match="accounting"):
        deploy(recipe(1, SCORES), images, tmp_path / "other", config=NOISE)
    assert not list(tmp_path.glob("other*/**/released"))


def totals(folder):
    return {path.name: Message.from_bytes(path.read_bytes()).tensors for path in (folder / "released").iterdir()}


def evaluated(grid):
    return [node.calls.count("evaluate") for node in grid.nodes.values()]


@pytest.mark.slow
def test_a_run_releases_once(images, tmp_path):
    """Whoever asks again is given the same: the server's file is lost here, then the promise changes."""
    output = tmp_path / "run"
    _, first = deploy(recipe(1, SCORES), images, output, config=NOISE)
    before = totals(output)
    assert before.keys() == {"train-pixels.safetensors", "report-pixels.safetensors"}
    _, second = deploy(recipe(2, SCORES), images, output, config=NOISE)
    assert (evaluated(first), evaluated(second)) == ([1] * 3, [0] * 3)

    for path in (output / "released").iterdir():
        path.unlink()
    _, third = deploy(recipe(3, SCORES), images, output, config=NOISE)
    assert evaluated(third) == [1] * 3
    for name, tensors in totals(output).items():
        assert all(torch.equal(tensors[key], before[name][key]) for key in tensors)

    with pytest.raises(ValueError, match="release"):
        deploy(recipe(4, SCORES), images, output, config={**NOISE, "statistics-epsilon": 9.0})
    with pytest.raises(MessageError, match="RefusedError"):
        deploy(recipe(4, SCORES), images, output)


@pytest.mark.slow
@pytest.mark.parametrize("config", [{}, HIDDEN], ids=["open", "secure"])
def test_clients_that_have_told_statistics_without_noise_add_none_later(config, images, tmp_path):
    """Nor where the server has forgotten what it was told; under masks it knows sums alone, which it does not keep."""
    deploy(recipe(1, SCORES), images, tmp_path / "run", config=config)
    if not config:
        with pytest.raises(ValueError, match="promise"):
            deploy(recipe(2, SCORES), images, tmp_path / "run", config=NOISE)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(MessageError, match="RefusedError"):
        deploy(recipe(1, SCORES), images, tmp_path / "run", config={**config, **NOISE})
    assert not list(tmp_path.rglob("released"))


class Halves(Pixels):
    """Pixels of half the size, a second embedding without a network."""

    def __init__(self):
        Embedding.__init__(self, "halves", dim=None)

    def features(self, levels):
        return super().features(levels) / 2


@pytest.mark.slow
def test_two_embeddings_are_two_releases_that_share_the_promise(images, tmp_path, monkeypatch):
    monkeypatch.setitem(WITHOUT_WEIGHTS, "halves", Halves)
    deploy(recipe(1, {**SCORES, "embeddings": ["pixels", "halves"]}), images, tmp_path / "run", config=NOISE)
    paths = list((tmp_path / "run" / "released").iterdir())
    assert len(paths) == 4
    for path in paths:
        promise = json.loads(Message.from_bytes(path.read_bytes()).meta["privacy"])
        assert (promise["epsilon"], promise["releases"]) == (8.0, 2)


class Boasting(Node):
    """A node whose noisy sums are of absurd size."""

    def answer(self, message, number):
        reply = super().answer(message, number)
        if message.metadata.message_type == "evaluate":
            sums = [Message.from_bytes(data) for data in from_records(Told, reply).messages]
            tall = [
                Message(m.kind, {**m.tensors, "sum": torch.full_like(m.tensors["sum"], 1e200)}, m.meta) for m in sums
            ]
            reply.content = to_records(Told([one.to_bytes() for one in tall]))
        return reply


@pytest.mark.slow
def test_sums_beyond_clipped_features_and_their_noise_end_a_run_before_training_by_name(images, tmp_path):
    settings, run = recipe(1, SCORES), tmp_path / "run"
    nodes = {11: node_of(Boasting, settings, images, run, "b", config=NOISE)}
    with pytest.raises(MessageError, match="reaches"):
        deploy(settings, images, run, nodes, config=NOISE)
    assert not (tmp_path / "run" / "last.ckpt").exists()


# ---- what a client refuses by itself ----


@pytest.mark.parametrize(
    ("config", "ask", "said"),
    [
        ({"secure-aggregation": True}, "private-sums", "nothing is told in the open"),
        (NOISE, "statistics", "nothing is told without noise"),
        (NOISE, "kid", "nothing is told without noise"),
    ],
)
def test_a_client_does_not_tell_what_the_run_hides(config, ask, said, images, tmp_path):
    path = app_of(recipe(1, SCORES), tmp_path / "app", 4)
    node = Node(client_app(path), {"data-path": str(images / "a"), "state-path": str(tmp_path / "a")}, config)
    question = Question({}, [tuple(Item(ask, "train", "pixels", load_embedding("pixels").fingerprint()))], 0, ())
    (reply,) = Loopback({10: node}).send_and_receive([FlowerMessage(to_records(question), 10, "evaluate")])
    with pytest.raises(MessageError, match=said):
        from_records(Told, reply)


def questioned(embedding="pixels", **changes):
    """An item that asks for sums with noise by the promise of NOISE, but for these parts; and a question of it."""
    promise = promise_of(replace(Privacy(8.0, 1e-3, 6.0, "replace", "public"), **changes))
    item = Item("private-sums", "train", embedding, load_embedding(embedding).fingerprint(), promise=promise)
    return Question({}, [tuple(item)], 0, tuple("0123456789"))


OTHERS = {
    "sharers": ({"sharers": 4}, NOISE, "with sharers=4, and by this run's config and recipe it is 1"),
    "epsilon": ({"epsilon": 80.0}, NOISE, "with epsilon=80.0, and by this run's config and recipe it is 8.0"),
    "delta": ({"delta": 0.1}, NOISE, "with delta=0.1"),
    "radius": ({"radius": 1e-6}, NOISE, "with radius=1e-06"),
    "releases": ({"releases": 2}, NOISE, "with releases=2"),
    "neighbours": ({"neighbours": "add"}, NOISE, "with neighbours='add'"),
    "no promise": ({}, {}, "of which the run's config says nothing"),
}


@pytest.mark.parametrize("name", first_quick(OTHERS))
def test_a_client_adds_the_noise_of_the_runs_config_and_no_other(name, images, tmp_path):
    changes, config, said = OTHERS[name]
    path = app_of(recipe(1, SCORES), tmp_path / "app", 4)
    own = {"data-path": str(images / "a"), "state-path": str(tmp_path / "a")}
    grid = Loopback({10: Node(client_app(path), own, config)})
    (reply,) = grid.send_and_receive([FlowerMessage(to_records(questioned(**changes)), 10, "evaluate")])
    assert said in from_records(Told, reply).failure
    assert not list((tmp_path / "a").rglob("*.safetensors"))
    if config:
        (reply,) = grid.send_and_receive([FlowerMessage(to_records(questioned()), 10, "evaluate")])
        assert len(from_records(Told, reply).messages) == 1


def alone(images, tmp_path, embedding="pixels"):
    """Client a by itself; says what it answers to NOISE's question of a split, as the client of a number."""
    path = app_of(recipe(1, {**SCORES, "embeddings": [embedding]}), tmp_path / f"app-{embedding}", 4)
    own = {"data-path": str(images / "a"), "state-path": str(tmp_path / "a")}
    grid = Loopback({10: Node(client_app(path), own, NOISE)})

    def answer(split, number=0):
        question = questioned(embedding)
        items = [tuple(Item(*question.items[0])._replace(split=split))]
        asked = to_records(replace(question, items=items, client=number))
        (reply,) = grid.send_and_receive([FlowerMessage(asked, 10, "evaluate")])
        told = from_records(Told, reply)
        return told.failure or Message.from_bytes(told.messages[0])

    return answer


@pytest.mark.parametrize("split", ["train2", "", "../../../train"])
def test_a_client_releases_no_image_again_under_another_splits_name(split, images, tmp_path):
    answer = alone(images, tmp_path)
    first = answer("train")
    assert f"{split!r} is neither" in answer(split)
    assert [path.name for path in tmp_path.rglob("*-pixels.safetensors")] == ["train-pixels.safetensors"]
    assert all(torch.equal(tensor, first.tensors[name]) for name, tensor in answer("train").tensors.items())


def test_a_client_releases_no_image_again_in_the_other_split(images, tmp_path):
    """By another number other images are held out: some that are in the training split's sums already."""
    answer = alone(images, tmp_path)
    answer("train")
    for split in ("train", "report"):
        said = answer(split, 1)
        assert "began when other images of this client were held out, under the number 0 in place of 1" in said
        assert str(tmp_path) not in said  # where its images lie is no affair of the server's
    assert answer("report").kind == "private-sums"


def test_a_client_releases_no_image_again_by_a_recipe_of_another_embedding(images, tmp_path, monkeypatch):
    """Each recipe has one embedding, which has the whole promise."""
    monkeypatch.setitem(WITHOUT_WEIGHTS, "halves", Halves)
    first = alone(images, tmp_path)("train")
    said = alone(images, tmp_path, "halves")("train")
    assert 'told in the embeddings ["pixels"], and its recipe now has ["halves"]' in said
    again = alone(images, tmp_path)("train")
    assert all(torch.equal(tensor, first.tensors[name]) for name, tensor in again.tensors.items())


def test_two_who_ask_at_once_are_given_one_release(tmp_path):
    privacy, features, path = Privacy(8.0, 1e-3, 6.0, "replace", "public"), torch.ones(4, 2), tmp_path / "sums"
    made = {"privacy": promise_of(privacy)}
    found = []

    def slow():
        found.append(release_once(path, made, lambda: private_sums(features, privacy)))  # meanwhile
        return private_sums(features, privacy)

    found.append(release_once(path, made, slow))
    assert torch.equal(found[0].tensors["sum"], found[1].tensors["sum"])


def test_under_masks_a_client_shares_the_noise_with_those_that_are_asked(images, tmp_path):
    path = app_of(recipe(1, SCORES), tmp_path / "app", 4)
    station = ClientNode(path, NodeData(images / "a"), tmp_path / "a", promised=True)

    def asked(sharers):
        _, question = pack(questioned(sharers=sharers))
        told = {"names": [], "question": question, "largest": [dict.fromkeys(NAMES, 1e6)], "clients": 4, "among": AMONG}
        instructions = FitIns(ndarrays_to_parameters([]), {"fedgen": to_bytes(told), "weight": 1})
        message = FlowerMessage(fitins_to_recorddict(instructions, True), 10, "train")
        return summand(station, message, config, RecordDict())

    config = {**NOISE, **HIDDEN}
    with pytest.raises(RefusedError, match="sharers"):
        asked(1000)
    with pytest.raises(RefusedError, match="sharers"):
        asked(1)
    assert asked(4).array_records


REFUSED = {
    "kid": ({**SCORES, "scores": ["fid", "kid"]}, {}, "kid asks clients for more than sums with noise"),
    "aggregates": ({**SCORES, "aggregates": ["pct95"]}, {}, "pct95 needs single clients' scores"),
    "radius": (SCORES, {"statistics-radius": 0.0}, "statistics-radius=0 in the run's config: radius must be positive"),
    "delta": (SCORES, {"statistics-delta": 0.0}, "delta must be between 0 and 1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_show_more_is_refused_at_start(name, images, tmp_path):
    scores, config, said = REFUSED[name]
    with pytest.raises(ValueError, match=said):
        deploy(recipe(1, scores), images, tmp_path / "run", config={**NOISE, **config})
