"""A loss's answers under secure aggregation: as numbers in [-1, 1] that are summed behind masks, and read again.

An answer's entries are divided by a range, which the server sets for each tensor, and rounded to two whole numbers
each: what the first leaves over is the second, so that the sum is off by 2^-43 of the range for each client. The range
follows from the answers themselves: beside each tensor, masked as well, a client marks which power of two its
largest entry lies below; the sum of the marks tells the server how many clients lie where, of none of them where. A sum
in which something was cut off is not used: the server asks again with a wider range, and with a finer one where the
first was much too wide.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgen.flower.secure_aggregation.agreement import STEPS
from fedgen.flower.wire.answer_forms import WEIGHT
from fedgen.statistics.statistic_messages import Message, MessageError

LOWEST, MARKS = -64, 128  # the first mark is for 2^-64 and less, the last for 2^63 and all above
FIRST = 2.0**8  # the range that is tried first
MARGIN = 8  # times the largest entry of one batch, for the next
WASTE = 2**16  # a first range that is so much too wide is narrowed
DIGITS = 2  # whole numbers an entry
STEP = 2.0 / STEPS**DIGITS  # between neighbouring sums, as a part of the range
_HALF = STEPS // 2  # whole numbers on each side of zero

Arrays = Sequence[NDArray[np.float64]]


@dataclass(frozen=True)
class Scale:
    """The scale by which answers become whole numbers.

    Args:
        ranges: the largest entry of each tensor, of an answer of the weight `largest`.
        largest: weight of the client that weighs most.
    """

    ranges: Mapping[str, float]
    largest: float


def encode(answer: Message, scale: Scale) -> list[NDArray[np.float64]]:
    """The answer's tensors but for its weight, by name in order: each as two arrays and its mark, all in [-1, 1]."""
    found = []
    for name in hidden_names(answer):
        entries = answer.tensors[name].double().flatten() / scale.largest
        part = (entries / scale.ranges[name]).clamp(-1, 1)
        first = (part * _HALF).round() / _HALF
        found += [each.numpy() for each in (first, (part - first) * STEPS, _mark(entries))]
    return found


def hidden_names(answer: Message) -> list[str]:
    """The tensors that are summed behind masks: all but the weight, which the server knows, and empty ones."""
    return [name for name, tensor in sorted(answer.tensors.items()) if name not in WEIGHT and tensor.numel()]


def _mark(entries: Tensor) -> Tensor:
    largest = float(entries.abs().max())
    power = math.frexp(largest)[1] if largest else LOWEST  # largest <= 2^power
    mark = torch.zeros(MARKS, dtype=torch.float64)
    mark[min(max(power - LOWEST, 0), MARKS - 1)] = 1
    return mark


def decode(mean: Arrays, form: Message, scale: Scale, clients: int, weight: float) -> tuple[Message, dict[str, float]]:
    """The sum of the clients' answers, and below what each tensor's entries lie, of an answer of the largest weight.

    Args:
        mean: of the clients' arrays.
        form: of an answer.
        scale: of the arrays.
        clients: how many answered.
        weight: of all of them.

    Raises:
        MessageError: if the arrays are not of that form.
    """
    names = hidden_names(form)
    if len(mean) != len(names) * (DIGITS + 1):
        raise MessageError(f"the sum has {len(mean)} arrays, of {len(names)} tensors")
    known = {name: torch.tensor(weight, dtype=torch.float64) for name in form.tensors if name in WEIGHT}
    tensors = {**form.tensors, **known}
    bounds, arrays = {}, iter(torch.from_numpy(np.asarray(array, dtype=np.float64)) for array in mean)
    for name in names:
        total = next(arrays) + next(arrays) / STEPS
        shape, factor = form.tensors[name].shape, clients * scale.largest * scale.ranges[name]
        if total.numel() != math.prod(shape):
            raise MessageError(f"the sum's {name} has {total.numel()} numbers and should be {list(shape)}")
        tensors[name] = (total * factor).reshape(shape)
        there = (next(arrays) * clients > 0.5).nonzero()
        bounds[name] = 2.0 ** (int(there.max()) + LOWEST) if len(there) else math.inf
    return Message(form.kind, tensors, form.meta), bounds
