"""Precision, recall, density and coverage, avg and all, of generators of rising variance over clients of little."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import Tensor

from fedgen.experiments.engine.aggregate_rankings import expectation
from fedgen.experiments.engine.feature_federation import FeatureFederation, rows_of
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.study import Study
from fedgen.experiments.ranking.variance.neighbourhoods import NeighbourChoice, Neighbourhoods
from fedgen.experiments.ranking.variance.variance import (
    SIZE,
    Generated,
    Scorer,
    Scores,
    both_curves,
    compare_scores,
    curves,
    gaps,
    heading_of,
    means,
    measure_anchors,
    rank_cells,
)
from fedgen.reports.figures.bands import add_size_bar, draw_bands, draw_path, draw_ranks
from fedgen.scores import ManifoldReference
from fedgen.scores.aggregate import Weights

FIGURE = "manifold_metrics.png"
CLIENTS, UNEQUAL, UNIFORM = "clients", "unequal, n_i / n", "unequal, uniform"
NAMES = ("precision", "recall", "density", "coverage")
MOSTLY, ALWAYS = 0.1, 0.01  # shares of inverted pairs below which ranks are mostly, and always, consistent


class Manifold:
    """The four scores over one federation.

    Args:
        parts: the clients' features.
        k: radii reach to the k-th nearest other image.
        images: of a generator that has more.
        weights: of the clients in avg.
    """

    def __init__(self, parts: Sequence[Tensor], k: int, images: int, weights: Weights = "examples") -> None:
        self._reference = ManifoldReference.from_features(parts, k=k, weights=weights)
        self.images = images

    def __call__(self, generated: Generated) -> dict[str, dict[str, Any]]:
        return rows_of(list(self._reference.score(generated.draw(self.images), errors=False).values()))


def manifold_metrics(
    output: Path | None = None,
    clients: int = 20,
    k: int = 5,
    images: int = 1000,
    controls: int = 2,
    **options: Any,
) -> None:
    """Measures both aggregates of the four scores on the variance-limited federation; prints and draws their ranks.

    The papers' setting is --overlap --neighbours NAME with the name that --embedding has.

    Args:
        output: folder of results.json and manifold_metrics.png.
        clients: neighbours K of a client, which holds K + 1 images.
        k: balls reach to the k-th nearest other image.
        images: drawn from a generator that has more; radii shrink with their number.
        controls: IID dealings of the clients' images.
        options: the fields of `NeighbourChoice`.
    """
    choice = NeighbourChoice(**options)
    settings = {**choice.settings(), "clients": clients, "k": k, "images": images, "controls": controls}
    study = Study("manifold-metrics", output, settings)
    places = Neighbourhoods(choice)
    check_counts(places, clients, k, images)
    places.check(clients, controls, k + 1)
    names = [f"IID {number}" for number in range(controls)]
    scores = measure_anchors(study, places, lambda: make_scorers(places, clients, k, images, names), summaries=False)
    floor = study.step("floor", lambda: measure_floor(places, clients, k))
    found = study.step("found", lambda: summarise(scores, places.sizes, images, names))
    figure = draw(scores, floor, places, images, study.path(FIGURE))
    study.report([size_table(scores, floor, places, images), rank_table(found), *expected(found)], figure)


def check_counts(places: Neighbourhoods, clients: int, k: int, images: int) -> None:
    """Raises ValueError unless every set has k + 1 images: half of a client, the smallest generator, what is drawn."""
    if k < 1:
        raise ValueError(f"k={k}: balls reach to the k-th nearest other image, k at least 1")
    counts = {"half a client's": clients // 2 + 1, "the smallest generator's": places.equal, "the drawn": images}
    for what, count in counts.items():
        if count < k + 1:
            raise ValueError(
                f"k={k} needs {k + 1} images, and {what} are {count};"
                " give a smaller k, or more --clients, --sizes, --images"
            )


def unequal(federation: FeatureFederation) -> FeatureFederation:
    """The clients with every second one cut to the half of its images that is nearest to its first."""
    parts = [part[: (len(part) + 1) // 2] if number % 2 else part for number, part in enumerate(federation.positions)]
    return FeatureFederation(federation.features, tuple(parts), federation.names)


def make_scorers(
    places: Neighbourhoods, clients: int, k: int, images: int, controls: Sequence[str]
) -> dict[str, Scorer]:
    """The four scores over the clients, their controls, and clients of unequal sizes under two weights."""
    federation = places.federation(clients)
    found: dict[str, Scorer] = {CLIENTS: Manifold(federation.parts(), k, images)}
    for number, name in enumerate(controls):
        found[name] = Manifold(federation.iid(places.choice.seed, number).parts(), k, images)
    for name, weights in ((UNEQUAL, "examples"), (UNIFORM, "uniform")):
        found[name] = Manifold(unequal(federation).parts(), k, images, weights)
    return found


def measure_floor(places: Neighbourhoods, clients: int, k: int) -> dict[str, Any]:
    """The scores of each client's next neighbours as if they were generated, and their number under "images"."""
    images = places.floor(clients)
    reference = ManifoldReference.from_features(places.federation(clients).parts(), k=k)
    return {"images": len(images), **rows_of(list(reference.score(images, errors=False).values()))}


def summarise(scores: Scores, sizes: tuple[int, ...], images: int, controls: Sequence[str]) -> dict[str, Any]:
    """Return how avg and all rank: all generators, those that as many images were drawn from, and recall's equality."""
    drawn = {str(size) for size in sizes if size + 1 >= images}
    every = rounded(scores)
    full = {
        anchor: {name: {size: row for size, row in rows.items() if size in drawn} for name, rows in own.items()}
        for anchor, own in every.items()
    }
    several = len(drawn) > 1
    differences = {
        name: max(abs(gap) for own in gaps(scores, name, "recall") for gap in own)
        for name in (CLIENTS, UNEQUAL, UNIFORM)
    }
    return {
        "generators": compare_scores(every, NAMES, CLIENTS, controls, single=True),
        "as many images": compare_scores(full, NAMES, CLIENTS, controls, single=True) if several else None,
        "sizes": compare_scores(every, NAMES, CLIENTS, controls),
        "recall avg - all": differences,
    }


def rounded(scores: Scores) -> Scores:
    """The scores to 12 digits: they are counts over numbers of images, and equal counts should be ties."""
    return {
        anchor: {
            name: {
                size: {score: {how: round(row[score][how], 12) for how in ("avg", "all")} for score in NAMES}
                for size, row in rows.items()
            }
            for name, rows in own.items()
        }
        for anchor, own in scores.items()
    }


def size_table(scores: Scores, floor: dict[str, Any], places: Neighbourhoods, images: int) -> Table:
    """Mean scores by size, and the real images' in the last line."""
    choice = places.choice
    table = Table(
        title=f"{places.client_source.examples.name}, means over {places.anchors} anchors; {choice.embedding},"
        f" neighbours by {choice.neighbours}; avg / all",
        caption=f"at most {images:,} images of a generator; real: {floor['images']}, the clients' next neighbours",
        caption_justify="left",
    )
    for heading in ("M", *NAMES):
        table.add_column(heading, justify="right")
    columns = {name: [means(curves(scores, CLIENTS, name, how)) for how in ("avg", "all")] for name in NAMES}
    for place, size in enumerate(places.sizes):
        table.add_row(f"{size:,}", *(" / ".join(f"{side[place]:.4f}" for side in columns[name]) for name in NAMES))
    table.add_row("real", *(f"{floor[name]['avg']:.4f} / {floor[name]['all']:.4f}" for name in NAMES))
    return table


def rank_table(found: dict[str, Any]) -> Table:
    """Inverted pairs of generators by score, beside those over IID clients."""
    table = Table(title="every generator for itself; right: those that as many images were drawn from")
    for heading in ("score", "pairs", "tau", "inverted", "over IID clients", "pairs ", "tau ", "inverted ", "IID "):
        table.add_column(heading, justify="left" if heading == "score" else "right")
    for name in NAMES:
        cells = []
        for part in (found["generators"], found["as many images"]):
            row = part[name] if part else None
            cells += ["-"] * 4 if row is None else rank_cells(row)
        table.add_row(name, *cells)
    return table


def expected(found: dict[str, Any]) -> list[str]:
    """Say whether the papers' outcomes were seen, a line each."""
    differences = found["recall avg - all"]
    same = max(differences[CLIENTS], differences[UNEQUAL])
    text = f"recall's avg equals its all under n_i / n, also at unequal sizes: at most {same:.1e} apart"
    lines = [expectation(text, same < 1e-12)]
    text = f"under uniform weights at unequal sizes it does not: up to {differences[UNIFORM]:.3g} apart"
    lines.append(expectation(text, differences[UNIFORM] > 1e-6))
    rows = found["generators"]
    shares = {name: row["inverted"] / row["pairs"] for name, row in rows.items()}
    text = f"precision ranks in two ways: {shares['precision']:.1%} of pairs inverted"
    lines.append(expectation(text, shares["precision"] > ALWAYS))
    if inverted := rows["precision"]["control inverted"]:
        control = max(inverted) / rows["precision"]["pairs"]
        text = f"more than the clients' few images explain: precision inverts {control:.1%} over IID clients"
        lines.append(expectation(text, shares["precision"] > control))
    for name, limit, word in (("density", MOSTLY, "mostly alike"), ("coverage", ALWAYS, "alike")):
        text = f"{name} ranks {word}: {shares[name]:.1%} of pairs inverted, at most {limit:.0%} asked"
        lines.append(expectation(text, shares[name] <= limit))
    return lines


def draw(scores: Scores, floor: dict[str, Any], places: Neighbourhoods, images: int, path: Path) -> Path:
    """A column for each score: by size, avg against all, rank against rank."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 10), layout="constrained")
    panels = figure.subplots(3, len(NAMES))
    for column, name in zip(panels.T, NAMES):
        own = both_curves(scores, CLIENTS, name)
        floors, first = {how: floor[name][how] for how in own}, name == NAMES[0]
        draw_bands(column[0], places.sizes, own, name, SIZE, floors, rings=False, legend=first)
        draw_path(column[1], places.sizes, own["avg"], own["all"], name)
        points = draw_ranks(column[2], own["avg"], own["all"], places.sizes, name)
    add_size_bar(figure, points, list(panels[2]), "M")
    who, drawn = "an image of each class and its nearest neighbours", f", {images:,} drawn"
    figure.suptitle(heading_of(places, who, drawn, "; higher is better"), fontsize=10)
    return save_figure(figure, path)
