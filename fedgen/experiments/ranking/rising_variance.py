"""Clients of little variance, generators of more and more: where FID's avg and all part, and KID's do not.

A client is an image of a class and its K nearest neighbours; a generator G_M a random image and its M nearest. Of one
K, also by precision, recall, density and coverage, and of several.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from fedgen.experiments.engine.features import (
    CORRECTED,
    PCA,
    FeatureFederation,
    component_reference,
    component_scores,
    rows_of,
)
from fedgen.experiments.engine.rankings import (
    BOTH,
    CLIENTS,
    FLAT,
    agreement_table,
    inversion_lines,
    ranking_lines,
    valley_line,
)
from fedgen.experiments.engine.study import Numbers, at_least, expectation, make_table
from fedgen.experiments.ranking import neighbourhoods as near
from fedgen.reports.figures.aggregate_panels import scale_by_size
from fedgen.reports.figures.curves import COLOURS
from fedgen.scores import FrechetReference, KernelReference, ManifoldReference
from fedgen.scores.aggregate import Weights
from fedgen.statistics import Projection, summarize

KERNEL_IMAGES = 1000  # of a generator that has more, for KID
EQUAL, FEW = "fid equal", "fid pca equal"  # of as many images of every generator, beside "fid", PCA and "kid"
FRECHET = ("fid", PCA, EQUAL, FEW)
SCORES = {"fid": "FID", PCA: "FID, PCA", "kid": "KID"}
TERMS = {"mean": ":", "covariance": "-"}


class FrechetAndKernel:
    """FID over one federation, of all images and of as many of every generator, also on components, and KID."""

    def __init__(self, federation: FeatureFederation, projection: Projection, equal: int, kernel: bool = True) -> None:
        parts = federation.parts()
        self.projection, self.equal = projection, equal
        self._whole = FrechetReference.from_features(parts)
        self._projected = component_reference([projection.project(part) for part in parts], equal)
        self._kernel = KernelReference.from_features(parts) if kernel else None

    def __call__(self, generated: near.Generated) -> dict[str, dict[str, Any]]:
        few = summarize(generated.draw(self.equal))
        summaries = {"fid": generated.summary or few, EQUAL: few}
        scores = []
        for (name, summary), projected in zip(summaries.items(), (PCA, FEW)):
            small = self.projection.project_summary(summary)
            scores.append(replace(self._whole.score(summary, errors=False), name=name))
            plain, *corrected = component_scores(self._projected, small, errors=False)
            scores += [replace(plain, name=projected), *(corrected if projected == PCA else [])]
        if self._kernel is not None:
            scores.append(self._kernel.score(generated.draw(KERNEL_IMAGES), errors=False))
        return rows_of(scores)

    def of_images(self, features: Tensor) -> dict[str, Any]:
        made = near.Generated(features, torch.arange(len(features)), summarize(features), 0)
        return {"images": len(features), **self(made)}


def frechet_scorers(
    places: near.Neighbourhoods, neighbours: int, projection: Projection, own: str, controls: Sequence[str]
) -> dict[str, near.Scorer]:
    sides = zip((own, *controls), places.federation(neighbours).with_iid(places.choice.seed, len(controls)).values())
    return {name: FrechetAndKernel(side, projection, places.equal, kernel=name == own) for name, side in sides}


def measure_floor(places: near.Neighbourhoods, neighbours: int, projection: Projection) -> dict[str, Any]:
    """The scores of each client's next neighbours as if they were generated, and their number under "images"."""
    scorer = FrechetAndKernel(places.federation(neighbours), projection, places.equal)
    return scorer.of_images(places.floor(neighbours))


def variance_limited(clients: int = 20, components: int = 64, controls: int = 3, **options: Any) -> None:
    """Scores generators of rising variance against clients of little; prints and draws avg, all and their gap.

    Args:
        clients: neighbours K of a client, which holds K + 1 images; 19 is the papers' other reading.
        components: principal components of the second FID.
        controls: IID splits of the clients' images.
    """
    choice = near.NeighbourChoice(**options)
    study = choice.study("variance-limited", clients=clients, components=components, controls=controls)
    places = near.Neighbourhoods(choice)
    places.check(clients, controls)
    names = [f"IID {number}" for number in range(controls)]

    def scorers() -> dict[str, near.Scorer]:
        return frechet_scorers(places, clients, places.projection(components, clients), CLIENTS, names)

    rows = near.Anchored(near.measure_anchors(study, places, scorers), places.sizes, CLIENTS, names)
    floor = study.step("floor", lambda: measure_floor(places, clients, places.projection(components, clients)))
    found = study.step("found", lambda: find(rows))
    few = f"{places.equal} images each"
    titles = SCORES | {EQUAL: f"FID, {few}", FEW: f"FID, PCA, {few}", CORRECTED: "FID corrected, PCA"}
    headings = ("score", "pairs", "Kendall tau", "inverted", "over IID clients")
    single = [[titles[name], *near.rank_cells(row)] for name, row in found["generators"].items()]
    tables = [
        rows.size_table(SCORES, floor, near.about(places), "FID of all M + 1 images, KID of at most 1,000"),
        agreement_table({titles[name]: row for name, row in found["sizes"].items()}, "mean scores of each size"),
        make_table("every generator for itself", headings, single, names=("score",)),
    ]
    study.report([*tables, *expected(found, places.anchors)], draw(rows, floor, found, places, study.figure))


def find(rows: near.Anchored) -> dict[str, Any]:
    frechet = (*FRECHET, *(score for score in rows.known(rows.own) if score == CORRECTED))
    every, iid = (*frechet, "kid"), rows.controls
    return rows.summarise(every) | {
        "control valleys": {name: [rows.valley(name, "avg", one) for one in iid] for name in frechet},
        "means": {name: {how: near.means(values) for how, values in rows.both(name).items()} for name in every},
        "terms": {
            name: {term: {how: rows.terms(name, term, how) for how in BOTH} for term in TERMS} for name in FRECHET
        },
        "control gaps": {name: [near.spread_of(rows.gaps(name, one)) for one in iid] for name in frechet},
    }


def expected(found: Numbers, anchors: int) -> list[str]:
    lines = []
    titles = {"fid": "FID-avg", PCA: "FID-avg on principal components", EQUAL: "FID-avg of as many images each"}
    for name, title in titles.items():
        low = found["valleys"][name]["avg"]
        rest = {"all": [found["valleys"][name]["all"]], "avg over IID clients": found["control valleys"][name]}
        others = [
            f"{how} {', '.join(str(one['anchors']) for one in lows)} (means least at"
            f" {', '.join(format(one['least at'], ',') for one in lows)})"
            for how, lows in rest.items()
            if lows
        ]
        lines.append(valley_line(f"{title}: the mean", low, "M"))
        lines.append(f"    {low['anchors']} of {anchors} anchors' own curves are least inside; {'; '.join(others)}")
    lines += ranking_lines(found["sizes"], {"fid": "FID", PCA: "FID on principal components"})
    return [*lines, constant_line("KID", found)]


def constant_line(title: str, found: Numbers) -> str:
    spread, inverted = found["gaps"]["kid"]["relative spread"], found["generators"]["kid"]["inverted"]
    text = f"{title}: avg - all is one number for every generator, to {spread:.1e} of it; {inverted} pairs are inverted"
    return expectation(text, spread < FLAT and inverted == 0)


def draw(rows: near.Anchored, floor: Numbers, found: Numbers, places: near.Neighbourhoods, path: Path) -> Path:
    titles = {"fid": "FID", PCA: "FID, PCA", EQUAL: f"FID, {places.equal} images of each", "kid": "KID"}
    columns = [near.Column(rows, score, title, floor) for score, title in titles.items()]
    heading = near.heading_of(places, "an image of each class and its nearest neighbours")
    with near.rising_panels(path, columns, heading, more=1) as ((*shown, third, fourth),):
        for axes, score, title in zip(shown, ("fid", PCA), ("FID's terms", "FID's terms, PCA")):
            for (term, style), (how, colour) in product(TERMS.items(), COLOURS.items()):
                look: dict[str, Any] = {"color": colour, "linestyle": style, "linewidth": 1.4}
                axes.plot(rows.sizes, found["terms"][score][term][how], label=f"{how}, {term}", **look)
            scale_by_size(axes, rows.sizes)
            axes.set(xlabel=near.SIZE, ylabel=title)
            axes.legend(fontsize=7, framealpha=0.8)
        for axes in (third, fourth):
            axes.remove()
    return path


def intra_client_variance(
    clients: tuple[int, ...] = (5, 10, 20, 50), components: int = 64, controls: int = 1, **options: Any
) -> None:
    """Scores the same generators against clients of several numbers of neighbours; prints and draws each.

    Args:
        clients: neighbours K of a client; those of more hold those of fewer.
        components: principal components of the second FID.
        controls: IID splits of the clients' images, for each K.
    """
    choice = near.NeighbourChoice(**options)
    study = choice.study("intra-client-variance", clients=list(clients), components=components, controls=controls)
    if not clients or len(set(clients)) < len(clients):
        raise ValueError(f"clients={list(clients)}: give numbers of neighbours, each once")
    places = near.Neighbourhoods(choice)
    for count in clients:
        places.check(count, controls)
    iid = {count: [f"K = {count}, IID {number}" for number in range(controls)] for count in clients}

    def scorers() -> dict[str, near.Scorer]:
        projection = places.projection(components, max(clients))
        found: dict[str, near.Scorer] = {}
        for count, names in iid.items():
            found |= frechet_scorers(places, count, projection, f"K = {count}", names)
        return found

    def floors() -> dict[str, Any]:
        projection = places.projection(components, max(clients))
        return {str(count): measure_floor(places, count, projection) for count in clients}

    scores = near.measure_anchors(study, places, scorers)
    rows = {str(count): near.Anchored(scores, places.sizes, f"K = {count}", names) for count, names in iid.items()}
    floor = study.step("floors", floors)
    found = study.step("found", lambda: {count: one.summarise(tuple(SCORES)) for count, one in rows.items()})
    lines = [line for count, own in found.items() for line in expected_of(f"K = {count}", own, places.anchors)]
    columns = [
        near.Column(one, "fid", "FID", floor[count], f"K = {count}: {int(count) + 1} images a client")
        for count, one in rows.items()
    ]
    title = near.heading_of(places, "an image of each class and its K nearest")
    with near.rising_panels(study.figure, columns, title, more=1) as (below,):
        for axes, one in zip(below, rows.values()):
            near.draw_mean_gap(axes, one, "kid", "KID")
    study.report([intra_table(found, places), *lines], study.figure)


def expected_of(title: str, found: Numbers, anchors: int) -> list[str]:
    avg = found["valleys"]["fid"]["avg"]
    note = f"; {avg['anchors']} of {anchors} anchors' own curves do"
    inverted = inversion_lines(f"{title}: FID", found["generators"]["fid"])[:1]
    return [valley_line(f"{title}: the mean FID-avg", avg, "M", note), *inverted, constant_line(f"{title}: KID", found)]


def intra_table(found: Numbers, places: near.Neighbourhoods) -> Table:

    def cells(own: Numbers, score: str) -> list[Any]:
        lows, gap = [own["valleys"][score][how] for how in BOTH], own["sizes"][score]["gap"]
        least = [f"{low['least at']:,}" for low in lows] + [low["anchors"] for low in lows]
        return [*least, *near.rank_cells(own["generators"][score])[1:], f"{gap['min']:.4g} to {gap['max']:.4g}"]

    headings = ("avg least at", "all least at", "avg inside", "all inside", "tau", "inverted", "IID", "avg - all")
    rows = [
        [count if score == "fid" else "", title, *cells(own, score)]
        for (count, own), (score, title) in product(found.items(), SCORES.items())
    ]
    title = f"{places.anchors} anchors x {len(places.sizes)} sizes; inverted: pairs of all generators"
    note = "least at: M where anchors' mean is least; inside: anchors whose own curve is least at an inner M"
    return make_table(title, ("K", "score", *headings), rows, note, names=("score",))


UNEQUAL, UNIFORM = "unequal, n_i / n", "unequal, uniform"
NAMES = ("precision", "recall", "density", "coverage")
MOSTLY, ALWAYS = 0.1, 0.01  # shares of inverted pairs below which ranks are mostly, and always, consistent


class Manifold:
    def __init__(self, parts: Sequence[Tensor], k: int, images: int, weights: Weights = "examples") -> None:
        self._reference = ManifoldReference.from_features(parts, k=k, weights=weights)
        self.images = images

    def __call__(self, generated: near.Generated) -> dict[str, dict[str, Any]]:
        return rows_of(list(self._reference.score(generated.draw(self.images), errors=False).values()))


def manifold_metrics(clients: int = 20, k: int = 5, images: int = 1000, controls: int = 2, **options: Any) -> None:
    """Measures both aggregates of the four scores on the variance-limited federation; prints and draws their ranks.

    Args:
        clients: neighbours K of a client, which holds K + 1 images.
        k: balls reach to the k-th nearest other image.
        images: drawn from a generator that has more; radii shrink with their number.
        controls: IID splits of the clients' images.
    """
    choice = near.NeighbourChoice(**options)
    study = choice.study("manifold-metrics", clients=clients, k=k, images=images, controls=controls)
    places = near.Neighbourhoods(choice)
    check_counts(places, clients, k, images)
    places.check(clients, controls, k + 1)
    names = [f"IID {number}" for number in range(controls)]
    scores = near.measure_anchors(
        study, places, lambda: make_scorers(places, clients, k, images, names), summaries=False
    )
    rows = near.Anchored(scores, places.sizes, CLIENTS, names)

    def measure_floor() -> dict[str, Any]:
        real = places.floor(clients)
        reference = ManifoldReference.from_features(places.federation(clients).parts(), k=k)
        return {"images": len(real), **rows_of(list(reference.score(real, errors=False).values()))}

    floor = study.step("floor", measure_floor)
    found = study.step("found", lambda: summarise_manifold(rows, images))
    titles = {name: name for name in NAMES}
    table = rows.size_table(titles, floor, near.about(places), f"at most {images:,} images of a generator")
    who, note = "an image of each class and its nearest neighbours", f"; {images:,} images drawn of a generator"
    columns = [near.Column(rows, name, name, floor) for name in NAMES]
    title = near.heading_of(places, who, f"{note}; higher is better")
    with near.rising_panels(study.figure, columns, title, gap=False, rings=False):
        pass  # has no more rows
    study.report([table, rank_table(found), *manifold_lines(found)], study.figure)


def check_counts(places: near.Neighbourhoods, clients: int, k: int, images: int) -> None:
    """Raises ValueError unless every set has k + 1 images: half of a client, the smallest generator, what is drawn."""
    at_least(1, k=k)
    counts = {"half a client's": clients // 2 + 1, "the smallest generator's": places.equal, "the drawn": images}
    for what, count in counts.items():
        if count < k + 1:
            remedy = "give a smaller k, or more --clients, --sizes, --images"
            raise ValueError(f"k={k} needs {k + 1} images, and {what} are {count}; {remedy}")


def unequal(federation: FeatureFederation) -> FeatureFederation:
    """The clients with every second one cut to the half of its images that is nearest to its first."""
    parts = [part[: (len(part) + 1) // 2] if number % 2 else part for number, part in enumerate(federation.positions)]
    return FeatureFederation(federation.features, tuple(parts), federation.names)


def make_scorers(
    places: near.Neighbourhoods, clients: int, k: int, images: int, controls: Sequence[str]
) -> dict[str, near.Scorer]:
    federation = places.federation(clients)
    sides = federation.with_iid(places.choice.seed, len(controls))
    found: dict[str, near.Scorer] = {name: Manifold(one.parts(), k, images) for name, one in sides.items()}
    for name, weights in ((UNEQUAL, "examples"), (UNIFORM, "uniform")):
        found[name] = Manifold(unequal(federation).parts(), k, images, weights)
    return found


def summarise_manifold(rows: near.Anchored, images: int) -> dict[str, Any]:
    """Ranks by avg and all: of all generators, those that as many images were drawn from, and recall's equality."""
    drawn = {str(size) for size in rows.sizes if size + 1 >= images}

    def rounded(row: Any) -> dict[str, dict[str, float]]:
        return {score: {how: round(row[score][how], 12) for how in BOTH} for score in NAMES}

    # to 12 digits: scores are counts over numbers of images, and equal counts should be ties
    every = rows.changed(lambda one: {size: rounded(row) for size, row in one.items()})
    full = every.changed(lambda one: {size: row for size, row in one.items() if size in drawn})
    return {
        "generators": every.compared(NAMES, single=True),
        "as many images": full.compared(NAMES, single=True) if len(drawn) > 1 else None,
        "sizes": every.compared(NAMES),
        "recall avg - all": {
            name: max(abs(gap) for own in rows.gaps("recall", name) for gap in own)
            for name in (CLIENTS, UNEQUAL, UNIFORM)
        },
    }


def rank_table(found: Numbers) -> Table:
    rows: list[list[str | None]] = []
    for name in NAMES:
        few = near.rank_cells(found["as many images"][name]) if found["as many images"] else [None] * 4
        rows.append([name, *near.rank_cells(found["generators"][name]), *few])
    headings = ("score", "pairs", "tau", "inverted", "over IID clients", "pairs ", "tau ", "inverted ", "IID ")
    title = "every generator for itself; right: those that as many images were drawn from"
    return make_table(title, headings, rows, names=("score",))


def manifold_lines(found: Numbers) -> list[str]:
    differences = found["recall avg - all"]
    same, apart, rows = max(differences[CLIENTS], differences[UNEQUAL]), differences[UNIFORM], found["generators"]
    shares = {name: row["inverted"] / row["pairs"] for name, row in rows.items()}
    two_ways, inverted = shares["precision"], rows["precision"]["control inverted"]
    lines = {
        f"recall's avg equals its all under n_i / n, also at unequal sizes: at most {same:.1e} apart": same < 1e-12,
        f"under uniform weights at unequal sizes it does not: up to {apart:.3g} apart": apart > 1e-6,
        f"precision ranks in two ways: {two_ways:.1%} of pairs inverted": two_ways > ALWAYS,
    }
    if inverted:
        control = max(inverted) / rows["precision"]["pairs"]
        text = f"more than the clients' few images explain: precision inverts {control:.1%} over IID clients"
        lines[text] = two_ways > control
    for name, limit, word in (("density", MOSTLY, "mostly alike"), ("coverage", ALWAYS, "alike")):
        text = f"{name} ranks {word}: {shares[name]:.1%} of pairs inverted, at most {limit:.0%} asked"
        lines[text] = shares[name] <= limit
    return [expectation(text, met) for text, met in lines.items()]
