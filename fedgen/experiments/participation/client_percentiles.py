"""Clients of each kind as they are served: percentiles of their own scores, under several partitions.

Figure 10 and Table 2 of "What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv
2110.14216): of classifiers, unseen clients have the longer tail of badly served ones. The runs are those of
`participation-gap`.
"""

import statistics
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.evaluation import ScoreRecord
from fedgen.evaluation.names import PERCENTILES
from fedgen.evaluation.records import FLOOR, MODEL
from fedgen.evaluation.tables.gap_table import SPLITS
from fedgen.experiments.engine.arms.gap_runs import GapChoice
from fedgen.experiments.engine.arms.gap_study import run_arms
from fedgen.experiments.engine.paired_seeds import by_chance, verdict_on
from fedgen.experiments.engine.results import make_table, save_figure
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Arm
from fedgen.experiments.participation.participation_gap import PartitionChoice
from fedgen.reports.figures.curves import SPLIT_COLOURS

SCORES = ("loss", "kid")
TAIL = "pct95"  # of scores by which less is better, where the badly served are
Spread = Mapping[str, Mapping[str, Any]]
"""arm -> seed -> score -> split -> percentile -> value by evaluation"""


def client_percentiles(output: Path | None = None, **options: Any) -> None:
    """Percentiles over clients of scores on seen and unseen clients, by partition.

    Args:
        output: folder of results.json and the figure.
        options: the fields of `PartitionChoice`.
    """
    choice = PartitionChoice(**options)
    study, arms = Study("client-percentiles", output, choice.settings()), choice.arms
    run_arms(study, choice, arms)
    spread = study.step("spread", lambda: spreads_of(choice, arms, SCORES))
    floors = study.step("floors", lambda: spreads_of(choice, arms, SCORES[1:], FLOOR))
    tables: list[Table | str] = [percentile_table(spread, score) for score in SCORES]
    figure = draw_percentiles(spread, SCORES[0], study.path("client_percentiles.png"))
    study.report([*tables, *tails(spread, floors)], figure)


def tails(spread: Spread, floors: Spread) -> list[str]:
    """Say whether unseen clients have the longer tail, by itself and beyond that of real images of all clients.

    Args:
        spread: of the models.
        floors: likewise, of the floor and the scores that it has.
    """
    lines = []
    for (arm, by_seed), score in product(spread.items(), SCORES):
        text = f"{arm}: the 95th percentile of {score} is larger over unseen clients"
        lines.append(verdict_on(text, tails_of(by_seed, score), "more"))
        if all(score in one and one[score][SPLITS[2]][TAIL] for one in floors[arm].values()):
            floor, own = ([b - a for a, b in zip(*tails_of(of, score))] for of in (floors[arm], by_seed))
            lines.append(verdict_on(f"{text}, by more than the floor's", (floor, own), "more"))
    return [*lines, by_chance(len(lines))]


def spreads_of(choice: GapChoice, arms: Sequence[Arm], scores: Sequence[str], generator: str = MODEL) -> dict[str, Any]:
    """Return the percentiles over single clients after finished runs, of their models or of a control.

    Args:
        choice: of the runs.
        arms: whose.
        scores: which.
        generator: the model or a control.
    """
    return {
        arm.name: {str(seed): spread_of(choice.records(arm, seed), scores, generator) for seed in choice.seeds_of}
        for arm in arms
    }


def tails_of(by_seed: Mapping[str, Any], score: str, percentile: str = TAIL) -> list[list[float]]:
    """The last percentile over seen and over unseen clients, by seed."""
    return [[one[score][split][percentile][-1] for one in by_seed.values()] for split in SPLITS[1:]]


def spread_of(
    records: Sequence[ScoreRecord], scores: Sequence[str], generator: str = MODEL
) -> dict[str, dict[str, dict[str, list[float]]]]:
    """A run's percentiles over rounds, by score and split, of its model or of a control."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for score in scores:
        for split in SPLITS:
            own = [r for r in records if (r.generator, r.score, r.split) == (generator, score, split)]
            own.sort(key=lambda record: record.round or 0)
            by_name = {name: [record.value for record in own if record.aggregate == name] for name in PERCENTILES}
            found.setdefault(score, {})[split] = by_name
    return found


def percentile_table(spread: Spread, score: str) -> Table:
    """The percentiles after the last round, means over seeds.

    Args:
        spread: of `spreads_of`.
        score: which.
    """
    rows: list[Sequence[str]] = []
    for arm, by_seed in spread.items():
        for split in SPLITS:
            values = [statistics.mean(one[score][split][name][-1] for one in by_seed.values()) for name in PERCENTILES]
            rows.append((arm, split, *(f"{value:.3g}" for value in values)))
        rows.append(())
    title = f"{score} of single clients after the last round, mean over seeds"
    return make_table(title, ("partition", "split", *PERCENTILES), rows, left=2)


def draw_percentiles(spread: Spread, score: str, path: Path) -> Path:
    """A panel a partition: bands from the 5th to the 95th and from the 25th to the 75th percentile, and the median.

    Args:
        spread: of `spreads_of`.
        score: which.
        path: of the picture.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(spread) + 0.8, 3.6), layout="constrained")
    panels = figure.subplots(1, len(spread), squeeze=False, sharey=True)[0]
    for axes, (partition, by_seed) in zip(panels, spread.items()):
        for split in SPLITS[1:]:
            lines = {
                name: [statistics.mean(each) for each in zip(*(one[score][split][name] for one in by_seed.values()))]
                for name in PERCENTILES
            }
            checks = range(1, len(lines["pct50"]) + 1)
            for low, high, alpha in (("pct5", "pct95", 0.15), ("pct25", "pct75", 0.25)):
                axes.fill_between(checks, lines[low], lines[high], color=SPLIT_COLOURS[split], alpha=alpha, linewidth=0)
            axes.plot(checks, lines["pct50"], color=SPLIT_COLOURS[split], label=split)
        axes.set_title(partition, fontsize=10)
        axes.set_xlabel("evaluation")
        axes.set_xticks(checks)
        axes.grid(alpha=0.25)
    panels[0].set_ylabel(f"{score} of single clients")
    panels[0].legend(fontsize=8)
    return save_figure(figure, path)
