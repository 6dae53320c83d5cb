"""Arms that train on other numbers of clients, compared on the unseen clients that are scored in all of them.

An arm scores as many unseen clients as seen ones, so an arm with more participants is scored on more clients: its
averages are over another set, and its pool's score falls with the clients in it. Unseen clients are the same in all
arms of a seed, so averages over those that every arm scores compare.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from fedgen.evaluation import ScoreRecord
from fedgen.evaluation.tables.gap_table import SPLITS
from fedgen.experiments.engine.arms.gap_numbers import AVERAGES, MAIN
from fedgen.experiments.engine.arms.gap_runs import GapChoice
from fedgen.experiments.engine.paired_seeds import change_of, compare_pairs
from fedgen.experiments.engine.results import make_table
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Arm

UNSEEN = SPLITS[-1]


def common_scores(study: Study, choice: GapChoice, arms: Sequence[Arm]) -> dict[str, Any]:
    """The last scores of trained arms on the unseen clients that are scored in every arm of a seed.

    Returns:
        "clients" -> how many, one number a seed; column -> arm -> a value a seed.
    """

    def read() -> dict[str, Any]:
        found: dict[str, Any] = {"clients": [], **{column: {arm.name: [] for arm in arms} for column in AVERAGES}}
        for seed in choice.seeds_of:
            records = {arm.name: choice.records(arm, seed) for arm in arms}
            for column in AVERAGES:
                means, number = means_on_common(records, column)
                for arm, mean in means.items():
                    found[column][arm].append(mean)
            found["clients"].append(number)
        return found

    return study.step("common", read)


def means_on_common(records: Mapping[str, Sequence[ScoreRecord]], column: str) -> tuple[dict[str, float], int]:
    """One seed's last scores by arm, each client weighing the same, and over how many clients.

    Args:
        records: by arm.
        column: "score avg".

    Raises:
        ValueError: if no unseen client is scored in every arm.
    """
    score, aggregate = column.split()
    single = {}
    for arm, own in records.items():
        here = [r for r in own if r.is_model and (r.score, r.aggregate, r.split) == (score, aggregate, UNSEEN)]
        record = max(here, key=lambda record: record.round or 0)
        single[arm] = dict(zip(record.client_names, record.per_client, strict=True))
    common = set.intersection(*(set(by_name) for by_name in single.values()))
    if not common:
        raise ValueError(f"no unseen client is scored in all of {', '.join(records)}, so they do not compare")
    return {arm: statistics.mean(by_name[name] for name in common) for arm, by_name in single.items()}, len(common)


def common_table(found: Mapping[str, Any]) -> Table:
    """The scores on common clients, arm by arm: means over seeds, and the change from the first arm with intervals.

    Args:
        found: of `common_scores`.
    """
    first, rows = next(iter(found[MAIN])), []
    for arm in found[MAIN]:
        cells = []
        for column in AVERAGES:
            values = found[column][arm]
            change = "" if arm == first else change_of(compare_pairs(found[column][first], values))
            cells += [f"{statistics.mean(values):.4g}", change]
        rows.append((arm, *cells))
    counts = "/".join(map(str, sorted(set(found["clients"]))))
    headings = ("trained", *(name for column in AVERAGES for name in (column, "beside the first")))
    note = "beside the first: paired differences over seeds with 95 % intervals"
    return make_table(f"the {counts} unseen clients that all arms score", headings, rows, note)
