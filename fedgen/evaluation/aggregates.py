"""The aggregates of an evaluation: avg, all and worst always; power means and the clients' distribution by name."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import Tensor

from fedgen.evaluation.record_names import AGGREGATES, DISTRIBUTION, PERCENTILES, POWER
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.scores import FederatedScore, aggregate


def choose_aggregates(further: Sequence[str]) -> tuple[str, ...]:
    """avg, all and worst, then what is asked for: power means, "power-p" each, and names of `DISTRIBUTION`.

    Args:
        further: names; those that are there in any case change nothing.

    Raises:
        ValueError: for another name.
    """
    names = [further] if isinstance(further, str) else further
    chosen = tuple(dict.fromkeys([*AGGREGATES, *names]))
    for name in chosen[len(AGGREGATES) :]:
        if name not in DISTRIBUTION:
            power_of(name)
    return chosen


def power_of(name: str) -> float:
    """The p of "power-p"; ValueError for a name that is none."""
    try:
        power = float(name.removeprefix(POWER)) if name.startswith(POWER) else float("nan")
    except ValueError:
        power = float("nan")
    if not abs(power) < float("inf"):
        known = (*AGGREGATES, *DISTRIBUTION)
        raise ValueError(f"unknown aggregate {name!r}; known: {', '.join(known)}, {POWER}2 and other powers")
    return power


def applies(name: str, choice: ScoreChoice) -> bool:
    """Whether a score has an aggregate: power means lean towards badly served clients, and need values of at least 0.

    So p is at least 1, and at most 1 where higher is better (0 is the geometric mean, -1 the harmonic one). The
    Inception Score is one value for all clients, and memorisation is best in the middle: neither has any. The Inception
    Score has no distribution either.
    """
    if name in AGGREGATES or name in DISTRIBUTION:
        return name in AGGREGATES or choice.definition.has_distribution
    power = power_of(name)
    return choice.definition.has_powers and (power <= 1 if choice.higher_is_better else power >= 1)


def check_aggregates(aggregates: Sequence[str], choices: Sequence[ScoreChoice]) -> None:
    """Raise ValueError for an aggregate that applies to none of the scores, naming it."""
    for name in aggregates:
        if not any(applies(name, choice) for choice in choices):
            scores = ", ".join(dict.fromkeys(choice.name for choice in choices))
            raise ValueError(
                f"aggregate {name} applies to none of the scores {scores}: powers are at least 1, or at most 1 where"
                f" higher is better ({POWER}-1: the harmonic mean), of scores that cannot be negative (kid with"
                " estimator v)"
            )


def with_further(
    score: FederatedScore, choice: ScoreChoice, aggregates: Sequence[str], weights: Tensor
) -> FederatedScore:
    """The score with the other aggregates that were asked for among its values; they have no standard errors.

    The clients' errors do not give them: all clients are scored against the same generated images, which vary together.

    Args:
        score: of all clients.
        choice: which score it is.
        aggregates: names; those that do not apply to the score are left out.
        weights: of the clients, float64 [K].
    """
    names = [name for name in aggregates if name not in AGGREGATES and applies(name, choice)]
    found = {name: _further(name, score.per_client, choice, weights) for name in names}
    return replace(score, values={**score.values, **found}) if found else score


def _further(name: str, per_client: Tensor, choice: ScoreChoice, weights: Tensor) -> float:
    if name == "unweighted":
        return float(per_client.mean())
    if name == "var":
        return float(per_client.var(correction=0))
    if name in PERCENTILES:
        return float(np.percentile(per_client.numpy(), PERCENTILES[name], method="nearest"))
    # rounding may leave -1e-17 of a value that cannot be negative
    return aggregate(per_client.clamp(min=0), weights, power_of(name), choice.higher_is_better)
