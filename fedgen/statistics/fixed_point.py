"""Sums as whole numbers modulo 2^64: the form in which masks cancel exactly, as secure aggregation needs them.

A value v becomes round(v 2^bits). Sums of whole numbers lose nothing, so the error is the rounding of each client's
entry, at most 2^-(bits + 1), whatever the number of images: at 24 bits below 1e-8 of an FID of features around 1, but
more where features are small. Whole numbers modulo 2^64 hide behind uniformly random masks completely, floats do not.

The sums must stay below 2^63, or they come out wrapped around unnoticed: so each client is refused whose values could
do that over the agreed number of clients. Bits and that number are public and the same at all clients. Every message
counts itself, so that a sum of more messages is refused, and one in which masks are left over.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgen.seeds import generator
from fedgen.statistics.statistic_messages import KINDS, SUMMABLE, Message, MessageError, add, remarks_from_json

LIMIT = 2**63
MOST_BITS = 512  # either way, so that powers of two stay within float64
COUNTER = "messages"  # the tensor in which encoded messages count themselves


@dataclass(frozen=True)
class FixedPoint:
    """The form of sums as whole numbers; the same at every client.

    Args:
        clients: how many messages will be added at most.
        bits: whole number of binary places after the point, for all tensors or by the tensor's name; negative for huge
            values.

    Raises:
        ValueError: for no client, or bits that are no whole number or beyond 512.
    """

    clients: int
    bits: int | Mapping[str, int] = 24

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise ValueError(f"clients must be at least 1, got {self.clients}")
        for value in self.bits.values() if isinstance(self.bits, Mapping) else [self.bits]:
            if not isinstance(value, int) or abs(value) > MOST_BITS:
                raise ValueError(f"bits must be {-MOST_BITS} to {MOST_BITS}, whole, got {value}")

    @staticmethod
    def for_ranges(clients: int, largest: Mapping[str, float]) -> "FixedPoint":
        """The finest scale of each tensor under which sums over the clients cannot overflow.

        Args:
            clients: how many messages will be added at most.
            largest: a bound on the absolute entries of a client's tensor, by the tensor's name. Agree on it beforehand
                from what is public, say n R and n R^2 for sums of n features clipped at R, and 9 standard deviations
                more of noise if there is some: it must not come from data.
        """
        for name, value in largest.items():
            if not 0 < value < math.inf:
                raise ValueError(f"the largest value of {name!r} must be positive and finite, got {value}")
        return FixedPoint(clients, {name: _finest(value, clients) for name, value in largest.items()})

    def encode(self, message: Message) -> Message:
        """The "fixed-point" message of a summable message.

        Raises:
            MessageError: for a message that does not add, a tensor without bits, or values that could overflow.
        """
        if message.kind not in SUMMABLE or message.kind == "fixed-point":
            raise MessageError(f"a {message.kind!r} message does not become whole numbers; encode summable floats")
        if COUNTER in message.tensors:
            raise MessageError(f"a tensor cannot be named {COUNTER!r}: encoded messages count themselves under it")
        tensors = {name: self._encode(name, tensor) for name, tensor in message.tensors.items()}
        tensors[COUNTER] = torch.ones((), dtype=torch.int64)
        return Message("fixed-point", tensors, self._meta(message.kind, dict(message.meta)))

    def decode(self, total: Message) -> Message:
        """The summable message of floats in a sum of encoded ones.

        Raises:
            MessageError: if it is not of kind "fixed-point", was encoded by other settings, or is not the sum of 1 to
                `clients` messages with all their masks.
        """
        if total.kind != "fixed-point":
            raise MessageError(f"expected a 'fixed-point' message, got {total.kind!r}")
        kind = total.meta.get("of", "")
        try:
            meta = remarks_from_json(total.meta.get("meta", "{}"))
        except ValueError as error:
            raise MessageError(f"a 'fixed-point' message is damaged: {error}") from error
        if kind not in KINDS or dict(total.meta) != self._meta(kind, meta) or COUNTER not in total.tensors:
            raise MessageError(f"the message has the settings {dict(total.meta)}: use the same at all clients, {self}")
        number = int(total.tensors[COUNTER])
        if not 1 <= number <= self.clients:
            raise MessageError(f"a sum of {number} messages, not 1 to {self.clients}: added twice, or clients missing")
        values = {name: tensor for name, tensor in total.tensors.items() if name != COUNTER}
        return Message(kind, {name: t.double() * 2.0 ** -self._bits(name) for name, t in values.items()}, meta)

    def _encode(self, name: str, tensor: Tensor) -> Tensor:
        bits = self._bits(name)
        values = (tensor.double().cpu() * 2.0**bits).round()
        largest = float(values.abs().max()) if values.numel() else 0.0
        if not largest * self.clients < LIMIT:
            value = float(tensor.abs().max())
            most = _finest(value, self.clients)
            raise MessageError(f"tensor {name!r} holds {value:.6g}, and sums could overflow: use at most {most} bits")
        return values.to(torch.int64)

    def _bits(self, name: str) -> int:
        if not isinstance(self.bits, Mapping):
            return self.bits
        if name not in self.bits:
            raise MessageError(f"no bits are set for the tensor {name!r}, only for {sorted(self.bits)}")
        return self.bits[name]

    def _meta(self, kind: str, meta: dict[str, str]) -> dict[str, str]:
        bits = json.dumps(dict(self.bits) if isinstance(self.bits, Mapping) else self.bits, sort_keys=True)
        return {"of": kind, "bits": bits, "clients": str(self.clients), "meta": json.dumps(meta, sort_keys=True)}


def mask(message: Message, client: int, clients: int, seed: int) -> Message:
    """A "fixed-point" message behind the pairwise masks of secure aggregation: uniform alone, exact once all are added.

    Each pair of clients shares a random mask that one adds and the other subtracts (Bonawitz et al. 2017). Only a
    simulation: in earnest each pair agrees on its mask's key, and lost clients' masks are recovered; both belong to
    the transport.

    Args:
        message: of one client.
        client: its number, 0 to clients - 1.
        clients: how many take part; the masks cancel when the messages of all are added.
        seed: from which every pair's mask is drawn; another one for every sum, or differences show through.

    Raises:
        MessageError: if the message is not of kind "fixed-point".
        ValueError: for a client that does not take part.
    """
    if message.kind != "fixed-point":
        raise MessageError(f"only 'fixed-point' messages hide behind masks, got {message.kind!r}; encode it first")
    if not 0 <= client < clients:
        raise ValueError(f"client must be 0 to {clients - 1}, got {client}")
    masked = message
    for other in range(clients):
        if other != client:
            masked = add(masked, _pair_mask(message, min(client, other), max(client, other), seed, client < other))
    return masked


def _pair_mask(message: Message, first: int, second: int, seed: int, positive: bool) -> Message:
    tensors = {}
    for name, tensor in sorted(message.tensors.items()):
        draws = generator(seed, "mask", first, second, name)
        halves = [torch.randint(2**32, tensor.shape, dtype=torch.int64, generator=draws) for _ in range(2)]
        values = (halves[0] - 2**31) * 2**32 + halves[1]  # each of the 2^64 alike, which no single call draws
        tensors[name] = values if positive else -values
    return Message("fixed-point", tensors, message.meta)


def _finest(value: float, clients: int) -> int:
    """The most bits b with clients * (value 2^b + 1/2) < 2^63."""
    bits = min(MOST_BITS, 63 - math.frexp(value)[1])
    while clients * (math.ldexp(value, bits) + 0.5) >= LIMIT:
        bits -= 1
    return bits
