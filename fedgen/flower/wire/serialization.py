"""Bytes that travel beside weights: safetensors, whose metadata hold plain values in JSON; nothing is unpickled.

Each number that is read was sent: nothing is larger in memory than some thirty times what came. Whether bits flipped on
the way is the transport's to find; what is kept in a file is sealed by a hash.

What JSON has is written as it is; everything else is an object of one entry that names its type:

    1.5, "a", true, null, [1, 2]       as they are
    {"float": "nan"}                   NaN or infinity
    {"tuple": [1, 2]}, {"set": [1]}
    {"dict": [["a", 1], [2, 3]]}       keys are texts, whole numbers, or tuples of texts and at most one whole number
    {"counter": [[10, 1]]}             of `collections`, as schedulers have it
    {"tensor": 0}, {"complex": 1}      the tensor of that place, one by one in order; complex ones by their parts
    {"bytes": 2}                       likewise, a tensor of bytes

Python's hashes of numbers are no secret: tuples of two can be chosen to have one hash, and a dictionary of them takes
the square of the time. Of single ones with 64 bits no more than nine share one, but many large ones can be chosen that
are looked for in each other's places.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from fedgen.federated.client_state.exchange import all_finite
from fedgen.io.restricted_pickle import LEAST_CHOSEN, MOST_BESIDE_CHOSEN
from fedgen.io.tensor_files import HASH, is_whole, with_hash
from fedgen.statistics.statistic_messages import MessageError

MOST_TEXT = 2**24  # bytes of JSON
DEEPEST = 64  # containers within containers
MOST_VALUES = 2**20  # in a message; an optimizer's state has some three a tensor
LARGEST = 2**63  # whole numbers lie below, and not below its negative
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_VALUE = "fedgen"
_LENGTH = 8  # bytes that say how long the header is


def to_bytes(value: Any, sealed: bool = False) -> bytes:
    """Plain types and tensors as bytes, sealed for files; TypeError or ValueError for what does not travel."""
    writer = Writer()
    text = json.dumps(writer.write(value), separators=(",", ":"), allow_nan=False)
    if len(text) > MOST_TEXT:
        raise ValueError(f"a message beside its tensors has at most {MOST_TEXT} bytes, and this one {len(text)}")
    tensors, header = _apart(writer.tensors), {_VALUE: text}
    return save(tensors, metadata=with_hash(tensors, header) if sealed else header)


def from_bytes(data: bytes, what: str, sealed: bool = False) -> Any:
    """Read what `to_bytes` was given; MessageError if it is damaged, or holds NaN or infinity in a tensor."""
    if not isinstance(data, bytes):
        raise MessageError(f"{what} cannot be read: it is {type(data).__name__} in place of bytes")
    try:
        text, tensors = _parts(data, sealed)
        value = Reader(tensors).read_all(json.loads(text))
        finite = all_finite(tensors)
    except Exception as error:  # whatever is wrong with them, it is the sender's
        raise MessageError(f"{what} cannot be read ({error or type(error).__name__}, in {len(data)} bytes)") from error
    if not finite:
        raise MessageError(f"{what} holds NaN or infinity")
    return value


def _parts(data: bytes, sealed: bool) -> tuple[str, list[Tensor]]:
    """The JSON and the tensors in order."""
    tensors = load(data)
    header = json.loads(data[_LENGTH : _LENGTH + int.from_bytes(data[:_LENGTH], "little")])["__metadata__"]
    if len(text := header[_VALUE]) > MOST_TEXT:
        raise ValueError(f"it has {len(text)} bytes beside its tensors, and at most {MOST_TEXT} are read")
    if (sealed and HASH not in header) or not is_whole(tensors, header):
        raise ValueError("it holds something other than what was written")
    return text, [tensors[str(place)] for place in range(len(tensors))]


def _apart(tensors: list[Tensor]) -> dict[str, Tensor]:
    """The tensors by their places, contiguous, no two in the same memory."""
    found, seen = {}, set()
    for place, tensor in enumerate(tensors):
        own = tensor.contiguous()
        if own.numel() and own.untyped_storage().data_ptr() in seen:
            own = own.clone()
        seen.add(own.untyped_storage().data_ptr())
        found[str(place)] = own
    return found


class Writer:
    """Writes one value; `tensors` are what its JSON refers to."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._left = MOST_VALUES

    def write(self, value: Any, depth: int = 0) -> Any:
        """The value as JSON writes it."""
        self._left = _counted(self._left, depth)
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return _bounded(int(value))
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": repr(float(value))}
        if isinstance(value, str):
            return _text(str(value))
        if isinstance(value, bytes):
            data = np.frombuffer(value, dtype=np.uint8).copy()
            return {"bytes": self._place(torch.from_numpy(data))}
        if isinstance(value, Tensor):
            return self._tensor(value)
        return self._container(value, depth + 1)

    def _container(self, value: Any, depth: int) -> Any:
        if isinstance(value, Mapping):
            items = [[self._key(key), self.write(part, depth)] for key, part in value.items()]
            return {"counter" if isinstance(value, Counter) else "dict": items}
        if isinstance(value, list):
            return [self.write(part, depth) for part in value]
        if isinstance(value, tuple):
            return {"tuple": [self.write(part, depth) for part in value]}
        if isinstance(value, set | frozenset):
            return {"set": [self._key(part) for part in value]}
        raise TypeError(f"a {type(value).__name__} does not travel: messages have numbers, text, tensors and bytes")

    def _key(self, key: Any) -> Any:
        if not _is_key(key):
            raise TypeError(
                f"the key {key!r} does not travel: keys are texts, whole numbers, or tuples of texts and at most one"
                " whole number"
            )
        return self.write(key)

    def _tensor(self, tensor: Tensor) -> dict[str, int]:
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise TypeError(
                f"a tensor of layout {tensor.layout} and type {tensor.dtype} does not travel: make it dense"
            )
        plain = tensor.detach().as_subclass(Tensor).cpu().resolve_conj().resolve_neg()
        if plain.is_complex():
            return {"complex": self._place(torch.view_as_real(plain))}
        return {"tensor": self._place(plain)}

    def _place(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1


class Reader:
    """Reads one value that `Writer` wrote."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors, self._next, self._left = tensors, 0, MOST_VALUES
        self._read: dict[str, Callable[[Any, int], Any]] = {
            "float": lambda part, depth: _NOT_FINITE[part],
            "tuple": lambda part, depth: tuple(self._parts(part, depth)),
            "set": lambda part, depth: self._set(part),
            "dict": self._dict,
            "counter": lambda part, depth: Counter(self._dict(part, depth)),
            "tensor": lambda part, depth: self._take(part),
            "complex": lambda part, depth: torch.view_as_complex(self._take(part)),
            "bytes": lambda part, depth: self._bytes(part),
        }

    def read_all(self, found: Any) -> Any:
        """The value of what JSON read."""
        value = self._value(found, 0)
        if self._next != len(self._tensors):
            raise ValueError(f"it has {len(self._tensors)} tensors and uses {self._next}")
        return value

    def _value(self, found: Any, depth: int) -> Any:
        self._left = _counted(self._left, depth)
        kind = type(found)
        if kind is str:
            return _text(found)
        if kind is int:
            return _bounded(found)
        if kind is float:
            if not math.isfinite(found):
                raise ValueError("it has a number that is beyond every float")
            return found
        if kind is bool or found is None:
            return found
        if kind is list:
            return self._parts(found, depth)
        ((name, part),) = found.items()
        if name not in self._read:
            raise ValueError(f"it has a value of type {name[:40]!r}, which no message has")
        return self._read[name](part, depth)

    def _parts(self, found: Any, depth: int) -> list[Any]:
        return [self._value(one, depth + 1) for one in _list(found)]

    def _dict(self, found: Any, depth: int) -> dict[Any, Any]:
        pairs: dict[Any, Any] = {}
        for key, value in _list(found):
            pairs[self._key(key, len(pairs))] = self._value(value, depth + 1)
        if len(pairs) != len(found):
            raise ValueError("it has a key twice")
        return pairs

    def _set(self, found: Any) -> set[Any]:
        items: set[Any] = set()
        for one in _list(found):
            items.add(self._key(one, len(items)))
        return items

    def _key(self, found: Any, beside: int) -> Any:
        key = self._value(found, DEEPEST - 1)
        if not _is_key(key):
            raise ValueError("it has a key that is neither text nor a whole number, nor a tuple of such")
        numbers = [part for part in (key if isinstance(key, tuple) else (key,)) if isinstance(part, int)]
        if beside >= MOST_BESIDE_CHOSEN and numbers and abs(numbers[0]) >= LEAST_CHOSEN:
            raise ValueError(f"it has more than {MOST_BESIDE_CHOSEN} keys with large numbers")
        return key

    def _take(self, place: Any) -> Tensor:
        if type(place) is not int or place != self._next or place >= len(self._tensors):
            raise ValueError("its tensors are not told one by one")
        self._next += 1
        return self._tensors[place]

    def _bytes(self, place: Any) -> bytes:
        data = self._take(place)
        if data.dtype != torch.uint8 or data.ndim != 1:
            raise ValueError("its bytes are none")
        return bytes(data.numpy())


def _is_key(key: Any) -> bool:
    if isinstance(key, tuple):
        return all(isinstance(part, str | int) for part in key) and sum(isinstance(part, int) for part in key) <= 1
    return isinstance(key, str | int)


def _list(found: Any) -> list[Any]:
    if type(found) is not list:
        raise TypeError(f"it has a {type(found).__name__} in place of a list")
    return found


def _counted(left: int, depth: int) -> int:
    if depth > DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    if left <= 0:
        raise ValueError(f"it has more than {MOST_VALUES} parts")
    return left - 1


def _bounded(number: int) -> int:
    if not -LARGEST <= number < LARGEST:
        raise ValueError(f"it has a whole number of {number.bit_length()} bits, and they have 64 at most")
    return number


def _text(text: str) -> str:
    if not text.isascii():
        text.encode()  # half of a surrogate pair is no text
    return text
