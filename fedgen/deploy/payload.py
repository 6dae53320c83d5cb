"""What travels beside weights as bytes: tensors and plain types, read without unpickling objects."""

import io
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fedgen.statistics.messages import MessageError


def to_bytes(value: Any) -> bytes:
    """Plain types and tensors (in dicts, lists and tuples) as bytes; tensors as on the CPU."""
    buffer = io.BytesIO()
    torch.save(_on_cpu(value), buffer)
    return buffer.getvalue()


def from_bytes(data: bytes, what: str) -> Any:
    """What `to_bytes` was given, read with `weights_only=True`.

    Args:
        data: the bytes.
        what: they are, for the error.

    Raises:
        MessageError: if they are damaged, hold objects that would have to be unpickled, or NaN or infinity.
    """
    try:
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, TypeError) as error:
        raise MessageError(f"{what} cannot be read ({type(error).__name__} in {len(data)} bytes)") from error
    for tensor in tensors_of(value):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise MessageError(f"{what} holds NaN or infinity")
    return value


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors in dicts, lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()  # a view would be written with all that it is a view of
    if isinstance(value, Mapping):
        return {key: _on_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_cpu(item) for item in value)
    return value
