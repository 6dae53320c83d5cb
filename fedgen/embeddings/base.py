"""Embeddings: frozen, quantising, differentiable, and never saved; of any torch module, of pixels and of floats."""

import copy
import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.data.examples import AXES, RANKS, TYPES
from fedgen.data.text import decode_all
from fedgen.images import quantise
from fedgen.io.tensor_files import check_state, hash_tensors, read_safetensors, read_torch
from fedgen.own_code import warn

ANTIALIASED = ("bilinear", "bicubic")
InputRange = Literal["signed", "unit", "levels", "uint8"]


EXAMPLES = {"images": "efficientnet-lite0", "texts": "chemnet for molecules"}  # embeddings; of floats any module


def say_samples(kind: str) -> str:
    """The samples of a kind, with their axes: "images [N, C, H, W]"."""
    return f"{'points, series, volumes or other floats' if kind == 'arrays' else kind} {AXES[kind]}"


def say_example(kind: str) -> str:
    """An embedding of a kind of samples, for messages."""
    return EXAMPLES.get(kind, f"identity, or a module by ModuleEmbedding(module, kind={kind!r})")


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

    kind = "images"
    """The samples that it takes, one of `fedgen.data.examples.AXES`; "arrays" are points, series, volumes, and more."""

    exchanged = False
    """FedAvg neither copies nor averages embeddings."""

    @property
    def takes_floats(self) -> bool:
        """Whether the input is floats as they are, such as points or volumes, that are never quantised."""
        return self.kind not in TYPES

    @property
    def takes_points(self) -> bool:
        """The name of `takes_floats` until fedgen 0.3."""
        warn("Embedding.takes_points is called takes_floats since fedgen 0.3", DeprecationWarning)
        return self.takes_floats

    def takes(self, kind: str) -> bool:
        """Whether samples of a kind have features."""
        return kind == self.kind or (self.kind == "arrays" and kind in AXES and kind not in TYPES)

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
        """Features [N, dim] of grey levels: float32 [N, C, H, W], integers in 0..255, C = `channels` where given.

        Of other kinds of floats, such as volumes: float32 [N, ...], as they are.
        """

    def text_features(self, texts: Sequence[str]) -> Tensor:
        """Features [N, dim] of texts, in the space of images' features; ValueError where the embedding has none."""
        raise ValueError(f"embedding {self.name} has no features of texts; use a CLIP with its text encoder")

    def forward(self, images: Tensor) -> Tensor:
        """Features [N, dim], float32, of float images in [-1, 1] or uint8 images, or of floats of its kind."""
        self.check(tuple(images.shape))
        as_they_are, are_levels = self.kind not in TYPES, images.dtype == torch.uint8
        if not (images.is_floating_point() or (are_levels and not as_they_are)):
            wanted = f"float {say_samples(self.kind)}" if as_they_are else "float images in [-1, 1] or uint8"
            raise ValueError(f"embedding {self.name} takes {wanted}, got {images.dtype}")
        with torch.autocast(images.device.type, enabled=False):
            levels = (images if as_they_are or are_levels else quantise(images)).float()
            if self.channels == 3 and levels.shape[1] == 1:
                levels = levels.repeat(1, 3, *[1] * (levels.ndim - 2))
            return self.checked(self.features(levels), len(images))

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError for a shape of another kind of samples, other channels or an empty sample."""
        found = RANKS.get(len(shape), "arrays")
        fits = found == self.kind or self.takes(found) or (self.kind == "texts" and len(shape) == 2)
        if len(shape) < 2 or not fits:
            hint = "; grey images need a channel, x[:, None]" if found == "series" and self.kind == "images" else ""
            raise ValueError(
                f"embedding {self.name} takes {say_samples(self.kind)}, got shape {list(shape)}; for {found} choose"
                f" another embedding, such as {say_example(found)}{hint}"
            )
        allowed = {None: None, 1: (1,), 3: (1, 3)}.get(self.channels, (self.channels,))
        if allowed is not None and shape[1] not in allowed:
            wanted = " or ".join(str(channels) for channels in allowed)
            found = f"got {shape[1]} in {list(shape)}; convert them to grey or RGB"
            raise ValueError(f"embedding {self.name} takes {self.kind} with {wanted} channels, {found}")
        if min(shape[1:]) < 1 and self.kind != "texts":
            least = "pixel" if self.kind == "images" else "value"
            raise ValueError(
                f"embedding {self.name} takes {self.kind} of at least one {least}, got shape {list(shape)}"
            )

    def usable_samples(self, samples: Tensor) -> Tensor:
        """The samples that it has features of: all of them, but for texts that mean nothing to it."""
        return samples

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
            raise ValueError(f"embedding {self.name} must give features [{count}, dim], gave {list(features.shape)}")
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


class TextEmbedding(Embedding):
    """Features [N, dim] of texts, which come as strings, or as the tokens of their bytes (`fedgen.data.text`).

    Subclasses give `features` of a list of strings, and `usable` where not every text has features.
    """

    kind = "texts"

    @abstractmethod
    def features(self, texts: Any) -> Tensor:
        """Features [N, dim] of strings."""

    def usable(self, texts: Sequence[str]) -> list[bool]:
        """Whether each text has features; what has none is counted and left out."""
        return [True] * len(texts)

    def usable_samples(self, samples: Tensor) -> Tensor:
        return samples[torch.tensor(self.usable(decode_all(samples)), dtype=torch.bool)]

    def forward(self, texts: Tensor | Sequence[str]) -> Tensor:
        """Features [N, dim], float32, of strings, or of their tokens int64 [N, T]."""
        if isinstance(texts, Tensor):
            self.check(tuple(texts.shape))
            if texts.dtype != torch.int64:
                raise ValueError(f"embedding {self.name} takes texts, strings or int64 [N, T], got {texts.dtype}")
            texts = decode_all(texts)
        with torch.autocast(self.device.type, enabled=False):
            return self.checked(self.features(texts), len(texts))


class ModuleEmbedding(Embedding):
    """Features of a module that maps a batch of images, or floats, to a tensor [N, ...], flattened to [N, dim].

    The module is copied, so freezing does not touch the caller's. Two modules whose weights, printed form and source
    agree have one fingerprint: where plain attributes decide the features, give them different names.

    Args:
        module: receives quantised images [N, C, H, W] in the range below, or floats of another kind as they are.
        weights: a local state dict to load into the copy.
        name: what stored scores call the embedding; the class's name by default.
        input_range: "signed" floats in [-1, 1]; "unit" floats in [0, 1]; "levels" floats 0..255; or "uint8", which no
            gradient passes.
        channels: colour channels the module needs; 3 repeats grey images. Any number passes by default.
        image_shape: (C, H, W) of an image, or that of another sample; when given, `dim` is known at once (one image of
            zeros is embedded).
        kind: the samples that the module takes: "images", or floats, "points" [N, D], "series" [N, C, T], "volumes"
            [N, C, D, H, W], or "arrays" for any of these.
    """

    def __init__(
        self,
        module: nn.Module,
        weights: str | Path | None = None,
        name: str | None = None,
        input_range: InputRange = "signed",
        channels: int | None = None,
        image_shape: tuple[int, ...] | None = None,
        kind: str = "images",
    ) -> None:
        if kind not in AXES or kind == "texts":
            kinds = ", ".join(one for one in AXES if one != "texts")
            raise ValueError(f"kind must be one of {kinds}, got {kind!r}; for texts subclass TextEmbedding")
        if kind != "images" and input_range != "signed":
            raise ValueError(f"input_range={input_range!r} is for images; {kind} are taken as they are")
        if input_range not in get_args(InputRange):
            raise ValueError(f"input_range must be one of {', '.join(get_args(InputRange))}, got {input_range!r}")
        module = copy.deepcopy(module)
        if weights is not None:
            load_into(module, read_state(weights), str(weights))
        settings = {"input_range": input_range, "code": hash_code(module)}
        if kind != "images":  # which were all before, and keep their fingerprints
            settings["kind"], self.kind = kind, kind
        super().__init__(name or type(module).__name__, None, module, channels, settings)
        self.input_range = input_range
        if image_shape is not None:
            with torch.no_grad():
                self(torch.zeros(1, *image_shape, device=self.device))

    def features(self, levels: Tensor) -> Tensor:
        match self.input_range:
            case "signed" if not self.takes_floats:
                levels = levels / 127.5 - 1
            case "unit":
                levels = levels / 255
            case "uint8":
                levels = levels.to(torch.uint8)
        features = self.network(levels)
        if not isinstance(features, Tensor):
            raise ValueError(f"embedding {self.name}: the module must return one tensor, got {type(features).__name__}")
        return features.flatten(1)


def hash_code(module: nn.Module) -> str:
    """A hash over a module's printed form and the source of its classes outside torch, where there is any."""
    digest = hashlib.blake2b(repr(module).encode(), digest_size=16)
    for kind in dict.fromkeys(type(child) for child in module.modules()):
        digest.update(kind.__qualname__.encode())
        if not kind.__module__.startswith("torch."):
            try:
                digest.update(inspect.getsource(kind).encode())
            except (OSError, TypeError):  # typed at a prompt: no file holds the source
                digest.update(kind.__module__.encode())
    return digest.hexdigest()


class Pixels(Embedding):
    """Grey levels / 255, in [0, 1], flattened: [N, C * H * W].

    Scores in pixels say little about how images look; they cost nothing, depend on no weights, and serve as the second,
    unrelated embedding that a loss never used.
    """

    def __init__(self) -> None:
        super().__init__("pixels", dim=None)

    def features(self, levels: Tensor) -> Tensor:
        return levels.flatten(1) / 255


class Identity(Embedding):
    """Floats as they are, in float32, flattened: points [N, D], and series, volumes [N, ...] as points; not quantised.

    For toys such as Gaussian mixtures, whose points have no grey levels, and for features that were computed before.
    """

    kind = "arrays"

    def __init__(self) -> None:
        super().__init__("identity", dim=None)

    def features(self, levels: Tensor) -> Tensor:
        return levels.flatten(1)
