"""The simulated clock of buffered asynchronous rounds (FedBuff, Nguyen et al. 2022, arXiv 2106.06639, Algorithm 1)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from fedgen.federated.simulated_time.simulated_clock import SimulatedClock, TurnSeconds
from fedgen.io.field_types import Between, conforms

Draw = Callable[[list[int], int, int, int], list[int]]
"""Draws from these clients at most so many, in a round of which it is this draw, from 0."""


class TurnUnderWay(NamedTuple):
    """A turn between its start and its arrival.

    Args:
        arrival: seconds since training began.
        client: by number.
        version: the round in which it has started: the server's model is that of its beginning.
    """

    arrival: Annotated[float, Between(0)]
    client: Annotated[int, Between(0)]
    version: Annotated[int, Between(0)]


class Buffer(NamedTuple):
    """A round: the updates that the server waits for until it takes a step.

    Args:
        seconds: when the last of them has arrived.
        arrived: in their order.
        under_way: turns that are left to later rounds, by arrival.
    """

    seconds: float
    arrived: tuple[TurnUnderWay, ...]
    under_way: tuple[TurnUnderWay, ...]


class BufferedClock(SimulatedClock):
    """Seconds since training began, where clients start one by one and the server steps with every K-th update.

    At any time at most `concurrency` clients are under way. Of one moment all arrivals come first, with the server's
    step where the buffer is full, and free places are filled afterwards: with clients that are equally fast and as many
    under way as the buffer takes, its rounds are those of FedAvg. A client starts again once the server has taken its
    update in, not before: it is in no buffer twice. Where nobody is under way and nobody can start, the server steps
    with the updates that are there.

    What a round does is planned when it is asked for, and depends on what was under way before it.

    Args:
        turn_seconds: of a client and the round in which its turn starts.
        clients: how many there are.
        concurrency: clients under way at once, at most.
        buffer_size: updates to a step of the server.
        draw: among free clients.

    Attributes:
        under_way: turns between the rounds that are over and those to come, by arrival.

    Examples:
        >>> from fedgen.federated.simulated_time.buffered_clock import BufferedClock
        >>> clock = BufferedClock(lambda client, round: [1.0, 3.0][client], 2, 2, 1, lambda free, *_: free)
        >>> for round in range(3):
        ...     found = clock.buffer_of(round)
        ...     clock.end_round(round, ())
        ...     print(found.seconds, [(turn.client, round - turn.version) for turn in found.arrived])
        1.0 [(0, 0)]
        2.0 [(0, 0)]
        3.0 [(0, 0)]
        >>> [(turn.client, turn.arrival) for turn in clock.under_way]  # arrived at the same moment, for the next step
        [(1, 3.0)]
    """

    def __init__(self, turn_seconds: TurnSeconds, clients: int, concurrency: int, buffer_size: int, draw: Draw) -> None:
        super().__init__(turn_seconds)
        self._clients, self._concurrency, self._buffer_size, self._draw = clients, concurrency, buffer_size, draw
        self.under_way: tuple[TurnUnderWay, ...] = ()
        self._next = 0
        self._planned: dict[int, Buffer] = {}

    def begin_at(self, round: int) -> None:
        """Hear which round is the first of this fit, from 0."""
        if round != self._next:
            self._next, self._planned = round, {}

    # ---- plans ----

    def buffer_of(self, round: int) -> Buffer:
        """Return what a round does, which is not over yet.

        Raises:
            ValueError: for one that is over.
        """
        if round < self._next:
            raise ValueError(f"round {round} is over; the next is {self._next}")
        for planned in range(self._next, round + 1):
            if planned not in self._planned:
                self._planned[planned] = self._plan(planned)
        return self._planned[round]

    def is_over(self, round: int) -> bool:
        """Whether a round is behind the clock."""
        return round < self._next

    def _plan(self, round: int) -> Buffer:
        before = self._planned.get(round - 1)
        now, under_way = (before.seconds, list(before.under_way)) if before else (self.seconds, list(self.under_way))
        arrived: list[TurnUnderWay] = []
        draws = 0
        while len(arrived) < self._buffer_size:
            if not under_way or under_way[0].arrival > now:
                under_way = sorted([*under_way, *self._starting(under_way, arrived, now, round, draws)])
                draws += 1
                if not under_way:
                    break
                now = under_way[0].arrival
            arrived.append(under_way.pop(0))
        return Buffer(now, tuple(arrived), tuple(under_way))

    def _starting(
        self, under_way: Sequence[TurnUnderWay], arrived: Sequence[TurnUnderWay], now: float, round: int, draws: int
    ) -> list[TurnUnderWay]:
        """Return the turns that start now, in the places that are free."""
        busy = {turn.client for turn in (*under_way, *arrived)}
        free = [client for client in range(self._clients) if client not in busy]
        places = self._concurrency - len(under_way)
        chosen = self._draw(free, places, round, draws) if free and places else []
        return [TurnUnderWay(now + self._turn_seconds(client, round), client, round) for client in chosen]

    # ---- time passes ----

    def end_round(self, round: int, clients: Iterable[int]) -> None:
        found = self.buffer_of(round)
        self._pass(round, found.seconds, [round - turn.version for turn in found.arrived])
        self.under_way, self._next = found.under_way, round + 1
        self._planned = {later: plan for later, plan in self._planned.items() if later > round}

    @property
    def metrics(self) -> dict[str, float]:
        return super().metrics | {"staleness": self.rounds[-1].staleness if self.rounds else 0.0}

    def state_dict(self) -> dict[str, Any]:
        """Return the rounds so far and who is under way, as plain types."""
        return super().state_dict() | {"under_way": [tuple(turn) for turn in self.under_way]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        under_way = [TurnUnderWay(*turn) for turn in state["under_way"]]
        if not all(conforms(turn, TurnUnderWay) and turn.client < self._clients for turn in under_way):
            raise ValueError("turns under way are not those of its clients")
        self.under_way, self._planned = tuple(sorted(under_way)), {}
        self._next = self.rounds[-1].round + 1 if self.rounds else 0
