"""Embeddings: frozen, quantising, differentiable, and never saved."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.images import quantise
from fedgen.io.hashing import hash_tensors
from fedgen.io.tensor_files import check_state, read_safetensors, read_torch

ANTIALIASED = ("bilinear", "bicubic")


class Embedding(nn.Module, ABC):
    """Features [N, dim] in float32 of images [N, C, H, W] in [-1, 1], differentiable in the images.

    Images are quantised straight-through, so the value is bitwise that of the same images stored as uint8
    (`fedgen.images.to_uint8`); uint8 images are taken as they are. Autocast is switched off inside, so a loss computed
    in mixed precision keeps the score's value.

    The network is frozen, always in evaluation mode, and lies outside the module tree: it follows `.to(device)`, but no
    `state_dict()`, `parameters()`, optimizer or server average of a parent ever sees it, and no `.half()` of a parent
    changes its precision. Subclasses give `features`.

    Args:
        name: what stored scores call the embedding; unique for its weights' architecture, layer and resize.
        dim: length of a feature vector; None where the input decides.
        network: the module that `features` runs; frozen in place.
        channels: colour channels the network needs; grey images are repeated to 3. None takes any number.
        settings: whatever else decides the features (resize, layer, dtype), JSON values; part of the fingerprint.

    Examples:
        >>> import torch
        >>> from fedgen import load_embedding
        >>> pixels = load_embedding("pixels")
        >>> pixels(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[0., 1.]])
    """

    exchanged = False
    """FedAvg neither copies nor averages embeddings."""

    takes_points = False
    """True where the input is points [N, D] that are never quantised."""

    takes_texts = False
    """Whether `text_features` gives features of texts."""

    network: Any
    """The frozen torch module that computes the features."""

    device: torch.device
    """The network's device; images must lie there too."""

    def __init__(
        self,
        name: str,
        dim: int | None,
        network: nn.Module | None = None,
        channels: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.channels = channels
        self.settings = dict(settings or {})
        self._dim = dim
        self._fingerprint: str | None = None
        # Past nn.Module's own __setattr__, which would register the network as a child.
        object.__setattr__(self, "network", (network or nn.Identity()).requires_grad_(False).eval())
        tensors = chain(self.network.parameters(), self.network.buffers())
        self.device = next((tensor.device for tensor in tensors), torch.device("cpu"))
        self.eval()

    @property
    def dim(self) -> int:
        """Length of a feature vector; RuntimeError if the input decides it and none was seen."""
        if self._dim is None:
            raise RuntimeError(f"embedding {self.name} takes its dim from the input; embed an image first")
        return self._dim

    @abstractmethod
    def features(self, levels: Tensor) -> Tensor:
        """Features [N, dim] of grey levels: float32 [N, C, H, W], integers in 0..255, C = `channels` where given."""

    def text_features(self, texts: Sequence[str]) -> Tensor:
        """Features [N, dim] of texts, in the space of images' features; ValueError where the embedding has none."""
        raise ValueError(f"embedding {self.name} has no features of texts; use a CLIP with its text encoder")

    def forward(self, images: Tensor) -> Tensor:
        """Features [N, dim], float32, of float images in [-1, 1] or uint8 images."""
        self.check(tuple(images.shape))
        if not (images.is_floating_point() or images.dtype == torch.uint8):
            raise ValueError(f"embedding {self.name} takes float images in [-1, 1] or uint8, got {images.dtype}")
        with torch.autocast(images.device.type, enabled=False):
            levels = (images if images.dtype == torch.uint8 else quantise(images)).float()
            if self.channels == 3 and levels.shape[1] == 1:
                levels = levels.repeat(1, 3, 1, 1)
            return self.checked(self.features(levels), len(images))

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError for a shape that is not [N, C, H, W], other channels or an empty image."""
        if len(shape) != 4:
            raise ValueError(f"embedding {self.name} takes images [N, C, H, W], got shape {list(shape)}")
        allowed = {None: None, 1: (1,), 3: (1, 3)}.get(self.channels, (self.channels,))
        if allowed is not None and shape[1] not in allowed:
            wanted = " or ".join(str(channels) for channels in allowed)
            raise ValueError(
                f"embedding {self.name} takes images with {wanted} channels, got {shape[1]} in shape {list(shape)}; "
                "convert them to grey or RGB first"
            )
        if min(shape[1:]) < 1:
            raise ValueError(f"embedding {self.name} takes images of at least one pixel, got shape {list(shape)}")

    def fingerprint(self) -> str:
        """A hash (32 hex digits) over class, name, settings and the weights: other features, other fingerprint."""
        if self._fingerprint is None:
            identity = [type(self).__qualname__, self.name, self.channels, self.settings]
            weights = chain(self.network.named_parameters(), self.network.named_buffers())
            self._fingerprint = hash_tensors(weights, json.dumps(identity, sort_keys=True))
        return self._fingerprint

    def train(self, mode: bool = True) -> Self:
        """The embedding itself, always in evaluation mode."""
        return super().train(False)

    def extra_repr(self) -> str:
        return f"{self.name}, dim={self._dim}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Follows a parent to another device but keeps the network's precision: other dtype, other features."""
        super()._apply(fn, recurse)
        self.device = fn(torch.empty(0, device=self.device)).device
        self.network.to(self.device)
        return self

    def checked(self, features: Tensor, count: int) -> Tensor:
        """The features in float32; ValueError unless they are [count, dim]."""
        if features.ndim != 2 or len(features) != count:
            raise ValueError(
                f"embedding {self.name} must give features [{count}, dim], its network gave {list(features.shape)}"
            )
        self._dim = features.shape[1]
        return features.float()


def fitted(levels: Tensor, side: int, mode: str = "bilinear") -> Tensor:
    """Images float [N, C, H, W] at side x side pixels, antialiased where possible; those of that size as they are."""
    if levels.shape[2:] == (side, side):
        return levels
    smooth: dict[str, Any] = {"antialias": True, "align_corners": False} if mode in ANTIALIASED else {}
    return F.interpolate(levels, (side, side), mode=mode, **smooth)


def read_state(path: str | Path) -> dict[str, Tensor]:
    """The state dict of a local .safetensors, .pth or .pt file, on the CPU."""
    path = require_file(path)
    state: Any = read_safetensors(path)[0] if path.suffix == ".safetensors" else read_torch(path)
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{path} must hold a state dict (names to tensors), got {type(state).__name__}")
    return state


def load_into(module: nn.Module, state: dict[str, Tensor], source: str) -> None:
    try:
        check_state(module, state)
        module.load_state_dict(state)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"{source} does not hold the weights of this network: {error}") from error


def require_file(path: str | Path) -> Path:
    """The path, if a file lies there; FileNotFoundError otherwise."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"no file of weights at {path}; give the path of a local file")
    return path
