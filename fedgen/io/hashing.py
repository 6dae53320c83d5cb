"""Hashes of tensors by their bytes."""

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def hash_tensors(tensors: Iterable[tuple[str, Tensor]], text: str = "") -> str:
    """A hash (32 hex digits) over a text and the names, dtypes, shapes and bytes of tensors, in their order."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name, tensor in tensors:
        digest.update(_header(name, tensor.dtype, tensor.shape))
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def hash_chunks(name: str, dtype: torch.dtype, shape: Sequence[int], chunks: Iterable[Tensor], text: str = "") -> str:
    """`hash_tensors` of one tensor that comes in chunks along its first axis and need not be in memory at once."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    digest.update(_header(name, dtype, shape))
    for chunk in chunks:
        digest.update(_bytes(chunk))
    return digest.hexdigest()


def _header(name: str, dtype: torch.dtype, shape: Sequence[int]) -> bytes:
    return f"\n{name} {dtype} {list(shape)}\n".encode()


def _bytes(tensor: Tensor) -> memoryview:
    # Bytes, not numbers: NumPy has no bfloat16. Flattened first, since a scalar cannot be viewed.
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
