"""Generalisation gaps: what a score loses on unseen images of the same clients, and on clients never seen.

Of "What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216), section 2:
out-of-sample gap = part_val - part_train, participation gap = unpart - part_val. A gap is how much worse the second
place is, whichever way is better. If all clients have one distribution the participation gap is 0 in expectation.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedgen.evaluation.record_names import PART_TRAIN, PART_VAL, UNPART
from fedgen.evaluation.records import ScoreRecord

if TYPE_CHECKING:
    from fedgen.scores import FederatedScore

GAPS = {"gap/out_of_sample": (PART_TRAIN, PART_VAL), "gap/participation": (PART_VAL, UNPART)}
"""name of the gap, in a split's place in records -> (where the score is better, where it is worse)"""
AGGREGATES = ("avg", "all")  # that have a gap


def gap_title(gap: str) -> str:
    """A gap's name for readers: "gap/out_of_sample" is the "out of sample gap"."""
    return gap.removeprefix("gap/").replace("_", " ") + " gap"


def gap(better: "FederatedScore", worse: "FederatedScore") -> "FederatedScore":
    """One score of one generated set on two splits of clients that are paired in their order and equally weighted.

    Its errors over clients are those of the pairs' differences, so that what both sides of a pair share, and what both
    splits owe to the generated images, drops out of them.

    Args:
        better: the score where it ought to be better.
        worse: the score where it ought to be worse.
    """
    from fedgen.scores import FederatedScore

    sign = -1.0 if better.higher_is_better else 1.0
    over_clients = None
    if better.over_clients is not None and worse.over_clients is not None:
        over_clients = worse.over_clients.minus(better.over_clients).times(sign)
    return FederatedScore(
        better.name,
        (worse.per_client - better.per_client) * sign,
        {name: (worse.values[name] - better.values[name]) * sign for name in AGGREGATES if name in better.values},
        over_clients.errors() if over_clients else {},
        over_clients=over_clients,
    )


def gaps_of(scores: "Mapping[str, Sequence[FederatedScore]]") -> "dict[str, list[FederatedScore]]":
    """The gaps, by name, of the scores that both of their splits have.

    Args:
        scores: of one generated set in one embedding, by split.
    """
    by_name = {split: {score.name: score for score in found} for split, found in scores.items()}
    return {
        name: [gap(score, by_name[worse][score.name]) for score in scores[better] if score.name in by_name[worse]]
        for name, (better, worse) in GAPS.items()
        if better in scores and worse in scores
    }


def interval(record: ScoreRecord, level: float = 0.95) -> tuple[float, float] | None:
    """Return the interval of a gap over the population of clients, by Student's distribution of K - 1 degrees of
    freedom.

    Args:
        record: of avg or all, of a gap or any other score.
        level: of confidence.

    Returns:
        The interval's ends; None where the error over clients is not known.
    """
    if record.error_over_clients is None or record.num_clients < 2:
        return None
    from scipy import stats  # slow to import, and most commands show no interval

    reach = float(stats.t.ppf((1 + level) / 2, record.num_clients - 1)) * record.error_over_clients
    return record.value - reach, record.value + reach
