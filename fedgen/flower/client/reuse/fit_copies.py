"""Copies of the objects that train, as they were made: each message of a run has one that no other has used."""

import copy
import gc
import sys
import weakref
from enum import Enum
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch.nn.parameter import is_lazy

from fedgen.io.tensor_files import bytes_of

T = TypeVar("T")
# of whose classes and functions the kit's own objects are made
LIBRARIES = ("fedgen", "torch", "torchvision", "torch_fidelity", "torchmetrics", "diffusers", "normflows")
_OF_TRAINERS = ("lightning", "lightning_utilities", "jsonargparse", "numpy")
MOST_BYTES = 2**26  # of a module that is kept to be copied; making a larger one is little beside its training


class Fit(NamedTuple):
    """The objects of settings that train."""

    model: LightningModule
    datamodule: LightningDataModule
    trainer: Trainer


def copy_of(fit: Fit) -> Fit | None:
    """A copy of objects that have just been made, to be copied again.

    Args:
        fit: the objects.

    Returns:
        the copy; None where any part is somebody's own, as its copy may not be what its constructor makes, where a copy
        would share with the original what a turn could change, where there can be none, or where the module is large.
    """
    tensors = [*fit.model.parameters(), *fit.model.buffers()]
    if any(map(is_lazy, tensors)) or bytes_of(tensors) > MOST_BYTES:
        return None
    parts = _reachable(fit)
    if not all(map(_is_of_libraries, parts.values())):
        return None
    made = _copied(fit)
    if made is None:
        return None
    shared = _reachable(made).keys() & parts.keys()
    return made if all(_is_fixed(parts[address]) for address in shared) else None


def _copied(one: T) -> T | None:
    """A copy with all that it leads to; None if anything there cannot be copied, as a lock or a file."""
    try:
        return copy.deepcopy(one)
    except Exception:  # whatever its class raises
        return None


def _reachable(root: object) -> dict[int, Any]:
    """The objects that one leads to, by address, but modules, classes, members; of functions what they close over."""
    found: dict[int, Any] = {}
    rest = [root]
    while rest:
        one = rest.pop()
        if id(one) in found or isinstance(one, (ModuleType, type, Enum)):
            continue
        found[id(one)] = one
        if isinstance(one, FunctionType):
            rest += [*(one.__closure__ or ()), *(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
        else:
            rest += gc.get_referents(one)
    return found


def _is_of_libraries(one: object) -> bool:
    place = one.__module__ if isinstance(one, FunctionType) else type(one).__module__
    return str(place).split(".")[0] in {*LIBRARIES, *_OF_TRAINERS, *sys.stdlib_module_names}


def _is_fixed(one: object) -> bool:
    """Whether nothing can be kept in an object; what a function closes over is looked at by itself."""
    return not isinstance(one, weakref.ReferenceType) and _copied(one) is one
