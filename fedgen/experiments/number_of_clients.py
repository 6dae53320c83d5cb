"""More participating clients: what unseen clients gain, and whether the participation gap shrinks.

Figure 7 of "What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216), for a
generator: the same clients never train, and of the others more and more do, with the same number of them in a round and
the same number of rounds.
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedgen.experiments.comparison import expectation
from fedgen.experiments.gap_numbers import PARTICIPATION, gap_lines, unseen
from fedgen.experiments.gap_runs import Arm, GapChoice
from fedgen.experiments.gap_study import MAIN, report_arms, run_arms
from fedgen.experiments.paired import compare_pairs, verdict
from fedgen.experiments.study import Study


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
    arms = [Arm(f"{rate:g} of them", {key: rate}) for rate in sorted(participating)]
    found = run_arms(study, choice, arms)
    counts = {name: count for name, (count, _) in study.numbers["clients"].items()}
    lines = [f"{name}: {count} clients train" for name, count in counts.items()]
    names = [arm.name for arm in arms]
    for one, more in pairwise(names):
        row = compare_pairs(unseen(found[one], MAIN), unseen(found[more], MAIN))
        lines.append(
            verdict(f"{MAIN} on unseen clients falls from {counts[one]} to {counts[more]} clients", row, "less")
        )
    few, all_ = (gap_lines(_curves(found[name]), PARTICIPATION)[0] for name in (names[0], names[-1]))
    lines.append(expectation(f"the participation gap in {MAIN} shrinks, from {few:+.3g} to {all_:+.3g}", all_ < few))
    report_arms(study, found, "clients that train", lines, names[0])


def _curves(seeds: Any) -> list[Any]:
    return [by_column[MAIN] for by_column in seeds.values()]
