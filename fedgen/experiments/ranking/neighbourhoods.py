"""Clients and generators that are an image and its nearest neighbours, whose number sets how much they vary.

Scores are measured anchor by anchor, then shown by size.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.table import Table
from torch import Tensor

from fedgen.clients.partitions import ByClass
from fedgen.clients.partitions.clustered import class_neighbours, draw_anchors
from fedgen.embeddings import load_embedding
from fedgen.experiments.engine.features import FeatureFederation, ImageChoice, Source, halves
from fedgen.experiments.engine.rankings import BOTH, CLIENTS, CONTROLS, Rows, ScoredRows, tau_of, valley
from fedgen.experiments.engine.study import Numbers, Study, at_least, make_table, panels, rising
from fedgen.models.empirical import nearest
from fedgen.progress import track
from fedgen.reports.figures import aggregate_panels
from fedgen.seeds import generator
from fedgen.statistics import Gaussian, Projection, RunningPool, summarize

FIRST_SIZES = (100, 200, 500, 1000, 2000)  # the papers' M, which then rises by STEP
STEP = 5000
QUICK_SIZES = (100, 500, 2000, 5000, 20_000)


@dataclass(frozen=True)
class NeighbourChoice(ImageChoice):
    """Options common to experiments about neighbourhoods; its fields are options of their commands.

    Args:
        neighbours: embedding in whose features near is near; the papers' setting is that of `embedding`, and `overlap`.
        overlap: whether clients are of the train split too, as the generators, and may share images with them.
        anchors: generators of each size, each around an image of its own.
        sizes: neighbours M of the generators; 100 to the whole data, as the papers, if not given.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"anchors": 4}

    neighbours: str = "pixels"
    overlap: bool = False
    anchors: int = 20
    sizes: tuple[int, ...] | None = None


class Neighbourhoods:
    def __init__(self, choice: NeighbourChoice) -> None:
        self.choice = choice
        self.client_source, self.generator_source, self._public = open_sides(choice)
        total = len(self.generator_source.examples)
        self.anchors = choice.anchors
        if not 2 <= self.anchors <= total:
            raise ValueError(f"anchors={self.anchors}: a spread needs 2, and there are {total} images to choose from")
        self.sizes = tuple(choice.sizes) if choice.sizes is not None else default_sizes(total, choice.quick)
        name = self.generator_source.examples.name
        rising(1, sizes=self.sizes)
        if self.sizes[-1] >= total:
            raise ValueError(
                f"{self.sizes[-1]} neighbours: an image of {name} has {total - 1} others; give smaller sizes"
            )

    @property
    def equal(self) -> int:
        return self.sizes[0] + 1

    def check(self, neighbours: int, controls: int = 0, floor: int = 2) -> None:
        at_least(1, clients=neighbours)
        at_least(0, controls=controls)
        examples = self.client_source.examples
        draw_anchors(examples, self.choice.seed, neighbours + 1)
        left = sum(min(neighbours + 1, int(count) - neighbours - 1) for count in examples.label_counts() if count)
        if left < floor:
            raise ValueError(
                f"clients={neighbours}: clients of {neighbours + 1} images leave {left} of {examples.name} for the real"
                f" images' scores, which need {floor}; give a smaller number"
            )

    def federation(self, neighbours: int) -> FeatureFederation:
        """A client a class: an image at random and its nearest neighbours within the class, in the scored features."""
        examples = self.client_source.examples
        parts = tuple(part[: neighbours + 1] for part in self._near_clients(neighbours))
        return FeatureFederation(self.client_source.features, parts, tuple(ByClass().names(examples)))

    def floor(self, neighbours: int) -> Tensor:
        """Features of real images as near the clients as can be: each client's next neighbours, as many as it has."""
        left = torch.cat([part[neighbours + 1 :] for part in self._near_clients(neighbours)])
        return self.client_source.features[left]

    def projection(self, components: int, neighbours: int) -> Projection:
        """The principal components of images that are neither clients' nor the floor's, nor generators' if possible."""
        source = self._public or self.client_source
        kept = torch.ones(len(source.examples), dtype=torch.bool)
        if self._public is None:
            kept[torch.cat(self._near_clients(neighbours))] = False
            if not kept.any():
                raise ValueError(
                    f"clients={neighbours}: clients and the real images beside them take all {len(kept)} images of"
                    f" {source.examples.name}, and none is left for principal components; give a smaller number"
                )
        features = source.features if kept.all() else source.features[kept]
        return Projection.fit(features, components, source.embedding.name, source.examples.name)

    @cached_property
    def orders(self) -> Tensor:
        """Positions of each anchor and its neighbours, nearest first, int64 [anchors, largest size + 1]."""
        # a generator is the beginning of a row, so that those of one anchor hold each other
        draws = generator(self.choice.seed, "generators' images")
        anchors = torch.randperm(len(self.generator_source.examples), generator=draws)[: self.anchors].tolist()
        near = self._near(self.generator_source)
        rows = track(anchors, "sorting neighbours", len(anchors), "images")
        return torch.stack([nearest(near, anchor, self.sizes[-1]) for anchor in rows])

    def _near_clients(self, neighbours: int) -> list[Tensor]:
        """Each client's images and as many of the next ones, nearest first, as its class has."""
        examples, found = self.client_source.examples, []
        near, counts = self._clients_near, examples.label_counts()
        for anchor in draw_anchors(examples, self.choice.seed, neighbours + 1):
            most = int(counts[examples.labels[anchor]]) - 1
            found += class_neighbours(examples, near, [anchor], min(2 * neighbours + 1, most))
        return found

    @cached_property
    def _clients_near(self) -> Tensor:
        return self._near(self.client_source)

    def _near(self, source: Source) -> Tensor:
        if self.choice.neighbours == self.choice.embedding:
            return source.features
        return source.with_embedding(load_embedding(self.choice.neighbours)).features


def open_sides(choice: NeighbourChoice) -> tuple[Source, Source, Source | None]:
    """The images of clients (test) and of generators (train), and public ones, if they are others than clients'."""
    train = choice.source()
    test = Source(train.data, "test", train.embedding) if "test" in train.data.splits else None
    if choice.overlap:
        return train, train, test
    if test is not None:
        return test, train, None
    examples = train.examples
    pairs = [halves(train.positions(name), choice.seed, name) for name in examples.classes]
    sides = (torch.cat(side).sort().values for side in zip(*pairs))
    names = (f"{examples.name}, {half} half" for half in ("one", "other"))
    clients, generators = (train.of(examples.subset(side, name)) for side, name in zip(sides, names))
    return clients, generators, None


def default_sizes(total: int, quick: bool = False) -> tuple[int, ...]:
    paper = (*FIRST_SIZES, *range(STEP, total, STEP))
    return (*(size for size in (QUICK_SIZES if quick else paper) if size < total - 1), total - 1)


SIZE = "neighbours M of the generator"
CHUNK = 5000  # images summarised at once
DIGITS = 10  # in which equal generators' scores agree: the whole data, summed from two anchors, differs by rounding


@dataclass(frozen=True, eq=False)
class Generated:
    features: Tensor  # of all images there are
    order: Tensor  # positions of the generator's, nearest first
    summary: Gaussian | None  # of all its images, if anyone needs it
    seed: int  # of what is drawn from it

    def draw(self, count: int) -> Tensor:
        """Features of at most `count` of its images, none twice; the same for every caller."""
        if count >= len(self.order):
            return self.features[self.order]
        draws = generator(self.seed, "drawn", int(self.order[0]), len(self.order), count)
        return self.features[self.order[torch.randperm(len(self.order), generator=draws)[:count]]]


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
    study: Study, places: Neighbourhoods, make_scorers: Callable[[], Mapping[str, Scorer]], summaries: bool = True
) -> Scores:
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
    """Scores of every anchor's generators over a federation and over its IID controls."""

    scores: Scores  # of every federation
    sizes: Sequence[int]  # of the generators
    own: str  # the federation's name
    controls: Sequence[str]  # the controls' names

    def known(self, where: str) -> list[str]:
        return list(next(iter(next(iter(self.scores.values()))[where].values())))

    def curves(self, score: str, aggregate: str, where: str | None = None) -> list[list[float]]:
        """One score by size, a list for each anchor, over the clients or another federation."""
        rows = [own[where or self.own].values() for own in self.scores.values()]
        return [[float(row[score][aggregate]) for row in one] for one in rows]

    def both(self, score: str, where: str | None = None) -> dict[str, list[list[float]]]:
        return {how: self.curves(score, how, where) for how in BOTH}

    def gaps(self, score: str, where: str | None = None) -> list[list[float]]:
        return [[a - b for a, b in zip(*pair)] for pair in zip(*self.both(score, where).values())]

    def changed(self, change: Callable[[Rows], Rows]) -> "Anchored":
        scores = {anchor: {name: change(rows) for name, rows in own.items()} for anchor, own in self.scores.items()}
        return replace(self, scores=scores)

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
        rows = self.single_rows if single else self.mean_rows
        own, others = rows(self.own), [rows(control) for control in self.controls]
        scored = {name: {CLIENTS: row, CONTROLS: [other[name] for other in others]} for name, row in own.items()}
        found = ScoredRows(scored).compared(names)
        for row in found.values() if single else ():
            row |= {key: len(row[key]) for key in ("inverted", "evidence")}
        return found

    def valley(self, score: str, aggregate: str, where: str | None = None) -> dict[str, Any]:
        """`valley` of the mean curve, paired by anchors, and how many "anchors" have theirs inside."""
        values = self.curves(score, aggregate, where)

        def difference(end: int, place: int) -> tuple[float, float]:
            differences = [own[end] - own[place] for own in values]
            return statistics.mean(differences), standard_error(differences)

        inner = sum(0 < own.index(min(own)) < len(own) - 1 for own in values)
        return valley(means(values), self.sizes, difference) | {"anchors": inner}

    def summarise(self, names: Sequence[str]) -> dict[str, Any]:
        return {
            "sizes": self.compared(names),
            "generators": self.compared(names, single=True),
            "valleys": {name: {how: self.valley(name, how) for how in BOTH} for name in names},
            "gaps": {name: spread_of(self.gaps(name)) for name in names},
        }

    def size_table(self, titles: Mapping[str, str], floor: Numbers, title: str, caption: str) -> Table:
        columns = {score: [means(self.curves(score, how)) for how in BOTH] for score in titles}
        pairs = {f"{m:,}": [[side[k] for side in own] for own in columns.values()] for k, m in enumerate(self.sizes)}
        pairs["real"] = [[floor[score][how] for how in BOTH] for score in titles]
        lines = [[name, *(f"{a:.5g} / {b:.5g} ({a - b:.5g})" for a, b in row)] for name, row in pairs.items()]
        text = f"avg / all (avg - all); {caption}; real: {floor['images']} images, the clients' next neighbours"
        return make_table(title, ("M", *titles.values()), lines, notes=text, names=())


def rank_cells(row: Numbers) -> list[str | None]:
    """A comparison of single generators as cells: pairs, tau, inverted ones, and those over IID clients."""
    controls = ", ".join(f"{number:,}" for number in row["control inverted"]) or None
    return [f"{row['pairs']:,}", tau_of(row), f"{row['inverted']:,}", controls]


def about(places: Neighbourhoods) -> str:
    choice = places.choice
    return (
        f"{places.client_source.examples.name}, means over {places.anchors} anchors; {choice.embedding},"
        f" neighbours by {choice.neighbours}"
    )


def heading_of(places: Neighbourhoods, clients: str, note: str = "") -> str:
    choice, clients_of, makers = places.choice, places.client_source.examples, places.generator_source.examples
    return (
        f"Clients: {clients} ({clients_of.name}); generators: an image and its M nearest ({makers.name})\n"
        f"neighbours by {choice.neighbours}, scores by {choice.embedding}; {places.anchors} anchors: mean and 80 % of"
        f" them{note}"
    )


def means(values: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.mean(column) for column in zip(*values)]


def standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5


def spread_of(values: Sequence[Sequence[float]]) -> dict[str, float]:
    """The mean of avg - all over sizes and anchors, and the largest difference of two as a part of it."""
    together = [value for own in values for value in own]
    mean = statistics.mean(together)
    return {"mean": mean, "relative spread": (max(together) - min(together)) / max(abs(mean), 1e-300)}


@dataclass(frozen=True)
class Column:
    rows: Anchored
    score: str
    title: str
    floor: Mapping[str, Any]  # of real images
    heading: str = ""  # above, if there is something to say


@contextmanager
def rising_panels(
    path: Path, columns: Sequence[Column], title: str, gap: bool = True, more: int = 0, rings: bool = True
) -> Iterator[Any]:
    """A figure of scores of rising variance, a column each: by size, avg by all, rank by rank, and avg - all."""
    sizes, rows = columns[0].rows.sizes, 3 + gap + more
    with panels(path, (3.7 * len(columns) + 0.6, 3 * rows + 0.5), rows, len(columns), title) as (figure, axes):
        for column, (over, way, ranks, *below) in zip(columns, axes.T):
            own, first = column.rows.both(column.score), column is columns[0]
            floors = {how: column.floor[column.score][how] for how in BOTH}
            aggregate_panels.draw_bands(over, sizes, own, column.title, SIZE, floors, rings, legend=first)
            over.set_title(column.heading, fontsize=10)
            aggregate_panels.draw_path(way, sizes, own["avg"], own["all"], column.title)
            points = aggregate_panels.draw_ranks(ranks, own["avg"], own["all"], sizes, column.title)
            if gap:
                draw_mean_gap(below[0], column.rows, column.score, column.title)
        aggregate_panels.add_size_bar(figure, points, list(axes[2]), "M")
        yield axes[rows - more :]


def draw_mean_gap(axes: Any, rows: Anchored, score: str, title: str) -> None:
    known = [where for where in rows.controls if score in rows.known(where)]
    others = [means(rows.gaps(score, where)) for where in known]
    aggregate_panels.draw_gap(axes, rows.sizes, means(rows.gaps(score)), title, SIZE, others)
    aggregate_panels.scale_by_size(axes, rows.sizes)
