"""The standard feature extractors of torch-fidelity (Obukhov et al. 2020), with gradients.

Values are bitwise those of torch-fidelity's own uint8 path, so fid and kid on them are the published ones. Its forward
functions refuse floats and are otherwise differentiable; here the same code runs with that one check left out.

Pillow's bicubic resize of 8-bit images, to the bit, as a function with gradients: Pillow resizes rows, rounds to
grey levels, resizes columns and rounds again, with weights in fixed point. The same integers come out here from
products of whole numbers in float64. PyTorch's own bicubic has another kernel (a = -0.75 unless antialiased) and
rounds, if at all, once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen import seeds
from fedgen.embeddings.base import Embedding
from fedgen.embeddings.fidelity_weights import build_clip, build_dinov2, build_inception, build_vgg16
from fedgen.embeddings.names import CLEAN, CMMD, DGM_EVAL, DINOV2_DIMS, INCEPTION, UNIT

BITS = 22  # of Pillow's fixed-point weights


def pillow_resize(levels: Tensor, height: int, width: int) -> Tensor:
    """Grey levels [N, C, height, width], whole numbers, as `Image.resize((width, height), BICUBIC)` gives them.

    The filter is widened where images shrink, so it is antialiased. The gradient takes the rounding for the identity.
    Rows first, as Pillow did until version 13, which takes columns first where the height shrinks by more than the
    width: there some levels differ by up to 20.

    Args:
        levels: whole numbers 0..255 in any floating dtype [N, C, H, W].
        height: in pixels.
        width: in pixels.
    """
    rows = _Levels.apply(levels.double() @ _weights(levels.shape[3], width).to(levels.device).T)
    columns = _Levels.apply(_weights(levels.shape[2], height).to(levels.device) @ rows)
    return columns.to(levels.dtype)


def centre_square(levels: Tensor) -> Tensor:
    """The square in the middle of images [N, C, H, W], its offset rounded down."""
    height, width = levels.shape[2:]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return levels[:, :, top : top + side, left : left + side]


class _Levels(torch.autograd.Function):
    """Grey levels of values in fixed point: half up, clipped to 0..255; backward the slope of the unclipped line."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, values: Tensor) -> Tensor:
        return ((values + 2 ** (BITS - 1)) / 2**BITS).floor().clamp(0, 255)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        return grad / 2**BITS


@cache
def _weights(before: int, after: int) -> Tensor:
    """Weight of each old pixel in each new one, whole numbers in units of 2^-22, float64 [after, before]."""
    scale = before / after
    stretch = max(scale, 1.0)
    centres = (torch.arange(after, dtype=torch.float64) + 0.5) * scale
    pixels = torch.arange(before, dtype=torch.float64)
    first = (centres - 2 * stretch + 0.5).clamp(min=0).floor().unsqueeze(1)
    end = (centres + 2 * stretch + 0.5).clamp(max=before).floor().unsqueeze(1)
    values = _cubic((pixels - centres.unsqueeze(1) + 0.5) / stretch)
    values = values * ((pixels >= first) & (pixels < end))
    values = values / values.sum(1, keepdim=True) * 2**BITS
    return (values.abs() + 0.5).floor() * values.sign()


def _cubic(x: Tensor) -> Tensor:
    """Keys' cubic kernel with a = -0.5 (Keys 1981)."""
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


INCEPTION_LAYERS = {"64": 64, "192": 192, "768": 768, "2048": 2048, "logits_unbiased": 1008, "logits": 1008}
VGG16_LAYERS = ("fc2_relu", "fc2")

Precision = Literal["float32", "float64"]
Resize = Literal["tensorflow-1", "clean-fid"]
CLEAN_RESIZE = "clean-fid bicubic antialiased"  # in settings and statistics files
INCEPTION_SIZE = 299
ClipResize = Literal["tensorflow-1", "cmmd"]
Dinov2Resize = Literal["tensorflow-1", "dgm-eval"]


@dataclass(frozen=True)
class OtherResize:
    """A resize before the extractor, whose own resize then changes nothing.

    Args:
        name: in settings and statistics files.
        apply: float grey levels [N, C, H, W] to those of the extractor's size.
    """

    name: str
    apply: Callable[[Tensor], Tensor]


class FidelityEmbedding(Embedding):
    """Features of one torch-fidelity extractor that provides one layer.

    torch-fidelity resizes with TensorFlow 1's bilinear rule (no half-pixel centre, no antialiasing) and normalises as
    each network expects. Its own "float64" option silently computes in float32; here float64 is float64.

    Args:
        extractor: a torch-fidelity feature extractor that was asked for one layer.
        name: what stored scores call it.
        dim: length of its features.
        dtype: precision inside; features are float32 in any case.
        other_resize: in place of the extractor's own.
        unit_length: whether features are divided by their length.
    """

    def __init__(
        self,
        extractor: Any,
        name: str,
        dim: int,
        dtype: Precision = "float32",
        other_resize: OtherResize | None = None,
        unit_length: bool = False,
    ) -> None:
        precisions = {"float32": torch.float32, "float64": torch.float64}
        if dtype not in precisions:
            raise ValueError(f"dtype must be float32 or float64, got {dtype!r}")
        extractor.to(precisions[dtype])
        extractor.feature_extractor_internal_dtype = precisions[dtype]
        resize = other_resize.name if other_resize else "tensorflow-1 bilinear"
        settings: dict[str, Any] = {"layer": list(extractor.features_list), "dtype": dtype, "resize": resize}
        if unit_length:
            settings["unit_length"] = True
        super().__init__(name, dim, extractor, channels=3, settings=settings)
        self.other_resize = other_resize
        self.unit_length = unit_length

    def features(self, levels: Tensor) -> Tensor:
        if self.other_resize is not None:
            levels = self.other_resize.apply(levels)
        features = forward_of_floats(type(self.network).forward)(self.network, levels)[0]
        return features / features.norm(dim=1, keepdim=True) if self.unit_length else features


def clean_resize(levels: Tensor, size: int) -> Tensor:
    """Grey levels [N, C, size, size], resized as clean-fid does (Parmar et al. 2022, arXiv 2104.11222).

    Pillow's bicubic filter on floats, antialiased, clipped to 0..255 and not quantised again. Computed in float64,
    where PyTorch's differentiable resize agrees with Pillow to 1e-4 grey levels; in float32 it strays by 5e-3.
    """
    resized = F.interpolate(levels.double(), (size, size), mode="bicubic", antialias=True, align_corners=False)
    return resized.clamp(0, 255).to(levels.dtype)


@cache
def forward_of_floats(forward: Any) -> Callable[[Any, Tensor], tuple[Tensor, ...]]:
    """The forward function of a torch-fidelity extractor class without its check that images are uint8.

    A second function over the same code, whose name `vassert` stands for a check that lets floats pass: nothing in
    torch-fidelity changes, and no line of it is copied.
    """
    checked = forward.__globals__["vassert"]

    def allow_floats(condition: bool, message: str) -> None:
        if "dtype=torch.uint8" not in message:
            checked(condition, message)

    names = {**forward.__globals__, "vassert": allow_floats}
    return FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)


def load_inception(
    weights: str | Path | None = None,
    layer: str = "2048",
    dtype: Precision = "float32",
    resize: Resize = "tensorflow-1",
) -> FidelityEmbedding:
    """The Inception of the published FID (`inception-v3-compat`), features [N, 2048] or of an earlier layer.

    Args:
        weights: the file weights-inception-2015-12-05-6726825d.pth of torch-fidelity's releases; downloaded if None.
        layer: "64", "192", "768" (spatial means), "2048", "logits_unbiased" or "logits".
        dtype: precision inside.
        resize: "tensorflow-1" as torch-fidelity and the first FID; "clean-fid" as clean-fid, in the same network. Other
            resize, other number: the name ends in it, `inception-v3-compat-clean-fid`.
    """
    layer = str(layer)
    _check_layer(INCEPTION, layer, tuple(INCEPTION_LAYERS))
    _check_resize(INCEPTION, resize, get_args(Resize))
    clean = resize == CLEAN
    parts = [INCEPTION, *([layer] if layer != "2048" else []), *([CLEAN] if clean else [])]
    with seeds.isolated():
        extractor = build_inception(layer, weights)
    other = OtherResize(CLEAN_RESIZE, partial(clean_resize, size=INCEPTION_SIZE)) if clean else None
    return FidelityEmbedding(extractor, "-".join(parts), INCEPTION_LAYERS[layer], dtype, other)


def load_vgg16(
    weights: str | Path | None = None, layer: str = "fc2_relu", dtype: Precision = "float32"
) -> FidelityEmbedding:
    """VGG16's second hidden layer [N, 4096], on which precision and recall are usually computed.

    Args:
        weights: torchvision's vgg16-397923af.pth; downloaded if None.
        layer: "fc2_relu" or "fc2".
        dtype: precision inside.
    """
    _check_layer("vgg16", layer, VGG16_LAYERS)
    name = "vgg16" if layer == "fc2_relu" else f"vgg16-{layer}"
    with seeds.isolated():
        extractor = build_vgg16(layer, weights)
    return FidelityEmbedding(extractor, name, extractor.model.classifier[-1].out_features, dtype)


def load_clip(
    name: str,
    weights: str | Path | None = None,
    dtype: Precision = "float32",
    resize: ClipResize = "tensorflow-1",
    unit_length: bool = False,
) -> FidelityEmbedding:
    """A CLIP image tower, projected: [N, 512] for `clip-vit-b-32`.

    Args:
        name: one of `CLIP_NAMES`.
        weights: the TorchScript archive that OpenAI publishes; downloaded, and its hash checked, if None. Only tensors
            are taken from the archive and none of its code is run, but PyTorch makes no promise for archives written
            to attack its reader: use those that you trust.
        dtype: precision inside.
        resize: "tensorflow-1" as torch-fidelity; "cmmd" as cmmd reads image files (Jayasumana et al. 2024, arXiv
            2401.09603): the square in the middle, by Pillow's bicubic. Then the name ends in it.
        unit_length: whether features are divided by their length, as cmmd does; then the name ends in "-unit".
    """
    _check_resize(name, resize, get_args(ClipResize))
    with seeds.isolated():
        extractor = build_clip(name, weights)
    other = None
    if resize == CMMD:
        size = extractor.resolution
        other = OtherResize("centre square, Pillow bicubic", partial(_pillow_centre, size=size))
    full_name = "-".join([name, *([CMMD] if other else []), *([UNIT] if unit_length else [])])
    return FidelityEmbedding(extractor, full_name, extractor.model.visual.output_dim, dtype, other, unit_length)


def load_dinov2(
    name: str,
    weights: str | Path | None = None,
    repo: str | Path | None = None,
    dtype: Precision = "float32",
    resize: Dinov2Resize = "tensorflow-1",
) -> FidelityEmbedding:
    """A DINOv2 class token: [N, 384] for `dinov2-vit-s-14`.

    Args:
        name: one of `DINOV2_DIMS`.
        weights: Meta's state dict, e.g. dinov2_vits14_pretrain.pth; downloaded if None.
        repo: a local clone of facebookresearch/dinov2, which holds the architecture and whose code is run; torch.hub's
            copy if None.
        dtype: precision inside.
        resize: "tensorflow-1" as torch-fidelity; "dgm-eval" as dgm-eval (Stein et al. 2023, arXiv 2306.04675), Pillow's
            bicubic of the whole image. Then the name ends in it.
    """
    _check_resize(name, resize, get_args(Dinov2Resize))
    with seeds.isolated():
        extractor = build_dinov2(name, weights, repo)
    size = extractor.INPUT_IMAGE_SIZE
    other = OtherResize("Pillow bicubic", partial(_pillow_square, size=size)) if resize == DGM_EVAL else None
    full_name = f"{name}-{DGM_EVAL}" if other else name
    dim = getattr(extractor.model, "embed_dim", DINOV2_DIMS[name])  # of the repository's own class
    return FidelityEmbedding(extractor, full_name, dim, dtype, other)


def _pillow_square(levels: Tensor, size: int) -> Tensor:
    return pillow_resize(levels, size, size)


def _pillow_centre(levels: Tensor, size: int) -> Tensor:
    return pillow_resize(centre_square(levels), size, size)


def _check_resize(name: str, resize: str, resizes: tuple[str, ...]) -> None:
    if resize not in resizes:
        raise ValueError(f"{name} has no resize {resize!r}; choose one of {', '.join(resizes)}")


def _check_layer(name: str, layer: str, layers: tuple[str, ...]) -> None:
    if layer not in layers:
        raise ValueError(f"{name} has no layer {layer!r}; choose one of {', '.join(layers)}")
