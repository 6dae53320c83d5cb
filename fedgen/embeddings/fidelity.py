"""The standard feature extractors of torch-fidelity (Obukhov et al. 2020), with gradients.

Values are bitwise those of torch-fidelity's own uint8 path, so fid and kid on them are the published ones. Its forward
functions are differentiable; their check that refuses floats is left out. It would run the code that a file of weights
carries (`weights_only=False`), so a file is first read as tensors only, and torch-fidelity gets a copy in memory.

Pillow's bicubic resize of 8-bit images is here to the bit, and has gradients: rows are resized and rounded to grey
levels, then columns, with weights in fixed point, as products of whole numbers in float64. PyTorch's own bicubic has
another kernel (a = -0.75 unless antialiased) and rounds, if at all, once.
"""

import hashlib
import io
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen import seeds
from fedgen.embeddings.base import Embedding, load_into, read_state, require_file
from fedgen.embeddings.names import CLEAN, CMMD, DGM_EVAL, DINOV2_DIMS, INCEPTION, UNIT
from fedgen.io.regular_files import read_regular
from fedgen.io.tensor_files import no_larger_than

BITS = 22  # of Pillow's fixed-point weights
TENSORFLOW = "tensorflow-1"  # the extractors' own resize
CLONE = "clone https://github.com/facebookresearch/dinov2"
INCEPTION_LAYERS = {"64": 64, "192": 192, "768": 768, "2048": 2048, "logits_unbiased": 1008, "logits": 1008}

Precision = Literal["float32", "float64"]


def _build(kind: Callable[..., nn.Module], name: str, layer: str, weights: str | Path | None, url: str) -> Any:
    """torch-fidelity's extractor of one layer, whose published weights lie behind a link."""
    file_name = url.rsplit("/", 1)[-1]
    digits = torch.hub.HASH_REGEX.search(file_name)  # the first ones of its SHA-256
    state = read_state(weights or _download(name, url, file_name, digits[1] if digits else None))
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    with _explained(name, weights), seeds.isolated():
        return kind(name, [layer], feature_extractor_weights_path=file)


def _build_clip(name: str, weights: str | Path | None) -> Any:
    from torch_fidelity.feature_extractor_base import FeatureExtractorBase
    from torch_fidelity.feature_extractor_clip import MODEL_METADATA, MODEL_URLS, FeatureExtractorCLIP, build_model

    published = MODEL_METADATA[name]["hash"]
    if weights is None:
        path = _download(name, MODEL_URLS[name], f"{name}-{published}.pt", published)
    else:
        path = require_file(weights)
    state = read_state(path) if path.suffix == ".safetensors" else _read_published_script(path, name, published)
    # torch-fidelity's constructor reads TorchScript alone; its attributes are set here instead.
    extractor = FeatureExtractorCLIP.__new__(FeatureExtractorCLIP)
    FeatureExtractorBase.__init__(extractor, name, ["clip"])
    extractor.feature_extractor_internal_dtype = torch.float32
    with _explained(name, path), no_larger_than(state):
        extractor.model = build_model(dict(state), torch.float32)
    extractor.resolution = extractor.model.visual.input_resolution
    extractor.requires_grad_(False)
    return extractor


def _read_published_script(path: Path, name: str, published: str) -> dict[str, Tensor]:
    """The state dict of OpenAI's TorchScript archive, whose bytes are hashed before torch.jit is given them."""
    content = read_regular(path)
    found = hashlib.sha256(content).hexdigest()
    if found != published:
        hashes = f"its SHA-256 is {found}, not {published}"
        remedy = "another archive could run code: give OpenAI's file, or the state dict as .safetensors"
        raise ValueError(f"{path} does not hold the published weights of {name} ({hashes}); {remedy}")
    # OpenAI's archives are TorchScript, which PyTorch deprecates.
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        state: dict[str, Tensor] = torch.jit.load(io.BytesIO(content), map_location="cpu").state_dict()
    return state


def _build_dinov2(name: str, weights: str | Path | None, repo: str | Path | None) -> Any:
    from torch_fidelity.feature_extractor_base import FeatureExtractorBase
    from torch_fidelity.feature_extractor_dinov2 import MODEL_METADATA, FeatureExtractorDinoV2

    if weights is None and repo is None:
        try:
            return FeatureExtractorDinoV2(name, ["dinov2"])
        except (OSError, RuntimeError) as error:  # code and weights come from two places, so one file does not do
            remedy = f"{CLONE}, fetch the weights that its README links, and pass repo=FOLDER and weights=PATH"
            raise ConnectionError(f"cannot download {name} ({error}); {remedy}") from error
    if weights is None:
        raise ValueError(f"{name} with repo={str(repo)!r} needs weights= too: the path of its local state dict")
    state = read_state(weights)
    folder = Path(repo) if repo else Path(torch.hub.get_dir()) / "facebookresearch_dinov2_main"
    if not (folder / "hubconf.py").is_file():
        raise ValueError(
            f"{name} needs its code beside the weights, and {folder} has none; {CLONE} and pass repo=FOLDER"
        )
    with redirect_stdout(sys.stderr):
        model = torch.hub.load(str(folder), MODEL_METADATA[name], source="local", pretrained=False)
    load_into(model, state, str(weights))
    # torch-fidelity's constructor refuses local weights; its attributes are set here instead.
    extractor = FeatureExtractorDinoV2.__new__(FeatureExtractorDinoV2)
    FeatureExtractorBase.__init__(extractor, name, ["dinov2"])
    extractor.model = model
    return extractor


def _download(name: str, url: str, file_name: str, hash_prefix: str | None) -> Path:
    """The file behind a link in torch.hub's cache, put there if it is not."""
    target = Path(torch.hub.get_dir()) / "checkpoints" / file_name
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(target), hash_prefix, progress=sys.stderr.isatty())
    except (OSError, RuntimeError) as error:
        remedy = f"fetch {url} on another machine to {target}, or give its path as weights (in a command: --weights)"
        raise ConnectionError(f"cannot download the weights of {name} ({error}); {remedy}") from error
    return target


@contextmanager
def _explained(name: str, weights: str | Path | None) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, LookupError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{weights or 'the download'} does not hold the weights of {name}: {error}") from error


def pillow_resize(levels: Tensor, height: int, width: int) -> Tensor:
    """Grey levels [N, C, height, width], whole numbers, as `Image.resize((width, height), BICUBIC)` gives them."""
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


class FidelityEmbedding(Embedding):
    """Features of one torch-fidelity extractor that provides one layer.

    torch-fidelity resizes with TensorFlow 1's bilinear rule (no half-pixel centre, no antialiasing) and normalises as
    each network expects. Its own "float64" option silently computes in float32; here float64 is float64.

    Args:
        extractor: a torch-fidelity feature extractor that was asked for one layer.
        name: what stored scores call it.
        dim: length of its features.
        dtype: precision inside; features are float32 in any case.
        other_resize: a name and a function, which goes before the extractor's own resize and leaves it nothing to do.
        unit_length: whether features are divided by their length.
    """

    def __init__(
        self,
        extractor: Any,
        name: str,
        dim: int,
        dtype: Precision = "float32",
        other_resize: tuple[str, Callable[[Tensor], Tensor]] | None = None,
        unit_length: bool = False,
    ) -> None:
        precisions = {"float32": torch.float32, "float64": torch.float64}
        if dtype not in precisions:
            raise ValueError(f"dtype must be float32 or float64, got {dtype!r}")
        extractor.to(precisions[dtype])
        extractor.feature_extractor_internal_dtype = precisions[dtype]
        resize = other_resize[0] if other_resize else f"{TENSORFLOW} bilinear"
        settings: dict[str, Any] = {"layer": list(extractor.features_list), "dtype": dtype, "resize": resize}
        settings |= {"unit_length": True} if unit_length else {}
        super().__init__(name, dim, extractor, channels=3, settings=settings)
        self.other_resize = other_resize[1] if other_resize else None
        self.unit_length = unit_length

    def features(self, levels: Tensor) -> Tensor:
        if self.other_resize is not None:
            levels = self.other_resize(levels)
        features = forward_of_floats(type(self.network).forward)(self.network, levels)[0]
        return features / features.norm(dim=1, keepdim=True) if self.unit_length else features


def clean_resize(levels: Tensor, size: int) -> Tensor:
    """Grey levels [N, C, size, size], resized as clean-fid does (Parmar et al. 2022, arXiv 2104.11222)."""
    resized = F.interpolate(levels.double(), (size, size), mode="bicubic", antialias=True, align_corners=False)
    return resized.clamp(0, 255).to(levels.dtype)


@cache
def forward_of_floats(forward: Any) -> Callable[[Any, Tensor], tuple[Tensor, ...]]:
    """The forward function of a torch-fidelity extractor class without its check that images are uint8."""
    checked = forward.__globals__["vassert"]

    def allow_floats(condition: bool, message: str) -> None:
        if "dtype=torch.uint8" not in message:
            checked(condition, message)

    names = {**forward.__globals__, "vassert": allow_floats}
    return FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)


def load_inception(
    weights: str | Path | None = None, layer: str = "2048", dtype: Precision = "float32", resize: str = TENSORFLOW
) -> FidelityEmbedding:
    """The Inception of the published FID (`inception-v3-compat`), features [N, 2048] or of an earlier layer."""
    from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3, FeatureExtractorInceptionV3

    layer = str(layer)
    _check(INCEPTION, "layer", layer, tuple(INCEPTION_LAYERS))
    _check(INCEPTION, "resize", resize, (TENSORFLOW, CLEAN))
    clean = resize == CLEAN
    parts = [INCEPTION, *([layer] if layer != "2048" else []), *([CLEAN] if clean else [])]
    extractor = _build(FeatureExtractorInceptionV3, INCEPTION, layer, weights, URL_INCEPTION_V3)
    resized = partial(clean_resize, size=299)
    other = ("clean-fid bicubic antialiased", resized) if clean else None
    return FidelityEmbedding(extractor, "-".join(parts), INCEPTION_LAYERS[layer], dtype, other)


def load_vgg16(
    weights: str | Path | None = None, layer: str = "fc2_relu", dtype: Precision = "float32"
) -> FidelityEmbedding:
    """VGG16's second hidden layer [N, 4096], on which precision and recall are usually computed."""
    from torch_fidelity.feature_extractor_vgg16 import FeatureExtractorVGG16
    from torchvision.models import VGG16_Weights

    _check("vgg16", "layer", layer, ("fc2_relu", "fc2"))
    name = "vgg16" if layer == "fc2_relu" else f"vgg16-{layer}"
    extractor = _build(FeatureExtractorVGG16, "vgg16", layer, weights, VGG16_Weights.IMAGENET1K_V1.url)
    return FidelityEmbedding(extractor, name, extractor.model.classifier[-1].out_features, dtype)


def load_clip(
    name: str,
    weights: str | Path | None = None,
    dtype: Precision = "float32",
    resize: str = TENSORFLOW,
    unit_length: bool = False,
) -> FidelityEmbedding:
    """A CLIP image tower, projected: [N, 512] for `clip-vit-b-32`."""
    _check(name, "resize", resize, (TENSORFLOW, CMMD))
    with seeds.isolated():
        extractor = _build_clip(name, weights)
    resized = partial(_pillow_centre, size=extractor.resolution)
    other = ("centre square, Pillow bicubic", resized) if resize == CMMD else None
    full_name = "-".join([name, *([CMMD] if other else []), *([UNIT] if unit_length else [])])
    return FidelityEmbedding(extractor, full_name, extractor.model.visual.output_dim, dtype, other, unit_length)


def load_dinov2(
    name: str,
    weights: str | Path | None = None,
    repo: str | Path | None = None,
    dtype: Precision = "float32",
    resize: str = TENSORFLOW,
) -> FidelityEmbedding:
    """A DINOv2 class token: [N, 384] for `dinov2-vit-s-14`."""
    _check(name, "resize", resize, (TENSORFLOW, DGM_EVAL))
    with seeds.isolated():
        extractor = _build_dinov2(name, weights, repo)
    resized = partial(pillow_resize, height=extractor.INPUT_IMAGE_SIZE, width=extractor.INPUT_IMAGE_SIZE)
    other = ("Pillow bicubic", resized) if resize == DGM_EVAL else None
    full_name = f"{name}-{DGM_EVAL}" if other else name
    dim = getattr(extractor.model, "embed_dim", DINOV2_DIMS[name])  # of the repository's own class
    return FidelityEmbedding(extractor, full_name, dim, dtype, other)


def _pillow_centre(levels: Tensor, size: int) -> Tensor:
    return pillow_resize(centre_square(levels), size, size)


def _check(name: str, option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} has no {option} {value!r}; choose one of {', '.join(known)}")
