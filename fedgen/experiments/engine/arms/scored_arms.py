"""Scores of arms along their training over paired seeds: rows, the table of paired differences, and curves."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from fedgen.evaluation.marks import say_marks
from fedgen.experiments.engine.arms.arm_panels import ArmPanel
from fedgen.experiments.engine.image_scores import Scored, badness, mark_of
from fedgen.experiments.engine.paired_seeds import CELL, Claim, Row, cell, compare_pairs, mean_of, verdict
from fedgen.experiments.engine.results import make_table

REAL_IMAGES = "real images"
Line = tuple[Sequence[str], str]
"""what a line of a table is called, and its arm; or `REAL_IMAGES`"""


def states_in(
    scores: Mapping[str, Scored],
    places: Mapping[str, Iterable[int]],
    seeds: Iterable[int],
    key: Callable[[str, int, int], str],
) -> dict[str, dict[int, list[Scored]]]:
    """Return the `states` of `ScoredArms` from scores that were kept by checkpoint.

    Args:
        scores: of checkpoints.
        places: arm -> those of its checkpoints, in order.
        seeds: of the runs.
        key: of a checkpoint, by arm, seed and place.
    """
    numbers = list(seeds)
    return {
        arm: {place: [scores[key(arm, seed, place)] for seed in numbers] for place in own}
        for arm, own in places.items()
    }


@dataclass(frozen=True)
class ScoredArms:
    """Scores of arms at places of their training, and of real images in a generator's place.

    Args:
        states: arm -> place (steps, rounds, images shown) -> scores, one a seed.
        floor: scores of real images: of all seeds together, or one a seed.
        titles: score -> heading, of those shown.
        used: arm -> the embeddings that its losses used; none for those left out.
        beside: arm -> the arm and its place (the last if None) that it is compared with; none for those left out.
        mark: of a score in an embedding, by the embeddings that an arm used.
    """

    states: Mapping[str, Mapping[int, Sequence[Scored]]]
    floor: Sequence[Scored]
    titles: Mapping[str, str]
    used: Mapping[str, Sequence[str]] = field(default_factory=dict)
    beside: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)
    mark: Callable[[str, str, Collection[str]], str] = mark_of

    def at(self, arm: str, place: int | None = None) -> Sequence[Scored]:
        """Return an arm's scores at a place, the last if None, by seed; those of real images for `REAL_IMAGES`."""
        if arm == REAL_IMAGES:
            return self.floor
        return self.states[arm][max(self.states[arm]) if place is None else place]

    def values(self, arm: str, embedding: str, score: str, place: int | None = None) -> list[float]:
        """Return one score of `at`, a number a seed."""
        return [scores[embedding][score] for scores in self.at(arm, place)]

    def row(self, arm: str, embedding: str, score: str, since: int | None = None) -> Row:
        """Return an arm's last values beside its control's, as `compare_pairs` gives them; alone if it has none.

        Args:
            arm: whose.
            embedding: in which.
            score: which.
            since: another place of the arm itself to compare with.
        """
        own, control = self.values(arm, embedding, score), self.beside.get(arm)
        if since is not None:
            control = (arm, since)
        if control is None:
            return {"values": own}
        return compare_pairs(self.values(control[0], embedding, score, control[1]), own, badness(score))

    def rows(self, arm: str) -> dict[str, dict[str, Row]]:
        """Return embedding -> score -> `row`, as numbers for `results.json`."""
        return {
            embedding: {score: self.row(arm, embedding, score) for score in scores}
            for embedding, scores in self.at(arm)[0].items()
        }

    def mean(self, arm: str, embedding: str, score: str) -> float:
        """Return an arm's mean over seeds at its end."""
        return mean_of(self.row(arm, embedding, score))

    def verdict(self, text: str, arm: str, embedding: str, score: str, claim: Claim, since: int | None = None) -> str:
        """Return the line of `paired_seeds.verdict` on `row`."""
        return verdict(text, self.row(arm, embedding, score, since), claim)

    def table(
        self,
        title: str,
        embedding: str,
        names: Sequence[str],
        lines: Iterable[Line | None],
        control: str,
        notes: Sequence[str] = (),
    ) -> Table:
        """Return scores in one embedding, an arm a line: means over seeds, and differences with their intervals.

        Args:
            title: of the table.
            embedding: in which.
            names: headings of the columns that say which arm.
            lines: of arms; None begins a section.
            control: what they are compared with, as the caption calls it.
            notes: lines of the caption above those on differences and marks.
        """
        rows: list[Sequence[str]] = []
        marks, told = set(), False
        for line in lines:
            if line is None:
                rows.append(())
                continue
            cells = []
            for score in self.titles:
                row, mark = self.row(line[1], embedding, score), self.mark(score, embedding, self.used.get(line[1], ()))
                cells.append(cell(row, mark))
                marks.add(mark)
                told |= "interval" in row
            rows.append((*line[0], *cells))
        said = [*notes, *([f"{CELL}, beside {control}"] if told else []), *say_marks(marks)]
        return make_table(title, [*names, *self.titles.values()], rows, said, len(names), max_width=18)

    def panel(
        self, arms: Iterable[str], embedding: str, score: str, unit: Mapping[str, float] | float = 1, **more: Any
    ) -> ArmPanel:
        """Return one score of some arms along their places, and that of real images.

        Args:
            arms: which.
            embedding: in which.
            score: which.
            unit: places are divided by it, or by that of each arm.
            more: fields of `ArmPanel`.
        """
        units = unit if isinstance(unit, Mapping) else dict.fromkeys(self.states, unit)
        curves = {
            arm: {place / units[arm]: self.values(arm, embedding, score, place) for place in self.states[arm]}
            for arm in arms
        }
        levels = {REAL_IMAGES: [mean_of({"values": self.values(REAL_IMAGES, embedding, score)})]}
        return ArmPanel(curves, **{"levels": levels, **more})
