"""The published tables' own kind of model as a control of the method: a classifier under the same split and partitions.

"What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216) reports accuracies of
classifiers. Its data sets are not these, so signs and orderings are compared and not values: Table 1's gaps and its
centralised training, Table 2's percentiles over clients, Figures 4 and 5's partitions, and that the server's momentum
helps and leaves the participation gap as it is. What holds here for a classifier and not for a generator is the
generator's; what does not hold for either may be the data's.
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
from fedgen.experiments.paired import Claim, by_chance, compare_pairs, difference, verdict
from fedgen.experiments.participation_gap import CONTROL, LABELS, NATURAL, RANDOM, SEMANTIC, PartitionChoice
from fedgen.experiments.study import Study

ERRORS = "loss"  # the classifier's score of that name is its error rate
PLAIN = f"{NATURAL}, FedAvg"
CENTRAL = f"{NATURAL}, {CONTROL}"
SERVER = "trainer.strategy.init_args.server_optimizer"


@dataclass(frozen=True)
class ClassifierChoice(PartitionChoice):
    """As `PartitionChoice`, of a classifier: its error rate alone is scored.

    Args:
        recipe: of a model whose `example_losses` are errors, with a server optimizer, natural clients and a `split`.
        seeds: repetitions, each with another split, other draws and other first weights, the same for all arms.

    Raises:
        ValueError: also for a recipe whose clients are not natural.
    """

    scores: ClassVar[tuple[str, ...]] = (ERRORS,)

    recipe: Path = Path("recipes/classifier_style_shift.yaml")
    seeds: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.own != NATURAL:
            raise ValueError(f"{self.recipe} must deal natural clients (data.init_args.partition: Natural)")

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
    study = Study("classifier-control", output, choice.settings())
    arms = choice.arms
    found = run_arms(study, choice, arms)
    spread, tables = served(study, choice, arms, ERRORS)
    report_arms(study, found, "error rate of a classifier", [*tables, *outcomes(found), *tails(spread)])


def outcomes(found: Found) -> list[str]:
    """Table 1, Figures 4 and 5, and the server optimizers: what the paper says, and whether it is so here."""

    def of(arm: str, place: str) -> list[float]:
        return [last(by_column[MAIN], place) for by_column in found[arm].values()]

    def said(text: str, control: list[float], treated: list[float], claim: Claim) -> str:
        return verdict(text, compare_pairs(control, treated), claim)

    lines = []
    for arm, seeds in found.items():
        lines.append(gap_outcome(arm, seeds, OUT_OF_SAMPLE, MAIN, hidden=False))
        lines.append(gap_outcome(arm, seeds, PARTICIPATION, MAIN, hidden=arm in (LABELS, RANDOM)))
    for split in SPLITS[1:]:
        lines.append(said(f"centralised, fewer errors on {split}", of(NATURAL, split), of(CENTRAL, split), "less"))
        lines.append(
            said(f"FedAvgM, fewer errors than FedAvg on {split}", of(PLAIN, split), of(NATURAL, split), "less")
        )
    for arm in (LABELS, RANDOM):
        for real in (NATURAL, SEMANTIC):
            text = f"a larger participation gap of {real} clients than of {arm} ones"
            lines.append(said(text, of(arm, PARTICIPATION), of(real, PARTICIPATION), "more"))
    gaps = compare_pairs(of(PLAIN, PARTICIPATION), of(NATURAL, PARTICIPATION))
    lines.append(difference("FedAvgM: the participation gap beside FedAvg", gaps))
    return [*lines, by_chance(len(lines))]


def tails(spread: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Table 2: the badly served clients have more errors among unseen ones; so does the median client."""
    return tail_lines(spread, (NATURAL, CENTRAL), ERRORS, "errors", {TAIL: "95th percentile", "pct50": "median"})
