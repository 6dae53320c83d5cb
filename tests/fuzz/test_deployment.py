"""Damaged bytes and files of a deployment: what clients and server send each other, and what each keeps.

What is kept has a hash; what travels has none, as the transport compares checksums, and is taken if it has its form.
"""

import json
import warnings

import pytest
import torch
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.app import Message as FlowerMessage

from fedgen.federated.left_out import LEFT_OUT_FILE, AnyEntry, read_left_out, write_left_out
from fedgen.flower.app.recipe import read_settings
from fedgen.flower.app.write_app import write_app
from fedgen.flower.client.client_node import ClientNode
from fedgen.flower.client.pins import keep_release, read_release, release_once
from fedgen.flower.evaluation.answers_per_client import KeptAnswers
from fedgen.flower.server.client_registry import CLIENTS, read_clients
from fedgen.flower.wire.flower_records import from_records, to_records
from fedgen.flower.wire.messages import (
    Answer,
    Hello,
    Item,
    LossQuestion,
    Question,
    Task,
    Told,
    check_types,
    pack,
    unpack,
)
from fedgen.flower.wire.serialization import from_bytes, to_bytes
from fedgen.io.field_types import conforms
from fedgen.io.tensor_files import tensors_in
from fedgen.statistics import Privacy, private_sums
from fedgen.statistics.statistic_messages import Message, MessageError
from tests.flower.loopback import Loopback
from tests.flower.runs import IMAGES, recipe
from tests.fuzz.damage import fuzz, refuses

STATE = {(0, "exp_avg"): torch.ones(3), (1, "step"): torch.tensor(2.0)}
HELLO = Hello("a", 20, (1, 8, 8), ("cat", "dog"))
SAID = {
    "answer": Answer({}, 20, 3, [STATE, [torch.ones(2)], (0, [], {})], {"loss": 0.5}),
    "hello": HELLO,
    "task": Task({}, 2, 1, 4, 0.25, ("cat",), {"settings": [[{"lr": 0.1}]], "states": []}, {}, {"pixels": "abc"}),
    "question": Question({}, [("kid", "train", "pixels", "abc", "kid", "")], 1, ("cat",)),
    "loss question": LossQuestion(b"abc" * 20, "pixels", "abc", 20.0, "float64", 1, ("cat",)),
    "told": Told([b"abc" * 20, b"def"]),
}
KEPT = {
    "version": 1,
    "iterations": {0: 6},
    "personal": {0: {"a.weight": torch.ones(2, 3)}},
    "left_out": [],
    "local": {"clients": {0: [{0: {"exp_avg": torch.ones(2, 3)}}]}},
    "algorithm": {"server": {}, "clients": {}},
}
LEFT_OUT = [{"round": number, "client": 1, "name": "b", "reason": "it did not answer"} for number in range(5)]


def naming(read):
    """A reader whose MessageErrors name the file, for the sake of the tests."""

    def reading(path):
        try:
            return read(path)
        except MessageError as error:
            raise ValueError(f"{path.name}: {error}") from error

    return reading


@pytest.mark.parametrize("name", SAID)
def test_damaged_messages_are_refused_or_have_their_form(name, tmp_path, copies):
    path = tmp_path / "message"
    path.write_bytes(pack(SAID[name])[1])
    kind = type(SAID[name])

    def has_form(found, _):
        check_types(found)
        return type(found) is kind and all(t.isfinite().all() for t in tensors_in(vars(found)))

    fuzz(naming(lambda path: unpack(kind, {}, path.read_bytes())), path, has_form, copies=copies, least=300)


def test_damaged_payloads_that_are_sealed_are_refused_or_as_they_were(tmp_path, copies):
    path = tmp_path / "payload"
    path.write_bytes(to_bytes({"state": STATE, "text": "abc", "number": 3}, sealed=True))
    fuzz(naming(lambda path: from_bytes(path.read_bytes(), "it", sealed=True)), path, copies=copies, least=900)


def test_damaged_arrays_are_refused_or_are_finite_numbers(tmp_path, copies):
    """They come as Flower's, in NumPy's format."""
    Loopback({})  # Flower's messages know whose they are
    path, records = tmp_path / "array", to_records(SAID["answer"])
    whole = Array(torch.linspace(0, 1, 24).reshape(2, 3, 4).numpy())
    path.write_bytes(whole.data)

    def read(path):
        array = Array(dtype=whole.dtype, shape=tuple(whole.shape), stype=whole.stype, data=path.read_bytes())
        content = RecordDict({**records, "weights": ArrayRecord({"a": array})})
        return from_records(Answer, FlowerMessage(content, 1, "train")).weights["a"]

    def is_sound(found, _):
        return isinstance(found, torch.Tensor) and bool(found.isfinite().all())

    fuzz(naming(read), path, is_sound, valid=("npy",), copies=copies, least=300)


def read_kept(path):
    """What a client begins its next turn with."""
    found = object.__new__(ClientNode)
    found.state = path.parent
    return found._remembered(Task({}, 9, 0, 1, 1.0, (), {}, {}, iterations=6))[1]


def are_clients(found, _):
    for one in found:
        check_types(one)
    return bool(found) and all(conforms(one.shape, tuple[int, ...]) for one in found)


def write_recipe(path):
    write_app(recipe(), IMAGES, path.parent / "app", 2, "")
    path.write_bytes((path.parent / "app" / "federation" / "recipe.yaml").read_bytes())


# name: file, writer, reader, whether what is read has its form (None: it is the same), least refusals
FILES = {
    "roster": (
        CLIENTS,
        lambda path: path.write_text(json.dumps([{**vars(HELLO), "name": name} for name in "abc"], indent=2)),
        read_clients,
        are_clients,
        300,
    ),
    "kept state": (
        "round=00001.safetensors",
        lambda path: path.write_bytes(to_bytes(KEPT, sealed=True)),
        read_kept,
        None,
        300,
    ),
    "recipe": ("recipe.yaml", write_recipe, read_settings, lambda found, _: isinstance(found["model"], dict), 200),
    "left out": (
        LEFT_OUT_FILE,
        lambda path: write_left_out(path.parent, LEFT_OUT),
        lambda path: read_left_out(path.parent),
        lambda found, _: bool(found) and conforms(found, list[AnyEntry]),
        300,
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_damaged_files_are_refused_or_have_their_form(kind, tmp_path, copies):
    name, write, read, form, least = FILES[kind]
    write(tmp_path / name)
    fuzz(read, tmp_path / name, form, copies=copies, least=least)


WRONG = [[1], {}, None, "x", {"version": 2}, {**KEPT, "version": True}]
WRONG += [{**KEPT, key: value} for key in KEPT for value in (None, [1], {"a": 1}, {-1: 2}, "x")]
WRONG += [{key: value for key, value in KEPT.items() if key != lost} for lost in KEPT]
HARMLESS = [{**KEPT, "algorithm": value} for value in (None, [1], {"a": 1}, {-1: 2}, "x")]  # for the algorithm to judge


def test_kept_state_of_wrong_content_is_refused(tmp_path):
    path = tmp_path / "round=00001.safetensors"
    for content in [one for one in WRONG if one not in HARMLESS]:
        path.write_bytes(to_bytes(content, sealed=True))
        refuses(read_kept, path, what=content)


def test_files_of_other_names_are_not_what_a_client_kept(tmp_path):
    (tmp_path / "round=x.safetensors").write_bytes(b"")
    (tmp_path / "round=.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match="nothing"):
        assert read_kept(tmp_path / "round=x.safetensors") is None


ENTRIES = [
    *[{key: value} for key in ("round", "client") for value in (-1, "1", 1.5, True, None, 10**30)],
    *[{key: value} for key in ("name", "reason") for value in (3, None, ["b"])],
    {"more": 1},
    {"kind": 3},
]


def test_entries_of_wrong_content_are_refused(tmp_path):
    for change in ENTRIES:
        write_left_out(tmp_path, [*LEFT_OUT, LEFT_OUT[0] | change])
        refuses(lambda path: read_left_out(path.parent), tmp_path / LEFT_OUT_FILE, what=change)


@pytest.mark.slow
def test_a_recipe_that_is_nested_without_end_is_refused(tmp_path):
    path = tmp_path / "recipe.yaml"
    for content in (b"[\n" * 50_000, b"trainer: 1\nmodel: {}\ndata: {}\n", b"a: &a [*a]", b"\xff"):
        path.write_bytes(content)
        refuses(read_settings, path)


# ---- statistics that are kept ----

PRIVACY, SUMS = Privacy(1.0, 1e-5, 3.0, "replace", "public"), "train-pixels.safetensors"
MADE = {"embedding": "pixels"}


def noisy():
    features = torch.randn(20, 5, generator=torch.Generator().manual_seed(0))
    return private_sums(features, PRIVACY, seed=0, **MADE)


def read_told(path):
    """What a server has of its clients when it starts again; it asks them again where a file is of no use."""
    item = Item("private-sums", "train", "pixels", "")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = KeptAnswers(path.parent.parent).read([item], 1, lambda place, client, data: Message.from_bytes(data))
    if found is None:
        raise ValueError(str(said[0].message))
    return vars(found[0][0])


KEPT_STATISTICS = {
    "released at the server": (SUMS, lambda path: keep_release(path, noisy()), lambda path: read_release(path, MADE)),
    "released by a client": (
        SUMS,
        lambda path: release_once(path, MADE, noisy),
        lambda path: release_once(path, MADE, lambda: pytest.fail("released again")),
    ),
    "told": ("told/00000-private-sums-train-pixels.safetensors", lambda path: keep_release(path, noisy()), read_told),
}


@pytest.mark.parametrize("kind", KEPT_STATISTICS)
def test_damaged_statistics_that_are_kept_are_refused(kind, tmp_path, copies):
    """By their hash: what one bit makes of a sum still has the form of one."""
    name, write, read = KEPT_STATISTICS[kind]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    write(tmp_path / name)
    fuzz(read, tmp_path / name, copies=copies, least=900)


def test_statistics_that_were_kept_without_a_hash_are_read(tmp_path):
    (tmp_path / SUMS).write_bytes(noisy().to_bytes())
    found, expected = read_release(tmp_path / SUMS, MADE), noisy()
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in expected.tensors.items())
