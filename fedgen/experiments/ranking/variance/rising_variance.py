"""Clients of little variance, generators of more and more: where FID's avg and all part, and KID's do not.

A client is an image of a class and its K nearest neighbours; a generator G_M a random image and its M nearest, from
the images of one object to those of the whole data.
"""

from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.experiments.engine.aggregate_rankings import agreement_table, expectation
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.study import Study
from fedgen.experiments.ranking.variance.neighbourhoods import NeighbourChoice, Neighbourhoods
from fedgen.experiments.ranking.variance.variance import (
    BOTH,
    EQUAL,
    PROJECTED,
    SIZE,
    Scorer,
    Scores,
    both_curves,
    curves,
    frechet_scorers,
    gaps,
    heading_of,
    means,
    measure_anchors,
    measure_floor,
    rank_cells,
    spread_of,
    summarise,
    terms,
    valley,
)
from fedgen.reports.figures.aggregate_panels import draw_gap
from fedgen.reports.figures.bands import add_size_bar, draw_bands, draw_path
from fedgen.reports.figures.curves import COLOURS

FIGURE = "variance_limited.png"
CLIENTS = "clients"
TERMS = {"mean": ":", "covariance": "-"}


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
        options: the fields of `NeighbourChoice`.
    """
    choice = NeighbourChoice(**options)
    settings = {**choice.settings(), "clients": clients, "components": components, "controls": controls}
    study = Study("variance-limited", output, settings)
    places = Neighbourhoods(choice)
    places.check(clients, controls)
    names = [f"IID {number}" for number in range(controls)]

    def scorers() -> dict[str, Scorer]:
        return frechet_scorers(places, clients, places.projection(components, clients), CLIENTS, names)

    scores = measure_anchors(study, places, scorers)
    floor = study.step("floor", lambda: measure_floor(places, clients, places.projection(components, clients)))
    found = study.step("found", lambda: find(scores, places.sizes, names))
    tables = [
        size_table(found, floor, places),
        agreement_table(labelled(found["sizes"], places), "mean scores of each size"),
        generator_table(labelled(found["generators"], places)),
    ]
    figure = draw(scores, floor, found, places, names, study.path(FIGURE))
    study.report([*tables, *expected(found, places.anchors)], figure)


def find(scores: Scores, sizes: tuple[int, ...], controls: list[str]) -> dict[str, Any]:
    """Return what the scores say of clients and controls, their mean curves, and FID's terms."""
    frechet = ("fid", PROJECTED, EQUAL, BOTH)
    everything = (*frechet, "kid")
    return summarise(scores, everything, CLIENTS, controls, sizes) | {
        "control valleys": {
            name: [valley(curves(scores, one, name, "avg"), sizes) for one in controls] for name in frechet
        },
        "means": {
            name: {how: means(values) for how, values in both_curves(scores, CLIENTS, name).items()}
            for name in everything
        },
        "terms": {
            name: {term: {how: terms(scores, CLIENTS, name, term, how) for how in ("avg", "all")} for term in TERMS}
            for name in frechet
        },
        "control gaps": {name: [spread_of(gaps(scores, one, name)) for one in controls] for name in frechet},
    }


def labelled(found: dict[str, Any], places: Neighbourhoods) -> dict[str, Any]:
    """The scores' comparisons under names for readers."""
    few = f"{places.equal} images each"
    names = {"fid": "FID", PROJECTED: "FID, PCA", EQUAL: f"FID, {few}", BOTH: f"FID, PCA, {few}", "kid": "KID"}
    return {names[key]: value for key, value in found.items()}


def size_table(found: dict[str, Any], floor: dict[str, Any], places: Neighbourhoods) -> Table:
    """Mean scores by size, and the real images' in the last line."""
    choice = places.choice
    table = Table(
        title=f"{places.client_source.examples.name}, means over {places.anchors} anchors; {choice.embedding},"
        f" neighbours by {choice.neighbours}",
        caption=f"FID of all M + 1 images, KID of at most 1,000; real: {floor['images']} images, the clients' next"
        " neighbours",
        caption_justify="left",
    )
    for heading in ("M", "FID avg", "FID all", "avg - all", "PCA avg", "PCA all", "KID avg", "KID all", "avg - all "):
        table.add_column(heading, justify="right")
    lines = {
        f"{size:,}": {name: {how: row[how][place] for how in row} for name, row in found["means"].items()}
        for place, size in enumerate(places.sizes)
    }
    for title, line in {**lines, "real": floor}.items():
        cells = []
        for name, digits in (("fid", 5), (PROJECTED, 5), ("kid", 5)):
            avg, everyone = line[name]["avg"], line[name]["all"]
            cells += [f"{avg:.{digits}g}", f"{everyone:.{digits}g}"]
            cells += [f"{avg - everyone:.{digits}g}"] if name != PROJECTED else []
        table.add_row(title, *cells)
    return table


def generator_table(found: dict[str, Any]) -> Table:
    """Inverted pairs of all generators, each for itself, beside those over IID clients."""
    table = Table(title="every generator for itself")
    for heading in ("score", "pairs", "Kendall tau", "inverted", "over IID clients"):
        table.add_column(heading, justify="left" if heading == "score" else "right")
    for name, row in found.items():
        table.add_row(name, *rank_cells(row))
    return table


def expected(found: dict[str, Any], anchors: int) -> list[str]:
    """Say whether the papers' outcomes were seen, a line each."""
    lines = []
    titles = {"fid": "FID-avg", PROJECTED: "FID-avg on principal components", EQUAL: "FID-avg of as many images each"}
    for name, title in titles.items():
        low = found["valleys"][name]["avg"]
        ends = " and ".join(f"{low[side][0]:.4g} ± {low[side][1]:.2g}" for side in ("left", "right"))
        text = f"{title}: the mean falls and rises, least at M = {low['least at']:,}, its ends higher by {ends}"
        lines.append(expectation(text, low["inside"]))
        rest = {"all": [found["valleys"][name]["all"]], "avg over IID clients": found["control valleys"][name]}
        others = [
            f"{how} {', '.join(str(one['anchors']) for one in lows)} (means least at"
            f" {', '.join(format(one['least at'], ',') for one in lows)})"
            for how, lows in rest.items()
            if lows
        ]
        lines.append(f"    {low['anchors']} of {anchors} anchors' own curves are least inside; {'; '.join(others)}")
    for name, title in (("fid", "FID"), (PROJECTED, "FID on principal components")):
        spread, controls = found["sizes"][name]["gap"]["spread"], found["sizes"][name]["control gap"]
        if controls:
            most = max(one["spread"] for one in controls)
            text = f"{title}: avg - all differs over M by {spread:.4g}, more than over IID clients ({most:.4g})"
            lines.append(expectation(text, spread > most))
        excess = found["sizes"][name]["excess beyond error"]
        if excess is not None:
            text = f"{title}: avg and all invert {excess:.3g} pairs of sizes beyond error more than over IID clients"
            lines.append(expectation(text, excess > 0))
    spread = found["gaps"]["kid"]["relative spread"]
    text = f"KID: avg - all is one number for every generator, to {spread:.1e} of it"
    lines.append(expectation(text, spread < 1e-9))
    return lines


def draw(
    scores: Scores,
    floor: dict[str, Any],
    found: dict[str, Any],
    places: Neighbourhoods,
    controls: list[str],
    path: Path,
) -> Path:
    """FID and FID on principal components by size and avg against all; both gaps; FID's terms; equal numbers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 6.8), layout="constrained")
    panels = figure.subplots(2, 4)
    for row, name, title in zip(panels, ("fid", PROJECTED), ("FID", "FID, PCA")):
        own = both_curves(scores, CLIENTS, name)
        draw_bands(row[0], places.sizes, own, title, SIZE, {how: floor[name][how] for how in own})
        points = draw_path(row[1], places.sizes, own["avg"], own["all"], title)
        add_size_bar(figure, points, row[1], "M")
    others = [means(gaps(scores, control, "fid")) for control in controls]
    draw_gap(panels[0][2], places.sizes, means(gaps(scores, CLIENTS, "fid")), "FID", SIZE, others)
    draw_gap(panels[1][2], places.sizes, means(gaps(scores, CLIENTS, "kid")), "KID", SIZE)
    for axes in (panels[0][2], panels[1][2]):
        axes.set_xscale("log")
    draw_terms(panels[0][3], places.sizes, found["terms"]["fid"])
    few = both_curves(scores, CLIENTS, EQUAL)
    draw_bands(panels[1][3], places.sizes, few, f"FID, {places.equal} images of each", SIZE)
    figure.suptitle(heading_of(places, "an image of each class and its nearest neighbours"), fontsize=10)
    return save_figure(figure, path)


def draw_terms(axes: Any, sizes: tuple[int, ...], found: dict[str, dict[str, list[float]]]) -> None:
    """FID's two terms by size: for the means' the aggregates differ by a constant, for the covariances' they do not."""
    for term, style in TERMS.items():
        for how, colour in COLOURS.items():
            axes.plot(sizes, found[term][how], color=colour, linestyle=style, linewidth=1.4, label=f"{how}, {term}")
    axes.set_xscale("log")
    axes.set_xlabel(SIZE)
    axes.set_ylabel("FID's terms")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=7, framealpha=0.8)
