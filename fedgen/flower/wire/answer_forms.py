"""The form of clients' answers and the bounds of their numbers: public, and the same for all clients.

A range bounds entries of a mean over one client's images. What the server knows of it are the features of its generated
images. Ranges that are not given leave room for real features HEADROOM times as large under secure aggregation, where
what is beyond is cut off: being wide costs little, entries are whole numbers of about 60 bits. In the open, where what
is beyond is not believed, they leave room for BELIEVED times as large ones.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedgen.flower.wire.messages import Asked
from fedgen.statistics import CubicSketch
from fedgen.statistics.statistic_messages import Message, MessageError

WEIGHT = ("weight", "count")  # what an answer's weight is called
Largest = Mapping[str, float]
"""By a tensor's name the largest entry that a client's message may have; what is beyond is cut off, or not believed."""

RANGES = {
    "mean": "of features",
    "second-moment": "of features, x x^T",
    "third-moment": "of centred features along the centre, <c, z> z z^T",
    "sketch": "of products of three random projections of centred features",
    "kernel": "of KID's kernel within a client, and of k(x, x)",
    "fid": "a client's own FID",
    "kid": "a client's own KID",
}
"""What each statistic is."""

HEADROOM = 32.0
BELIEVED = 1000.0
SMALLEST = 1.0  # that features count as: an untrained model's may be nearly nothing, and say nothing of real ones
_CONFIG = "range"  # the run config's table
_OF: dict[tuple[Asked, str], str] = {
    ("statistics", "mean"): "mean",
    ("statistics", "scatter"): "second-moment",
    ("statistics", "deviations"): "second-moment",
    ("sums", "sum"): "mean",
    ("sums", "outer"): "second-moment",
    ("sketch", "tilted"): "third-moment",
    ("sketch", "sketch"): "sketch",
    ("sketch", "diagonal"): "kernel",
    ("kid", "within"): "kernel",
    ("kid", "score"): "kid",
    ("fid", "score"): "fid",
}


def form_of(question: Message, dim: int) -> Message:
    """An answer of zeros to a loss's question, about features of D numbers; every client's has this form."""
    pairs = dim * (dim + 1) // 2
    if question.kind == "features":
        features = question.tensors["features"]
        rows = len(features) if question.meta.get("gradient") == "yes" else 0
        return Message("terms", {"weight": _zeros(), "value": _zeros(), "gradient": _zeros(rows, dim)})
    if question.kind == "landmarks":
        number = len(question.tensors["landmarks"])
        return Message("kernel-means", {"weight": _zeros(), "within": _zeros(), "kernels": _zeros(number)})
    if question.kind == "moments":
        return Message("sums", {"count": _zeros(), "sum": _zeros(dim), "outer": _zeros(pairs)})
    if question.kind != "sketch":
        raise MessageError(f"no loss asks {question.kind!r}")
    centre = question.tensors["centre"]
    number, seed = int(question.meta["number"]), int(question.meta["seed"])
    sketch = CubicSketch(dim, number, seed, centre if len(centre) else None)
    tilted = _zeros(pairs if len(centre) else 0)
    tensors = {"count": _zeros(), "tilted": tilted, "sketch": _zeros(number), "diagonal": _zeros()}
    return Message("cubic", tensors, sketch.meta())


def check_form(answer: Message, form: Message, weight: float) -> None:
    """Raises MessageError unless an answer has the form and the weight that it was asked to have."""
    if answer.kind != form.kind or dict(answer.meta) != dict(form.meta):
        raise MessageError(f"it answers {answer.kind!r} {dict(answer.meta)}, not {form.kind!r} {dict(form.meta)}")
    if more := sorted(answer.tensors.keys() - form.tensors.keys()):
        raise MessageError(f"it answers with {more[0]!r}, which nobody asked for")
    for name, tensor in form.tensors.items():
        found = answer.tensors.get(name)
        if found is None or found.shape != tensor.shape:
            shape = "none" if found is None else list(found.shape)
            raise MessageError(f"its {name} is {shape} and should be {list(tensor.shape)}")
        if name in WEIGHT and abs(float(found) - weight) > 1e-3 * weight:
            raise MessageError(f"it weighs {float(found):g} and should weigh {weight:g}")


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def range_key(name: str) -> str:
    """The run config's key of a statistic's range."""
    return f"{_CONFIG}.{name}"


def name_of(ask: Asked, tensor: str) -> str:
    """The statistic that a tensor of an answer is; the tensor's own name where it has no range."""
    return _OF.get((ask, tensor), tensor)


@dataclass(frozen=True)
class Ranges:
    """Ranges of the clients' statistics, as given; those that are not there follow from generated images."""

    given: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.given.items():
            if name not in RANGES:
                raise ValueError(f"{range_key(name)} in the run's config: statistics are {', '.join(RANGES)}")
            if not 0 < value < math.inf:
                raise ValueError(f"{range_key(name)}={value} in the run's config must be positive; 0 for the default")

    @classmethod
    def of_run(cls, config: Mapping[str, Any]) -> "Ranges":
        """Those of a run's config, where 0 stands for the default."""
        given = {name.partition(".")[2]: float(v) for name, v in config.items() if name.startswith(f"{_CONFIG}.")}
        return cls({name: value for name, value in given.items() if value != 0})

    def for_features(self, generated: Tensor, headroom: float = HEADROOM) -> dict[str, float]:
        """All ranges, in an embedding where generated images have these features [m, D]."""
        entry = headroom * max(float(generated.abs().max()), SMALLEST)
        norm = headroom * max(float(generated.double().norm(dim=1).max()), SMALLEST)
        kernel = (1 + norm**2 / generated.shape[1]) ** 3
        chosen = {
            "mean": entry,
            "second-moment": entry**2,
            "third-moment": norm * 2 * norm * (2 * entry) ** 2,
            "sketch": (2 * norm) ** 3,
            "kernel": kernel,
            "fid": 4 * norm**2,
            "kid": 4 * kernel,
        }
        return chosen | dict(self.given)


def largest(ask: Asked, is_bounded: bool, ranges: Mapping[str, float], most: int) -> Largest:
    """The largest entries of a client's answer about `most` images, of sums but for a summary's mean and deviations."""
    if ask == "statistics":
        scatter = most * ranges["second-moment"]  # which is what the squares of deviations add up to, too
        return {"count": most, "mean": ranges["mean"], "scatter": scatter, "deviations": scatter**0.5, "shares": 1.0}
    count = {"count": 1.0}
    if is_bounded:
        own = {"cosines": 1.0, "sines": 1.0} if ask == "sketch" else {"score": 4.0, "within": 1.0}
    else:
        own = {tensor: ranges[name] for (asked, tensor), name in _OF.items() if asked == ask}
    return {tensor: most * value for tensor, value in {**count, **own}.items()}
