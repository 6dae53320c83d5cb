"""The aggregates of an evaluation: avg, all and worst always, and power means by name."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.scores import FederatedScore, aggregate

AGGREGATES = ("avg", "all", "worst")
POWER = "power-"


def choose_aggregates(further: Sequence[str]) -> tuple[str, ...]:
    """avg, all and worst, then the power means asked for, "power-p" each.

    Args:
        further: names; those that are there in any case change nothing.

    Raises:
        ValueError: for another name.
    """
    names = [further] if isinstance(further, str) else further
    chosen = tuple(dict.fromkeys([*AGGREGATES, *names]))
    for name in chosen[len(AGGREGATES) :]:
        power_of(name)
    return chosen


def power_of(name: str) -> float:
    """The p of "power-p"; ValueError for a name that is none."""
    try:
        power = float(name.removeprefix(POWER)) if name.startswith(POWER) else float("nan")
    except ValueError:
        power = float("nan")
    if not abs(power) < float("inf"):
        raise ValueError(f"unknown aggregate {name!r}; known: {', '.join(AGGREGATES)}, {POWER}2 and other powers")
    return power


def applies(name: str, choice: ScoreChoice) -> bool:
    """Whether a score has an aggregate: power means lean towards badly served clients, and need values of at least 0.

    So p is at least 1, and at most 1 where higher is better (0 is the geometric mean, -1 the harmonic one). The
    Inception Score is one value for all clients, and memorisation is best in the middle: neither has any.
    """
    if name in AGGREGATES:
        return True
    power = power_of(name)
    return choice.has_powers and (power <= 1 if choice.higher_is_better else power >= 1)


def check_aggregates(aggregates: Sequence[str], choices: Sequence[ScoreChoice]) -> None:
    """Nothing, where every aggregate applies to one of the scores at least; ValueError otherwise, naming it."""
    for name in aggregates:
        if not any(applies(name, choice) for choice in choices):
            scores = ", ".join(dict.fromkeys(choice.name for choice in choices))
            raise ValueError(
                f"aggregate {name} applies to none of the scores {scores}: powers are at least 1, or at most 1 where"
                f" higher is better ({POWER}-1: the harmonic mean), of scores that cannot be negative (kid with"
                " estimator v)"
            )


def with_powers(
    score: FederatedScore, choice: ScoreChoice, aggregates: Sequence[str], weights: Tensor
) -> FederatedScore:
    """The score with the power means among its values; they have no standard errors.

    The clients' errors do not give them: all clients are scored against the same generated images, which vary together.

    Args:
        score: of all clients.
        choice: which score it is.
        aggregates: names; those that do not apply to the score are left out.
        weights: of the clients, float64 [K].
    """
    names = [name for name in aggregates if name not in AGGREGATES and applies(name, choice)]
    per_client = score.per_client.clamp(min=0)  # rounding may leave -1e-17 of a value that cannot be negative
    powers = {name: aggregate(per_client, weights, power_of(name), choice.higher_is_better) for name in names}
    return replace(score, values={**score.values, **powers}) if powers else score
