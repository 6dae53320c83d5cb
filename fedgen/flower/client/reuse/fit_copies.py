"""Copies of the objects that train, as they were made: each message of a run has one that no other has used."""

import copy
import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedgen.embeddings import Embedding
from fedgen.io.tensor_files import bytes_of
from fedgen.recipe.recipe_files import texts_in

# the kit, what it takes networks from, what a Trainer is made of: packages of whose classes and functions none is
# somebody's own
LIBRARIES = frozenset(
    {"fedgen", "torch", "torchvision", "torch_fidelity", "torchmetrics", "diffusers", "normflows"}
    | {"lightning", "lightning_utilities", "jsonargparse", "numpy", *sys.stdlib_module_names}
)
MOST_COPIED = 2**24  # bytes of a module that is kept to be copied; making a larger one is little beside its training
_WEAK = (weakref.ReferenceType, weakref.ProxyType, weakref.CallableProxyType)


class Fit(NamedTuple):
    """The objects of settings that train."""

    model: LightningModule
    datamodule: LightningDataModule
    trainer: Trainer


@dataclass(frozen=True)
class Again:
    """The way to an object that is as one just made, once there has been one.

    Args:
        give: returns it.
        num_bytes: of memory that is kept for it.
    """

    give: Callable[[], Any]
    num_bytes: int = 0


def copies(fit: Fit, settings: Mapping[str, Any]) -> Again | None:
    """A copy each time of objects that have just been made, as they are now.

    Args:
        fit: the objects.
        settings: that they were made of.

    Returns:
        the way to the copies; None where the objects must be made anew, as a copy may not be what the settings make the
        next time, or may share with the others what a turn changes: where a part is somebody's own, was read from a
        file, or cannot be copied, and where the module is large.
    """
    trainer = {name: value for name, value in settings["trainer"].items() if name != "default_root_dir"}
    if not all(map(_is_made_of_nothing_else, texts_in([settings["model"], trainer]))):
        return None
    parts: dict[int, object] = {}
    for part in _reachable(fit):
        if issubclass(type(part), (*_WEAK, Embedding)) or not is_of_kit(part):
            return None
        parts[id(part)] = part
    tensors = [part for part in parts.values() if isinstance(part, Tensor)]
    if not _are_plain(tensors) or (num_bytes := bytes_of(tensors)) > MOST_COPIED:
        return None
    try:
        kept = copy.deepcopy(fit)
    except Exception:  # a lock, a file: whatever its class raises
        return None
    shared = (parts[id(part)] for part in _reachable(kept) if id(part) in parts)
    return Again(partial(copy.deepcopy, kept), num_bytes) if all(map(_is_fixed, shared)) else None


def is_of_kit(*objects: object) -> bool:
    """Whether objects are of classes of the kit and of libraries, and of nobody else's, functions likewise."""
    return all(_package_of(kind) in LIBRARIES for one in objects for kind in _kinds_of(one))


def _kinds_of(one: object) -> tuple[Any, ...]:
    return (one,) if isinstance(one, FunctionType) else type(one).__mro__


def _package_of(kind: Any) -> str:
    return str(kind.__module__).split(".")[0]


def _is_made_of_nothing_else(text: str) -> bool:
    """Whether a text in settings names neither a file or a hub's model nor somebody's own class or function."""
    if "/" in text or "\\" in text or os.path.exists(text):
        return False
    package, dot, _ = text.partition(".")
    return not dot or package in LIBRARIES or package not in sys.modules


def _are_plain(tensors: list[Tensor]) -> bool:
    """Whether a copy of tensors has all that belongs to them: a shape, and neither attributes nor hooks nor memory of
    other tensors.
    """
    if any(map(is_lazy, tensors)):
        return False
    if any(vars(one) or one._backward_hooks for one in tensors if isinstance(one, nn.Parameter)):
        return False
    places = [one.untyped_storage().data_ptr() for one in tensors if one.numel()]
    return len(places) == len(set(places))


def _reachable(root: object) -> Iterator[object]:
    """All objects that one leads to, but modules, classes and members of enumerations; of a function its closure."""
    seen: set[int] = set()
    rest = [root]
    while rest:
        one = rest.pop()
        if id(one) in seen or issubclass(type(one), (ModuleType, type, Enum)):
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, FunctionType):
            rest += [*(one.__closure__ or ()), *(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
        elif not issubclass(type(one), _WEAK):
            rest += gc.get_referents(one)


def _is_fixed(one: object) -> bool:
    """Whether nothing can be kept in an object; what a function closes over is looked at by itself."""
    try:
        return copy.deepcopy(one) is one
    except Exception:  # a closure's cell, among others
        return False
