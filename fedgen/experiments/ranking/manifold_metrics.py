"""Precision, recall, density and coverage, avg and all, of generators of rising variance over clients of little."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import Tensor

from fedgen.experiments.engine.features import FeatureFederation, rows_of
from fedgen.experiments.engine.rankings import BOTH, CLIENTS
from fedgen.experiments.engine.study import Study, at_least, expectation, make_table
from fedgen.experiments.ranking.neighbourhoods import (
    Anchored,
    Column,
    Generated,
    NeighbourChoice,
    Neighbourhoods,
    Scorer,
    Scores,
    about,
    heading_of,
    measure_anchors,
    rank_cells,
    rising_panels,
)
from fedgen.scores import ManifoldReference
from fedgen.scores.aggregate import Weights

UNEQUAL, UNIFORM = "unequal, n_i / n", "unequal, uniform"
NAMES = ("precision", "recall", "density", "coverage")
MOSTLY, ALWAYS = 0.1, 0.01  # shares of inverted pairs below which ranks are mostly, and always, consistent


class Manifold:
    """The four scores over one federation."""

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
    """
    choice = NeighbourChoice(**options)
    settings = {**choice.settings(), "clients": clients, "k": k, "images": images, "controls": controls}
    study = Study("manifold-metrics", output, settings)
    places = Neighbourhoods(choice)
    check_counts(places, clients, k, images)
    places.check(clients, controls, k + 1)
    names = [f"IID {number}" for number in range(controls)]
    scores = measure_anchors(study, places, lambda: make_scorers(places, clients, k, images, names), summaries=False)
    rows = Anchored(scores, places.sizes, CLIENTS, names)
    floor = study.step("floor", lambda: measure_floor(places, clients, k))
    found = study.step("found", lambda: summarise(rows, images))
    titles = {name: name for name in NAMES}
    table = rows.size_table(titles, floor, about(places), f"at most {images:,} images of a generator")
    figure = draw(rows, floor, places, images, study.figure)
    study.report([table, rank_table(found), *expected(found)], figure)


def check_counts(places: Neighbourhoods, clients: int, k: int, images: int) -> None:
    """Raises ValueError unless every set has k + 1 images: half of a client, the smallest generator, what is drawn."""
    at_least(1, k=k)
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
    dealt = federation.dealt(places.choice.seed, len(controls))
    found: dict[str, Scorer] = {name: Manifold(one.parts(), k, images) for name, one in dealt.items()}
    for name, weights in ((UNEQUAL, "examples"), (UNIFORM, "uniform")):
        found[name] = Manifold(unequal(federation).parts(), k, images, weights)
    return found


def measure_floor(places: Neighbourhoods, clients: int, k: int) -> dict[str, Any]:
    images = places.floor(clients)
    reference = ManifoldReference.from_features(places.federation(clients).parts(), k=k)
    return {"images": len(images), **rows_of(list(reference.score(images, errors=False).values()))}


def summarise(rows: Anchored, images: int) -> dict[str, Any]:
    """Return how avg and all rank: all generators, those that as many images were drawn from, and recall's equality."""
    drawn = {str(size) for size in rows.sizes if size + 1 >= images}
    every = replace(rows, scores=rounded(rows.scores))
    full = {
        anchor: {name: {size: row for size, row in one.items() if size in drawn} for name, one in own.items()}
        for anchor, own in every.scores.items()
    }
    return {
        "generators": every.compared(NAMES, single=True),
        "as many images": replace(rows, scores=full).compared(NAMES, single=True) if len(drawn) > 1 else None,
        "sizes": every.compared(NAMES),
        "recall avg - all": {
            name: max(abs(gap) for own in rows.gaps("recall", name) for gap in own)
            for name in (CLIENTS, UNEQUAL, UNIFORM)
        },
    }


def rounded(scores: Scores) -> Scores:
    """The scores to 12 digits: they are counts over numbers of images, and equal counts should be ties."""
    return {
        anchor: {
            name: {
                size: {score: {how: round(row[score][how], 12) for how in BOTH} for score in NAMES}
                for size, row in rows.items()
            }
            for name, rows in own.items()
        }
        for anchor, own in scores.items()
    }


def rank_table(found: Mapping[str, Any]) -> Table:
    parts = found["generators"], found["as many images"]
    return make_table(
        "every generator for itself; right: those that as many images were drawn from",
        ("score", "pairs", "tau", "inverted", "over IID clients", "pairs ", "tau ", "inverted ", "IID "),
        [
            [name, *(cell for part in parts for cell in (rank_cells(part[name]) if part else [None] * 4))]
            for name in NAMES
        ],
        names=("score",),
    )


def expected(found: Mapping[str, Any]) -> list[str]:
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


def draw(rows: Anchored, floor: Mapping[str, Any], places: Neighbourhoods, images: int, path: Path) -> Path:
    """A column for each score: by size, avg against all, rank against rank."""
    columns = [Column(rows, name, name, floor) for name in NAMES]
    who = "an image of each class and its nearest neighbours"
    title = heading_of(places, who, f"; {images:,} images drawn of a generator; higher is better")
    with rising_panels(path, columns, title, gap=False, rings=False):
        pass
    return path
