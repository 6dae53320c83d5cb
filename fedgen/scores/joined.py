"""Clients' features as one tensor, without a second copy where they are rows of one already."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The values of torch.cat(parts), [n, D]: a view where the parts are consecutive rows of one tensor (a split's).

    A view shares the parts' memory: who writes into them writes into the result.

    Args:
        parts: at least one tensor [n_i, D], all of one D; other dtypes and devices are treated as torch.cat does.
    """
    if any(not _follows(before, after) for before, after in pairwise(parts)):
        return torch.cat(list(parts))
    first = parts[0]
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride(), first.storage_offset())


def _follows(before: Tensor, after: Tensor) -> bool:
    """Whether the second tensor's rows come right after the first's in the same memory."""
    same = before.shape[1:] == after.shape[1:] and before.dtype == after.dtype and before.device == after.device
    if not same or before.stride() != after.stride():
        return False
    if before.untyped_storage().data_ptr() != after.untyped_storage().data_ptr():
        return False
    return bool(after.storage_offset() == before.storage_offset() + len(before) * before.stride(0))
