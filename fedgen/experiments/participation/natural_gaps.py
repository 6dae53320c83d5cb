"""Experiments on one model's own score over natural clients: their choice, runs, tables and common verdicts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from fedgen.experiments.engine.arms.gap_numbers import OUT_OF_SAMPLE, PARTICIPATION, last
from fedgen.experiments.engine.arms.gap_study import MAIN, Found, gap_outcome, report_arms, run_arms
from fedgen.experiments.engine.paired_seeds import by_chance
from fedgen.experiments.engine.study import Study
from fedgen.experiments.participation.client_percentiles import TAIL, served, tail_lines
from fedgen.experiments.participation.participation_gap import CONTROL, LABELS, NATURAL, RANDOM, PartitionChoice

SCORE = "loss"  # what a model's `example_losses` are scored as
CENTRAL = f"{NATURAL}, {CONTROL}"


@dataclass(frozen=True)
class NaturalChoice(PartitionChoice):
    """Options of `PartitionChoice` for a model whose own losses alone are scored.

    Raises:
        ValueError: also for a recipe whose clients are not natural.
    """

    scores: ClassVar[tuple[str, ...]] = (SCORE,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.own != NATURAL:
            raise ValueError(f"{self.recipe} must deal natural clients (data.init_args.partition: Natural)")


def report_gaps(
    name: str,
    output: Path | None,
    choice: NaturalChoice,
    title: str,
    plural: str,
    outcomes: Callable[[Found], list[str]],
) -> None:
    """Trains the choice's arms and prints gaps, percentiles over clients and verdicts; draws both figures.

    Args:
        name: of the experiment.
        output: its folder.
        choice: with `arms`.
        title: of tables and figure: what is scored, in words.
        plural: what the scores of clients are in a sentence.
        outcomes: verdicts on what the runs found, beside those on gaps and percentiles.
    """
    study = Study(name, output, choice.settings())
    arms = choice.arms
    found = run_arms(study, choice, arms)
    spread, tables = served(study, choice, arms, SCORE)
    report_arms(study, found, title, [*tables, *verdicts(found, outcomes), *tails(spread, plural)])


def verdicts(found: Found, outcomes: Callable[[Found], list[str]]) -> list[str]:
    """Say whether each arm has the gaps expected of it, then the experiment's own verdicts, and how many miss by
    chance.
    """
    lines = []
    for arm, seeds in found.items():
        lines.append(gap_outcome(arm, seeds, OUT_OF_SAMPLE, MAIN, hidden=False))
        lines.append(gap_outcome(arm, seeds, PARTICIPATION, MAIN, hidden=arm in (LABELS, RANDOM)))
    lines += outcomes(found)
    return [*lines, by_chance(len(lines))]


def values_of(found: Found, arm: str, place: str) -> list[float]:
    """An arm's last values on a split, or of a gap, a number a seed."""
    return [last(by_column[MAIN], place) for by_column in found[arm].values()]


def tails(spread: Mapping[str, Mapping[str, Any]], plural: str) -> list[str]:
    """Say whether unseen clients are served worse, in the tail and the median one: Table 2 of the paper.

    Args:
        spread: of `served`.
        plural: what the scores of clients are in a sentence.
    """
    return tail_lines(spread, (NATURAL, CENTRAL), SCORE, plural, {TAIL: "95th percentile", "pct50": "median"})
