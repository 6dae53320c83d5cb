"""The form of answers to a loss's question: every client's alike, or their sum would be of nothing."""

import torch
from torch import Tensor

from fedgen.statistics import CubicSketch
from fedgen.statistics.statistic_messages import Message, MessageError

WEIGHT = ("weight", "count")  # what an answer's weight is called


def form_of(question: Message, dim: int) -> Message:
    """An answer of zeros.

    Args:
        question: "features", "landmarks", "moments" or "sketch".
        dim: features D of the embedding.

    Raises:
        MessageError: for another question.
    """
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
