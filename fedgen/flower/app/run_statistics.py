"""The clients' statistics in a run's config: their ranges under secure aggregation, and their noise."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedgen.flower.client.policy import RefusedError
from fedgen.flower.wire.ranges import Ranges
from fedgen.statistics import Privacy

SECURE = "secure-aggregation"
EPSILON, DELTA, RADIUS = "statistics-epsilon", "statistics-delta", "statistics-radius"


@dataclass(frozen=True)
class RunStatistics:
    """Options for clients' statistics.

    Args:
        ranges: under secure aggregation.
        privacy: of sums with noise, for one embedding and a client's message by itself; None for exact statistics.
    """

    ranges: Ranges = field(default_factory=Ranges)
    privacy: Privacy | None = None

    @classmethod
    def of_run(cls, config: Mapping[str, Any]) -> "RunStatistics":
        """Those of a run's config.

        How many images a client has is no secret in a deployment, so the promise is about an image in another's place.

        Raises:
            ValueError: for ranges or a promise out of range.
        """
        ranges = Ranges.of_run(config)
        if not has_noise(config):
            return cls(ranges)
        values = {name: float(config.get(name, 0)) for name in (EPSILON, DELTA, RADIUS)}
        try:
            return cls(ranges, Privacy(values[EPSILON], values[DELTA], values[RADIUS], "replace", "public"))
        except ValueError as error:
            said = " ".join(f"{name}={value:g}" for name, value in values.items())
            raise ValueError(f"{said} in the run's config: {error}") from error


def has_noise(config: Mapping[str, Any]) -> bool:
    """Whether a run's clients tell sums with noise alone."""
    return float(config.get(EPSILON, 0)) != 0


def refuse_open(config: Mapping[str, Any], secure: bool, asked: list[str]) -> None:
    """A client's own check of what it is asked for: nothing, where the run's config allows it.

    Args:
        config: the run's.
        secure: whether the answers are masked.
        asked: the items' kinds.

    Raises:
        RefusedError: for what the run's config says stays hidden.
    """
    if bool(config.get(SECURE, False)) and not secure:
        raise RefusedError("under secure aggregation nothing is told in the open")
    if has_noise(config) and any(ask != "private-sums" for ask in asked):
        raise RefusedError(f"with {EPSILON} in the run's config nothing is told without noise")
