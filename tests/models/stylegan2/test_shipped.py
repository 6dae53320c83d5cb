"""The network that comes with the kit: it is small, says where it comes from, and makes images like its data's."""

import csv
import json
from pathlib import Path

import pytest
import torch
import yaml

from fedgen.images import to_uint8
from fedgen.models import StyleGAN2
from fedgen.models.stylegan2.network_file import NetworkFile

STEM = Path(__file__).parents[3] / "checkpoints" / "stylegan2_fashion_mnist"
RECIPE = Path(__file__).parents[3] / "recipes" / "stylegan2_fashion_mnist.yaml"
MEAN, SPREAD = 72.94 * (28 / 32) ** 2, 90.02  # grey levels of Fashion-MNIST's training images, padded; SD unpadded


def test_it_is_small_and_says_how_it_was_trained():
    assert STEM.with_suffix(".safetensors").stat().st_size <= 8e6
    record = NetworkFile.read(STEM.with_suffix(".safetensors")).record
    assert (record["rounds"], record["kimg"]) == (60, 602.88)
    with open(STEM.with_suffix(".csv")) as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 60
    assert float(rows[-1]["kimg"]) == pytest.approx(602.88)


def test_its_recipe_is_that_of_the_kit_with_seed_0():
    run, kit = (yaml.safe_load(path.read_text()) for path in (STEM.with_suffix(".yaml"), RECIPE))
    assert run["seed_everything"] == 0
    assert run["trainer"]["max_epochs"] == kit["trainer"]["max_epochs"]
    for part in ("model", "data"):
        assert contains(run[part], kit[part])


def contains(whole, part):
    """Whether all that a part says is so in the whole, which says more."""
    if isinstance(part, dict):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    return whole == part


def test_its_scores_are_those_of_every_15th_round():
    records = [json.loads(line) for line in STEM.with_suffix(".jsonl").read_text().splitlines()]
    found = {
        r["round"]: r["value"]
        for r in records
        if (r["score"], r["aggregate"], r["split"]) == ("fid", "all", "train") and r["round"] is not None
    }
    assert list(found) == [14, 29, 44, 59]
    assert sorted(found.values(), reverse=True) == list(found.values())


@pytest.mark.slow
def test_its_images_are_as_bright_as_its_data_and_differ():
    model = StyleGAN2.from_file(STEM.with_suffix(".safetensors"))
    images = to_uint8(model.sample(256, torch.Generator().manual_seed(0))).float()
    assert images.shape == (256, 1, 32, 32)
    assert float(images.mean()) == pytest.approx(MEAN, rel=0.1)
    assert float(images[:, :, 2:-2, 2:-2].std()) == pytest.approx(SPREAD, rel=0.1)
    assert float(images[:, :, :2].mean()) < 2.0  # the padding
    per_image = images.mean(dim=(1, 2, 3))
    assert float(per_image.std()) > 10.0
    assert model.r1_gamma == 0.5
