"""Scores of generators of more and more variance: measured anchor by anchor, then by size, with what they show."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import Tensor

from fedgen.experiments.engine.aggregate_rankings import BOTH, CLIENTS, CONTROLS, Rows, ScoredRows, tau_of
from fedgen.experiments.engine.rankings.number_table import number_table
from fedgen.experiments.engine.rankings.ranking_figures import panels
from fedgen.experiments.engine.rankings.valleys import valley
from fedgen.experiments.engine.study import Study
from fedgen.experiments.ranking.variance.neighbourhoods import Neighbourhoods, draw_images
from fedgen.reports.figures.aggregate_panels import (
    add_size_bar,
    draw_bands,
    draw_gap,
    draw_path,
    draw_ranks,
    scale_by_size,
)
from fedgen.statistics import Gaussian, RunningPool, summarize

SIZE = "neighbours M of the generator"
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


@dataclass(frozen=True)
class Anchored:
    """Scores of every anchor's generators over a federation and over its IID controls.

    Args:
        scores: of every federation.
        sizes: of the generators.
        own: the federation's name.
        controls: the controls' names.
    """

    scores: Scores
    sizes: Sequence[int]
    own: str
    controls: Sequence[str]

    def curves(self, score: str, aggregate: str, where: str | None = None) -> list[list[float]]:
        """One score by size, a list for each anchor, over the clients or another federation."""
        rows = [own[where or self.own].values() for own in self.scores.values()]
        return [[float(row[score][aggregate]) for row in one] for one in rows]

    def both(self, score: str, where: str | None = None) -> dict[str, list[list[float]]]:
        """Return avg's and all's curves."""
        return {how: self.curves(score, how, where) for how in BOTH}

    def gaps(self, score: str, where: str | None = None) -> list[list[float]]:
        """avg - all by size, a list for each anchor."""
        return [[a - b for a, b in zip(*pair)] for pair in zip(*self.both(score, where).values())]

    def terms(self, score: str, term: str, aggregate: str) -> list[float]:
        """The mean over anchors of one term of a score, "mean" or "covariance", by size."""
        rows = [own[self.own].values() for own in self.scores.values()]
        return means([[row[score]["terms"][term][aggregate] for row in one] for one in rows])

    def mean_rows(self, where: str) -> Rows:
        """Each size's mean scores over anchors, with the standard errors of these means: one row a size."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for size, row in next(iter(self.scores.values()))[where].items():
            found[size] = {}
            for score in row:
                values = {how: [one[where][size][score][how] for one in self.scores.values()] for how in BOTH}
                errors = {how: standard_error(column) for how, column in values.items()}
                found[size][score] = {how: statistics.mean(column) for how, column in values.items()}
                found[size][score]["errors"] = errors
        return found

    def single_rows(self, where: str) -> Rows:
        """Every anchor's scores of every size to ten digits, so that equal generators tie: one row a generator."""
        return {
            f"{anchor}, {size}": {
                score: {how: float(f"{values[how]:.{DIGITS}g}") for how in BOTH} for score, values in row.items()
            }
            for anchor, own in self.scores.items()
            for size, row in own[where].items()
        }

    def compared(self, names: Sequence[str], single: bool = False) -> dict[str, Any]:
        """`compare` of each score; a control without the score is left out.

        Args:
            names: of the scores.
            single: whether every anchor's generator stands for itself, without errors, rather than the sizes' means;
                then pairs are counted and not listed.
        """
        rows = self.single_rows if single else self.mean_rows
        own, others = rows(self.own), [rows(control) for control in self.controls]
        scored = {name: {CLIENTS: row, CONTROLS: [other[name] for other in others]} for name, row in own.items()}
        found = ScoredRows(scored).compared(names)
        for row in found.values() if single else ():
            row |= {key: len(row[key]) for key in ("inverted", "evidence")}
        return found

    def valley(self, score: str, aggregate: str, where: str | None = None) -> dict[str, Any]:
        """`valley` of the mean curve, its differences paired by anchors; under "anchors" how many anchors' own curves
        are least at a size that is neither the first nor the last.
        """
        values = self.curves(score, aggregate, where)

        def difference(end: int, place: int) -> tuple[float, float]:
            differences = [own[end] - own[place] for own in values]
            return statistics.mean(differences), standard_error(differences)

        inner = sum(0 < own.index(min(own)) < len(own) - 1 for own in values)
        return valley(means(values), self.sizes, difference) | {"anchors": inner}

    def summarise(self, names: Sequence[str]) -> dict[str, Any]:
        """Return comparisons by size and by generator, the curves' least sizes, and the gaps' spreads."""
        return {
            "sizes": self.compared(names),
            "generators": self.compared(names, single=True),
            "valleys": {name: {how: self.valley(name, how) for how in BOTH} for name in names},
            "gaps": {name: spread_of(self.gaps(name)) for name in names},
        }

    def size_table(self, titles: Mapping[str, str], floor: Mapping[str, Any], title: str, caption: str) -> Table:
        """Mean scores by size, avg / all (avg - all), and the real images' in the last line.

        Args:
            titles: scores by what to call them.
            floor: of real images, and their number under "images".
            title: above.
            caption: on images.
        """
        columns = {score: [means(self.curves(score, how)) for how in BOTH] for score in titles}
        pairs = {f"{size:,}": [[side[place] for side in own] for own in columns.values()]
                 for place, size in enumerate(self.sizes)}  # fmt: skip
        pairs["real"] = [[floor[score][how] for how in BOTH] for score in titles]
        lines = [[name, *(f"{a:.5g} / {b:.5g} ({a - b:.5g})" for a, b in row)] for name, row in pairs.items()]
        text = f"avg / all (avg - all); {caption}; real: {floor['images']} images, the clients' next neighbours"
        return number_table(title, ("M", *titles.values()), lines, caption=text)


def rank_cells(row: Mapping[str, Any]) -> list[str | None]:
    """Return a comparison of single generators as cells: pairs, tau, inverted ones, and those over IID clients."""
    controls = ", ".join(f"{number:,}" for number in row["control inverted"]) or None
    return [f"{row['pairs']:,}", tau_of(row), f"{row['inverted']:,}", controls]


def about(places: Neighbourhoods) -> str:
    """Return what the generators' neighbours and scores are, for titles of tables."""
    choice = places.choice
    return (
        f"{places.client_source.examples.name}, means over {places.anchors} anchors; {choice.embedding},"
        f" neighbours by {choice.neighbours}"
    )


def heading_of(places: Neighbourhoods, clients: str, note: str = "") -> str:
    """Return the title of a figure: what a client is, and a note on the scores."""
    choice, clients_of, makers = places.choice, places.client_source.examples, places.generator_source.examples
    return (
        f"Clients: {clients} ({clients_of.name}); generators: an image and its M nearest ({makers.name})\n"
        f"neighbours by {choice.neighbours}, scores by {choice.embedding}; {places.anchors} anchors: mean and 80 % of"
        f" them{note}"
    )


def means(values: Sequence[Sequence[float]]) -> list[float]:
    """Over anchors, by size."""
    return [statistics.mean(column) for column in zip(*values)]


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean over anchors."""
    return statistics.stdev(values) / len(values) ** 0.5


def spread_of(values: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the mean of avg - all over sizes and anchors, and the largest difference of two as a part of it."""
    together = [value for own in values for value in own]
    mean = statistics.mean(together)
    return {"mean": mean, "relative spread": (max(together) - min(together)) / max(abs(mean), 1e-300)}


@dataclass(frozen=True)
class Column:
    """One score over one federation, in a figure.

    Args:
        rows: its scores.
        score: which.
        title: what to call it.
        floor: of real images.
        heading: above, if there is something to say.
    """

    rows: Anchored
    score: str
    title: str
    floor: Mapping[str, Any]
    heading: str = ""


@contextmanager
def rising_panels(
    path: Path, columns: Sequence[Column], title: str, gap: bool = True, more: int = 0, rings: bool = True
) -> Iterator[Any]:
    """A figure of scores of rising variance, a column each: by size, avg against all, rank against rank, and avg - all.

    Args:
        path: of the PNG.
        columns: what is shown.
        title: above all.
        gap: whether avg - all is shown, beside that over IID clients.
        more: rows of axes [more, columns] below, which the caller draws.
        rings: whether to mark where a curve is least.
    """
    sizes, rows = columns[0].rows.sizes, 3 + gap + more
    with panels(path, (3.7 * len(columns) + 0.6, 3 * rows + 0.5), rows, len(columns), title) as (figure, axes):
        for column, (over, way, ranks, *below) in zip(columns, axes.T):
            own, first = column.rows.both(column.score), column is columns[0]
            floors = {how: column.floor[column.score][how] for how in BOTH}
            draw_bands(over, sizes, own, column.title, SIZE, floors, rings, legend=first)
            over.set_title(column.heading, fontsize=10)
            draw_path(way, sizes, own["avg"], own["all"], column.title)
            points = draw_ranks(ranks, own["avg"], own["all"], sizes, column.title)
            if gap:
                draw_mean_gap(below[0], column.rows, column.score, column.title)
        add_size_bar(figure, points, list(axes[2]), "M")
        yield axes[rows - more :]


def draw_mean_gap(axes: Any, rows: Anchored, score: str, title: str) -> None:
    """The mean of avg - all over anchors by size, beside that over IID clients where it is measured."""
    known = [where for where in rows.controls if score in next(iter(next(iter(rows.scores.values()))[where].values()))]
    others = [means(rows.gaps(score, where)) for where in known]
    draw_gap(axes, rows.sizes, means(rows.gaps(score)), title, SIZE, others)
    scale_by_size(axes, rows.sizes)
