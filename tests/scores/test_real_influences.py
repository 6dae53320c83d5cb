"""What checkpoints that are scored against the same clients have in common: kept influences of the real images."""

import numpy as np
import pytest
import torch

from fedgen.scores import FrechetReference, KernelReference
from fedgen.scores.aggregate import kept_influences
from fedgen.scores.wasserstein.sliced import SlicedReference

SIZES, DIM = (40, 60, 90), 4
REFERENCES = {
    "fid": FrechetReference.from_features,
    "fidc": lambda clients: FrechetReference.from_features(clients, bias="corrected"),
    "kid": KernelReference.from_features,
    "sliced": lambda clients: SlicedReference.from_features(clients, projections=40),
}


def clients(seed, shift=0.5):
    draws = torch.Generator().manual_seed(seed)
    return [
        torch.randn(size, DIM, generator=draws, dtype=torch.float64) + shift * place for place, size in enumerate(SIZES)
    ]


def models():
    draws = torch.Generator().manual_seed(99)
    noise = torch.randn(2, 300, DIM, generator=draws, dtype=torch.float64)
    return noise[0] * 1.2 + torch.tensor([1.0, 0, 0, 0]), noise[1] * 0.8 + torch.tensor([1.2, 0.5, 0, 0])


def kept(score, aggregate):
    return kept_influences(score.real_influences[aggregate], score.error_parts["real"][aggregate]).astype(float)


@pytest.mark.parametrize("name", list(REFERENCES))
@pytest.mark.parametrize("aggregate", ["avg", "all"])
def test_their_length_is_the_error_over_real_images(name, aggregate):
    score = REFERENCES[name](clients(0)).score(models()[0])
    variances = sum(variance for _, variance in score.real_influences[aggregate])
    assert variances**0.5 == pytest.approx(score.error_parts["real"][aggregate], rel=1e-9)
    found = kept(score, aggregate)
    assert found.shape == (sum(SIZES),)
    assert np.linalg.norm(found) == pytest.approx(score.error_parts["real"][aggregate], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(REFERENCES))
def test_their_product_is_the_covariance_of_two_checkpoints_over_draws_of_real_images(name):
    values, products, pair = [], [], models()
    for seed in range(60):
        reference = REFERENCES[name](clients(seed))
        scores = [reference.score(model) for model in pair]
        values.append([[one.values[how] for how in ("avg", "all")] for one in scores])
        products.append([kept(scores[0], how) @ kept(scores[1], how) for how in ("avg", "all")])
    found = np.array(values)
    for place, product in enumerate(np.mean(products, axis=0)):
        drawn = np.cov(found[:, 0, place], found[:, 1, place])
        spread = (drawn[0, 0] * drawn[1, 1] + drawn[0, 1] ** 2) ** 0.5 / len(values) ** 0.5  # of a sample's covariance
        assert abs(product - drawn[0, 1]) < 3 * spread
        assert abs(drawn[0, 1]) > 2 * spread  # so that a product of 0 would be noticed


@pytest.mark.slow
def test_of_many_images_evenly_spaced_ones_are_kept_of_each_client():
    parts = [(torch.arange(1000.0), 4.0), (torch.arange(3.0), 1.0), (torch.zeros(5), 0.0)]
    found = kept_influences(parts, 5**0.5)
    assert found.dtype == np.float32
    assert len(found) == 125 + 3 + 5  # 1,000 images by steps of 8
    assert np.square(found[:125]).sum() == pytest.approx(4, rel=1e-5)
    assert found[125:].tolist() == pytest.approx([-(0.5**0.5), 0, 0.5**0.5, 0, 0, 0, 0, 0], abs=1e-6)
    assert len(kept_influences([(torch.arange(50.0), 1.0)] * 5000, 1.0)) == 5000 * 3


def test_without_errors_there_are_none():
    assert KernelReference.from_features(clients(0)).score(models()[0], errors=False).real_influences == {}
    assert FrechetReference.from_features(clients(0)).score(models()[0], errors=False).real_influences == {}
