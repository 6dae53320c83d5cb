"""Client and server learning rates: the best by the sum of part_val and unpart, and whether the gap depends on them.

Appendix C and Figures 11, 13 and 14 of "What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022,
arXiv 2110.14216): rates are chosen by the sum of the scores on seen and on unseen clients, so that neither is favoured,
and the participation gap is about the same at the four best. The best is compared with every other; the tables and the
figure show four.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgen.evaluation.tables.gap_table import SPLITS
from fedgen.experiments.engine.arms.gap_numbers import MAIN, PARTICIPATION, GapScores
from fedgen.experiments.engine.arms.gap_runs import GapChoice
from fedgen.experiments.engine.arms.gap_study import report_arms, run_arms
from fedgen.experiments.engine.recipe_file import component
from fedgen.experiments.engine.results import make_table
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Arm

BEST = 4


def learning_rates(
    output: Path | None = None,
    client: Sequence[float] = (0.0005, 0.002, 0.008),
    server: Sequence[float] = (0.1, 0.3),
    **options: Any,
) -> None:
    """Scores on seen and unseen clients by client and server learning rate, under FedAvgM.

    Args:
        output: folder of results.json and the figure.
        client: learning rates of the model's own optimizer.
        server: learning rates of the server's, whose momentum is 0.9, so that 0.1 moves it as far as FedAvg does.
        options: the fields of `GapChoice`.
    """
    choice = GapChoice(**options)
    study = Study("learning-rates", output, choice.settings() | {"client": list(client), "server": list(server)})
    arms = [
        Arm(
            f"client {rate:g}, server {step:g}",
            {
                "model.init_args.lr": rate,
                "trainer.strategy.init_args.server_optimizer": component("fedgen.federated.FedAvgM", lr=step),
            },
        )
        for rate in client
        for step in server
    ]
    found = run_arms(study, choice, arms)
    ranking = sorted(found.curves, key=lambda arm: chosen_by(found, arm))
    best = GapScores({arm: found.curves[arm] for arm in ranking[:BEST]}, found.controls)
    rows = [(str(rank), arm, f"{chosen_by(found, arm):.4g}") for rank, arm in enumerate(ranking, 1)]
    title = f"rates by {MAIN} on part_val + unpart, mean over seeds"
    study.console.print(make_table(title, ("rank", "rates", "sum"), rows, left=2))
    lines = found.differences(ranking[0], (PARTICIPATION,), ranking)
    report_arms(study, best, "the best learning rates", lines, ranking[0])


def chosen_by(found: GapScores, arm: str) -> float:
    """The mean over seeds of the last scores on part_val plus those on unpart."""
    sums = [found.values(MAIN, split, arm)[0] for split in SPLITS[1:]]
    return statistics.mean(val + unseen for val, unseen in zip(*sums))
