"""Experiments on one model's own score over natural clients: their choice, runs, tables and common verdicts."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import ClassVar

from rich.table import Table

from fedgen.experiments.engine.arms.gap_numbers import MAIN, OUT_OF_SAMPLE, PARTICIPATION, GapScores
from fedgen.experiments.engine.arms.gap_study import report_arms, run_arms
from fedgen.experiments.engine.paired_seeds import Claim, by_chance, verdict_on
from fedgen.experiments.engine.study import Study
from fedgen.experiments.participation.client_percentiles import (
    TAIL,
    Spread,
    draw_percentiles,
    percentile_table,
    spreads_of,
    tails_of,
)
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
    outcomes: Callable[[GapScores], list[str]],
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
    spread = study.step("spread", lambda: spreads_of(choice, arms, (SCORE,)))
    figure = draw_percentiles(spread, SCORE, study.path("percentiles.png"))
    tables: list[Table | str] = [percentile_table(spread, SCORE), f"percentiles: {figure}"]
    report_arms(study, found, title, [*tables, *verdicts(found, outcomes), *tails(spread, plural)])


def verdicts(found: GapScores, outcomes: Callable[[GapScores], list[str]]) -> list[str]:
    """Say whether each arm has the gaps expected of it, then the experiment's own verdicts, and how many miss by
    chance.
    """
    lines = []
    for arm in found.curves:
        lines.append(found.outcome(arm, OUT_OF_SAMPLE, MAIN, hidden=False))
        lines.append(found.outcome(arm, PARTICIPATION, MAIN, hidden=arm in (LABELS, RANDOM)))
    lines += outcomes(found)
    return [*lines, by_chance(len(lines))]


def said(found: GapScores, text: str, control: str, treated: str, place: str, claim: Claim | None = None) -> str:
    """Return the line of `verdict_on` on two arms' last losses on a split, or of a gap."""
    return verdict_on(text, found.values(MAIN, place, control, treated), claim)


def tails(spread: Spread, plural: str) -> list[str]:
    """Say whether unseen clients are served worse, in the tail and the median one: Table 2 of the paper.

    Args:
        spread: of `spreads_of`.
        plural: what the scores of clients are in a sentence.
    """
    percentiles = {TAIL: "95th percentile", "pct50": "median"}
    return [
        verdict_on(
            f"{arm}: the {text} of the clients' {plural} is larger over unseen clients",
            tails_of(spread[arm], SCORE, name),
            "more",
        )
        for arm, (name, text) in product((NATURAL, CENTRAL), percentiles.items())
    ]
