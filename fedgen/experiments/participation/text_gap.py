"""A character model on books of many hands: do books that it never saw cost it more, and does that depend on the deal?

The rows of text of "What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216), who
train on the lines of Shakespeare's roles and on posts of Stack Overflow's users. Here owners are the books of the King
James Version, which installs as a package. The score is the model's own: nats a character, avg over books and all.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedgen.evaluation.tables.gap_table import SPLITS
from fedgen.experiments.engine.arms.gap_numbers import PARTICIPATION, GapScores
from fedgen.experiments.engine.trainings import Arm
from fedgen.experiments.participation.natural_gaps import CENTRAL, NaturalChoice, report_gaps, said
from fedgen.experiments.participation.participation_gap import CONTROL, LABELS, NATURAL, RANDOM, SEMANTIC


@dataclass(frozen=True)
class TextChoice(NaturalChoice):
    """Options of `PartitionChoice` for texts: the model's own loss alone is scored, and nothing is embedded.

    Args:
        recipe: of a model with `example_losses`, natural clients and a `split`; with labels there is also an arm of
            clients dealt by these.

    Raises:
        ValueError: also for a recipe whose clients are not natural.
    """

    recipe: Path = Path("recipes/bible_text.yaml")

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
    report_gaps("text-gap", output, TextChoice(**options), "loss of a character model", "losses", outcomes)


def outcomes(found: GapScores) -> list[str]:
    """Say whether books show more of a participation gap than other deals, and centralised training less loss."""
    lines = [
        said(
            found,
            f"a larger participation gap of {NATURAL} clients than of {arm} ones",
            arm,
            NATURAL,
            PARTICIPATION,
            "more",
        )
        for arm in (LABELS, RANDOM)
        if arm in found.curves
    ]
    for split in SPLITS[1:]:
        lines.append(said(found, f"{CONTROL}, a smaller loss on {split}", NATURAL, CENTRAL, split, "less"))
    return lines
