"""A character model on the books of many hands: do books that it never saw cost it more, and hangs it on the dealing?

The rows of text of "What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216), who
train on the lines of Shakespeare's roles and on posts of Stack Overflow's users. Here owners are the books of the King
James Version, which installs as a package. The score is the model's own: nats a character, avg over books and all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from fedgen.evaluation.gap_table import SPLITS
from fedgen.experiments.client_percentiles import TAIL, served, tail_lines
from fedgen.experiments.gap_numbers import OUT_OF_SAMPLE, PARTICIPATION, last
from fedgen.experiments.gap_runs import Arm
from fedgen.experiments.gap_study import MAIN, Found, gap_outcome, report_arms, run_arms
from fedgen.experiments.paired import by_chance, compare_pairs, verdict
from fedgen.experiments.participation_gap import CONTROL, LABELS, NATURAL, RANDOM, SEMANTIC, PartitionChoice
from fedgen.experiments.study import Study

LOSS = "loss"
CENTRAL = f"{NATURAL}, {CONTROL}"


@dataclass(frozen=True)
class TextChoice(PartitionChoice):
    """As `PartitionChoice`, of texts: the model's own loss alone is scored, and nothing is embedded.

    Args:
        recipe: of a model with `example_losses`, natural clients and a `split`; with labels there is also an arm of
            clients dealt by these.

    Raises:
        ValueError: also for a recipe whose clients are not natural.
    """

    scores: ClassVar[tuple[str, ...]] = (LOSS,)

    recipe: Path = Path("recipes/bible_text.yaml")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.own != NATURAL:
            raise ValueError(f"{self.recipe} must deal natural clients (data.init_args.partition: Natural)")

    @cached_property
    def arms(self) -> list[Arm]:
        """The recipe's owners, the same windows by label and at random, and training on the pooled windows."""
        labelled = self.federation(Arm(NATURAL)).examples.is_labelled
        left_out = (SEMANTIC,) if labelled else (SEMANTIC, LABELS)
        return [*(arm for arm in super().arms if arm.name not in left_out), Arm(CENTRAL, {}, CONTROL)]


def text_gap(output: Path | None = None, **options: Any) -> None:
    """Gaps of a character model on unseen text and on unseen books, and percentiles over books, by partition.

    Args:
        output: folder of results.json and two figures.
        options: the fields of `TextChoice`.
    """
    choice = TextChoice(**options)
    study = Study("text-gap", output, choice.settings())
    arms = choice.arms
    found = run_arms(study, choice, arms)
    spread, tables = served(study, choice, arms, LOSS)
    report_arms(study, found, "loss of a character model", [*tables, *outcomes(found), *tails(spread)])


def outcomes(found: Found) -> list[str]:
    """What is published of the gaps, and whether it is so here."""

    def of(arm: str, place: str) -> list[float]:
        return [last(by_column[MAIN], place) for by_column in found[arm].values()]

    lines = []
    for arm, seeds in found.items():
        lines.append(gap_outcome(arm, seeds, OUT_OF_SAMPLE, MAIN, hidden=False))
        lines.append(gap_outcome(arm, seeds, PARTICIPATION, MAIN, hidden=arm in (LABELS, RANDOM)))
    for arm in (LABELS, RANDOM):
        if arm in found:
            row = compare_pairs(of(arm, PARTICIPATION), of(NATURAL, PARTICIPATION))
            lines.append(verdict(f"a larger participation gap of {NATURAL} clients than of {arm} ones", row, "more"))
    for split in SPLITS[1:]:
        row = compare_pairs(of(NATURAL, split), of(CENTRAL, split))
        lines.append(verdict(f"{CONTROL}, a smaller loss on {split}", row, "less"))
    return [*lines, by_chance(len(lines))]


def tails(spread: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Whether unseen books are served worse: in the tail, and the median one."""
    return tail_lines(spread, (NATURAL, CENTRAL), LOSS, "losses", {TAIL: "95th percentile", "pct50": "median"})
