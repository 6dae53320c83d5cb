"""Gaps of one model's own score over natural clients: a classifier, and a character model on books of many hands.

"What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216) reports accuracies of
classifiers, and of models of text on the lines of Shakespeare's roles and on posts of Stack Overflow's users. Its data
sets are not these, so signs and orderings are compared and not values. Classifier: Table 1's gaps and its centralised
training, Table 2's percentiles over clients, Figures 4 and 5's partitions, and that the server's momentum helps and
leaves the participation gap as it is. What holds here for a classifier and not for a generator is the generator's; what
does not hold for either may be the data's. Text: owners are the books of the King James Version, which installs as a
package; the score is nats a character.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from fedgen.evaluation.tables.gap_table import SPLITS
from fedgen.experiments.engine.gaps import MAIN, OUT_OF_SAMPLE, PARTICIPATION, GapScores, report_arms, run_arms
from fedgen.experiments.engine.paired_seeds import Claim, by_chance, verdict_on
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Arm
from fedgen.experiments.participation.participation_gap import (
    CONTROL,
    LABELS,
    NATURAL,
    RANDOM,
    SEMANTIC,
    TAIL,
    PartitionChoice,
    Spread,
    draw_percentiles,
    percentile_table,
    spreads_of,
    tails_of,
)

SCORE = "loss"  # what a model's `example_losses` are scored as
CENTRAL = f"{NATURAL}, {CONTROL}"


@dataclass(frozen=True)
class NaturalChoice(PartitionChoice):
    """Options of `PartitionChoice` for a model whose own losses alone are scored."""

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
    """Trains the choice's arms and prints gaps, percentiles over clients and verdicts; draws both figures."""
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
    """Say whether unseen clients are served worse, in the tail and the median one: Table 2 of the paper."""
    percentiles = {TAIL: "95th percentile", "pct50": "median"}
    return [
        verdict_on(
            f"{arm}: the {text} of the clients' {plural} is larger over unseen clients",
            tails_of(spread[arm], SCORE, name),
            "more",
        )
        for arm, (name, text) in product((NATURAL, CENTRAL), percentiles.items())
    ]


PLAIN = f"{NATURAL}, FedAvg"
SERVER = "trainer.strategy.init_args.server_optimizer"


@dataclass(frozen=True)
class ClassifierChoice(NaturalChoice):
    """Options of `PartitionChoice` for a classifier: its error rate alone is scored.

    Args:
        recipe: of a model whose `example_losses` are errors, with a server optimizer, natural clients and a `split`.
        seeds: repetitions, each with another split, other draws and other first weights, the same for all arms.
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
    """
    choice = ClassifierChoice(**options)
    report_gaps("classifier-control", output, choice, "error rate of a classifier", "errors", classifier_outcomes)


def classifier_outcomes(found: GapScores) -> list[str]:
    """Table 1, Figures 4 and 5, and the server optimizers: what the paper says, and whether it is so here."""

    lines = []
    for split in SPLITS[1:]:
        lines.append(said(found, f"centralised, fewer errors on {split}", NATURAL, CENTRAL, split, "less"))
        lines.append(said(found, f"FedAvgM, fewer errors than FedAvg on {split}", PLAIN, NATURAL, split, "less"))
    for arm, real in product((LABELS, RANDOM), (NATURAL, SEMANTIC)):
        text = f"a larger participation gap of {real} clients than of {arm} ones"
        lines.append(said(found, text, arm, real, PARTICIPATION, "more"))
    return [*lines, said(found, "FedAvgM: the participation gap beside FedAvg", PLAIN, NATURAL, PARTICIPATION)]


@dataclass(frozen=True)
class TextChoice(NaturalChoice):
    """Options of `PartitionChoice` for texts: the model's own loss alone is scored, and nothing is embedded.

    Args:
        recipe: of a model with `example_losses`, natural clients and a `split`; with labels there is also an arm of
            clients dealt by these.
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
    """
    report_gaps("text-gap", output, TextChoice(**options), "loss of a character model", "losses", text_outcomes)


def text_outcomes(found: GapScores) -> list[str]:
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
