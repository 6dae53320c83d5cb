"""Exact sums of clients' messages under secure aggregation: the server learns each sum and no summand.

SecAgg+ as Flower has it rounds entries to 22 bits, too coarse for covariances, whose small eigenvalues count in a FID.
Statistics are whole numbers of 63 bits here (`statistics.fixed_point`), and travel as three limbs of 21 bits: a limb
over 2^21 lies on the grid to which Flower rounds, so it comes through unchanged, and so does the sum.

All clients must answer: with fewer nothing is unmasked. The sum over all but one, asked for another time, would show
the one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np
import torch
from flwr.serverapp import Grid
from numpy.typing import NDArray
from torch import Tensor

from fedgen.flower.secure_aggregation.secure_mean import Masked, secure_mean
from fedgen.flower.wire.ranges import Largest
from fedgen.flower.wire.serialization import from_bytes, to_bytes
from fedgen.io.field_types import fault
from fedgen.statistics.fixed_point import FixedPoint
from fedgen.statistics.statistic_messages import Message, MessageError

LIMB = 21  # bits
_LIMBS = 3
_CUT = "cut"  # the tensor in which messages count their entries that were cut off, by tensor


@dataclass(frozen=True, eq=False)
class Sum:
    """The sum of one message a client.

    Args:
        total: as `statistics.add` of the messages.
        cut: the share of the clients' entries that were beyond the largest, by tensor; none is 0.
    """

    total: Message
    cut: dict[str, float]


@dataclass(frozen=True)
class Sums:
    """The outcome of an exchange.

    Args:
        sums: in the order of the messages; None if there are none.
        failures: then: why, by node; empty where too few nodes were asked.
    """

    sums: list[Sum] | None
    failures: dict[int, str] = field(default_factory=dict)


def fixed_point(largest: Largest, clients: int) -> FixedPoint:
    """Return how messages of these largest entries become whole numbers.

    Raises:
        ValueError: for a largest entry that is not positive and finite.
    """
    bits = FixedPoint.for_ranges(clients, largest).bits
    assert isinstance(bits, Mapping)
    return FixedPoint(clients, {**bits, _CUT: 0})


def masked_messages(messages: Sequence[Message], largest: Sequence[Largest], clients: int) -> Masked:
    """A client's part: its messages, for SecAgg+ to mask; of them only names, shapes and remarks are in the open.

    Args:
        messages: of summable kinds, without a tensor "cut".
        largest: of each.
        clients: how many are asked.

    Raises:
        MessageError: for messages that do not add, or tensors of which no largest entry is told.
    """
    parts, forms = [], []
    for message, bounds in zip(messages, largest, strict=True):
        encoded = fixed_point(bounds, clients).encode(_bounded(message, bounds))
        names = sorted(encoded.tensors)
        parts += [encoded.tensors[name].reshape(-1) for name in names]
        shapes = {name: list(encoded.tensors[name].shape) for name in names}
        forms.append({"shapes": shapes, "meta": dict(encoded.meta)})
    return Masked([_limbs(torch.cat(parts))], to_bytes(forms), 1)


def secure_sums(
    grid: Grid,
    asked: Mapping[int, tuple[list[NDArray[np.float64]], bytes]],
    largest: Sequence[Largest],
    round: int,
    timeout: float | None,
) -> Sums:
    """The server's part: one exchange with nodes whose apps return `masked_messages`.

    Args:
        grid: Flower's.
        asked: for each node the arrays and bytes that it is sent, which tell it `largest` and how many are asked.
        largest: of each message.
        round: for Flower's log.
        timeout: seconds for each of the protocol's four messages.

    Raises:
        MessageError: if clients' messages do not fit what was asked.
    """
    if len(asked) < 2:
        return Sums(None)
    made = secure_mean(grid, {node: (*what, 1) for node, what in asked.items()}, round, timeout, threshold=1.0)
    if made.mean is None or made.rests.keys() != asked.keys():
        return Sums(None, made.failures)
    forms = []
    for node, rest in made.rests.items():
        try:
            forms.append(_read_forms(rest))
        except MessageError as error:
            return Sums(None, {node: str(error)})
    alike = {node: sum(form == other for other in forms) for node, form in zip(made.rests, forms)}
    if (fewest := min(alike.values())) < len(forms):  # of two clients both: nobody knows which of them is right
        why = "its messages have different forms from the others'; install the same release and weights"
        return Sums(None, {node: why for node, count in alike.items() if count == fewest})
    return Sums(_read(_joined(made.mean[0], len(asked)), forms[0], largest, len(asked)))


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
