"""The published tables' own kind of model as a control of the method: a classifier under the same split and partitions.

"What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216) reports accuracies of
classifiers. Its data sets are not these, so signs and orderings are compared and not values: Table 1's gaps and its
centralised training, Table 2's percentiles over clients, Figures 4 and 5's partitions, and that the server's momentum
helps and leaves the participation gap as it is. What holds here for a classifier and not for a generator is the
generator's; what does not hold for either may be the data's.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from fedgen.evaluation.tables.gap_table import SPLITS
from fedgen.experiments.engine.arms.gap_numbers import PARTICIPATION, GapScores
from fedgen.experiments.engine.trainings import Arm
from fedgen.experiments.participation.natural_gaps import CENTRAL, NaturalChoice, report_gaps, said
from fedgen.experiments.participation.participation_gap import CONTROL, LABELS, NATURAL, RANDOM, SEMANTIC

PLAIN = f"{NATURAL}, FedAvg"
SERVER = "trainer.strategy.init_args.server_optimizer"


@dataclass(frozen=True)
class ClassifierChoice(NaturalChoice):
    """Options of `PartitionChoice` for a classifier: its error rate alone is scored.

    Args:
        recipe: of a model whose `example_losses` are errors, with a server optimizer, natural clients and a `split`.
        seeds: repetitions, each with another split, other draws and other first weights, the same for all arms.

    Raises:
        ValueError: also for a recipe whose clients are not natural.
    """

    recipe: Path = Path("recipes/classifier_style_shift.yaml")
    seeds: int = 5

    @cached_property
    def arms(self) -> list[Arm]:
        """The partitions with the recipe's FedAvgM; of natural clients also FedAvg and training on pooled images."""
        return [*super().arms, Arm(PLAIN, {SERVER: None}), Arm(CENTRAL, {}, CONTROL)]


def classifier_control(output: Path | None = None, **options: Any) -> None:
    """A small classifier's errors on seen and unseen clients beside the signs and orderings of the published tables.

    Args:
        output: folder of results.json and two figures.
        options: the fields of `ClassifierChoice`.
    """
    choice = ClassifierChoice(**options)
    report_gaps("classifier-control", output, choice, "error rate of a classifier", "errors", outcomes)


def outcomes(found: GapScores) -> list[str]:
    """Table 1, Figures 4 and 5, and the server optimizers: what the paper says, and whether it is so here."""

    lines = []
    for split in SPLITS[1:]:
        lines.append(said(found, f"centralised, fewer errors on {split}", NATURAL, CENTRAL, split, "less"))
        lines.append(said(found, f"FedAvgM, fewer errors than FedAvg on {split}", PLAIN, NATURAL, split, "less"))
    for arm, real in product((LABELS, RANDOM), (NATURAL, SEMANTIC)):
        text = f"a larger participation gap of {real} clients than of {arm} ones"
        lines.append(said(found, text, arm, real, PARTICIPATION, "more"))
    return [*lines, said(found, "FedAvgM: the participation gap beside FedAvg", PLAIN, NATURAL, PARTICIPATION)]
