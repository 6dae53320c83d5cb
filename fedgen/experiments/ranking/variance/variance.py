"""Scores of generators of more and more variance: measured anchor by anchor, then by size, with what they show."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedgen.experiments.engine.aggregate_rankings import Rows, compare
from fedgen.experiments.engine.feature_federation import FeatureFederation, rows_of
from fedgen.experiments.engine.study import Study
from fedgen.experiments.ranking.variance.neighbourhoods import Neighbourhoods, draw_images
from fedgen.scores import FrechetReference, KernelReference
from fedgen.scores.rankings import Z
from fedgen.statistics import Gaussian, Projection, RunningPool, summarize

SIZE = "neighbours M of the generator"
KERNEL_IMAGES = 1000  # of a generator that has more, for KID
PROJECTED, EQUAL, BOTH = "fid pca", "fid equal", "fid pca equal"  # beside "fid" and "kid"
CHUNK = 5000  # images summarised at once
DIGITS = 10  # in which equal generators' scores agree: the whole data, summed from two anchors, differs by rounding


@dataclass(frozen=True, eq=False)
class Generated:
    """One generator: an image and its nearest neighbours.

    Args:
        features: of all images there are.
        order: positions of the generator's, nearest first.
        summary: of all its images, if anyone needs it.
        seed: of what is drawn from it.
    """

    features: Tensor
    order: Tensor
    summary: Gaussian | None
    seed: int

    def draw(self, count: int) -> Tensor:
        """Features of at most `count` of its images, none twice; the same for every caller."""
        return self.features[draw_images(self.order, count, self.seed, int(self.order[0]), len(self.order), count)]


Scorer = Callable[[Generated], dict[str, dict[str, Any]]]
Scores = Mapping[str, Mapping[str, Rows]]  # anchor -> federation -> size -> score -> values


class FrechetAndKernel:
    """FID in four ways, and KID, over one federation.

    "fid" is of all the generator's images, so that nothing of it is due to drawing; "fid pca" the same on principal
    components; "fid equal" and "fid pca equal" are of as many images of every generator; "kid" of at most 1,000.

    Args:
        federation: the clients.
        projection: onto few components.
        equal: images for the scores at equal numbers.
        kernel: whether to measure KID; over an IID control its avg - all is another constant and nothing more.
    """

    def __init__(self, federation: FeatureFederation, projection: Projection, equal: int, kernel: bool = True) -> None:
        parts = federation.parts()
        self.projection, self.equal = projection, equal
        self._whole = FrechetReference.from_features(parts)
        self._projected = FrechetReference.from_features([projection.project(part) for part in parts])
        self._kernel = KernelReference.from_features(parts) if kernel else None

    def __call__(self, generated: Generated) -> dict[str, dict[str, Any]]:
        few = summarize(generated.draw(self.equal))
        summaries = {"fid": generated.summary or few, EQUAL: few}
        scores = []
        for (name, summary), projected in zip(summaries.items(), (PROJECTED, BOTH)):
            small = self.projection.project_summary(summary)
            scores.append(replace(self._whole.score(summary, errors=False), name=name))
            scores.append(replace(self._projected.score(small, errors=False), name=projected))
        if self._kernel is not None:
            scores.append(self._kernel.score(generated.draw(KERNEL_IMAGES), errors=False))
        return rows_of(scores)

    def of_images(self, features: Tensor) -> dict[str, dict[str, Any]]:
        """The scores of real images in the generator's place; at equal numbers, of no more than there are."""
        return self(Generated(features, torch.arange(len(features)), summarize(features), 0))


def frechet_scorers(
    places: Neighbourhoods, neighbours: int, projection: Projection, own: str, controls: Sequence[str]
) -> dict[str, Scorer]:
    """The scores of a federation and of its IID controls, by the names that these are given."""
    federation = places.federation(neighbours)
    found: dict[str, Scorer] = {own: FrechetAndKernel(federation, projection, places.equal)}
    for number, name in enumerate(controls):
        control = federation.iid(places.choice.seed, number)
        found[name] = FrechetAndKernel(control, projection, places.equal, kernel=False)
    return found


def measure_floor(places: Neighbourhoods, neighbours: int, projection: Projection) -> dict[str, Any]:
    """The scores of each client's next neighbours as if they were generated, and their number under "images"."""
    images = places.floor(neighbours)
    scorer = FrechetAndKernel(places.federation(neighbours), projection, places.equal)
    return {"images": len(images), **scorer.of_images(images)}


def grow(places: Neighbourhoods, order: Tensor, summaries: bool) -> Iterator[tuple[str, Generated]]:
    """The generators of one anchor by size, each from the one before and the images that come to it."""
    running, done = RunningPool(by_count=True), 0
    features = places.generator_source.features
    for size in places.sizes:
        new = order[done : size + 1]
        for part in new.split(CHUNK) if summaries else ():
            running.add(summarize(features[part]), len(part))
        done = size + 1
        summary = running.result() if summaries else None
        yield str(size), Generated(features, order[: size + 1], summary, places.choice.seed)


def measure_anchors(
    study: Study,
    places: Neighbourhoods,
    make_scorers: Callable[[], Mapping[str, Scorer]],
    summaries: bool = True,
) -> Scores:
    """The scores of every generator over every federation, those that are known not measured again.

    Args:
        study: keeps them, under "scores".
        places: the generators.
        make_scorers: by the federation's name; called if a score is missing.
        summaries: whether a scorer needs the generators' summaries.
    """
    anchors = [str(number) for number in range(places.anchors)]
    if len(study.numbers.get("scores", {})) == len(anchors):
        return study.numbers["scores"]
    scorers, orders = make_scorers(), places.orders

    def run(order: Tensor) -> dict[str, Any]:
        found: dict[str, Any] = {name: {} for name in scorers}
        for size, generated in grow(places, order, summaries):
            for name, scorer in scorers.items():
                found[name][size] = scorer(generated)
        return found

    return study.each("scores", dict(zip(anchors, orders)), run, "anchors")


def curves(scores: Scores, federation: str, score: str, aggregate: str) -> list[list[float]]:
    """One score by size, a list for each anchor."""
    return [[float(row[score][aggregate]) for row in own[federation].values()] for own in scores.values()]


def gaps(scores: Scores, federation: str, score: str) -> list[list[float]]:
    """avg - all by size, a list for each anchor."""
    sides = (curves(scores, federation, score, aggregate) for aggregate in ("avg", "all"))
    return [[a - b for a, b in zip(*pair)] for pair in zip(*sides)]


def both_curves(scores: Scores, federation: str, score: str) -> dict[str, list[list[float]]]:
    """Return avg's and all's curves by size, a list for each anchor."""
    return {how: curves(scores, federation, score, how) for how in ("avg", "all")}


def summarise(
    scores: Scores, names: Sequence[str], federation: str, controls: Sequence[str], sizes: Sequence[int]
) -> dict[str, Any]:
    """Return comparisons by size and by generator, the curves' least sizes, and the gaps' spreads.

    Args:
        scores: of every anchor.
        names: of the scores.
        federation: which.
        controls: federations of IID clients.
        sizes: of the generators.
    """
    least = {name: both_curves(scores, federation, name).items() for name in names}
    return {
        "sizes": compare_scores(scores, names, federation, controls),
        "generators": compare_scores(scores, names, federation, controls, single=True),
        "valleys": {name: {how: valley(values, sizes) for how, values in own} for name, own in least.items()},
        "gaps": {name: spread_of(gaps(scores, federation, name)) for name in names},
    }


def rank_cells(row: Mapping[str, Any]) -> list[str]:
    """Return a comparison of single generators as cells: pairs, tau, inverted ones, and those over IID clients."""
    tau = "-" if row["tau"] is None else f"{row['tau']:.3f}"
    controls = ", ".join(f"{number:,}" for number in row["control inverted"]) or "-"
    return [f"{row['pairs']:,}", tau, f"{row['inverted']:,}", controls]


def heading_of(places: Neighbourhoods, clients: str, drawn: str = "", note: str = "") -> str:
    """Return the title of a figure.

    Args:
        places: clients and generators.
        clients: what a client is.
        drawn: of a generator's images.
        note: on the scores.
    """
    choice, clients_of, makers = places.choice, places.client_source.examples, places.generator_source.examples
    return (
        f"Clients: {clients} ({clients_of.name}); generators: an image and its M nearest ({makers.name}){drawn}\n"
        f"neighbours by {choice.neighbours}, scores by {choice.embedding}; {places.anchors} anchors: mean and 80 % of"
        f" them{note}"
    )


def terms(scores: Scores, federation: str, score: str, term: str, aggregate: str) -> list[float]:
    """The mean over anchors of one term of a score, "mean" or "covariance", by size."""
    return means(
        [[row[score]["terms"][term][aggregate] for row in own[federation].values()] for own in scores.values()]
    )


def means(values: Sequence[Sequence[float]]) -> list[float]:
    """Over anchors, by size."""
    return [statistics.mean(column) for column in zip(*values)]


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean over anchors."""
    return statistics.stdev(values) / len(values) ** 0.5


def mean_rows(scores: Scores, federation: str) -> Rows:
    """Each size's mean scores over anchors, with the standard errors of these means: one row a size."""
    first = next(iter(scores.values()))[federation]
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for size, row in first.items():
        found[size] = {}
        for score in row:
            values = {how: [one[federation][size][score][how] for one in scores.values()] for how in ("avg", "all")}
            means_of: dict[str, Any] = {how: statistics.mean(column) for how, column in values.items()}
            errors = {how: standard_error(column) for how, column in values.items()}
            found[size][score] = {**means_of, "errors": errors}
    return found


def single_rows(scores: Scores, federation: str) -> Rows:
    """Every anchor's scores of every size to ten digits, so that equal generators tie: one row a generator."""
    return {
        f"{anchor}, {size}": {
            score: {how: float(f"{values[how]:.{DIGITS}g}") for how in ("avg", "all")} for score, values in row.items()
        }
        for anchor, own in scores.items()
        for size, row in own[federation].items()
    }


def compare_scores(
    scores: Scores, names: Sequence[str], federation: str, controls: Sequence[str], single: bool = False
) -> dict[str, Any]:
    """`compare` of each score over a federation and its controls; a control without the score is left out.

    Args:
        scores: of every anchor.
        names: of the scores.
        federation: which.
        controls: federations of IID clients.
        single: whether every anchor's generator stands for itself, without errors, rather than the sizes' means; then
            pairs are counted and not listed.
    """
    rows = single_rows if single else mean_rows
    own, others = rows(scores, federation), [rows(scores, control) for control in controls]
    found = {}
    for name in names:
        known = [other for other in others if name in next(iter(other.values()))]
        found[name] = compare(own, known, name)
        if single:
            found[name] |= {key: len(found[name][key]) for key in ("inverted", "evidence")}
    return found


def valley(values: Sequence[Sequence[float]], sizes: Sequence[int]) -> dict[str, Any]:
    """Return where the mean curve is least, and how far its ends lie above that, paired by anchors.

    Keys: "least at" (the size), "left" and "right" (difference of the first and last size and its standard error),
    "inside": whether both differences exceed 1.96 standard errors, so that the curve falls and rises, and "anchors":
    how many anchors' own curves are least at a size that is neither the first nor the last.
    """
    mean = means(values)
    place = mean.index(min(mean))
    inner = sum(0 < own.index(min(own)) < len(own) - 1 for own in map(list, values))
    found: dict[str, Any] = {"least at": sizes[place], "least": mean[place], "anchors": inner}
    for side, end in (("left", 0), ("right", len(mean) - 1)):
        differences = [own[end] - own[place] for own in values]
        found[side] = [statistics.mean(differences), standard_error(differences)]
    found["inside"] = all(found[side][0] > max(0.0, Z * found[side][1]) for side in ("left", "right"))
    return found


def spread_of(values: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the mean of avg - all over sizes and anchors, and the largest difference of two as a part of it."""
    together = [value for own in values for value in own]
    mean = statistics.mean(together)
    return {"mean": mean, "relative spread": (max(together) - min(together)) / max(abs(mean), 1e-300)}
