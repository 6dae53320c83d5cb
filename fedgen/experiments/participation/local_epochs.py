"""Longer turns at equal local iterations: do the generalisation gaps stay?

Figure 12 of "What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216): 1, 2, 5
and 10 local epochs of a classifier leave its gaps as they are. Here of a generator, with as many rounds fewer.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgen.experiments.engine.arms.gap_numbers import OUT_OF_SAMPLE, PARTICIPATION
from fedgen.experiments.engine.arms.gap_runs import GapChoice
from fedgen.experiments.engine.arms.gap_study import report_arms, run_arms
from fedgen.experiments.engine.recipe_file import local_iterations, rounds_of
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Arm


def local_epochs(output: Path | None = None, lengths: Sequence[int] = (1, 2, 5, 10), **options: Any) -> None:
    """Scores on seen and unseen clients by the length of a turn, at equal local iterations.

    Args:
        output: folder of results.json and the figure.
        lengths: of a turn, as multiples of the recipe's communication interval; others are compared with the first.
        options: the fields of `GapChoice`.
    """
    choice = GapChoice(**options)
    study = Study("local-epochs", output, choice.settings() | {"lengths": list(lengths)})
    interval = local_iterations(choice.recipe) // rounds_of(choice.recipe)
    key = "trainer.strategy.init_args.communication_interval"
    arms = [Arm(f"{interval * times} iterations", {key: interval * times}, rounds=1 / times) for times in lengths]
    found = run_arms(study, choice, arms)
    lines = found.differences(arms[0].name, (OUT_OF_SAMPLE, PARTICIPATION))
    report_arms(study, found, "length of a turn", lines, arms[0].name)
