"""What every pair of networks shares: settings as plain types, from which a checkpoint rebuilds the network."""

import importlib
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

TRUSTED = "fedgen.models."  # the only classes that a checkpoint may name: loading one must not run anybody else's code


class Network(nn.Module):
    """A network that keeps its constructor's arguments in `settings` (plain types only)."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings


class Generator(Network):
    """Images [N, C, H, W] in [-1, 1] from latents [N, latent_dim].

    Another nn.Module may stand in its place if it has an attribute `latent_dim`.
    """

    def __init__(self, image_size: int, channels: int, latent_dim: int, **settings: Any) -> None:
        super().__init__(image_size=image_size, channels=channels, latent_dim=latent_dim, **settings)
        self.image_shape = (channels, image_size, image_size)
        self.latent_dim = latent_dim


class Critic(Network):
    """Scores [N] of images [N, C, H, W]: unbounded, one number an image."""

    def __init__(self, image_size: int, channels: int, **settings: Any) -> None:
        super().__init__(image_size=image_size, channels=channels, **settings)
        self.image_shape = (channels, image_size, image_size)


def describe(network: nn.Module) -> dict[str, Any]:
    """A network as plain types, {"class_path", "init_args"}; without init_args if it keeps no `settings`."""
    described: dict[str, Any] = {"class_path": f"{type(network).__module__}.{type(network).__qualname__}"}
    if isinstance(network, Network):
        described["init_args"] = dict(network.settings)
    return described


def build(network: nn.Module | Mapping[str, Any], argument: str) -> nn.Module:
    """The network itself, or the one that `describe` described.

    Args:
        network: a module, or {"class_path", "init_args"} as a checkpoint holds it.
        argument: the constructor argument it was given as, for the message.

    Raises:
        ValueError: if the class is not one of fedgen's, or its settings are not known.
    """
    if isinstance(network, nn.Module):
        return network
    class_path, init_args = network["class_path"], network.get("init_args")
    if not class_path.startswith(TRUSTED) or init_args is None:
        raise ValueError(
            f"the checkpoint's {argument} is a {class_path}, which fedgen cannot rebuild; make that network yourself "
            f"and pass it: load_from_checkpoint(path, {argument}=...)"
        )
    module, _, name = class_path.rpartition(".")
    network_class = getattr(importlib.import_module(module), name, None)
    if not (isinstance(network_class, type) and issubclass(network_class, Network)):
        raise ValueError(f"the checkpoint's {argument} names {class_path}, which is not a network of this fedgen")
    return network_class(**init_args)


def require_shape(images: Tensor, image_shape: tuple[int, ...], owner: str) -> None:
    """Raises ValueError if images [N, C, H, W] do not have the shape that a network was built for."""
    if images.shape[1:] != image_shape:
        raise ValueError(
            f"{owner} was built for images {list(image_shape)} (channels, height, width), got "
            f"{list(images.shape[1:])}; set its image_size and channels to the data's, or resize the data"
        )
