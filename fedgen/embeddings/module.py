"""Any torch module as an embedding."""

import copy
import hashlib
import inspect
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from fedgen.embeddings.base import Embedding, load_into, read_state

InputRange = Literal["signed", "unit", "levels", "uint8"]
INPUT_RANGES: tuple[str, ...] = ("signed", "unit", "levels", "uint8")


class ModuleEmbedding(Embedding):
    """Features of a module that maps an image batch to a tensor [N, ...], flattened to [N, dim].

    The module is copied, so freezing does not touch the caller's. Two modules whose weights, printed form and source
    agree have one fingerprint: where plain attributes decide the features, give them different names.

    Args:
        module: receives quantised images [N, C, H, W] in the range below.
        weights: a local state dict to load into the copy.
        name: what stored scores call the embedding; the class's name by default.
        input_range: "signed" floats in [-1, 1]; "unit" floats in [0, 1]; "levels" floats 0..255; or "uint8", which no
            gradient passes.
        channels: colour channels the module needs; 3 repeats grey images. Any number passes by default.
        image_shape: (C, H, W) of an image; when given, `dim` is known at once (one image of zeros is embedded).
    """

    def __init__(
        self,
        module: nn.Module,
        weights: str | Path | None = None,
        name: str | None = None,
        input_range: InputRange = "signed",
        channels: int | None = None,
        image_shape: tuple[int, int, int] | None = None,
    ) -> None:
        if input_range not in INPUT_RANGES:
            raise ValueError(f"input_range must be one of {', '.join(INPUT_RANGES)}, got {input_range!r}")
        module = copy.deepcopy(module)
        if weights is not None:
            load_into(module, read_state(weights), str(weights))
        settings = {"input_range": input_range, "code": hash_code(module)}
        super().__init__(name or type(module).__name__, None, module, channels, settings)
        self.input_range = input_range
        if image_shape is not None:
            with torch.no_grad():
                self(torch.zeros(1, *image_shape, device=self.device))

    def features(self, levels: Tensor) -> Tensor:
        match self.input_range:
            case "signed":
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
    """Points [N, D] as they are, in float32; never quantised.

    For toys such as Gaussian mixtures, whose points have no grey levels, and for features that were computed before.
    """

    takes_points = True

    def __init__(self) -> None:
        super().__init__("identity", dim=None)

    def features(self, levels: Tensor) -> Tensor:
        return levels

    def forward(self, images: Tensor) -> Tensor:
        """The points [N, D], float32."""
        self.check(tuple(images.shape))
        if images.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            raise ValueError(f"embedding identity takes float points [N, D], got {images.dtype}")
        return self.checked(self.features(images), len(images))

    def check(self, shape: tuple[int, ...]) -> None:
        """Raise ValueError for a shape that is not [N, D]."""
        if len(shape) != 2 or shape[1] < 1:
            raise ValueError(
                f"embedding identity takes points [N, D], got shape {list(shape)}; "
                "for images choose another embedding, for example efficientnet-lite0 or pixels"
            )
