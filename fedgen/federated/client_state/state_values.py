"""Values that a module's state consists of (tensors, arrays, numbers): compared, put back in place and combined."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgen.federated.lightning.lightning_internals import coordinates_and_values


def _parts_of(tensor: Tensor) -> tuple[Tensor, ...]:
    if tensor.layout is torch.strided:
        return (tensor,)
    if tensor.layout is torch.sparse_coo:
        return coordinates_and_values(tensor)
    by_rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    outer = (tensor.crow_indices(), tensor.col_indices()) if by_rows else (tensor.ccol_indices(), tensor.row_indices())
    return (*outer, tensor.values())


def same_tensor(tensor: Tensor, values: Tensor) -> bool:
    kinds = [(t.shape, t.dtype, t.device, t.layout) for t in (tensor, values)]
    if kinds[0] != kinds[1]:
        return False
    pairs = list(zip(_parts_of(tensor), _parts_of(values)))
    return all(one.shape == other.shape and same_numbers(one, other) for one, other in pairs)


def same_numbers(one: Tensor, other: Tensor) -> bool:
    """Compare dense tensors of one shape; NaN in the same places counts as the same."""
    return torch.equal(one, other) or (
        (other.is_floating_point() or other.is_complex())
        and bool(torch.isclose(one, other, rtol=0, atol=0, equal_nan=True).all())
    )


def same_array(array: np.ndarray, values: np.ndarray) -> bool:
    if array.shape != values.shape or array.dtype != values.dtype:
        return False
    return bool(np.array_equal(array, values, equal_nan=array.dtype.kind in "fc"))


def equal(one: Any, other: Any) -> bool:
    """Compare types and values; what cannot be compared is not equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        return same_tensor(one, other.detach())
    if isinstance(one, np.ndarray):
        return same_array(one, other)
    try:
        return bool(one == other)
    except Exception:  # values that refuse to be compared have to be taken for changed
        return False


def same_nested(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping)
            and one.keys() == other.keys()
            and all(same_nested(one[k], other[k]) for k in one)
        )
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(same_nested, one, other))
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else bool(one == other)


def is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, texts, tensors, and lists, tuples and dictionaries of these."""
    if isinstance(value, (list, tuple)):
        return type(value) in (list, tuple) and all(map(is_plain, value))
    if isinstance(value, dict):
        return type(value) is dict and all(isinstance(k, (str, int)) and is_plain(v) for k, v in value.items())
    return type(value) in (bool, int, float, str, bytes, type(None), Tensor)


def has_floats(value: Any) -> bool:
    return value.is_floating_point() if isinstance(value, Tensor) else value.dtype.kind == "f"


def in_the_form_of(before: Any, value: Any) -> Any:
    """A value that was worked out over clients, in the type of the one whose place it takes."""
    if isinstance(before, Tensor):
        return value.to(before)
    if isinstance(before, np.ndarray):
        return np.asarray(value, dtype=before.dtype)
    if isinstance(before, (bool, np.number, np.bool_)):
        return type(before)(value)
    if isinstance(before, (int, float)):  # messages make tensors of them; the mean of integers need not be an integer
        return int(value) if isinstance(before, int) and float(value).is_integer() else float(value)
    return value


def as_number(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().double()
    return value.astype(np.float64) if isinstance(value, np.ndarray) else float(value)
