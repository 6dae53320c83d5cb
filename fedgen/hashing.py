"""Hashes of tensors by their bytes."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def hash_tensors(tensors: Iterable[tuple[str, Tensor]], text: str = "") -> str:
    """A hash (32 hex digits) over a text and the names, dtypes, shapes and bytes of tensors, in their order."""
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name, tensor in tensors:
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        # Bytes, not numbers: NumPy has no bfloat16. Flattened first, since a scalar cannot be viewed.
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(flat.numpy().data)
    return digest.hexdigest()
