"""FID's avg and all of few images a client: a gap and inversions over clients that are all alike.

An FID from n_i images is biased upwards, differently for every generator: avg holds the bias of small sets, all that of
their union. The same images are split one client a class, and IID, where the gap is bias alone; beside it FID on few
principal components, its extrapolation to infinitely many images, and KID.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from fedgen.experiments.engine.features import (
    CORRECTED,
    PCA,
    FeatureFederation,
    ImageChoice,
    Source,
    component_reference,
    component_scores,
    halves,
    rows_of,
)
from fedgen.experiments.engine.rankings import BOTH, CLIENTS, CONTROLS, FLAT, Rows, ScoredRows
from fedgen.experiments.engine.study import Numbers, at_least, expectation, make_table, panels, rising
from fedgen.scores import FrechetReference, KernelReference, fid_infinity
from fedgen.seeds import generator
from fedgen.statistics import Projection

REAL = "real images"


@dataclass(frozen=True, eq=False)
class ClassSplit:
    """Whose images are whose: clients of each class, generators of each class, and public images of nobody."""

    choice: ImageChoice  # of images, features and the seed
    sizes: tuple[int, ...]  # images of a client, rising

    @cached_property
    def train(self) -> Source:
        return self.choice.source()

    @cached_property
    def test(self) -> Source:
        """The places of the generators' images: the test split; the train split again if there is no other."""
        if "test" not in self.train.data.splits:
            return self.train
        return Source(self.train.data, "test", self.train.embedding)

    @cached_property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.train.examples.classes)

    @cached_property
    def orders(self) -> dict[str, Tensor]:
        """The train images of each class in the order in which clients of rising size take them."""
        if len(self.classes) < 2:
            raise ValueError(f"{self.choice.data} has {len(self.classes)} classes; a federation needs at least 2")
        found = {}
        for name in self.classes:
            positions = self._positions(name, 0)
            if len(positions) < self.sizes[-1]:
                raise ValueError(
                    f"class {name!r} has {len(positions)} images for a client, {self.sizes[-1]} are asked for; "
                    "give smaller --sizes"
                )
            order = torch.randperm(len(positions), generator=generator(self.choice.seed, "sample-size", name))
            found[name] = positions[order]
        return found

    @cached_property
    def generated(self) -> dict[str, Tensor]:
        """Features of every generator, and of as many real images of all classes; none is a client's."""
        found = {name: self._positions(name, 1) for name in self.classes}
        everything, count = torch.cat(list(found.values())), len(next(iter(found.values())))
        order = torch.randperm(len(everything), generator=generator(self.choice.seed, "sample-size", REAL))
        found[REAL] = everything[order[:count]]
        return {name: self.test.features[positions] for name, positions in found.items()}

    def _positions(self, name: str, side: int) -> Tensor:
        """A class's images for clients (side 0) or generators (side 1)."""
        found = (self.train, self.test)[side].positions(name)
        return halves(found, self.choice.seed, name)[side] if self.test is self.train else found

    def federation(self, size: int, features: Tensor) -> FeatureFederation:
        """One client a class, of so many images, in features of the train split."""
        return FeatureFederation(features, tuple(order[:size] for order in self.orders.values()), self.classes)

    def projection(self, components: int) -> Projection:
        """The first principal components of the train images that no client has at the largest size."""
        public = torch.cat([order[self.sizes[-1] :] for order in self.orders.values()])
        if len(public) <= components:
            raise ValueError(
                f"{len(public)} images are left for {components} components; give smaller --sizes or --components"
            )
        name = f"{self.train.examples.name}, {len(public)} images of no client"
        return Projection.fit(self.train.features[public], components, self.train.embedding.name, name)


CLASSES = "classes"
INFINITY = "fid infinity"
PARTS = 3  # levels of the extrapolation
SCORES = {"fid": "FID", PCA: "FID PCA", CORRECTED: "FID PCA corrected", INFINITY: "FID-inf PCA", "kid": "KID"}
COLOURS = {"fid": "#c4560b", PCA: "#1f5fa8", CORRECTED: "#5aa0d8", INFINITY: "#7a4fa0", "kid": "#3a8a3a"}


def sample_size(
    sizes: tuple[int, ...] = (20, 60, 200, 600, 2000), components: int = 64, controls: int = 2, **options: Any
) -> None:
    """Scores the classes as generators over clients of rising size, one a class and IID, by FID in three ways and KID.

    Generators are the classes of the data's test split; where there is none, half of the train split.

    Args:
        sizes: images of a client; at most 200 with --quick.
        components: principal components of the second FID, of train images that no client has.
        controls: IID splits of the same images.
    """
    choice = ImageChoice(**options)
    sizes = choice.smaller(sizes, lambda own: tuple(size for size in own if size <= 200) or own[:1])
    controls = choice.smaller(controls, 1)
    rising(2, sizes=sizes)
    at_least(1, components=components, controls=controls)
    study = choice.study("sample-size", sizes=list(sizes), components=components, controls=controls)
    names = (CLASSES, *(f"IID {number}" for number in range(controls)))
    cells = {f"{size} {name}": (size, number - 1) for size in sizes for number, name in enumerate(names)}
    if study.missing("scores") or len(study.numbers["scores"]) < len(cells):
        measure = SizeMeasure(ClassSplit(choice, sizes), components)
        study.each("scores", cells, measure, "federations")
    found = study.step("found", lambda: summarise(study.numbers["scores"], sizes, names))
    tables: list[Table | str] = [table_of(found, components), floor_table(found, components), *outcomes(found)]
    study.report(tables, draw(found, components, study.figure))


class SizeMeasure:
    """Every score of every generator over one federation; what federations share is made once."""

    def __init__(self, split: ClassSplit, components: int) -> None:
        self.split, self.components = split, components
        self.projection = split.projection(components)  # refuses what cannot be, before anything is embedded
        self.features, self.generated = split.train.features, split.generated
        self.projected = self.projection.project(self.features)

    def __call__(self, cell: tuple[int, int]) -> dict[str, Any]:
        """{generator: {score: values}} over clients of a size, one a class (control -1) or a control's IID ones."""
        size, control = cell
        whole, small = (self.split.federation(size, features) for features in (self.features, self.projected))
        if control >= 0:
            whole, small = (federation.iid(self.split.choice.seed, control) for federation in (whole, small))
        parts, projected = whole.parts(), small.parts()
        frechet, kernel = FrechetReference.from_features(parts), KernelReference.from_features(parts)
        few = component_reference(projected, min(map(len, self.generated.values())))
        found = {}
        for name, features in self.generated.items():
            reduced = self.projection.project(features)
            scores = [frechet.score(features), *component_scores(few, reduced), kernel.score(features)]
            found[name] = rows_of(scores)
            if min(len(reduced), *map(len, projected)) >= 2 * self.components * PARTS:  # images enough for it
                limit = fid_infinity(projected, reduced, real="sample", parts=PARTS, seed=self.split.choice.seed)
                # over both sides' images: more than a difference of two generators has, which share the clients' part
                errors = {how: limit[how].error for how in BOTH}
                values = {how: limit[how].value for how in BOTH}
                found[name][INFINITY] = {**values, "errors": errors, "total errors": errors}
        return found


def summarise(scores: Mapping[str, Rows], sizes: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    """By size and score: what `compare` finds, and the scores of real images, over classes and over IID clients."""
    found: dict[str, Any] = {}
    for size in sizes:
        classes, *iid = [scores[f"{size} {name}"] for name in names]
        made = {name: {CLIENTS: row, CONTROLS: [one[name] for one in iid]} for name, row in classes.items()}
        del made[REAL]
        real = iid[0][REAL]
        found[str(size)] = {
            score: row | {"real, IID": {how: real[score][how] for how in BOTH}}
            for score, row in ScoredRows(made).compared([score for score in SCORES if score in real]).items()
        }
    return found


def outcomes(found: Numbers) -> list[str]:
    gaps = {score: iid_gaps(found, score) for score in SCORES}
    fid, sizes, lines = list(gaps["fid"].values()), list(found), []
    inverted = [statistics.mean(row["fid"]["control inverted"]) for row in found.values()]
    text = ", ".join(f"{gap:.3g} at {size}" for size, gap in gaps["fid"].items())
    if len(sizes) > 1:
        falls = all(more > less for more, less in pairwise(fid))
        lines.append(expectation(f"FID's gap over IID clients falls with their images: {text}", falls))
    text = ", ".join(f"{count:g} at {size}" for size, count in zip(sizes, inverted))
    text = f"FID orders pairs differently over IID clients: {text} of {found[sizes[0]]['fid']['pairs']}"
    lines.append(expectation(text, max(inverted) > 0))
    shares = {score: {size: share_of_bias(row, score) for size, row in found.items()} for score in ("fid", PCA)}
    text = ", ".join(f"{shares['fid pca'][size]:.0%} not {shares['fid'][size]:.0%} at {size}" for size in sizes)
    less = all(shares[PCA][size] < shares["fid"][size] for size in sizes)
    lines.append(expectation(f"on few components less of the classes' gap is the IID clients': {text}", less))
    spread = max(gap["spread"] for row in found.values() for gap in (row["kid"]["gap"], *row["kid"]["control gap"]))
    wrong = sum(len(row["kid"]["inverted"]) + sum(row["kid"]["control inverted"]) for row in found.values())
    text = f"KID's gap is one number over all generators (spread {spread:.0e}); it orders {wrong} pairs differently"
    least = min(abs(row["kid"]["gap"]["mean"]) for row in found.values())
    lines.append(expectation(text, wrong == 0 and spread < FLAT * least))
    for score, title in ((CORRECTED, "FID corrected"), (INFINITY, "FID-infinity")):
        for size, gap in gaps[score].items():
            text = f"{title} leaves {gap:+.2f} of an IID gap of {gaps['fid pca'][size]:.2f} at {size} images"
            lines.append(expectation(text, abs(gap) < 0.25 * gaps[PCA][size]))
    return lines


def iid_gaps(found: Numbers, score: str) -> dict[str, float]:
    rows = {size: row[score] for size, row in found.items() if score in row}
    return {size: statistics.mean(gap["mean"] for gap in row["control gap"]) for size, row in rows.items()}


def share_of_bias(row: Numbers, score: str) -> float:
    return statistics.mean(gap["mean"] for gap in row[score]["control gap"]) / row[score]["gap"]["mean"]


def table_of(found: Numbers, components: int) -> Table:
    cells: list[list[Any] | None] = []
    for size, row in found.items():
        for score, one in row.items():
            iid = one["control gap"]
            control, spread = (f"{statistics.mean(gap[key] for gap in iid):.3g}" for key in ("mean", "spread"))
            inverted = len(one["inverted"]), f"{statistics.mean(one['control inverted']):g}", len(one["evidence"])
            cells.append([size, label(score, components), one["gap"]["mean"], control, spread, *inverted])
        cells.append(None)
    title = "avg - all over clients of one class, and over IID clients of the same sizes"
    headings = ("n_i", "score", "gap", "IID gap", "spread", "pairs", "IID", "evidence")
    note = "gap: mean over the generators, spread: the most less the least of IID clients; pairs: that avg and all"
    note += " order differently, evidence: those beyond their errors and inverted in no control"
    return make_table(title, headings, cells, note, names=("score",))


def floor_table(found: Numbers, components: int) -> Table:
    scores, text = [score for score in SCORES if any(score in row for row in found.values())], "{avg:.3g} / {all:.3g}"
    rows = [
        [size, *(text.format(**row[score]["real, IID"]) if score in row else None for score in scores)]
        for size, row in found.items()
    ]
    headings = ("n_i", *(label(score, components) for score in scores))
    return make_table("real images as the generator, over IID clients: avg / all", headings, rows, names=())


def label(score: str, components: int) -> str:
    return SCORES[score].replace("PCA", f"PCA-{components}")


def draw(found: Numbers, components: int, path: Path) -> Path:
    sizes = [int(size) for size in found]
    with panels(path, (9.6, 7), 2, 2) as (_, grid):
        for axes, score in zip(grid.flat, ("fid", PCA, "kid")):
            draw_gaps(axes, found, score, label(score, components))
        last = grid[1][1]
        for score, colour in COLOURS.items():
            rows = {int(size): row[score] for size, row in found.items() if score in row}
            if rows:  # over classes (full) and IID clients (dashed)
                counts = [len(row["inverted"]) for row in rows.values()]
                controls = [statistics.mean(row["control inverted"]) for row in rows.values()]
                last.plot(list(rows), counts, "-o", color=colour, markersize=4, label=label(score, components))
                last.plot(list(rows), controls, "--o", color=colour, markersize=4, markerfacecolor="none")
        last.plot([], [], "--o", color="0.35", markersize=4, markerfacecolor="none", label="over IID clients")
        last.set_ylim(-0.4, 1.4 * last.get_ylim()[1])  # room for the legend
        last.set_ylabel("pairs that avg and all order differently")
        last.legend(fontsize=8, ncols=2, loc="upper center")
        for axes in grid.flat:
            axes.set_xscale("log")
            axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
            axes.minorticks_off()
            axes.set_xlabel("images of a client")
    return path


def draw_gaps(axes: Any, found: Numbers, score: str, title: str) -> None:
    """One score's gap by n_i: over classes (full) and IID clients (dashed), with the range over generators."""
    sizes = [int(size) for size in found]
    classes = [row[score]["gap"] for row in found.values()]
    iid = [row[score]["control gap"][0] for row in found.values()]
    sides = ("one client a class", "-", COLOURS[score], classes), ("IID clients", "--", "0.35", iid)
    for name, style, colour, gaps in sides:
        low, high, mean = ([gap[key] for gap in gaps] for key in ("min", "max", "mean"))
        axes.fill_between(sizes, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(sizes, mean, style, color=colour, marker="o", markersize=4, label=name)
    axes.set_ylabel(f"{title}: avg - all")
    axes.axhline(0, color="0.5", linewidth=0.8)
    axes.set_ylim(min(0, axes.get_ylim()[0]), None)
    axes.legend(fontsize=8)
