"""FID's avg and all of few images a client: a gap and inversions over clients that are all alike.

An FID from n_i images is too large, by more the fewer they are, and by another amount for every generator. avg holds
that bias of small sets, all that of their union; so the two part over IID clients, where nothing is heterogeneous. The
same images are dealt twice here: one client a class, and IID. What IID clients show is bias; only the excess over it
is evidence. Four controls are tried on it: FID on few principal components of public images, its extrapolation to
infinitely many images, KID's unbiased estimate, and the excess itself.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import Tensor

from fedgen.experiments.engine.aggregate_rankings import Rows, compare, expectation
from fedgen.experiments.engine.choice import quickly
from fedgen.experiments.engine.feature_federation import rows_of
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.study import Study
from fedgen.experiments.ranking.classes.class_deal import REAL, ClassDeal
from fedgen.scores import FrechetReference, KernelReference, fid_infinity

CLIENTS = "classes"
PARTS = 3  # levels of the extrapolation
ROUNDING = 1e-9  # of the classes' gap
FIGURE = "sample_size.png"
SCORES = {"fid": "FID", "fid pca": "FID PCA", "fid infinity": "FID-inf PCA", "kid": "KID"}
COLOURS = {"fid": "#c4560b", "fid pca": "#1f5fa8", "fid infinity": "#7a4fa0", "kid": "#3a8a3a"}


@quickly(sizes=lambda sizes: tuple(size for size in sizes if size <= 200) or sizes[:1], controls=1)
def sample_size(
    output: Path | None = None,
    data: str = "fashion-mnist",
    root: Path = Path("data"),
    embedding: str = "efficientnet-lite0",
    weights: Path | None = None,
    sizes: tuple[int, ...] = (20, 60, 200, 600, 2000),
    components: int = 64,
    controls: int = 2,
    seed: int = 0,
    quick: bool = False,
) -> None:
    """Scores the classes as generators over clients of rising size, one a class and IID, by FID in three ways and KID.

    Args:
        output: folder of results.json and sample_size.png.
        data: a name (fashion-mnist, cifar10, mnist5k, digits, ...), or a folder of class folders. Generators are the
            classes of its test split; where there is none, half of the train split.
        root: folder of data sets.
        embedding: in whose features scores are measured.
        weights: a local file of its weights.
        sizes: images of a client; at most 200 with --quick.
        components: principal components of the second FID, of train images that no client has.
        controls: IID dealings of the same images.
        seed: of all draws.
        quick: takes under a minute, to see that it runs.
    """
    if controls < 1 or components < 1 or not sizes or min(sizes) < 2 or list(sizes) != sorted(set(sizes)):
        raise ValueError(
            f"sizes={sizes}, components={components}, controls={controls}: give rising sizes of at least 2 images, and "
            "at least 1 of the others"
        )
    settings: dict[str, Any] = {
        "data": data, "embedding": embedding, "weights": weights and str(weights), "sizes": list(sizes),
        "components": components, "controls": controls, "seed": seed, "quick": quick,
    }  # fmt: skip
    study = Study("sample-size", output, settings)
    names = (CLIENTS, *(f"IID {number}" for number in range(controls)))
    cells = {f"{size} {name}": (size, number - 1) for size in sizes for number, name in enumerate(names)}
    if study.missing("scores") or len(study.numbers["scores"]) < len(cells):
        measure = SizeMeasure(ClassDeal(data, root, embedding, weights, sizes, seed), components)
        study.each("scores", cells, measure, "federations")
    found = study.step("found", lambda: summarise(study.numbers["scores"], sizes, names))
    tables: list[Table | str] = [table_of(found, components), floor_table(found, components), *outcomes(found)]
    study.report(tables, draw(found, components, study.path(FIGURE)))


class SizeMeasure:
    """Every score of every generator over one federation; what federations share is made once."""

    def __init__(self, deal: ClassDeal, components: int) -> None:
        deal.check()
        self.deal, self.components = deal, components
        self.projection = deal.projection(components)
        self.features = deal.train.features
        self.projected = self.projection.project(self.features)
        self.generated = deal.generated

    def __call__(self, cell: tuple[int, int]) -> dict[str, Any]:
        """{generator: {score: values}} over clients of a size, one a class (control -1) or a control's IID ones."""
        size, control = cell
        whole, small = (self.deal.federation(size, features) for features in (self.features, self.projected))
        if control >= 0:
            whole, small = (federation.iid(self.deal.seed, control) for federation in (whole, small))
        parts, projected = whole.parts(), small.parts()
        frechet, kernel = FrechetReference.from_features(parts), KernelReference.from_features(parts)
        few = FrechetReference.from_features(projected)
        found = {}
        for name, features in self.generated.items():
            reduced = self.projection.project(features)
            scores = [frechet.score(features), replace(few.score(reduced), name="fid pca"), kernel.score(features)]
            found[name] = rows_of(scores) | self._infinity(projected, reduced)
        return found

    def _infinity(self, clients: Sequence[Tensor], generated: Tensor) -> dict[str, Any]:
        """FID-infinity with both sides as samples, where there are images enough for it."""
        if min(len(generated), *map(len, clients)) < 2 * self.components * PARTS:
            return {}
        found = fid_infinity(clients, generated, real="sample", parts=PARTS, seed=self.deal.seed)
        values = {how: found[how].value for how in ("avg", "all")}
        # over both sides' images: more than a difference of two generators has, which share the clients' part
        errors = {how: found[how].error for how in ("avg", "all")}
        return {"fid infinity": {**values, "errors": errors, "total errors": errors}}


def summarise(scores: Mapping[str, Rows], sizes: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    """By size and score: what `compare` finds, and the scores of real images, over classes and over IID clients."""
    found: dict[str, Any] = {}
    for size in sizes:
        everything = [scores[f"{size} {name}"] for name in names]
        rows, *controls = [{name: row for name, row in one.items() if name != REAL} for one in everything]
        known = [score for score in SCORES if score in everything[0][REAL]]
        found[str(size)] = {
            score: {
                **compare(rows, controls, score),
                "real, IID": {how: everything[1][REAL][score][how] for how in ("avg", "all")},
            }
            for score in known
        }
    return found


def outcomes(found: Mapping[str, Any]) -> list[str]:
    """Return what was expected of the experiment and whether it was seen."""
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
    shares = {score: {size: share_of_bias(row, score) for size, row in found.items()} for score in ("fid", "fid pca")}
    text = ", ".join(f"{shares['fid pca'][size]:.0%} not {shares['fid'][size]:.0%} at {size}" for size in sizes)
    less = all(shares["fid pca"][size] < shares["fid"][size] for size in sizes)
    lines.append(expectation(f"on few components less of the classes' gap is the IID clients': {text}", less))
    spread = max(gap["spread"] for row in found.values() for gap in (row["kid"]["gap"], *row["kid"]["control gap"]))
    wrong = sum(len(row["kid"]["inverted"]) + sum(row["kid"]["control inverted"]) for row in found.values())
    text = f"KID's gap is one number over all generators (spread {spread:.0e}); it orders {wrong} pairs differently"
    least = min(abs(row["kid"]["gap"]["mean"]) for row in found.values())
    lines.append(expectation(text, wrong == 0 and spread < ROUNDING * least))
    for size, gap in gaps["fid infinity"].items():
        text = f"FID-infinity leaves {gap:+.2f} of an IID gap of {gaps['fid pca'][size]:.2f} at {size} images"
        lines.append(expectation(text, abs(gap) < 0.25 * gaps["fid pca"][size]))
    return lines


def iid_gaps(found: Mapping[str, Any], score: str) -> dict[str, float]:
    """A score's mean gap over IID clients, by size, where it is known."""
    rows = {size: row[score] for size, row in found.items() if score in row}
    return {size: statistics.mean(gap["mean"] for gap in row["control gap"]) for size, row in rows.items()}


def share_of_bias(row: Mapping[str, Any], score: str) -> float:
    """Return which part of a score's gap over classes its gap over IID clients of the same size is."""
    return statistics.mean(gap["mean"] for gap in row[score]["control gap"]) / row[score]["gap"]["mean"]


def table_of(found: Mapping[str, Any], components: int) -> Table:
    """Gaps and inversions by size and score, over classes and over IID clients."""
    table = Table(
        title="avg - all over clients of one class, and over IID clients of the same sizes",
        caption="gap: mean over the generators, spread: the most less the least of IID clients; pairs: that avg and "
        "all order differently, evidence: those beyond their errors and inverted in no control",
        caption_justify="left",
    )
    headings = ("n_i", "score", "gap", "IID gap", "spread", "pairs", "IID", "evidence")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "score" else "right", no_wrap=True)
    for size, row in found.items():
        for score, one in row.items():
            table.add_row(
                size,
                label(score, components),
                f"{one['gap']['mean']:.4g}",
                f"{statistics.mean(gap['mean'] for gap in one['control gap']):.3g}",
                f"{statistics.mean(gap['spread'] for gap in one['control gap']):.3g}",
                str(len(one["inverted"])),
                f"{statistics.mean(one['control inverted']):g}",
                str(len(one["evidence"])),
            )
        table.add_section()
    return table


def floor_table(found: Mapping[str, Any], components: int) -> Table:
    """Return what held-out real images of all classes score in the generators' place, over IID clients: bias alone."""
    scores = [score for score in SCORES if any(score in row for row in found.values())]
    table = Table(title="real images as the generator, over IID clients: avg / all")
    for heading in ("n_i", *(label(score, components) for score in scores)):
        table.add_column(heading, justify="right")
    for size, row in found.items():
        pairs = [row[score]["real, IID"] if score in row else None for score in scores]
        table.add_row(size, *("-" if pair is None else f"{pair['avg']:.3g} / {pair['all']:.3g}" for pair in pairs))
    return table


def label(score: str, components: int) -> str:
    """Return a score's name in tables and figures."""
    return SCORES[score].replace("PCA", f"PCA-{components}")


def draw(found: Mapping[str, Any], components: int, path: Path) -> Path:
    """Gaps of three scores against n_i, of classes and IID clients with their range; then the inverted pairs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 7), layout="constrained")
    panels = figure.subplots(2, 2).flatten()
    for axes, score in zip(panels, ("fid", "fid pca", "kid")):
        draw_gaps(axes, found, score)
        axes.set_ylabel(f"{label(score, components)}: avg - all")
    draw_inversions(panels[3], found, components)
    sizes = [int(size) for size in found]
    for axes in panels:
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.set_xlabel("images of a client")
        axes.grid(alpha=0.25)
    return save_figure(figure, path)


def draw_gaps(axes: Any, found: Mapping[str, Any], score: str) -> None:
    """One score's gap by n_i: over classes (full) and IID clients (dashed), with the range over generators."""
    sizes = [int(size) for size in found]
    for name, style in (("one client a class", "-"), ("IID clients", "--")):
        gaps = [row[score]["gap"] if style == "-" else row[score]["control gap"][0] for row in found.values()]
        colour = COLOURS[score] if style == "-" else "0.35"
        axes.fill_between(
            sizes, [g["min"] for g in gaps], [g["max"] for g in gaps], color=colour, alpha=0.18, linewidth=0
        )  # fmt: skip
        axes.plot(sizes, [g["mean"] for g in gaps], style, color=colour, marker="o", markersize=4, label=name)
    axes.axhline(0, color="0.5", linewidth=0.8)
    axes.set_ylim(min(0, axes.get_ylim()[0]), None)
    axes.legend(fontsize=8)


def draw_inversions(axes: Any, found: Mapping[str, Any], components: int) -> None:
    """Pairs ordered differently by n_i and score: over classes (full) and IID clients (dashed)."""
    for score, colour in COLOURS.items():
        rows = {int(size): row[score] for size, row in found.items() if score in row}
        if rows:
            counts = [len(row["inverted"]) for row in rows.values()]
            controls = [statistics.mean(row["control inverted"]) for row in rows.values()]
            axes.plot(list(rows), counts, "-o", color=colour, markersize=4, label=label(score, components))
            axes.plot(list(rows), controls, "--o", color=colour, markersize=4, markerfacecolor="none")
    axes.plot([], [], "--o", color="0.35", markersize=4, markerfacecolor="none", label="over IID clients")
    axes.set_ylim(-0.4, 1.4 * axes.get_ylim()[1])  # room for the legend
    axes.set_ylabel("pairs that avg and all order differently")
    axes.legend(fontsize=8, ncols=2, loc="upper center")
