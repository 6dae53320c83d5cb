"""95 percent intervals of avg and all, value +- 1.96 errors, over repeated draws of generated and of real images.

What they cover is the estimate's own expectation at these numbers of images. That is not the distance of the
populations: FID, sliced distances and the manifold scores are biased, the more so the fewer images.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from fedgen.scores import (
    CriticOptions,
    FederatedScore,
    FrechetReference,
    KernelReference,
    LikelihoodReference,
    ManifoldReference,
    RBFKernel,
    SlicedReference,
    WassersteinReference,
    frechet_distance,
)
from fedgen.scores.wasserstein.wasserstein import CriticSide
from fedgen.statistics import summarize

DRAWS = 100
FEWEST = 0.95 - 3.3 * (0.95 * 0.05 / DRAWS) ** 0.5  # once in 2,000 among right intervals
Score = Callable[[list[Tensor], Tensor, int], Mapping[str, FederatedScore]]


def normal(random: torch.Generator, count: int, dim: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
    return torch.randn(count, dim, generator=random, dtype=torch.float64) * scale + shift


def a_draw(seed: int, dim: int = 3) -> tuple[list[Tensor], Tensor]:
    """Three clients of 40 to 90 images, and 100 generated ones."""
    random = torch.Generator().manual_seed(seed)
    clients = [normal(random, 60, dim), normal(random, 40, dim, 1.5, 1.0), normal(random, 90, dim, 0.7, -0.5)]
    return clients, normal(random, 100, dim, 1.6, 0.8)


def only(score: FederatedScore) -> dict[str, FederatedScore]:
    return {score.name: score}


def coverage(score_of: Score, dim: int = 3) -> dict[tuple[str, str], float]:
    """Share of draws whose interval holds the mean over all draws, by score and aggregate."""
    found = [score_of(*a_draw(seed, dim), seed) for seed in range(DRAWS)]
    shares = {}
    for name in found[0]:
        for key in ("avg", "all"):
            values = np.array([scores[name].values[key] for scores in found])
            errors = np.array([scores[name].errors[key] for scores in found])
            shares[name, key] = float((np.abs(values - values.mean()) < 1.96 * errors).mean())
    return shares


DENSITY = MultivariateNormal(torch.full((3,), 0.3).double(), torch.eye(3).double())
SMOOTH: dict[str, Score] = {
    "fid": lambda parts, made, seed: only(FrechetReference.from_features(parts).score(made)),
    "fid, uniform": lambda parts, made, seed: only(FrechetReference.from_features(parts, "uniform", 0).score(made)),
    "kid": lambda parts, made, seed: only(KernelReference.from_features(parts).score(made)),
    "mmd": lambda parts, made, seed: only(
        KernelReference.from_features(parts, RBFKernel(), "v", "uniform").score(made)
    ),
    "sw1": lambda parts, made, seed: only(SlicedReference.from_features(parts, 1, 15, seed).score(made)),
    "sw2": lambda parts, made, seed: only(SlicedReference.from_features(parts, 2, 15, seed, "uniform").score(made)),
    "ll": lambda parts, made, seed: only(LikelihoodReference.from_points(parts).score(DENSITY)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMOOTH)
def test_intervals_cover_the_estimates_expectation(name: str) -> None:
    found = coverage(SMOOTH[name])
    assert all(FEWEST < share <= 0.995 for share in found.values()), found


@pytest.mark.slow
def test_intervals_from_few_images_for_the_features_cover_the_biased_expectation() -> None:
    found = coverage(SMOOTH["fid"], dim=20)
    assert all(share > FEWEST for share in found.values()), found
    values = [FrechetReference.from_features(a_draw(s, 20)[0]).score(a_draw(s, 20)[1]).values["all"] for s in range(20)]
    many = [torch.cat(parts) for parts in zip(*(a_draw(seed, 20)[0] for seed in range(100)))]
    truth = FrechetReference.from_features(many).score(torch.cat([a_draw(seed, 20)[1] for seed in range(100)]))
    assert np.mean(values) > truth.values["all"] + 10 * truth.errors["all"]


@pytest.mark.slow
def test_intervals_of_the_manifold_scores_cover_and_are_on_the_wide_side() -> None:
    found = coverage(lambda parts, made, seed: ManifoldReference.from_features(parts, 3).score(made))
    assert all(share > FEWEST for share in found.values()), found


@pytest.mark.slow
def test_intervals_of_critics_cover_their_own_mean_difference_on_fresh_images() -> None:
    """Any critic will do, so they are trained for three steps; how far another training would land is not covered."""
    options = CriticOptions(hidden=4, blocks=2, max_steps=3)
    many = [torch.cat(parts) for parts in zip(*(a_draw(seed)[0] for seed in range(1000, 1050)))]
    made = torch.cat([a_draw(seed)[1] for seed in range(1000, 1050)])
    covered, draws = {"avg": 0, "all": 0}, 40
    for seed in range(draws):
        clients, generated = a_draw(seed)
        reference = WassersteinReference.from_features(clients, options)
        score = reference.score(generated)
        on_made, *on_clients = (
            [critic.values(every(part)).mean() for critic in reference.critics] for part in (made, *many)
        )
        own = torch.stack([on_made[client] - on_clients[client][client] for client in range(3)])
        pool = on_made[-1] - reference.weights @ torch.stack([values[-1] for values in on_clients])
        for key, target in (("avg", reference.weights @ own), ("all", pool)):
            covered[key] += abs(score.values[key] - float(target)) < 1.96 * score.errors[key]
    assert all(0.95 - 3.3 * (0.95 * 0.05 / draws) ** 0.5 < count / draws < 1 for count in covered.values()), covered


def every(images: Tensor) -> CriticSide:
    return CriticSide.plain(images, torch.arange(len(images)))


def test_a_naive_bootstrap_of_fid_misses_its_own_estimate_and_these_intervals_do_not() -> None:
    """D = 64, 180 images a side: copies in a bootstrap sample lower the covariances' rank, which adds to the bias."""
    random = torch.Generator().manual_seed(0)
    pairs = [(normal(random, 180, 64), normal(random, 180, 64, 1.1)) for _ in range(20)]
    real, made = pairs[0]

    def resampled(images: Tensor) -> Tensor:
        return images[torch.randint(len(images), (len(images),), generator=random)]

    bootstrap = [frechet_distance(summarize(resampled(real)), summarize(resampled(made)))[0] for _ in range(100)]
    estimates = [frechet_distance(summarize(x), summarize(y))[0] for x, y in pairs]
    low, high = np.quantile(bootstrap, [0.025, 0.975])
    assert low > max(estimates)  # neither this estimate nor any of the others, nor their mean
    score = FrechetReference.from_features([real]).score(made)
    assert abs(score.values["all"] - np.mean(estimates)) < 1.96 * score.errors["all"] < (high - low) * 2
