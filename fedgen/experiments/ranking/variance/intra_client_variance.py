"""The variance-limited federation with clients of few and of more neighbours: how much a client may vary."""

from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.experiments.engine.aggregate_rankings import expectation
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.study import Study
from fedgen.experiments.ranking.variance.neighbourhoods import NeighbourChoice, Neighbourhoods
from fedgen.experiments.ranking.variance.variance import (
    PROJECTED,
    SIZE,
    Scorer,
    Scores,
    both_curves,
    frechet_scorers,
    gaps,
    heading_of,
    means,
    measure_anchors,
    measure_floor,
    rank_cells,
    summarise,
)
from fedgen.reports.figures.aggregate_panels import draw_gap
from fedgen.reports.figures.bands import add_size_bar, draw_bands, draw_path, draw_ranks

FIGURE = "intra_client_variance.png"
SCORES = ("fid", PROJECTED, "kid")


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
        options: the fields of `NeighbourChoice`.
    """
    choice = NeighbourChoice(**options)
    settings = {**choice.settings(), "clients": list(clients), "components": components, "controls": controls}
    study = Study("intra-client-variance", output, settings)
    if not clients or len(set(clients)) < len(clients):
        raise ValueError(f"clients={list(clients)}: give numbers of neighbours, each once")
    places = Neighbourhoods(choice)
    for count in clients:
        places.check(count, controls)
    scores = measure_anchors(study, places, lambda: scorers_of(places, clients, components, controls))

    def found_of(k: int) -> dict[str, Any]:
        return summarise(scores, SCORES, title_of(k), [title_of(k, number) for number in range(controls)], places.sizes)

    floors = study.step("floors", lambda: measure_floors(places, clients, components))
    found = study.step("found", lambda: {str(k): found_of(k) for k in clients})
    figure = draw(scores, floors, places, clients, controls, study.path(FIGURE))
    study.report([table_of(found, places), *expected(found, places.anchors)], figure)


def title_of(count: int, control: int | None = None) -> str:
    """Return a federation's name among the numbers."""
    return f"K = {count}" if control is None else f"K = {count}, IID {control}"


def scorers_of(places: Neighbourhoods, clients: tuple[int, ...], components: int, controls: int) -> dict[str, Scorer]:
    """The scores of every federation and its controls."""
    projection = places.projection(components, max(clients))
    found: dict[str, Scorer] = {}
    for count in clients:
        others = [title_of(count, number) for number in range(controls)]
        found |= frechet_scorers(places, count, projection, title_of(count), others)
    return found


def measure_floors(places: Neighbourhoods, clients: tuple[int, ...], components: int) -> dict[str, Any]:
    """The real images' scores for each number of neighbours."""
    projection = places.projection(components, max(clients))
    return {str(count): measure_floor(places, count, projection) for count in clients}


def table_of(found: dict[str, Any], places: Neighbourhoods) -> Table:
    """A line for each number of neighbours and score."""
    table = Table(
        title=f"{places.anchors} anchors x {len(places.sizes)} sizes; inverted: pairs of all generators",
        caption="least at: M where anchors' mean is least; inside: anchors whose own curve is least at an inner M",
        caption_justify="left",
    )
    headings = ("K", "score", "avg least at", "all least at", "avg inside", "all inside", "tau", "inverted", "IID")
    for heading in (*headings, "avg - all"):
        table.add_column(heading, justify="left" if heading == "score" else "right")
    for count, own in found.items():
        for name, title in zip(SCORES, ("FID", "FID, PCA", "KID")):
            avg, everyone = own["valleys"][name]["avg"], own["valleys"][name]["all"]
            row, gap = own["generators"][name], own["sizes"][name]["gap"]
            table.add_row(
                count if name == "fid" else "",
                title,
                f"{avg['least at']:,}",
                f"{everyone['least at']:,}",
                str(avg["anchors"]),
                str(everyone["anchors"]),
                *rank_cells(row)[1:],
                f"{gap['min']:.4g} to {gap['max']:.4g}",
            )
    return table


def expected(found: dict[str, Any], anchors: int) -> list[str]:
    """Say whether the papers' outcomes were seen for each number of neighbours, a line each."""
    lines = []
    for count, own in found.items():
        avg = own["valleys"]["fid"]["avg"]
        text = f"K = {count}: the mean FID-avg falls and rises (least at M = {avg['least at']:,}); {avg['anchors']} of"
        lines.append(expectation(f"{text} {anchors} anchors' own curves do", avg["inside"]))
        row = own["generators"]["fid"]
        if row["control inverted"]:
            text = f"K = {count}: FID's avg and all invert {row['inverted']:,} of {row['pairs']:,} pairs of generators,"
            text += f" {max(row['control inverted']):,} over IID clients"
            lines.append(expectation(text, row["inverted"] > max(row["control inverted"])))
        spread = own["gaps"]["kid"]["relative spread"]
        text = f"K = {count}: KID's avg - all is one number, to {spread:.1e} of it; no pair is inverted"
        lines.append(expectation(text, spread < 1e-9 and own["generators"]["kid"]["inverted"] == 0))
    return lines


def draw(
    scores: Scores,
    floors: dict[str, Any],
    places: Neighbourhoods,
    clients: tuple[int, ...],
    controls: int,
    path: Path,
) -> Path:
    """A column for each number of neighbours: FID by size, avg against all, rank against rank, FID's and KID's gap."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(clients) + 0.6, 15), layout="constrained")
    panels = figure.subplots(5, len(clients), squeeze=False)
    for column, count in zip(panels.T, clients):
        name = title_of(count)
        own = both_curves(scores, name, "fid")
        floor = floors[str(count)]["fid"]
        floors_of, first = {how: floor[how] for how in own}, count == clients[0]
        draw_bands(column[0], places.sizes, own, "FID", SIZE, floors_of, legend=first)
        column[0].set_title(f"K = {count}: {count + 1} images a client", fontsize=10)
        draw_path(column[1], places.sizes, own["avg"], own["all"], "FID")
        points = draw_ranks(column[2], own["avg"], own["all"], places.sizes, "FID")
        others = [means(gaps(scores, title_of(count, number), "fid")) for number in range(controls)]
        draw_gap(column[3], places.sizes, means(gaps(scores, name, "fid")), "FID", SIZE, others)
        draw_gap(column[4], places.sizes, means(gaps(scores, name, "kid")), "KID", SIZE)
        for axes in column[3:]:
            axes.set_xscale("log")
    add_size_bar(figure, points, list(panels[2]), "M")
    figure.suptitle(heading_of(places, "an image of each class and its K nearest"), fontsize=10)
    return save_figure(figure, path)
