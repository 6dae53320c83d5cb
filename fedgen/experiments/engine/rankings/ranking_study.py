"""A ranking study: generators scored over clients and IID controls, what avg and all say of them, and its figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.experiments.engine.aggregate_rankings import ScoredRows, agreement_table, column, ranking_lines
from fedgen.experiments.engine.rankings.ranking_figures import draw_gaps, draw_ranking, panels

Found = Mapping[str, Mapping[str, Any]]  # score -> as `compare` gives it


@dataclass(frozen=True)
class RankingStudy:
    """Generators and what they score over clients and over IID dealings of the same images.

    Args:
        rows: scores of every generator.
        titles: the scores to compare, by what to call them.
        heading: a line on clients and generators.
        real: scores of real images over the clients; none if empty.
        kinds: of each generator, if there are several.
    """

    rows: ScoredRows
    titles: Mapping[str, str]
    heading: str = ""
    real: Mapping[str, Any] = field(default_factory=dict)
    kinds: Mapping[str, str] | None = None

    def compared(self) -> dict[str, dict[str, Any]]:
        """`compare` of every score, beside the controls that hold it."""
        return self.rows.compared(self.titles)

    def table(self, found: Found) -> Table:
        """A line for each score that was compared."""
        return agreement_table({self.titles[score]: row for score, row in found.items()}, self.heading)

    def lines(self, found: Found, scale: float | None = None) -> list[str]:
        """Say what was expected of the scores and whether it was seen, see `ranking_lines`."""
        return ranking_lines(found, {score: title for score, title in self.titles.items() if score in found}, scale)

    def scatter(
        self, axes: Any, score: str, found: Found | None = None, colours: Sequence[float] | None = None, **look: Any
    ) -> Any:
        """avg against all of one score, see `draw_ranking`; inverted pairs are joined if these are given."""
        pairs = None if found is None else found[score]
        about = {"real": self.real, "kinds": self.kinds, "colours": colours, **look}
        return draw_ranking(axes, self.rows.clients, score, self.titles[score], pairs, **about)

    def draw(self, found: Found, path: Path, limits: tuple[float, float] | None = None) -> Path:
        """A column a score: above avg against all, with the inverted pairs, below the gap by avg, beside IID clients'.

        Args:
            found: of each score.
            path: of the PNG.
            limits: of the gaps, the same in all columns; each its own, with zero in sight, if None.
        """
        with panels(path, (4.3 * len(self.titles), 7.4), 2, len(self.titles), self.heading) as (_, both):
            for (above, below), (score, title) in zip(both.T, self.titles.items()):
                self.scatter(above, score, found)
                draw_gaps(below, column(self.rows.clients, score, "avg"), self.rows, score, title, f"{title} avg")
                if limits:
                    below.set_ylim(*limits)
        return path
