"""The simulated clock of synchronous rounds: each lasts as long as the slowest client of its cohort."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.federated.client_state.exchange import Exchange
from fedgen.federated.run_files import RoundTime
from fedgen.io.field_types import Between, conforms
from fedgen.seeds import numpy_generator

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
        >>> from fedgen.federated.simulated_clock import SimulatedClock
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
        """Restore `state_dict`."""
        rounds = [RoundTime(*one) for one in state["rounds"]]
        if not all(conforms(one, RoundTime) for one in rounds):
            raise ValueError("its rounds have no times")
        self.rounds = rounds
        self.seconds = rounds[-1].seconds if rounds else 0.0


Draw = Callable[[list[int], int, int, int], list[int]]
"""Draws from these clients at most so many, in a round of which it is this draw, from 0."""


class TurnUnderWay(NamedTuple):
    """A turn between its start and its arrival."""

    arrival: Annotated[float, Between(0)]
    client: Annotated[int, Between(0)]
    version: Annotated[int, Between(0)]


class Buffer(NamedTuple):
    """A round: the updates that the server waits for until it takes a step."""

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
        >>> from fedgen.federated.simulated_clock import BufferedClock
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
        """Return what a round does, which is not over yet."""
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


Distribution = Literal["log-normal", "half-normal", "equal"]
HALF_NORMAL_MEDIAN = 0.6744897501960817  # of |z|, z standard normal


class ClientSpeeds:
    """Seconds that each client's turns take, on a clock that is simulated.

    A turn takes (bytes down + bytes up) / bandwidth + iterations * seconds of the client * jitter of the turn. The
    server takes no time. A client's speed is a function of (seed, client), a turn's jitter of (seed, round, client),
    where the round is the one in which the turn starts: the same clients are slow whatever strategy trains them.

    Nguyen et al. 2022 (FedBuff, arXiv 2106.06639) fit a half-normal distribution to durations in production.

    Args:
        seconds: of a local iteration: the median client's, or a list with each client's own.
        distribution: of clients' seconds: "log-normal", median * exp(spread * z); "half-normal", in proportion to |z|;
            "equal". A list needs none.
        spread: standard deviation of the logarithm, of log-normal speeds.
        jitter: likewise, of a turn's duration around its client's usual one; 0 for turns that all take as long.
        bandwidth: bytes a second of a client's line, each way; a list for each client's own; None counts no time.

    Raises:
        ValueError: for numbers out of range.

    Examples:
        >>> from fedgen.federated import ClientSpeeds
        >>> speeds = ClientSpeeds(seconds=[0.1, 0.5], bandwidth=1e6)
        >>> [speeds.turn_seconds(client, 0, seed=0, iterations=20, num_bytes=1_000_000) for client in (0, 1)]
        [3.0, 11.0]
    """

    def __init__(
        self,
        seconds: float | Sequence[float] = 1.0,
        distribution: Distribution = "log-normal",
        spread: float = 1.0,
        jitter: float = 0.0,
        bandwidth: float | Sequence[float] | None = None,
    ) -> None:
        _check_positive("seconds", seconds, "an iteration takes some time")
        if distribution not in ("log-normal", "half-normal", "equal"):
            raise ValueError(f"distribution={distribution!r}: choose 'log-normal', 'half-normal' or 'equal'")
        for name, value in (("spread", spread), ("jitter", jitter)):
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}={value}: a standard deviation is finite and not negative")
        if bandwidth is not None:
            _check_positive("bandwidth", bandwidth, "a line carries some bytes a second; None counts no time for them")
        self.seconds, self.distribution, self.spread, self.jitter = seconds, distribution, spread, jitter
        self.bandwidth = bandwidth

    def check_clients(self, count: int) -> None:
        """Refuse lists of another length than there are clients.

        Raises:
            MisconfigurationException: naming the list and both numbers.
        """
        for name, value in (("seconds", self.seconds), ("bandwidth", self.bandwidth)):
            if isinstance(value, Sequence) and len(value) != count:
                raise MisconfigurationException(
                    f"ClientSpeeds({name}=...) lists {len(value)} clients, and {count} train: give one number for each"
                    " of them, or a single one"
                )

    def iteration_seconds(self, client: int, seed: int) -> float:
        """Return the seconds that a local iteration usually takes a client.

        Args:
            client: by number.
            seed: base of all draws.
        """
        if isinstance(self.seconds, Sequence):
            return float(self.seconds[client])
        if self.distribution == "equal":
            return float(self.seconds)
        drawn = float(numpy_generator(seed, "speed", client).standard_normal())
        factor = (
            abs(drawn) / HALF_NORMAL_MEDIAN if self.distribution == "half-normal" else math.exp(self.spread * drawn)
        )
        return self.seconds * factor

    def of_turns(self, exchange: Exchange, iterations: int, seed: int) -> TurnSeconds:
        """Return how long turns take, with messages as large as they are known to be before the first round.

        Args:
            exchange: what travels.
            iterations: of a turn.
            seed: base of all draws.
        """
        num_bytes = exchange.num_bytes + exchange.num_bytes_down
        return lambda client, round: self.turn_seconds(client, round, seed, iterations, num_bytes)

    def turn_seconds(self, client: int, round: int, seed: int, iterations: int, num_bytes: int) -> float:
        """Return the seconds from a turn's start to the arrival of its update.

        Args:
            client: by number.
            round: in which the turn starts.
            seed: base of all draws.
            iterations: of the turn.
            num_bytes: that travel, both ways together.
        """
        found = iterations * self.iteration_seconds(client, seed)
        if self.jitter:
            drawn = float(numpy_generator(seed, "turn's time", round, client).standard_normal())
            found *= math.exp(self.jitter * drawn)
        if self.bandwidth is None:
            return found
        line = self.bandwidth[client] if isinstance(self.bandwidth, Sequence) else self.bandwidth
        return num_bytes / line + found


def _check_positive(name: str, given: float | Sequence[float], why: str) -> None:
    numbers = given if isinstance(given, Sequence) else [given]
    if not numbers or not all(0 < number < math.inf for number in numbers):
        raise ValueError(f"{name}={given}: {why}; give a positive, finite number, or a list of such")
