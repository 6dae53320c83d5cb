"""1-Wasserstein distance of class generators by trained critics, avg and all, beside the sliced distance.

A critic's value is a lower bound of the distance; how low is measured first, as the share of a known distance that it
finds. A shift of all features by v has W1 = |v|, for a linear critic. A Gaussian whose widest axis, of deviation s, is
k times as wide has W1 = (k - 1) s sqrt(2 / pi), for one that grows to both sides: no spectrally normalised ReLU net.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from fedgen.experiments.engine.features import FeatureFederation, rows_of
from fedgen.experiments.engine.rankings import BOTH, CLIENTS, RankingStudy, inversion_lines
from fedgen.experiments.engine.study import Numbers, at_least, expectation, make_table, panels
from fedgen.experiments.ranking.class_generators import ClassChoice, ClassFederation, measure_all
from fedgen.scores import CriticOptions, SlicedReference, WassersteinReference, wasserstein_critic
from fedgen.seeds import generator
from fedgen.statistics import summarize
from fedgen.statistics.gaussian import eigh

SHIFTS = (0.25, 0.5, 1.0, 2.0)  # in units of the root of the features' total variance
WIDTHS = (2.0, 4.0)  # of the widest axis

Scorer = Callable[[Tensor, Tensor], float]  # generated [m, D] and real [n, D] to a distance


@dataclass(frozen=True, eq=False)
class Case:
    """Two sets of features whose populations have a known distance."""

    generated: Tensor  # [m, D]
    real: Tensor  # [n, D]
    distance: float
    sliced: float | None  # the sliced W1, where it is known too; else None


def shifted(features: Tensor, number: int, length: float, draws: torch.Generator) -> Case:
    """`number` of the images moved by `length` in a random direction, against the others."""
    order = torch.randperm(len(features), generator=draws)
    direction = torch.randn(features.shape[1], generator=draws, dtype=torch.float64)
    distance = length * float(features.double().var(0).sum().sqrt())
    moved = features[order[:number]] + (direction / direction.norm() * distance).to(features)
    return Case(moved, features[order[number:]], distance, distance * mean_cosine(features.shape[1]))


def widened(features: Tensor, number: int, factor: float, draws: torch.Generator) -> Case:
    """Gaussian draws with the features' moments, the widest axis of `number` of them stretched, against n others."""
    summary = summarize(features)
    values, vectors = eigh(summary.covariance(ddof=1))
    deviations = values.clamp(min=0).sqrt()
    wider = deviations.clone()
    wider[-1] *= factor
    dim = len(deviations)
    sides = [
        (torch.randn(count, dim, generator=draws, dtype=torch.float64) * scale) @ vectors.T + summary.mean
        for count, scale in ((number, wider), (len(features), deviations))
    ]
    distance = (factor - 1) * float(deviations[-1]) * math.sqrt(2 / math.pi)
    return Case(sides[0].to(features), sides[1].to(features), distance, None)


def mean_cosine(dim: int) -> float:
    """E |<theta, e>| for theta uniform on the sphere in `dim` dimensions: what slicing leaves of a shift."""
    return math.exp(math.lgamma(dim / 2) - math.lgamma((dim + 1) / 2)) / math.sqrt(math.pi)


def calibrate(
    features: Tensor, number: int, scorers: Mapping[str, Scorer], seed: int, sliced: Sequence[str]
) -> dict[str, dict[str, float]]:
    """The share of the known distance that each scorer finds, by case ("shift 0.5", "width 2")."""
    makers = {f"shift {size:g}": (shifted, size) for size in SHIFTS} | {f"width {k:g}": (widened, k) for k in WIDTHS}
    found: dict[str, dict[str, float]] = {}
    for name, (make, size) in makers.items():
        case = make(features, number, size, generator(seed, "calibration", name))
        found[name] = {}
        for scorer, score in scorers.items():
            known = case.sliced if scorer in sliced else case.distance
            if known is not None:
                found[name][scorer] = score(case.generated, case.real) / known
    return found


RELU, SORTED, SLICED = "w1 relu", "w1 groupsort", "sw1"
TITLES = {RELU: "W1, ReLU critic", SORTED: "W1, GroupSort critic", SLICED: "sliced W1"}
LOOKS = {RELU: ("#c4560b", "o"), SORTED: ("#1f5fa8", "s"), SLICED: ("#3a8a3a", "^")}
MEANS = "means"  # the distance of the means, which a linear critic finds
TOTAL_IMAGES = 10_000  # of all clients together: every direction of the sliced distance sorts them
PATIENCE = 3  # checks: with 5 training takes half as long again for the same values
QUICK_STEPS = 60


def wasserstein(
    count: int = 16,
    last_activation: bool = True,
    tolerance: float = 0.01,
    projections: int = 500,
    controls: int = 2,
    **options: Any,
) -> None:
    """Trains a critic of each network for every client and the pool against each generator; prints and draws the rest.

    The papers' setting is `--components 0 --data cifar10 --generators cifar100 --embedding inception-v3-compat`.

    Args:
        count: of the generators, evenly from all kinds; at most six with --quick.
        last_activation: whether the papers' network also ends in a ReLU.
        tolerance: of the critics' stop rule.
        projections: of the sliced distance; at most 50 with --quick.
        controls: IID splits of the clients' images.
    """
    choice = ClassChoice(total_images=TOTAL_IMAGES, **options)
    count, controls, projections = map(choice.smaller, (count, controls, projections), (6, 1, 50))
    at_least(2, count=count, projections=projections)
    at_least(1, controls=controls)
    at_least(0, components=choice.components)
    own = {"count": count, "last_activation": last_activation, "tolerance": tolerance, "projections": projections}
    study = choice.study("wasserstein", **own, controls=controls)
    shared: dict[str, Any] = {"tolerance": tolerance, "patience": PATIENCE, "seed": choice.seed}
    if choice.quick:
        shared |= {"max_steps": QUICK_STEPS, "hidden": 32}
    critics = {RELU: CriticOptions("relu", last_activation=last_activation, **shared)}
    critics[SORTED] = CriticOptions("groupsort", **shared)

    def make(places: ClassFederation, sides: dict[str, FeatureFederation]) -> CriticMeasure:
        return CriticMeasure(places, sides, critics, projections)

    ranking = measure_all(study, choice, TITLES, "calibration", make, controls, count)
    shares = study.numbers["calibration"]
    found = study.step("found", lambda: summarise(ranking))
    space = f"{choice.components} public components of" if choice.components else "all features of"
    ranking = replace(ranking, heading=f"{ranking.heading}; {space} {choice.embedding}")
    first, last = tables_of(ranking, shares)
    tables: list[Table | str] = [first, ranking.table(found["scores"]), last, *outcomes(found, shares)]
    study.report(tables, draw(ranking, found["scores"], shares, study.figure))


class CriticMeasure:
    def __init__(
        self,
        places: ClassFederation,
        sides: Mapping[str, FeatureFederation],
        critics: Mapping[str, CriticOptions],
        projections: int,
    ) -> None:
        self.places, self.critics = places, critics
        self.slices: dict[str, Any] = {"projections": projections, "seed": places.choice.seed}
        self.parts = {where: [self.reduced(part) for part in one.parts()] for where, one in sides.items()}
        self.references: dict[str, dict[str, WassersteinReference | SlicedReference]] = {
            where: {
                **{name: WassersteinReference.from_features(parts, options) for name, options in critics.items()},
                SLICED: SlicedReference.from_features(parts, **self.slices),
            }
            for where, parts in self.parts.items()
        }

    def reduced(self, features: Tensor) -> Tensor:
        """Features on the public principal components, float32; as they are where all features are asked for."""
        return self.places.projection.project(features).float() if self.places.choice.components else features

    def once(self) -> dict[str, dict[str, float]]:
        """Shares of known distances, found on the clients' images, of which as many as generators draw are moved."""

        def by_slices(generated: Tensor, real: Tensor) -> float:
            reference = SlicedReference.from_features([real], **self.slices)
            return reference.score(generated, errors=False).values["all"]

        def by_critic(generated: Tensor, real: Tensor, options: CriticOptions) -> float:
            return wasserstein_critic(generated, real, options)[0]

        critics = {name: partial(by_critic, options=options) for name, options in self.critics.items()}
        pool = torch.cat(self.parts[CLIENTS])
        number = min(self.places.num_images, len(pool) // 2)
        return calibrate(pool, number, {**critics, SLICED: by_slices}, self.slices["seed"], sliced=[SLICED])

    def __call__(self, generated: Tensor) -> dict[str, Any]:
        """{clients or "IID 0", ...: {score: values}} of generated features."""
        generated = self.reduced(generated)
        found: dict[str, Any] = {}
        for where, references in self.references.items():
            scores = [replace(reference.score(generated), name=score) for score, reference in references.items()]
            found[where] = rows_of(scores) | {MEANS: distance_of_means(self.parts[where], generated)}
        return found


def distance_of_means(parts: list[Tensor], generated: Tensor) -> dict[str, float]:
    """|E g - E t| to the clients, avg (by images), and to their pool: a lower bound of W1 that needs no training."""
    counts = torch.tensor([len(part) for part in parts], dtype=torch.float64)
    weights, centre = counts / counts.sum(), generated.double().mean(0)
    means = torch.stack([part.double().mean(0) for part in parts])
    return {"avg": float(weights @ (means - centre).norm(dim=1)), "all": float((weights @ means - centre).norm())}


def summarise(ranking: RankingStudy) -> dict[str, Any]:
    rows = ranking.rows.clients.values()
    shares = {
        score: {how: statistics.mean(row[score][how] / row[MEANS][how] for row in rows) for how in BOTH}
        for score in TITLES
    }
    return {"scores": ranking.rows.compared(TITLES), "of means": shares}


def tables_of(ranking: RankingStudy, shares: Mapping[str, Mapping[str, float]]) -> list[Table]:
    rows = [[case, *(f"{row[one]:.2f}" if one in row else None for one in TITLES)] for case, row in shares.items()]
    note = "shift: real images moved by that part of their spread; width: Gaussian images whose widest axis is that"
    note += " many times as wide. A critic is measured on images it never saw; elsewhere its values are lower bounds"
    headings, lines = ("case", *TITLES.values()), []
    for score, title in {**TITLES, MEANS: "distance of the means"}.items():
        means = [statistics.mean(row[score][how] for row in ranking.rows.clients.values()) for how in BOTH]
        lines.append([title, *means, *(ranking.real[score][how] for how in BOTH)])
    title = "means over the generators, and held-out images of the clients' classes"
    return [
        make_table("share of a known distance that is found", headings, rows, note, names=("case",)),
        make_table(title, ("score", "avg", "all", "real avg", "real all"), lines, names=("score",)),
    ]


def outcomes(found: Numbers, shares: Mapping[str, Mapping[str, float]]) -> list[str]:
    least = min(row[SORTED] for case, row in shares.items() if case.startswith("shift"))
    wide = max(row[RELU] for row in shares.values() if RELU in row and SLICED not in row)
    lines = [
        expectation(f"the GroupSort critic finds {least:.2f} of a shift at least", least > 0.9),
        expectation(f"the ReLU critic finds {wide:.2f} of a width at most; half is its bound", wide <= 0.55),
    ]
    for score in (RELU, SORTED):
        lines += inversion_lines(TITLES[score], found["scores"][score])
        share = found["of means"][score]
        text = f"{TITLES[score]}: finds {share['avg']:.2f} (avg) and {share['all']:.2f} (all) of the distance of the"
        lines.append(expectation(f"{text} means, which W1 is never below", min(share.values()) >= 1))
    return lines + inversion_lines(TITLES[SLICED], found["scores"][SLICED])


def draw(ranking: RankingStudy, found: Numbers, shares: Mapping[str, Mapping[str, float]], path: Path) -> Path:
    with panels(path, (9.2, 8), 2, 2, ranking.heading.replace("; ", "\n")) as (_, axes):
        for panel, score in zip(axes.flat, TITLES):
            ranking.scatter(panel, score, found)
        draw_shares(axes[1][1], shares)
    return path


def draw_shares(axes: Any, shares: Mapping[str, Mapping[str, float]]) -> None:
    axes.axhline(1, color="0.5", linewidth=1)
    for score, (colour, marker) in LOOKS.items():
        known = {place: row[score] for place, row in enumerate(shares.values()) if score in row}
        axes.scatter(list(known), list(known.values()), color=colour, marker=marker, label=TITLES[score])
    axes.set_xticks(range(len(shares)), [case.replace(" ", "\n") for case in shares])
    axes.set(ylim=(0, 1.55), ylabel="share of the known distance")
    axes.legend(fontsize=8, loc="upper left")
