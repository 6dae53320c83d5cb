"""Clients of little variance, generators of more and more: where FID's avg and all part, and KID's do not.

A client is an image of a class and its K nearest neighbours; a generator G_M a random image and its M nearest, from
the images of one object to those of the whole data. Of one K, and of several: how much a client may vary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from fedgen.experiments.engine.features import FeatureFederation, rows_of
from fedgen.experiments.engine.rankings import (
    BOTH,
    CLIENTS,
    FLAT,
    agreement_table,
    inversion_lines,
    ranking_lines,
    valley_line,
)
from fedgen.experiments.engine.scored_checkpoints import PCA
from fedgen.experiments.engine.study import Study, expectation, make_table
from fedgen.experiments.ranking.neighbourhoods import (
    SIZE,
    Anchored,
    Column,
    Generated,
    NeighbourChoice,
    Neighbourhoods,
    Scorer,
    about,
    draw_mean_gap,
    heading_of,
    means,
    measure_anchors,
    rank_cells,
    rising_panels,
    spread_of,
)
from fedgen.reports.figures.aggregate_panels import scale_by_size
from fedgen.reports.figures.curves import COLOURS
from fedgen.scores import FrechetReference, KernelReference
from fedgen.statistics import Projection, summarize

KERNEL_IMAGES = 1000  # of a generator that has more, for KID
EQUAL, FEW = "fid equal", "fid pca equal"  # of as many images of every generator, beside "fid", PCA and "kid"
FRECHET = ("fid", PCA, EQUAL, FEW)
SCORES = {"fid": "FID", PCA: "FID, PCA", "kid": "KID"}
TERMS = {"mean": ":", "covariance": "-"}


class FrechetAndKernel:
    """FID in four ways, and KID, over one federation.

    "fid" is of all the generator's images, so that nothing of it is due to drawing; "fid pca" the same on principal
    components; "fid equal" and "fid pca equal" are of as many images of every generator; "kid" of at most 1,000.
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
        for (name, summary), projected in zip(summaries.items(), (PCA, FEW)):
            small = self.projection.project_summary(summary)
            scores.append(replace(self._whole.score(summary, errors=False), name=name))
            scores.append(replace(self._projected.score(small, errors=False), name=projected))
        if self._kernel is not None:
            scores.append(self._kernel.score(generated.draw(KERNEL_IMAGES), errors=False))
        return rows_of(scores)

    def of_images(self, features: Tensor) -> dict[str, Any]:
        """The scores of real images in the generator's place, at equal numbers of no more than there are; and how many
        they are, under "images".
        """
        made = Generated(features, torch.arange(len(features)), summarize(features), 0)
        return {"images": len(features), **self(made)}


def frechet_scorers(
    places: Neighbourhoods, neighbours: int, projection: Projection, own: str, controls: Sequence[str]
) -> dict[str, Scorer]:
    """The scores of a federation and of its IID controls, by the names that these are given."""
    dealt = places.federation(neighbours).dealt(places.choice.seed, len(controls)).values()
    return {
        name: FrechetAndKernel(federation, projection, places.equal, kernel=name == own)
        for name, federation in zip((own, *controls), dealt)
    }


def measure_floor(places: Neighbourhoods, neighbours: int, projection: Projection) -> dict[str, Any]:
    """The scores of each client's next neighbours as if they were generated, and their number under "images"."""
    scorer = FrechetAndKernel(places.federation(neighbours), projection, places.equal)
    return scorer.of_images(places.floor(neighbours))


def variance_limited(
    output: Path | None = None, clients: int = 20, components: int = 64, controls: int = 3, **options: Any
) -> None:
    """Scores generators of rising variance against clients of little; prints and draws avg, all and their gap.

    The papers' setting is --overlap --neighbours NAME with the name that --embedding has.

    Args:
        output: folder of results.json and variance_limited.png.
        clients: neighbours K of a client, which holds K + 1 images; 19 is the papers' other reading.
        components: principal components of the second FID.
        controls: IID dealings of the clients' images.
    """
    choice = NeighbourChoice(**options)
    settings = {**choice.settings(), "clients": clients, "components": components, "controls": controls}
    study = Study("variance-limited", output, settings)
    places = Neighbourhoods(choice)
    places.check(clients, controls)
    names = [f"IID {number}" for number in range(controls)]

    def scorers() -> dict[str, Scorer]:
        return frechet_scorers(places, clients, places.projection(components, clients), CLIENTS, names)

    rows = Anchored(measure_anchors(study, places, scorers), places.sizes, CLIENTS, names)
    floor = study.step("floor", lambda: measure_floor(places, clients, places.projection(components, clients)))
    found = study.step("found", lambda: find(rows))
    few = f"{places.equal} images each"
    titles = SCORES | {EQUAL: f"FID, {few}", FEW: f"FID, PCA, {few}"}
    tables = [
        rows.size_table(SCORES, floor, about(places), "FID of all M + 1 images, KID of at most 1,000"),
        agreement_table({titles[name]: row for name, row in found["sizes"].items()}, "mean scores of each size"),
        make_table(
            "every generator for itself",
            ("score", "pairs", "Kendall tau", "inverted", "over IID clients"),
            [[titles[name], *rank_cells(row)] for name, row in found["generators"].items()],
            names=("score",),
        ),
    ]
    study.report([*tables, *expected(found, places.anchors)], draw(rows, floor, found, places, study.figure))


def find(rows: Anchored) -> dict[str, Any]:
    """Return what the scores say of clients and controls, their mean curves, and FID's terms."""
    every, dealt = (*FRECHET, "kid"), rows.controls
    return rows.summarise(every) | {
        "control valleys": {name: [rows.valley(name, "avg", one) for one in dealt] for name in FRECHET},
        "means": {name: {how: means(values) for how, values in rows.both(name).items()} for name in every},
        "terms": {
            name: {term: {how: rows.terms(name, term, how) for how in BOTH} for term in TERMS} for name in FRECHET
        },
        "control gaps": {name: [spread_of(rows.gaps(name, one)) for one in dealt] for name in FRECHET},
    }


def expected(found: Mapping[str, Any], anchors: int) -> list[str]:
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


def constant_line(title: str, found: Mapping[str, Any]) -> str:
    """Say whether KID's avg - all is one number over all anchors and sizes, and inverts no pair of generators."""
    spread, inverted = found["gaps"]["kid"]["relative spread"], found["generators"]["kid"]["inverted"]
    text = f"{title}: avg - all is one number for every generator, to {spread:.1e} of it; {inverted} pairs are inverted"
    return expectation(text, spread < FLAT and inverted == 0)


def draw(
    rows: Anchored, floor: Mapping[str, Any], found: Mapping[str, Any], places: Neighbourhoods, path: Path
) -> Path:
    """A column a score, see `rising_panels`, FID of equal numbers of images among them; below, FID's terms."""
    titles = {"fid": "FID", PCA: "FID, PCA", EQUAL: f"FID, {places.equal} images of each", "kid": "KID"}
    columns = [Column(rows, score, title, floor) for score, title in titles.items()]
    heading = heading_of(places, "an image of each class and its nearest neighbours")
    with rising_panels(path, columns, heading, more=1) as ((terms, few, *others),):
        draw_terms(terms, rows.sizes, found["terms"]["fid"], "FID's terms")
        draw_terms(few, rows.sizes, found["terms"][PCA], "FID's terms, PCA")
        for axes in others:
            axes.remove()
    return path


def draw_terms(axes: Any, sizes: Sequence[int], found: Mapping[str, Mapping[str, list[float]]], title: str) -> None:
    """FID's two terms by size: for the means' the aggregates differ by a constant, for the covariances' they do not."""
    for term, style in TERMS.items():
        for how, colour in COLOURS.items():
            axes.plot(sizes, found[term][how], color=colour, linestyle=style, linewidth=1.4, label=f"{how}, {term}")
    scale_by_size(axes, sizes)
    axes.set(xlabel=SIZE, ylabel=title)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=7, framealpha=0.8)


def intra_client_variance(
    output: Path | None = None,
    clients: tuple[int, ...] = (5, 10, 20, 50),
    components: int = 64,
    controls: int = 1,
    **options: Any,
) -> None:
    """Scores the same generators against clients of several numbers of neighbours; prints and draws each.

    The papers' setting is --overlap --neighbours NAME with the name that --embedding has.

    Args:
        output: folder of results.json and intra_client_variance.png.
        clients: neighbours K of a client; those of more hold those of fewer.
        components: principal components of the second FID.
        controls: IID dealings of the clients' images, for each K.
    """
    choice = NeighbourChoice(**options)
    settings = {**choice.settings(), "clients": list(clients), "components": components, "controls": controls}
    study = Study("intra-client-variance", output, settings)
    if not clients or len(set(clients)) < len(clients):
        raise ValueError(f"clients={list(clients)}: give numbers of neighbours, each once")
    places = Neighbourhoods(choice)
    for count in clients:
        places.check(count, controls)
    dealt = {count: [f"K = {count}, IID {number}" for number in range(controls)] for count in clients}

    def scorers() -> dict[str, Scorer]:
        projection = places.projection(components, max(clients))
        found: dict[str, Scorer] = {}
        for count, names in dealt.items():
            found |= frechet_scorers(places, count, projection, f"K = {count}", names)
        return found

    def floors() -> dict[str, Any]:
        projection = places.projection(components, max(clients))
        return {str(count): measure_floor(places, count, projection) for count in clients}

    scores = measure_anchors(study, places, scorers)
    rows = {str(count): Anchored(scores, places.sizes, f"K = {count}", names) for count, names in dealt.items()}
    floor = study.step("floors", floors)
    found = study.step("found", lambda: {count: one.summarise(tuple(SCORES)) for count, one in rows.items()})
    lines = [line for count, own in found.items() for line in expected_of(f"K = {count}", own, places.anchors)]
    figure = draw_intra(rows, floor, places, study.figure)
    study.report([intra_table(found, places), *lines], figure)


def expected_of(title: str, found: Mapping[str, Any], anchors: int) -> list[str]:
    """Say whether the papers' outcomes were seen for one number of neighbours, a line each."""
    avg = found["valleys"]["fid"]["avg"]
    note = f"; {avg['anchors']} of {anchors} anchors' own curves do"
    inverted = inversion_lines(f"{title}: FID", found["generators"]["fid"])[:1]
    return [valley_line(f"{title}: the mean FID-avg", avg, "M", note), *inverted, constant_line(f"{title}: KID", found)]


def intra_table(found: Mapping[str, Any], places: Neighbourhoods) -> Table:
    """A line for each number of neighbours and score."""

    def cells(own: Mapping[str, Any], score: str) -> list[Any]:
        lows, gap = [own["valleys"][score][how] for how in BOTH], own["sizes"][score]["gap"]
        least = [f"{low['least at']:,}" for low in lows] + [low["anchors"] for low in lows]
        return [*least, *rank_cells(own["generators"][score])[1:], f"{gap['min']:.4g} to {gap['max']:.4g}"]

    headings = ("avg least at", "all least at", "avg inside", "all inside", "tau", "inverted", "IID", "avg - all")
    return make_table(
        f"{places.anchors} anchors x {len(places.sizes)} sizes; inverted: pairs of all generators",
        ("K", "score", *headings),
        [
            [count if score == "fid" else "", title, *cells(own, score)]
            for count, own in found.items()
            for score, title in SCORES.items()
        ],
        notes="least at: M where anchors' mean is least; inside: anchors whose own curve is least at an inner M",
        names=("score",),
    )


def draw_intra(
    rows: Mapping[str, Anchored], floors: Mapping[str, Mapping[str, Any]], places: Neighbourhoods, path: Path
) -> Path:
    """A column for each number of neighbours: FID as `rising_panels` has it, and below KID's gap."""
    columns = [
        Column(one, "fid", "FID", floors[count], f"K = {count}: {int(count) + 1} images a client")
        for count, one in rows.items()
    ]
    title = heading_of(places, "an image of each class and its K nearest")
    with rising_panels(path, columns, title, more=1) as (below,):
        for axes, one in zip(below, rows.values()):
            draw_mean_gap(axes, one, "kid", "KID")
    return path
