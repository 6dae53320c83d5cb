"""The whole path against torch-fidelity and torchmetrics: the same images, as PNG files and in memory, same scores."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch_fidelity
from torch import Tensor
from torchmetrics.image.fid import FrechetInceptionDistance
from torchmetrics.image.kid import KernelInceptionDistance

from fedgen.data import Examples, ImageFolder
from fedgen.embeddings import Embedding, embed, load_embedding
from fedgen.evaluation import Evaluator
from fedgen.images import save_png
from fedgen.scores import mmd2_subsets

# The features are bitwise the same. torch-fidelity then rounds their mean to float32 (with a mean in float64 the FIDs
# agree to 1e-12), torchmetrics its result, and both sum kernels of about 4 in float32.
RELATIVE, ABSOLUTE = 2e-6, 4e-6

COUNT = 64  # more images than the 32 features of the small CLIP
SIZES = (10, 20, 34)  # of the clients; two of them have fewer images than features


def draw_pictures(count: int, seed: int, channels: int, offset: float) -> Tensor:
    """Smooth uint8 images [count, channels, 16, 16] around grey levels of their own."""
    draws = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, channels, 4, 4, generator=draws) * 50
    smooth = torch.nn.functional.interpolate(coarse, size=(16, 16), mode="bilinear")
    level = torch.randn(count, 1, 1, 1, generator=draws) * 30 + 128 + offset
    return (smooth + level + torch.randn(smooth.shape, generator=draws) * 8).clamp(0, 255).to(torch.uint8)


class Pictures:
    """Real images of three clients and generated ones, in memory and as PNG files of the same."""

    def __init__(self, folder: Path, channels: int, count: int = COUNT, sizes: tuple[int, ...] = SIZES) -> None:
        real = draw_pictures(sum(sizes), 1, channels, 20.0)
        self.generated, self.clients = draw_pictures(count, 2, channels, -20.0), list(real.split(list(sizes)))
        self.folder, self.channels = folder, channels
        for client, images in enumerate(self.clients):
            write_pngs(folder / "real" / f"client{client}", images)
        write_pngs(folder / "generated", self.generated)

    def in_memory(self) -> list[Examples]:
        return [Examples(i, torch.zeros(len(i), dtype=torch.int64), "pictures/train", ()) for i in self.clients]

    def from_files(self) -> list[Examples]:
        examples = ImageFolder(self.folder / "real", channels=self.channels).load("train")
        return [examples.subset((examples.labels == client).nonzero()[:, 0]) for client in range(len(self.clients))]


def write_pngs(folder: Path, images: Tensor) -> None:
    for i, image in enumerate(images):
        save_png(folder / f"{i:03d}.png", image)


def ask_torch_fidelity(
    pictures: Pictures, real: str, weights: Path, extractor: str, **options: Any
) -> dict[str, float]:
    """torch-fidelity's scores of the folder of generated images against a folder of real ones."""
    return torch_fidelity.calculate_metrics(
        input1=str(pictures.folder / "generated"),
        input2=str(pictures.folder / real),
        samples_find_deep=True,
        feature_extractor=extractor,
        feature_extractor_weights_path=str(weights),  # of CLIP the TorchScript that it wants
        fid=True,
        **{
            "kid": False,
            "cuda": False,
            "cache": False,
            "verbose": False,
            "save_cpu_ram": True,
            "batch_size": 16,
            **options,
        },
    )


def our_values(clients: list[Examples], embedding: Embedding, generated: Tensor) -> dict[str, Any]:
    """Columns of the evaluation of stored images, and the clients' scores under "fid" and "kid"."""
    evaluator = Evaluator({"train": clients}, [embedding], len(generated), seed=0, chunk=len(generated), batch_size=16)
    records = evaluator.evaluate(lambda number, _: generated[:number]).records
    return {r.name: r.value for r in records} | {r.score: r.per_client for r in records if r.aggregate == "avg"}


@pytest.fixture(scope="module", params=[1, 3], ids=["grey", "rgb"])
def pictures(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    return Pictures(tmp_path_factory.mktemp("pictures"), request.param)


@pytest.fixture(scope="module")
def ours(pictures: Pictures, clip: Embedding) -> dict[str, Any]:
    return our_values(pictures.in_memory(), clip, pictures.generated)


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
def test_all_is_torch_fidelitys_score_of_the_folders(pictures, ours, clip_weights):
    # One subset of all images is the full sample, which torch-fidelity offers in no other way.
    theirs = ask_torch_fidelity(
        pictures,
        "real",
        clip_weights.with_suffix(".pt"),
        "clip-vit-b-32",
        kid=True,
        kid_subsets=1,
        kid_subset_size=COUNT,
    )
    assert ours["fid_all"] == pytest.approx(theirs["frechet_inception_distance"], rel=RELATIVE)
    assert ours["kid_all"] == pytest.approx(theirs["kernel_inception_distance_mean"], abs=ABSOLUTE)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
def test_avg_is_the_weighted_mean_of_torch_fidelitys_scores_of_the_clients_folders(pictures, ours, clip_weights):
    folders = [f"real/client{client}" for client in range(len(SIZES))]
    theirs = [
        ask_torch_fidelity(pictures, folder, clip_weights.with_suffix(".pt"), "clip-vit-b-32")[
            "frechet_inception_distance"
        ]
        for folder in folders
    ]
    assert ours["fid"] == pytest.approx(theirs, rel=RELATIVE)
    average = sum(size * score for size, score in zip(SIZES, theirs)) / sum(SIZES)
    assert ours["fid_avg"] == pytest.approx(average, rel=RELATIVE)
    assert ours["fid_worst"] == pytest.approx(max(theirs), rel=RELATIVE)


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
def test_subsets_are_torch_fidelitys_subsets(pictures, clip, clip_weights):
    theirs = ask_torch_fidelity(
        pictures, "real", clip_weights.with_suffix(".pt"), "clip-vit-b-32", kid=True, kid_subsets=20, kid_subset_size=30
    )
    generated, real = (embed(clip, images) for images in (pictures.generated, torch.cat(pictures.clients)))
    mean, deviation = mmd2_subsets(generated, real, subsets=20, size=30)
    assert mean == pytest.approx(theirs["kernel_inception_distance_mean"], abs=ABSOLUTE)
    assert deviation == pytest.approx(theirs["kernel_inception_distance_std"], abs=ABSOLUTE)


def test_scores_from_png_files_are_those_from_memory_exactly(pictures, clip, ours):
    files = ImageFolder(pictures.folder / "generated", channels=pictures.channels).load("train")
    assert our_values(pictures.from_files(), clip, files.inputs) == ours
    # and the scores of what a model gives, floats in [-1, 1], are those of the images that it would save
    floats = (pictures.generated.float() + 0.3 - 128) / 127.5
    assert our_values(pictures.in_memory(), clip, floats) == ours


@pytest.mark.filterwarnings("ignore:.*will save all extracted features")
def test_torchmetrics_agrees_on_the_embedding_as_its_feature_module(pictures, clip, ours):
    fid, kid = FrechetInceptionDistance(clip), KernelInceptionDistance(clip, subsets=1, subset_size=COUNT)
    for metric in (fid, kid):
        metric.update(torch.cat(pictures.clients), real=True)
        metric.update(pictures.generated, real=False)
    assert float(fid.compute()) == pytest.approx(ours["fid_all"], rel=RELATIVE)
    assert float(kid.compute()[0]) == pytest.approx(ours["kid_all"], abs=ABSOLUTE)


@pytest.mark.slow
def test_the_published_network_agrees_with_far_fewer_images_than_features(tmp_path, inception_weights):
    """At an early layer, whose roots are quick; of which all layers are, see tests/embeddings/test_fidelity.py."""
    pictures = Pictures(tmp_path, 3, 6, (2, 4))
    embedding = load_embedding("inception-v3-compat", weights=inception_weights, layer="192")
    values = our_values(pictures.in_memory(), embedding, pictures.generated)
    options = {"kid": True, "kid_subsets": 1, "kid_subset_size": 6}
    options |= {"feature_layer_fid": "192", "feature_layer_kid": "192"}
    theirs = ask_torch_fidelity(pictures, "real", inception_weights, "inception-v3-compat", **options)
    # torch-fidelity adds the roots of some 180 eigenvalues that are zero but for rounding.
    assert values["fid_all"] == pytest.approx(theirs["frechet_inception_distance"], rel=1e-5)
    assert values["kid_all"] == pytest.approx(theirs["kernel_inception_distance_mean"], abs=ABSOLUTE)
