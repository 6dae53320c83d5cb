"""How the clients of each kind are served: percentiles of their own scores, under several partitions.

Figure 10 and Table 2 of "What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv
2110.14216): of classifiers, unseen clients have the longer tail of badly served ones. The runs are those of
`participation-gap`.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.evaluation import ScoreRecord
from fedgen.evaluation.aggregates import PERCENTILES
from fedgen.evaluation.gap_table import SPLITS
from fedgen.experiments.gap_study import run_arms
from fedgen.experiments.paired import compare_pairs, verdict
from fedgen.experiments.participation_gap import PartitionChoice
from fedgen.experiments.percentile_figure import draw_percentiles
from fedgen.experiments.study import Study

SCORES = ("loss", "kid")
TAIL = "pct95"  # of scores by which less is better, where the badly served are


def client_percentiles(output: Path | None = None, **options: Any) -> None:
    """Percentiles over clients of scores on seen and unseen clients, by partition.

    Args:
        output: folder of results.json and the figure.
        options: the fields of `PartitionChoice`.
    """
    choice = PartitionChoice(**options)
    study, arms = Study("client-percentiles", output, choice.settings()), choice.arms
    run_arms(study, choice, arms)
    seeds = choice.seeds_of
    spread = study.step(
        "spread", lambda: {arm.name: {str(s): spread_of(choice.records(arm, s), SCORES) for s in seeds} for arm in arms}
    )
    tables: list[Table | str] = [percentile_table(spread, score) for score in SCORES]
    lines = []
    for arm, by_seed in spread.items():
        for score in SCORES:
            seen, unseen = ([one[score][split][TAIL][-1] for one in by_seed.values()] for split in SPLITS[1:])
            text = f"{arm}: the 95th percentile of {score} is larger over unseen clients"
            lines.append(verdict(text, compare_pairs(seen, unseen), "more"))
    figure = draw_percentiles(spread, SCORES[0], study.path("client_percentiles.png"))
    study.report([*tables, *lines], figure)


def spread_of(records: Sequence[ScoreRecord], scores: Sequence[str]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """A run's percentiles over rounds, by score and split."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for score in scores:
        for split in SPLITS:
            own = [r for r in records if r.is_model and (r.score, r.split) == (score, split)]
            own.sort(key=lambda record: record.round or 0)
            by_name = {name: [record.value for record in own if record.aggregate == name] for name in PERCENTILES}
            found.setdefault(score, {})[split] = by_name
    return found


def percentile_table(spread: Mapping[str, Mapping[str, Any]], score: str) -> Table:
    """The percentiles after the last round, means over seeds.

    Args:
        spread: partition -> seed -> score -> split -> percentile -> value by evaluation.
        score: which.
    """
    table = Table(title=f"{score} of single clients after the last round, mean over seeds")
    for heading in ("partition", "split", *PERCENTILES):
        table.add_column(heading, justify="left" if heading in ("partition", "split") else "right")
    for arm, by_seed in spread.items():
        for split in SPLITS:
            values = [statistics.mean(one[score][split][name][-1] for one in by_seed.values()) for name in PERCENTILES]
            table.add_row(arm, split, *(f"{value:.3g}" for value in values))
        table.add_section()
    return table
