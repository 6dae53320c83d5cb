"""torch-fidelity's extractors, built from local or downloaded weights without unpickling a stranger's file.

torch-fidelity reads weights with `torch.load(weights_only=False)`, which runs whatever code a file carries. Here a file
is first read as tensors only; torch-fidelity is then handed a fresh copy of those tensors in memory.
"""

import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.archives import check_archive
from fedgen.embeddings.weights import load_into, read_state, require_file


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
    """torch-fidelity's CLIP image tower; see `fidelity.load_clip`."""
    from torch_fidelity.feature_extractor_clip import MODEL_METADATA, MODEL_URLS, FeatureExtractorCLIP

    path = str(require_file(weights)) if weights else None
    file_name = f"{name}-{MODEL_METADATA[name]['hash']}.pt"
    with warnings.catch_warnings():
        # PyTorch would rather nobody used TorchScript; OpenAI's archives are what they are.
        warnings.filterwarnings("ignore", message=".*torch.jit.* is deprecated")
        if path is not None:
            check_archive(path, f"the TorchScript archive of {name}")
            with _explained(name, weights):
                # torch.jit reads archives in C++ and never unpickles Python objects.
                return FeatureExtractorCLIP(name, ["clip"], feature_extractor_weights_path=path)
        with _download_explained(name, MODEL_URLS[name], file_name):
            # torch-fidelity compares the whole SHA-256 of the file with its own list before it reads it.
            return FeatureExtractorCLIP(name, ["clip"])


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
    """The state dict behind a link, from torch.hub's cache where it lies there; hash checked, tensors only.

    Raises:
        ConnectionError: if it cannot be downloaded, naming the link and where to put the file.
    """
    with _download_explained(name, url, url.rsplit("/", 1)[-1]):
        return torch.hub.load_state_dict_from_url(
            url, map_location="cpu", progress=sys.stderr.isatty(), check_hash=True, weights_only=True
        )


@contextmanager
def _download_explained(name: str, url: str, file_name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:
        target = Path(torch.hub.get_dir()) / "checkpoints" / file_name
        raise ConnectionError(
            f"cannot download the weights of {name} ({error}); fetch {url} elsewhere and put the file at {target}, "
            "or pass its path as weights="
        ) from error


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
    except (RuntimeError, KeyError) as error:
        raise ValueError(f"{weights or 'the download'} does not hold the weights of {name}: {error}") from error


def _in_memory(state: dict[str, Tensor]) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file
