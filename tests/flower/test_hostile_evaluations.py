"""One client's answers to an evaluation: what is wrong with them is said with its name."""

import math
import re

import pytest
import torch

from fedgen.clients.client import Client, hold_out
from fedgen.data import Digits
from fedgen.flower.client.client_statistics import answers_to
from fedgen.flower.evaluation.remote_evaluator import RemoteEvaluator
from fedgen.flower.server.client_registry import Hello
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.flower.server.remote_evaluation import answers_of
from fedgen.flower.wire.answer_forms import RANGES
from fedgen.flower.wire.messages import Question, Told
from fedgen.statistics.statistic_messages import Message, MessageError
from tests.flower.connected import connection_to

SETTINGS = {"embeddings": ["pixels"], "scores": ["fid", "kid", "kid-rbf"]}
SIZES = {"a": 12, "b": 25}
MADE = torch.randn(30, 64, generator=torch.Generator().manual_seed(0)).abs()


class Asked(RemoteClients):
    """Clients that answer at once; b's answer to some question is spoilt.

    Args:
        folder: of what they keep.
        ask: which kind of item is spoilt.
        spoil: makes its messages of those that b would send.
    """

    def __init__(self, folder, ask, spoil):
        digits, self.folder, self.ask, self.spoil = Digits().load("train"), folder, ask, spoil
        shape = tuple(digits.inputs.shape[1:])
        known = [Hello(name, size, shape, digits.classes) for name, size in SIZES.items()]
        super().__init__(held_out=0.0, _connection=connection_to(*known))
        parts = torch.arange(sum(SIZES.values())).split(list(SIZES.values()))
        self.owners = [
            Client(name, digits, *hold_out(part, 0.0, 0, 0)) for name, part in zip(SIZES, parts, strict=True)
        ]

    def ask_all(self, items, tensors):
        found = {}
        for number, client in enumerate(self.owners):
            question = Question(tensors, [tuple(item) for item in items], number, self.classes)
            messages = list(answers_to(question, client, SETTINGS, self.folder / client.name))
            if client.name == "b" and items[0].ask == self.ask:
                messages = [self.spoil(message) for message in messages]
            found[number] = Told([one if isinstance(one, bytes) else one.to_bytes() for one in messages])
        return found


def changed(meta=(), **tensors):
    """A message with other parts."""
    return lambda message: Message(message.kind, {**message.tensors, **tensors}, {**message.meta, **dict(meta)})


def full(**values):
    """A message whose tensors of these names hold one number over and over, where it has them."""

    def spoil(message):
        tensors = {n: torch.full_like(t, values[n]) if n in values else t for n, t in message.tensors.items()}
        return Message(message.kind, tensors, message.meta)

    return spoil


def number(value):
    return torch.tensor(float(value), dtype=torch.float64)


def scattered(scatter):
    """A summary of this scatter in the form for more images than features."""
    return lambda message: Message(
        "gaussian", {**{n: message.tensors[n] for n in ("count", "mean")}, "scatter": scatter.double()}, message.meta
    )


FAULTS = {
    "statistics of nothing": ("statistics", lambda message: b"", "no readable message in 0 bytes"),
    "statistics of garbage": ("statistics", lambda message: b"PK" * 50, "no readable message in 100 bytes"),
    "statistics of no image": ("statistics", changed(count=number(0)), "must count at least one image"),
    "statistics of more images": ("statistics", changed(count=number(26)), "it tells of 26 images and has 25"),
    "statistics of other features": (
        "statistics",
        lambda message: Message("gaussian", {"count": number(25), "mean": MADE[0, :2], "scatter": MADE[:2, :2]}),
        "it answers of {}, not of",
    ),
    "statistics of fewer features": (
        "statistics",
        lambda message: Message(
            "gaussian", {"count": number(25), "mean": MADE[0, :2], "scatter": torch.eye(2)}, message.meta
        ),
        "it tells of 2 features, and the embedding has 64",
    ),
    "an absurd mean": (
        "statistics",
        full(mean=1e100),
        f"its mean reaches 1e+100, and no more than {1000 * float(MADE.max()):g} is believed; if it is right, raise"
        " range.mean in the run's config",
    ),
    "absurd deviations": ("statistics", full(deviations=-1e100), "its deviations reaches 1e+100, and no more than"),
    "deviations of more images": (
        "statistics",
        changed(deviations=torch.zeros(26, 64).double(), shares=torch.full((26,), 1 / 26).double()),
        "it tells the deviations of 26 images and has 25",
    ),
    "a negative variance": ("statistics", scattered(-torch.eye(64)), "or has a negative variance"),
    "images that are correlated by five": (
        "statistics",
        scattered(5 - 4 * torch.eye(64)),
        "or has a negative variance",
    ),
    "a scatter of two halves": ("statistics", scattered(torch.eye(64).roll(1, 0)), "its scatter is not symmetric"),
    "statistics with more": ("statistics", changed(more=MADE), "it answers with 'more', which nobody asked for"),
    "an absurd sketch": ("sketch", full(sketch=1e200), "raise range.sketch"),
    "an absurd tilt": ("sketch", full(tilted=1e200), "raise range.third-moment"),
    "an absurd diagonal": ("sketch", full(diagonal=1e200), "raise range.kernel"),
    "absurd waves": ("sketch", full(cosines=1e200), "its cosines reaches 1e+200, and no more than 25 is believed"),
    "a sketch of no image": ("sketch", changed(count=number(0)), "it tells of 0 images and has 25"),
    "a sketch of other settings": ("sketch", changed({"seed": "7"}), "'seed': '7'"),
    "a sketch of other size": (
        "sketch",
        lambda message: Message(
            message.kind, {n: t[:5] if t.ndim else t for n, t in message.tensors.items()}, message.meta
        ),
        "is [5] and should be",
    ),
    "a sketch with more": ("sketch", changed(more=MADE), "it answers with 'more', which nobody asked for"),
}
SCORES = {
    "a score of no image": ("kid", changed(count=number(0)), "it tells of 0 images and has 25"),
    "a score of other images": ("kid", changed({"generated": "5"}), "'generated': '5'"),
    "a score of another kind": ("kid", lambda m: Message("fid", {"count": number(25), "score": number(0)}, m.meta), ""),
    "an absurd score": ("kid", full(score=1e300), "raise range.kid"),
    "an absurd mean kernel": ("kid", full(within=1e300), "raise range.kernel"),
    "a score of garbage": ("kid", lambda message: b"\x00" * 9, "no readable message"),
}


def side(folder, fault):
    ask, spoil, reason = fault
    data = Asked(folder, ask, spoil)
    found = RemoteEvaluator(data, answers_of(data, folder), num_images=30, device="cpu", **SETTINGS).answers
    found.look(dict.fromkeys(found.places, MADE))
    return found, reason


def scores(asked, features=MADE):
    """The names of the scores of generated images, of clients that have told what is told once."""
    (found,) = asked.ask(dict.fromkeys(asked.places, features)).values()
    return [score.name for score in found.score(features)]


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_wrong_with_a_clients_statistics_is_said_with_its_name(name, tmp_path):
    asked, reason = side(tmp_path, FAULTS[name])
    with pytest.raises(MessageError, match=f"client 'b': .*{re.escape(reason)}"):
        asked.prepare()


@pytest.mark.parametrize("name", SCORES)
def test_an_evaluation_goes_on_without_scores_that_a_client_answers_badly(name, tmp_path):
    asked, reason = side(tmp_path, SCORES[name])
    asked.prepare()
    with pytest.warns(UserWarning, match=f"kid and kid-rbf are left out .* client 'b': .*{re.escape(reason)}"):
        assert scores(asked) == ["fid"]


def test_clients_that_answer_as_asked_are_believed(tmp_path):
    asked, _ = side(tmp_path, ("none", None, ""))
    asked.prepare()
    assert scores(asked) == ["fid", "kid", "kid-rbf"]


@pytest.mark.parametrize("factor", [1e-2, 1e-6, 0], ids=["small", "tiny", "none"])
def test_what_real_features_tell_is_believed_where_generated_ones_are_small(factor, tmp_path):
    """Hundreds of times as large as those of generated images, or any below 1000: models begin with nearly nothing."""
    asked, _ = side(tmp_path, ("none", None, ""))
    asked._ranges.clear()
    asked.look(dict.fromkeys(asked.places, MADE * factor))
    asked.prepare()
    assert scores(asked, MADE * factor) == ["fid", "kid", "kid-rbf"]


def test_ranges_are_of_the_largest_generated_features_so_far(tmp_path):
    asked, _ = side(tmp_path, ("none", None, ""))
    (key,) = asked.places
    before = dict(asked._ranges[key])
    asked.look({key: MADE / 2})
    assert asked._ranges[key] == before
    asked.look({key: MADE * 2})
    assert asked._ranges[key]["mean"] == 2 * before["mean"] == 2000 * float(MADE.max())


@pytest.mark.filterwarnings("ignore:train/pixels. kid is left out:UserWarning")
def test_a_score_that_cannot_be_worked_out_is_left_out_and_the_others_are_there(tmp_path):
    """Ranges of a run's config may let anything through."""
    asked, _ = side(tmp_path, ("statistics", full(deviations=1e200), ""))
    (key,) = asked.places
    asked._ranges[key] = dict.fromkeys(RANGES, math.inf)
    asked.prepare()
    with pytest.warns(UserWarning, match="evaluation"):
        assert scores(asked) == ["kid-rbf"]
