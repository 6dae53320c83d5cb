"""torch-fidelity's extractors, built from local or downloaded weights without unpickling a stranger's file.

torch-fidelity reads weights with `torch.load(weights_only=False)`, which runs whatever code a file carries. Here a file
is first read as tensors only; torch-fidelity is then handed a fresh copy of those tensors in memory.
"""

import hashlib
import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.embeddings.weights import load_into, read_state, require_file
from fedgen.io.regular_files import read_regular
from fedgen.io.tensor_files import no_larger_than


def build_inception(layer: str, weights: str | Path | None) -> nn.Module:
    """torch-fidelity's Inception with one layer; see `fidelity.load_inception`."""
    from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3, FeatureExtractorInceptionV3

    name = "inception-v3-compat"
    state = read_state(weights) if weights else download_state(name, URL_INCEPTION_V3)
    with _explained(name, weights):
        return FeatureExtractorInceptionV3(name, [layer], feature_extractor_weights_path=_in_memory(state))


def build_vgg16(layer: str, weights: str | Path | None) -> Any:
    """torch-fidelity's VGG16 with one layer; see `fidelity.load_vgg16`."""
    from torch_fidelity.feature_extractor_vgg16 import FeatureExtractorVGG16
    from torchvision.models import VGG16_Weights

    state = read_state(weights) if weights else download_state("vgg16", VGG16_Weights.IMAGENET1K_V1.url)
    with _explained("vgg16", weights):
        return FeatureExtractorVGG16("vgg16", [layer], feature_extractor_weights_path=_in_memory(state))


def build_clip(name: str, weights: str | Path | None) -> Any:
    """torch-fidelity's CLIP image tower; see `fidelity.load_clip`.

    OpenAI publishes CLIP as TorchScript, and torch.jit runs code of such a file while it reads it: an archive is read
    only if its SHA-256 is the published one. A state dict may be a .safetensors file.
    """
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
    """The state dict of OpenAI's TorchScript archive, whose bytes are hashed before torch.jit is given them.

    Raises:
        ValueError: if it is any other file.
    """
    content = read_regular(path)
    found = hashlib.sha256(content).hexdigest()
    if found != published:
        raise ValueError(
            f"{path} does not hold the weights of {name} as OpenAI published them (its SHA-256 is {found}, not"
            f" {published}), and reading another TorchScript archive would run its code; give the published file, or"
            " the state dict as .safetensors"
        )
    with warnings.catch_warnings():
        # PyTorch would rather nobody used TorchScript; OpenAI's archives are what they are.
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        state: dict[str, Tensor] = torch.jit.load(io.BytesIO(content), map_location="cpu").state_dict()
    return state


def build_dinov2(name: str, weights: str | Path | None, repo: str | Path | None) -> Any:
    """torch-fidelity's DINOv2, also with local weights; see `fidelity.load_dinov2`.

    Raises:
        ValueError: if weights are local but no clone of the architecture's code is at hand.
    """
    from torch_fidelity.feature_extractor_base import FeatureExtractorBase
    from torch_fidelity.feature_extractor_dinov2 import MODEL_METADATA, FeatureExtractorDinoV2

    if weights is None and repo is None:
        with _dinov2_download_explained(name):
            return FeatureExtractorDinoV2(name, ["dinov2"])
    if weights is None:
        raise ValueError(f"{name} with repo={str(repo)!r} needs weights= too: the path of its local state dict")
    state = read_state(weights)
    folder = Path(repo) if repo else Path(torch.hub.get_dir()) / "facebookresearch_dinov2_main"
    if not (folder / "hubconf.py").is_file():
        raise ValueError(
            f"{name} needs its architecture's code beside the weights and found none in {folder}; "
            "clone https://github.com/facebookresearch/dinov2 and pass repo=FOLDER"
        )
    with redirect_stdout(sys.stderr):
        model = torch.hub.load(str(folder), MODEL_METADATA[name], source="local", pretrained=False)
    load_into(model, state, str(weights))
    # torch-fidelity's constructor refuses local weights; its attributes are set here instead.
    extractor = FeatureExtractorDinoV2.__new__(FeatureExtractorDinoV2)
    FeatureExtractorBase.__init__(extractor, name, ["dinov2"])
    extractor.model = model
    return extractor


def download_state(name: str, url: str) -> dict[str, Tensor]:
    """The state dict behind a link, from torch.hub's cache where it lies there; hash checked when it is downloaded.

    Raises:
        ConnectionError: if it cannot be downloaded, naming the link and where to put the file.
    """
    file_name = url.rsplit("/", 1)[-1]
    match = torch.hub.HASH_REGEX.search(file_name)  # the first digits of its SHA-256 stand in its name
    return read_state(_download(name, url, file_name, match[1] if match else None))


def _download(name: str, url: str, file_name: str, hash_prefix: str | None) -> Path:
    """The file behind a link in torch.hub's cache, put there if it is not.

    Raises:
        ConnectionError: if it cannot be downloaded, naming the link and where to put the file.
    """
    target = Path(torch.hub.get_dir()) / "checkpoints" / file_name
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(target), hash_prefix, progress=sys.stderr.isatty())
    except (OSError, RuntimeError) as error:
        raise ConnectionError(
            f"cannot download the weights of {name} ({error}); fetch {url} elsewhere and put the file at {target}, "
            "or pass its path as weights="
        ) from error
    return target


@contextmanager
def _dinov2_download_explained(name: str) -> Iterator[None]:
    # Code and weights come from two places, so there is no one file to put anywhere.
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise ConnectionError(
            f"cannot download {name} ({error}); elsewhere, clone https://github.com/facebookresearch/dinov2 and fetch "
            "the weights that its README links, then pass repo=FOLDER and weights=PATH"
        ) from error


@contextmanager
def _explained(name: str, weights: str | Path | None) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, LookupError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{weights or 'the download'} does not hold the weights of {name}: {error}") from error


def _in_memory(state: dict[str, Tensor]) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file
