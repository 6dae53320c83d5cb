"""Exact sums of clients' messages under secure aggregation: the server learns each sum and no summand.

SecAgg+ as Flower has it rounds entries to 22 bits, too coarse for covariances, whose small eigenvalues count in a FID.
Statistics are whole numbers of 63 bits here (`statistics.fixed_point`), and travel as three limbs of 21 bits: a limb
over 2^21 lies on the grid to which Flower rounds, so it comes through unchanged, and so does the sum.

All clients must answer: with fewer nothing is unmasked. The sum over all but one, asked for another time, would show
the one.

A loss's answers need no exact sum, and nobody knows their range beforehand (`encode`, `decode`). Their entries are
divided by a range, which the server sets for each tensor, and rounded to two whole numbers each: what the first leaves
over is the second, so that the sum is off by 2^-43 of the range for each client. The range follows from the answers
themselves: beside each tensor, masked as well, a client marks which power of two its largest entry lies below; the sum
of the marks tells the server how many clients lie where, of none of them where. A sum in which something was cut off is
not used: the server asks again with a wider range, and with a finer one where the first was much too wide.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgen.flower.secure_aggregation.agreement import STEPS
from fedgen.flower.secure_aggregation.secure_mean import Masked, SecureMean
from fedgen.flower.wire.answer_forms import WEIGHT, Largest
from fedgen.flower.wire.messages import Scale
from fedgen.flower.wire.serialization import from_bytes, to_bytes
from fedgen.io.field_types import fault
from fedgen.statistics.fixed_point import FixedPoint
from fedgen.statistics.statistic_messages import Message, MessageError

LIMB = 21  # bits
_LIMBS = 3
_CUT = "cut"  # the tensor in which messages count their entries that were cut off, by tensor
LOWEST, MARKS = -64, 128  # the first mark is for 2^-64 and less, the last for 2^63 and all above
FIRST = 2.0**8  # the range that is tried first
MARGIN = 8  # times the largest entry of one batch, for the next
WASTE = 2**16  # a first range that is so much too wide is narrowed
DIGITS = 2  # whole numbers an entry
STEP = 2.0 / STEPS**DIGITS  # between neighbouring sums, as a part of the range
_HALF = STEPS // 2  # whole numbers on each side of zero


@dataclass(frozen=True, eq=False)
class Sum:
    """The sum of one message a client; by tensor, the share of entries beyond the largest, if there are any."""

    total: Message
    cut: dict[str, float]


@dataclass(frozen=True)
class Sums:
    """The outcome of an exchange: sums in the messages' order, or why there are none, by client."""

    sums: list[Sum] | None
    failures: dict[int, str] = field(default_factory=dict)


def fixed_point(largest: Largest, clients: int) -> FixedPoint:
    """Return how messages of these largest entries become whole numbers."""
    bits = FixedPoint.for_ranges(clients, largest).bits
    assert isinstance(bits, Mapping)
    return FixedPoint(clients, {**bits, _CUT: 0})


def masked_messages(messages: Sequence[Message], largest: Sequence[Largest], clients: int) -> Masked:
    """A client's part, with names, shapes and remarks open; MessageError for what does not add, or no bound."""
    parts, forms = [], []
    for message, bounds in zip(messages, largest, strict=True):
        encoded = fixed_point(bounds, clients).encode(_bounded(message, bounds))
        names = sorted(encoded.tensors)
        parts += [encoded.tensors[name].reshape(-1) for name in names]
        shapes = {name: list(encoded.tensors[name].shape) for name in names}
        forms.append({"shapes": shapes, "meta": dict(encoded.meta)})
    return Masked([_limbs(torch.cat(parts))], to_bytes(forms), 1)


def read_sums(made: SecureMean, clients: int, largest: Sequence[Largest]) -> Sums:
    """The sums of what all clients' apps returned by `masked_messages`; MessageError if they are of something else."""
    if made.mean is None or len(made.rests) != clients:
        return Sums(None, made.failures)
    forms = []
    for client, rest in made.rests.items():
        try:
            forms.append(_read_forms(rest))
        except MessageError as error:
            return Sums(None, {client: str(error)})
    alike = {client: sum(form == other for other in forms) for client, form in zip(made.rests, forms)}
    if (fewest := min(alike.values())) < len(forms):  # of two clients both: nobody knows which of them is right
        why = "its messages have different forms from the others'; install the same release and weights"
        return Sums(None, {client: why for client, count in alike.items() if count == fewest})
    return Sums(_read(_joined(made.mean[0], clients), forms[0], largest, clients))


class _Form(TypedDict):
    """Shapes and remarks of one message."""

    shapes: dict[str, list[int]]
    meta: dict[str, str]


def _read_forms(rest: bytes) -> list[_Form]:
    """Shapes and remarks of a client's messages: of plain types alone, as they are compared with others'."""
    found = from_bytes(rest, what := "the form of the sums")
    if wrong := fault(found, list[_Form]):
        raise MessageError(f"{what} {wrong}")
    return list(found)


def _bounded(message: Message, largest: Largest) -> Message:
    """The message without entries beyond the largest, and how many they were."""
    if unknown := sorted(message.tensors.keys() - largest.keys()):
        raise MessageError(f"no largest entry is told of {unknown[0]!r}, only of {sorted(largest)}")
    kept = {name: tensor.clamp(-largest[name], largest[name]) for name, tensor in message.tensors.items()}
    cut = [float((kept[name] != tensor).sum()) for name, tensor in sorted(message.tensors.items())]
    return Message(message.kind, {**kept, _CUT: torch.tensor(cut, dtype=torch.float64)}, message.meta)


def _limbs(values: Tensor) -> NDArray[np.float64]:
    """Whole numbers int64 [n] as three limbs each, [3 n] in [-1, 1]: all the lowest, the middle ones, the highest."""
    low = (1 << LIMB) - 1
    limbs = torch.cat([values & low, (values >> LIMB) & low, values >> 2 * LIMB])
    found: NDArray[np.float64] = (limbs.double() / (1 << LIMB)).numpy()
    return found


def _joined(mean: NDArray[np.float64], number: int) -> Tensor:
    """The sum int64 [n] of whole numbers from the mean of their limbs over so many clients."""
    sums = (torch.from_numpy(np.asarray(mean)) * (number * (1 << LIMB))).round().to(torch.int64)
    low, middle, high = sums.view(_LIMBS, -1)
    return low + (middle << LIMB) + (high << 2 * LIMB)


def _read(whole: Tensor, forms: Sequence[_Form], largest: Sequence[Largest], clients: int) -> list[Sum]:
    try:
        if len(forms) != len(largest):
            raise ValueError(f"{len(forms)} messages in place of {len(largest)}")
        sizes = [[int(np.prod(shape)) for shape in form["shapes"].values()] for form in forms]
        parts = iter(whole.split([size for row in sizes for size in row]))
        found = []
        for form, bounds in zip(forms, largest, strict=True):
            tensors = {name: next(parts).reshape(shape) for name, shape in form["shapes"].items()}
            found.append(_decoded(Message("fixed-point", tensors, form["meta"]), bounds, clients))
    except Exception as error:  # the forms are what clients say
        raise MessageError(f"the clients' sums cannot be read: {error}") from error
    return found


def _decoded(total: Message, largest: Largest, clients: int) -> Sum:
    decoded = fixed_point(largest, clients).decode(total)
    tensors = {name: tensor for name, tensor in decoded.tensors.items() if name != _CUT}
    cut = {
        name: float(count) / (clients * max(1, tensors[name].numel()))
        for name, count in zip(sorted(tensors), decoded.tensors[_CUT], strict=True)
        if count > 0
    }
    return Sum(Message(decoded.kind, tensors, decoded.meta), cut)


def encode(answer: Message, scale: Scale) -> list[NDArray[np.float64]]:
    """The answer's tensors but for its weight, by name in order: each as two arrays and its mark, all in [-1, 1]."""
    found = []
    for name in hidden_names(answer):
        entries = answer.tensors[name].double().flatten() / scale["largest"]
        part = (entries / scale["ranges"][name]).clamp(-1, 1)
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


def decode(
    mean: Sequence[NDArray[np.float64]], form: Message, scale: Scale, clients: int, weight: float
) -> tuple[Message, dict[str, float]]:
    """The sum of the clients' answers, and below what each tensor's entries lie, of an answer of the largest weight."""
    names = hidden_names(form)
    if len(mean) != len(names) * (DIGITS + 1):
        raise MessageError(f"the sum has {len(mean)} arrays, of {len(names)} tensors")
    known = {name: torch.tensor(weight, dtype=torch.float64) for name in form.tensors if name in WEIGHT}
    tensors = {**form.tensors, **known}
    bounds, arrays = {}, iter(torch.from_numpy(np.asarray(array, dtype=np.float64)) for array in mean)
    for name in names:
        total = next(arrays) + next(arrays) / STEPS
        shape, factor = form.tensors[name].shape, clients * scale["largest"] * scale["ranges"][name]
        if total.numel() != math.prod(shape):
            raise MessageError(f"the sum's {name} has {total.numel()} numbers and should be {list(shape)}")
        tensors[name] = (total * factor).reshape(shape)
        there = (next(arrays) * clients > 0.5).nonzero()
        bounds[name] = 2.0 ** (int(there.max()) + LOWEST) if len(there) else math.inf
    return Message(form.kind, tensors, form.meta), bounds
