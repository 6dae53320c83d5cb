"""The simulated clock of synchronous rounds: each lasts as long as the slowest client of its cohort."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedgen.federated.simulated_time.round_time import RoundTime
from fedgen.io.field_types import conforms

TurnSeconds = Callable[[int, int], float]
"""Seconds that the turn of a client takes, which starts in a round."""


class SimulatedClock:
    """Seconds since training began, were clients' turns of a round taken at the same time on machines of their own.

    A synchronous round ends when its slowest client's update has arrived. A client that is left out has taken its time
    too; a round that nobody takes has none.

    Args:
        turn_seconds: of a client and a round.

    Attributes:
        seconds: at the end of the last whole round.
        rounds: those so far.

    Examples:
        >>> from fedgen.federated.simulated_time.simulated_clock import SimulatedClock
        >>> clock = SimulatedClock(lambda client, round: [1.0, 4.0][client])
        >>> clock.end_round(0, [0, 1])
        >>> clock.end_round(1, [0])
        >>> clock.seconds
        5.0
    """

    def __init__(self, turn_seconds: TurnSeconds) -> None:
        self._turn_seconds = turn_seconds
        self.seconds = 0.0
        self.rounds: list[RoundTime] = []

    def end_round(self, round: int, clients: Iterable[int]) -> None:
        """Let the time of a round pass."""
        turns = [self._turn_seconds(client, round) for client in dict.fromkeys(clients)]
        self._pass(round, self.seconds + max(turns, default=0.0), [0] * len(turns))

    def _pass(self, round: int, seconds: float, staleness: list[int]) -> None:
        """Take down a round that ended so many seconds after training began."""
        self.seconds = seconds
        mean = sum(staleness) / max(1, len(staleness))
        self.rounds.append(RoundTime(round, seconds, len(staleness), mean, max(staleness, default=0)))

    @property
    def metrics(self) -> dict[str, float]:
        """The values that are logged at the end of a round."""
        return {"simulated_seconds": self.seconds}

    def state_dict(self) -> dict[str, Any]:
        """Return the rounds so far, as plain types."""
        return {"rounds": [tuple(one) for one in self.rounds]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`.

        Raises:
            ValueError: if it is damaged.
        """
        rounds = [RoundTime(*one) for one in state["rounds"]]
        if not all(conforms(one, RoundTime) for one in rounds):
            raise ValueError("its rounds have no times")
        self.rounds = rounds
        self.seconds = rounds[-1].seconds if rounds else 0.0
