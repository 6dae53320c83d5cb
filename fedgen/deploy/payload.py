"""What travels beside weights as bytes: tensors and plain types, read without unpickling objects."""

import io
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedgen.statistics.messages import MessageError
from fedgen.tensor_files import read_torch, tensors_in


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
        MessageError: if they are damaged, hold objects that would have to be unpickled, NaN or infinity, or tensors of
            more numbers than there are.
    """
    if not isinstance(data, bytes):
        raise MessageError(f"{what} cannot be read: it is {type(data).__name__} in place of bytes")
    try:
        value = read_torch(what, content=data)
        tensors = list(tensors_in(value))
        if sum(tensor.numel() * tensor.element_size() for tensor in tensors) > len(data):
            raise ValueError("its tensors are of more numbers than there are")  # views of the same ones
        finite = all(bool(tensor.isfinite().all()) for tensor in tensors)
    except Exception as error:  # whatever is wrong with them, it is the sender's
        raise MessageError(f"{what} cannot be read ({error or type(error).__name__}, in {len(data)} bytes)") from error
    if not finite:
        raise MessageError(f"{what} holds NaN or infinity")
    return value


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()  # a view would be written with all that it is a view of
    if isinstance(value, Mapping):
        return {key: _on_cpu(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_cpu(item) for item in value)
    return value
