"""Clients of each kind as they are served: percentiles of their own scores, under several partitions.

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
from fedgen.evaluation.record_names import PERCENTILES
from fedgen.evaluation.records import FLOOR, MODEL
from fedgen.evaluation.tables.gap_table import SPLITS
from fedgen.experiments.engine.arms.gap_study import run_arms
from fedgen.experiments.engine.paired_seeds import by_chance, compare_pairs, verdict
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Arm
from fedgen.experiments.participation.participation_gap import PartitionChoice
from fedgen.reports.figures.generalisation import COLOURS

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

    def spreads(scores: Sequence[str], generator: str) -> dict[str, dict[str, Any]]:
        return {
            arm.name: {str(s): spread_of(choice.records(arm, s), scores, generator) for s in choice.seeds_of}
            for arm in arms
        }

    spread = study.step("spread", lambda: spreads(SCORES, MODEL))
    floors = study.step("floors", lambda: spreads(SCORES[1:], FLOOR))
    tables: list[Table | str] = [percentile_table(spread, score) for score in SCORES]
    figure = draw_percentiles(spread, SCORES[0], study.path("client_percentiles.png"))
    study.report([*tables, *tails(spread, floors)], figure)


def tails(spread: Mapping[str, Mapping[str, Any]], floors: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say whether unseen clients have the longer tail, by itself and beyond that of real images of all clients.

    Args:
        spread: partition -> seed -> score -> split -> percentile -> value by evaluation.
        floors: likewise, of the floor and the scores that it has.
    """
    lines = []
    for arm, by_seed in spread.items():
        for score in SCORES:
            seen, unseen = tails_of(by_seed, score)
            text = f"{arm}: the 95th percentile of {score} is larger over unseen clients"
            lines.append(verdict(text, compare_pairs(seen, unseen), "more"))
            if all(score in one and one[score][SPLITS[2]][TAIL] for one in floors[arm].values()):
                floor, own = ([b - a for a, b in zip(*tails_of(of, score))] for of in (floors[arm], by_seed))
                lines.append(verdict(f"{text}, by more than the floor's", compare_pairs(floor, own), "more"))
    return [*lines, by_chance(len(lines))]


def served(
    study: Study, choice: PartitionChoice, arms: Sequence[Arm], score: str
) -> tuple[dict[str, dict[str, Any]], list[Table | str]]:
    """Return how single clients are served after runs of one score: percentiles by arm and seed, their table and
    figure.

    Args:
        study: the experiment's, whose runs are there.
        choice: of its runs.
        arms: of its runs.
        score: which.
    """
    spread = study.step(
        "spread",
        lambda: {
            arm.name: {str(seed): spread_of(choice.records(arm, seed), (score,)) for seed in choice.seeds_of}
            for arm in arms
        },
    )
    figure = draw_percentiles(spread, score, study.path("percentiles.png"))
    return spread, [percentile_table(spread, score), f"percentiles: {figure}"]


def tail_lines(
    spread: Mapping[str, Mapping[str, Any]], arms: Sequence[str], score: str, what: str, percentiles: Mapping[str, str]
) -> list[str]:
    """Say whether percentiles of the clients' scores are larger over unseen clients, of each arm.

    Args:
        spread: of `served`.
        arms: which.
        score: which.
        what: the scores of clients are in a sentence.
        percentiles: by name, what they are in a sentence.
    """
    lines = []
    for arm in arms:
        for name, text in percentiles.items():
            seen, unseen = tails_of(spread[arm], score, name)
            said = f"{arm}: the {text} of the clients' {what} is larger over unseen clients"
            lines.append(verdict(said, compare_pairs(seen, unseen), "more"))
    return lines


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


def draw_percentiles(spread: Mapping[str, Mapping[str, Any]], score: str, path: Path) -> Path:
    """A panel a partition: bands from the 5th to the 95th and from the 25th to the 75th percentile, and the median.

    Args:
        spread: partition -> seed -> score -> split -> percentile -> value by evaluation.
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
                axes.fill_between(checks, lines[low], lines[high], color=COLOURS[split], alpha=alpha, linewidth=0)
            axes.plot(checks, lines["pct50"], color=COLOURS[split], label=split)
        axes.set_title(partition, fontsize=10)
        axes.set_xlabel("evaluation")
        axes.set_xticks(checks)
        axes.grid(alpha=0.25)
    panels[0].set_ylabel(f"{score} of single clients")
    panels[0].legend(fontsize=8)
    return save_figure(figure, path)
