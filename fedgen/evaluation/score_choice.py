"""The scores that are asked for, by name or by class path, with their options: checked before any long work."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from torch import Tensor

from fedgen.class_paths import import_by_path, is_class_path, nearest
from fedgen.evaluation.names import AGGREGATES, DISTRIBUTION, PERCENTILES, POWER
from fedgen.scores import FederatedScore, Kernel, aggregate
from fedgen.scores.definition import Needs, ScoreDefinition
from fedgen.scores.definitions import definitions
from fedgen.scores.of_model.answers import MetricScore
from fedgen.scores.of_model.by_class import ClassScore


@dataclass(frozen=True)
class ScoreChoice:
    """One score as it was asked for."""

    name: str
    definition: ScoreDefinition
    scale: float = 1.0

    @property
    def kind(self) -> str:
        """The definition's name, under which its values are computed."""
        return self.definition.name

    @property
    def settings(self) -> dict[str, Any]:
        """The options that are not the definition's defaults, as records keep them."""
        return self.definition.settings | ({"scale": self.scale} if self.scale != 1 else {})

    @property
    def needs(self) -> Needs:
        return self.definition.needs

    @property
    def kernel(self) -> Kernel:
        if self.definition.kernel is None:
            raise TypeError(f"score {self.name} has no kernel")
        return self.definition.kernel

    @property
    def higher_is_better(self) -> bool:
        return self.definition.higher_is_better


ScoreLike = str | Mapping[str, Any] | ScoreDefinition | ScoreChoice


def choose(score: ScoreLike, name: str | None = None, scale: float = 1.0) -> ScoreChoice:
    """The score of a name, of {"name": ..., options}, of a definition, or of a choice, which it is already."""
    if isinstance(score, ScoreChoice):
        return score
    if isinstance(score, ScoreDefinition):
        return ScoreChoice(name or score.label, score, scale)
    given = dict(score) if isinstance(score, Mapping) else {"name": score}
    kind = given.pop("name", None)
    if kind is None:
        raise ValueError(f"a score given by options needs its name, got {sorted(given)}")
    if isinstance(kind, str) and is_class_path(kind):
        named = import_by_path(kind)
        if isinstance(named, type) and issubclass(named, ScoreDefinition):
            return choose(_define(named, given), name, scale)
        return ScoreChoice(name or kind.rsplit(".", 1)[-1].lower(), MetricScore(kind, given), scale)
    of_class, known = given.pop("of_class", None), known_scores()
    if not isinstance(kind, str) or kind not in known:
        raise ValueError(
            f"unknown score {kind!r}; known: {', '.join(known)}, and your own and torchmetrics classes by class paths"
            f"{nearest(str(kind), list(known))}"
        )
    definition = _define(known[kind], given)
    if of_class is not None:
        definition = ClassScore(definition, str(of_class))
    return choose(definition, name, scale)


def known_scores() -> dict[str, type[ScoreDefinition]]:
    """The kit's scores by the names that ask for them: not metrics, nor a score of a class, which is an option."""
    return {name: one for name, one in definitions().items() if one not in (MetricScore, ClassScore)}


def _define(definition: type[ScoreDefinition], given: Mapping[str, Any]) -> ScoreDefinition:
    own = [field.name for field in fields(definition)]
    if unknown := [option for option in given if option not in own]:
        its = ", ".join(own) or "none"
        raise ValueError(f"score {definition.name} has no option {unknown[0]!r}; its options: {its}")
    try:
        return definition(**given)
    except (ValueError, TypeError) as error:
        raise ValueError(f"score {definition.name}: {error}") from error


def choose_scores(scores: ScoreLike | Sequence[ScoreLike]) -> tuple[ScoreChoice, ...]:
    """The choices of one or several scores; ValueError as `choose`, for none, and for a name given twice."""
    several = [scores] if isinstance(scores, (str, Mapping, ScoreDefinition, ScoreChoice)) else list(scores)
    choices = tuple(choose(score) for score in several)
    check_distinct("score", [choice.name for choice in choices])
    return choices


def check_distinct(what: str, names: Sequence[str]) -> None:
    if not names:
        raise ValueError(f"an evaluation needs at least one {what}")
    for name in names:
        if list(names).count(name) > 1:
            raise ValueError(
                f"{what} {name!r} is given twice, and scores are stored by name: measure the second in another"
                " evaluation"
            )


def choose_aggregates(further: Sequence[str]) -> tuple[str, ...]:
    """avg, all and worst, then what is asked for: power means, "power-p" each, and names of `DISTRIBUTION`."""
    names = [further] if isinstance(further, str) else further
    chosen = tuple(dict.fromkeys([*AGGREGATES, *names]))
    for name in chosen:
        if name not in (*AGGREGATES, *DISTRIBUTION):
            power_of(name)
    return chosen


def power_of(name: str) -> float:
    """The p of "power-p"; ValueError for another name."""
    with suppress(ValueError):
        if name.startswith(POWER) and math.isfinite(power := float(name.removeprefix(POWER))):
            return power
    known = (*AGGREGATES, *DISTRIBUTION)
    raise ValueError(f"unknown aggregate {name!r}; known: {', '.join(known)}, {POWER}2 and other powers")


def applies(name: str, choice: ScoreChoice) -> bool:
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
    """The score with the other aggregates that were asked for among its values; they have no standard errors."""
    names = [name for name in aggregates if name not in AGGREGATES and applies(name, choice)]
    found = {name: _further(name, score.per_client, choice, weights) for name in names}
    return replace(score, values={**score.values, **found})


def _further(name: str, per_client: Tensor, choice: ScoreChoice, weights: Tensor) -> float:
    if name == "unweighted":
        return float(per_client.mean())
    if name == "var":
        return float(per_client.var(correction=0))
    if name in PERCENTILES:
        return float(np.percentile(per_client.numpy(), PERCENTILES[name], method="nearest"))
    # rounding may leave -1e-17 of a value that cannot be negative
    return aggregate(per_client.clamp(min=0), weights, power_of(name), choice.higher_is_better)
