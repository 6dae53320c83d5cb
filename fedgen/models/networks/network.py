"""The base of every pair of networks: settings as plain types, from which a checkpoint rebuilds the network."""

import importlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fedgen.class_paths import is_class_path
from fedgen.data.optional_attributes import optional
from fedgen.io.torch_files import leaves
from fedgen.models.optional_hooks import ModulePart

TRUSTED = "fedgen.models."  # the only classes that a checkpoint may name: loading one must not run anybody else's code
PUBLIC = ("fedgen.models", "fedgen.models.networks", "fedgen.models.stylegan2")

_LARGEST = 2**24  # whole number in settings; before the first layer is made, lists of widths may be


# arguments that take a path, or a name on the hub, in the place of a network
_PLACES = frozenset({"autoencoder", "weights", "pretrained", "generator", "critic", "network", "model", "ddpm"})


class Network(nn.Module):
    """A network that keeps its constructor's arguments in `settings` (plain types only)."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings


class OfImages(Network):
    """A network that makes or scores square images; its forward pass is that of a chain of layers, `body`."""

    num_classes: int | None = None
    """Classes that labels are of; None for an unconditional network."""

    body: nn.Module

    def __init__(self, image_size: int, channels: int, **settings: Any) -> None:
        super().__init__(image_size=image_size, channels=channels, **settings)
        self.image_shape = (channels, image_size, image_size)


class Generator(OfImages):
    """Images [N, C, H, W] in [-1, 1] from latents [N, latent_dim]; a conditional one takes labels int64 [N] too.

    Another nn.Module may stand in its place if it has an attribute `latent_dim` (and `num_classes`, if conditional).
    """

    def __init__(self, image_size: int, channels: int, latent_dim: int, **settings: Any) -> None:
        super().__init__(image_size, channels, latent_dim=latent_dim, **settings)
        self.latent_dim = latent_dim

    def forward(self, latents: Tensor) -> Tensor:
        return self.body(latents)


class Critic(OfImages):
    """Scores [N] of images [N, C, H, W]: unbounded, one number an image; a conditional one takes labels int64 [N]."""

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images).squeeze(1)


def arguments_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """A constructor's arguments by name, from its `locals()` before there are others."""
    return {name: value for name, value in given.items() if name not in ("self", "__class__")}


def describe(part: object) -> dict[str, Any]:
    """A network, or another part of a model, as plain types: {"class_path", "init_args"}."""
    described: dict[str, Any] = {"class_path": f"{type(part).__module__}.{type(part).__qualname__}"}
    settings = optional(part, ModulePart, "settings")
    if isinstance(settings, dict):
        described["init_args"] = dict(settings)
    return described


def build(part: Any, argument: str, kind: type = Network, called: str = "network") -> Any:
    """The network (or other part) itself, or the one that `describe` described."""
    if not isinstance(part, Mapping):
        return part
    class_path, init_args = part.get("class_path"), part.get("init_args")
    if not isinstance(class_path, str) or not class_path.startswith(TRUSTED) or not isinstance(init_args, Mapping):
        raise ValueError(
            f"the checkpoint's {argument} is a {class_path}, which fedgen cannot rebuild; make that {called} yourself "
            f"and pass it: load_from_checkpoint(path, {argument}=...)"
        )
    found = find_class(class_path)
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise ValueError(f"the checkpoint's {argument} names {class_path}, which is not a {called} of this fedgen")
    return construct(found, init_args, f"the checkpoint's {argument}")


def find_class(class_path: str) -> Any:
    """Return the class that a description names, or one of that name among the public ones, or None."""
    if not is_class_path(class_path):
        return None
    module, _, name = class_path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError:
        found = None
    packages = map(importlib.import_module, PUBLIC)
    return found or next((getattr(package, name) for package in packages if name in package.__all__), None)


def refuse_places(settings: Any) -> None:
    """Refuses settings from a file that would have more files read, or fetched, than the one that was asked for."""
    left = [settings]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            for name, value in part.items():
                if isinstance(value, str) and name in _PLACES:
                    raise ValueError(f"its {name} is {value[:100]!r}, and a file's settings may name no other file")
        left.extend(part.values() if isinstance(part, Mapping) else part if isinstance(part, list | tuple) else [])


def construct(kind: type, arguments: Any, owner: str) -> Any:
    """An object of a class, of arguments that come from a file."""
    if large := [number for number in leaves(arguments) if type(number) is int and abs(number) > _LARGEST]:
        raise ValueError(f"{owner} cannot be built from its settings: {large[0]} is no size, width or number of layers")
    refuse_places(arguments)
    try:
        return kind(**arguments)
    except (TypeError, AttributeError, LookupError, ArithmeticError, RuntimeError, MemoryError, ValueError) as error:
        raise ValueError(f"{owner} cannot be built from its settings: {error}") from error


def require_shape(images: Tensor, image_shape: tuple[int, ...], owner: str) -> None:
    """Raises ValueError if images [N, C, H, W] do not have the shape that a network was built for."""
    if images.shape[1:] != image_shape:
        raise ValueError(
            f"{owner} was built for images {list(image_shape)} (channels, height, width), got "
            f"{list(images.shape[1:])}; set its image_size and channels to the data's, or resize the data"
        )
