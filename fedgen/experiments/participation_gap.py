"""Does a federated generator serve clients that it never saw, and does the answer hang on who the clients are?

The same images are dealt to as many clients in four ways: by writer, whose styles are known (natural); by the semantic
partition, which groups each label's images by looks; by Dirichlet over labels; and at random. Some clients never train.
"What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216, Figures 1, 4, 5) says of
classifiers that partitions by labels hide the participation gap that natural and semantic ones show. The smallest gap
that the set-up could find is computed first, from real images in a generator's place, and the gap that a generator of
the participants alone would have, which bounds what can be there.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.embeddings import load_embedding
from fedgen.evaluation import Evaluator
from fedgen.evaluation.records import FLOOR, MEMORISER, PARTICIPANTS
from fedgen.experiments.gap_numbers import PARTICIPATION, controls_of, last, smallest_gap
from fedgen.experiments.gap_runs import Arm, GapChoice
from fedgen.experiments.gap_study import MAIN, Found, gap_outcome, report_arms, run_arms
from fedgen.experiments.paired import compare_pairs, verdict
from fedgen.experiments.recipe_file import component
from fedgen.experiments.runs import Control
from fedgen.experiments.study import Study

NATURAL, SEMANTIC, LABELS, RANDOM = "natural", "semantic", "Dirichlet", "random"
PARTITIONS = "fedgen.clients.partitions"
CONTROL: Control = "centralised"
VERDICTS = (MAIN, "kid avg")  # what the model is trained on, and what it makes


@dataclass(frozen=True)
class PartitionChoice(GapChoice):
    """The same images dealt in four ways; the other fields are those of `GapChoice`.

    Args:
        clients: of the partitions that are not natural; as many as the recipe's data has writers.
        alpha: of Dirichlet over labels, in all: the released code's 10; 1 gives most of a client's images one or two
            labels, and 8 participants some labels hardly at all.
        partition_embedding: in which the semantic partition finds images alike; scores are in another one.

    Raises:
        ValueError: if partition and scores are to be in one embedding, or for numbers out of range.
        FileNotFoundError: if the recipe is not there.
    """

    clients: int = 50
    alpha: float = 10.0
    partition_embedding: str = "pixels"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.partition_embedding == self.embedding:
            raise ValueError(f"embedding={self.embedding}: scores would see the features that made the clients")

    @property
    def arms(self) -> list[Arm]:
        """The partitions, trained by the recipe."""
        dealt = {
            NATURAL: {},
            SEMANTIC: component(f"{PARTITIONS}.Semantic", num_clients=self.clients, embedding=self.partition_embedding),
            LABELS: component(f"{PARTITIONS}.Dirichlet", num_clients=self.clients, alpha=self.alpha),
            RANDOM: component(f"{PARTITIONS}.IID", num_clients=self.clients),
        }
        return [Arm(name, {"data.init_args.partition": one} if one else {}) for name, one in dealt.items()]


def participation_gap(output: Path | None = None, **options: Any) -> None:
    """Gaps on unseen images and on unseen clients, under four partitions of the same images, federated and centralised.

    Args:
        output: folder of results.json and the figure.
        options: the fields of `PartitionChoice`.
    """
    choice = PartitionChoice(**options)
    study = Study("participation-gap", output, choice.settings())
    arms = choice.arms + [Arm(f"{arm.name}, {CONTROL}", arm.settings, CONTROL) for arm in choice.arms]
    first = study.step("detectable", lambda: detectable(choice, arms))
    study.console.print(detectable_table(first, choice))
    found = run_arms(study, choice, arms)
    report_arms(study, found, "clients that never train", outcomes(found))


def detectable(choice: GapChoice, arms: list[Arm]) -> dict[str, Any]:
    """By partition: what real images in a generator's place have for gaps, before anything is trained."""
    found = {}
    embedding = load_embedding(choice.embedding, weights=choice.weights)
    for arm in arms:
        if arm.control is None:
            data, scores = choice.federation(arm), ("kid", "fid")
            judge = Evaluator(data, [embedding], choice.images, scores, seed=choice.seed, controls=True)
            found[arm.name] = controls_of(judge.floor())
    return found


def detectable_table(found: dict[str, Any], choice: GapChoice) -> Table:
    """The smallest participation gap that the set-up finds, and those of real images in a generator's place."""
    count = len(choice.seeds_of)
    table = Table(
        title=f"before training: participation gaps, {count} seed(s)",
        caption="smallest: found with 80 % power at 5 %; floor: real images of all clients; participants: real images"
        " of clients that train,\nthe gap of a generator that learns its clients perfectly; memoriser: the images"
        " of part_train themselves",
    )
    for heading in ("partition", "score", "smallest", FLOOR, PARTICIPANTS, MEMORISER):
        table.add_column(heading, justify="left" if heading in ("partition", "score") else "right")
    for partition, controls in found.items():
        for column, floor in controls[FLOOR].items():
            error = floor.get(f"{PARTICIPATION} error")
            least = f"{smallest_gap([error], count):.3g}" if error is not None else ""
            names = (FLOOR, PARTICIPANTS, MEMORISER)
            gaps = [controls.get(name, {}).get(column, {}).get(PARTICIPATION) for name in names]
            table.add_row(partition, column, least, *("" if gap is None else f"{gap:+.3g}" for gap in gaps))
    return table


def outcomes(found: Found) -> list[str]:
    """What the paper says of classifiers, and whether it is so here."""
    lines = []
    for column in VERDICTS:
        for arm, seeds in found.items():
            hidden = arm.split(",")[0] in (LABELS, RANDOM)
            lines.append(gap_outcome(arm, seeds, PARTICIPATION, column, hidden))
        for shows, hides in ((SEMANTIC, LABELS), (NATURAL, RANDOM)):
            gaps = {arm: [last(one[column], PARTICIPATION) for one in found[arm].values()] for arm in (hides, shows)}
            row = compare_pairs(gaps[hides], gaps[shows])
            lines.append(verdict(f"{shows}: the participation gap in {column} is above that of {hides}", row, "more"))
    return lines
