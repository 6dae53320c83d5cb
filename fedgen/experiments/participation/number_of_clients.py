"""More participating clients: what unseen clients gain, and whether the participation gap shrinks.

Figure 7 of "What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216), for a
generator: the same clients never train, and of the others more and more do, with the same number of them in a round and
the same number of rounds.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.experiments.engine.arms.gap_numbers import AVERAGES, MAIN, PARTICIPATION
from fedgen.experiments.engine.arms.gap_runs import GapChoice
from fedgen.experiments.engine.arms.gap_study import named_by_clients, report_arms, run_arms
from fedgen.experiments.engine.paired_seeds import verdict_on
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Arm
from fedgen.experiments.participation.common_clients import common_scores, common_table


def number_of_clients(
    output: Path | None = None, participating: Sequence[float] = (0.16, 0.25, 0.5, 1.0), **options: Any
) -> None:
    """Scores on seen and unseen clients by the number of clients that train.

    Args:
        output: folder of results.json and the figure.
        participating: fractions of the clients that may train; a cohort must fit into the least.
        options: the fields of `GapChoice`.
    """
    choice = GapChoice(**options)
    study = Study("number-of-clients", output, choice.settings() | {"participating": list(participating)})
    key = "data.init_args.split.init_args.participating"
    arms = named_by_clients(choice, [Arm("", {key: rate}) for rate in sorted(participating)])
    found = run_arms(study, choice, arms)
    names, common = [arm.name for arm in arms], common_scores(study, choice, arms)
    lines: list[Table | str] = [common_table(common)]
    for column in AVERAGES:
        for one, more in pairwise(names):
            text = f"{column} on the same unseen clients falls from {one} to {more}"
            lines.append(verdict_on(text, (common[column][one], common[column][more]), "less"))
    few_and_all = found.values(MAIN, PARTICIPATION, names[0], names[-1])
    text = f"the participation gap in {MAIN} shrinks from {names[0]} to {names[-1]}"
    lines.append(verdict_on(text, few_and_all, "less"))
    report_arms(study, found, "clients that train", lines, columns=AVERAGES)
