"""Simulated clocks of synchronous and of buffered rounds, and the speeds of clients."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.federated.client_state.exchange import Exchange
from fedgen.federated.run_files import RoundTime
from fedgen.io.field_types import Between, conforms
from fedgen.seeds import numpy_generator

TurnSeconds = Callable[[int, int], float]  # of a client's turn that starts in a round
Draw = Callable[[list[int], int, int, int], list[int]]  # of free clients, by places, round and number of the draw


class SimulatedClock:
    """Seconds since training began, where a round ends when the slowest client of its cohort has arrived."""

    def __init__(self, turn_seconds: TurnSeconds) -> None:
        self._turn_seconds = turn_seconds
        self.seconds = 0.0
        self.rounds: list[RoundTime] = []

    def end_round(self, round: int, clients: Iterable[int]) -> None:
        """Let the time of a round pass; a client that was left out has taken its time, too."""
        turns = [self._turn_seconds(client, round) for client in dict.fromkeys(clients)]
        self._add_round(round, self.seconds + max(turns, default=0.0), [0] * len(turns))

    def _add_round(self, round: int, seconds: float, staleness: list[int]) -> None:
        self.seconds = seconds
        mean = sum(staleness) / max(1, len(staleness))
        self.rounds.append(RoundTime(round, seconds, len(staleness), mean, max(staleness, default=0)))

    @property
    def metrics(self) -> dict[str, float]:
        return {"simulated_seconds": self.seconds}

    def state_dict(self) -> dict[str, Any]:
        return {"rounds": [tuple(one) for one in self.rounds]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        rounds = [RoundTime(*one) for one in state["rounds"]]
        if not all(conforms(one, RoundTime) for one in rounds):
            raise ValueError("its rounds have no times")
        self.rounds = rounds
        self.seconds = rounds[-1].seconds if rounds else 0.0


class TurnUnderWay(NamedTuple):
    arrival: Annotated[float, Between(0)]
    client: Annotated[int, Between(0)]
    version: Annotated[int, Between(0)]


class Buffer(NamedTuple):
    """A round: the updates that the server waits for before its step."""

    seconds: float
    arrived: tuple[TurnUnderWay, ...]
    under_way: tuple[TurnUnderWay, ...]


class BufferedClock(SimulatedClock):
    """Seconds since training began, where clients start one by one and the server steps with every K-th update."""

    def __init__(self, turn_seconds: TurnSeconds, clients: int, concurrency: int, buffer_size: int, draw: Draw) -> None:
        super().__init__(turn_seconds)
        self._clients, self._concurrency, self._buffer_size, self._draw = clients, concurrency, buffer_size, draw
        self.under_way: tuple[TurnUnderWay, ...] = ()  # after the last whole round, by arrival
        self.next = 0  # the first round that is not over
        self._planned: dict[int, Buffer] = {}

    def begin_at(self, round: int) -> None:
        """Take a round, from 0, as the first of this fit."""
        if round != self.next:
            self.next, self._planned = round, {}

    def buffer_of(self, round: int) -> Buffer:
        """Return the plan of a round that is not over yet; it depends on what was under way before."""
        if round < self.next:
            raise ValueError(f"round {round} is over; the next is {self.next}")
        for planned in range(self.next, round + 1):
            if planned not in self._planned:
                self._planned[planned] = self._plan(planned)
        return self._planned[round]

    def _plan(self, round: int) -> Buffer:
        # At each moment arrivals come first, with the server's step, and free places are filled then: with equally fast
        # clients, as many as the buffer takes, rounds are those of FedAvg. No client is in a buffer twice. If no client
        # is under way or can start, the server steps with the updates that have arrived.
        before = self._planned.get(round - 1)
        now, under_way = (before.seconds, list(before.under_way)) if before else (self.seconds, list(self.under_way))
        arrived: list[TurnUnderWay] = []
        draws = 0
        while len(arrived) < self._buffer_size:
            if not under_way or under_way[0].arrival > now:
                busy = {turn.client for turn in (*under_way, *arrived)}
                free = [client for client in range(self._clients) if client not in busy]
                places = self._concurrency - len(under_way)
                chosen = self._draw(free, places, round, draws) if free and places else []
                started = [TurnUnderWay(now + self._turn_seconds(client, round), client, round) for client in chosen]
                under_way = sorted([*under_way, *started])
                draws += 1
                if not under_way:
                    break
                now = under_way[0].arrival
            arrived.append(under_way.pop(0))
        return Buffer(now, tuple(arrived), tuple(under_way))

    def end_round(self, round: int, clients: Iterable[int]) -> None:
        found = self.buffer_of(round)
        self._add_round(round, found.seconds, [round - turn.version for turn in found.arrived])
        self.under_way, self.next = found.under_way, round + 1
        self._planned = {later: plan for later, plan in self._planned.items() if later > round}

    @property
    def metrics(self) -> dict[str, float]:
        return super().metrics | {"staleness": self.rounds[-1].staleness if self.rounds else 0.0}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"under_way": [tuple(turn) for turn in self.under_way]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        under_way = [TurnUnderWay(*turn) for turn in state["under_way"]]
        if not all(conforms(turn, TurnUnderWay) and turn.client < self._clients for turn in under_way):
            raise ValueError("turns under way are not those of its clients")
        self.under_way, self._planned = tuple(sorted(under_way)), {}
        self.next = self.rounds[-1].round + 1 if self.rounds else 0


Distribution = Literal["log-normal", "half-normal", "equal"]
HALF_NORMAL_MEDIAN = 0.6744897501960817  # of |z|, z standard normal


class ClientSpeeds:
    """Seconds that each client's turns take, on a clock that is simulated.

    A turn takes (bytes down + bytes up) / bandwidth + iterations * seconds of the client * jitter of the turn; the
    server takes no time. A client's speed is a function of (seed, client), a turn's jitter of (seed, round of its
    start, client), so the same clients are slow under every strategy. Nguyen et al. 2022 (FedBuff, arXiv 2106.06639)
    fit a half-normal distribution to durations in production.

    Args:
        seconds: of a local iteration: the median client's, or a list with each client's own.
        distribution: of clients' seconds: "log-normal", median * exp(spread * z); "half-normal", in proportion to |z|;
            "equal". Not used with a list.
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
        """Raise MisconfigurationException for lists that are not of `count` clients."""
        for name, value in (("seconds", self.seconds), ("bandwidth", self.bandwidth)):
            if isinstance(value, Sequence) and len(value) != count:
                raise MisconfigurationException(
                    f"ClientSpeeds({name}=...) lists {len(value)} clients, and {count} train: give {count}, or one"
                )

    def iteration_seconds(self, client: int, seed: int) -> float:
        """Return the seconds that a local iteration usually takes a client; all draws come from the seed."""
        if isinstance(self.seconds, Sequence):
            return float(self.seconds[client])
        if self.distribution == "equal":
            return float(self.seconds)
        drawn = float(numpy_generator(seed, "speed", client).standard_normal())
        if self.distribution == "half-normal":
            return self.seconds * (abs(drawn) / HALF_NORMAL_MEDIAN)
        return self.seconds * math.exp(self.spread * drawn)

    def of_turns(self, exchange: Exchange, iterations: int, seed: int) -> TurnSeconds:
        """Return the seconds of turns, with messages as large as they are known to be before the first round."""
        num_bytes = exchange.num_bytes + exchange.num_bytes_down
        return lambda client, round: self.turn_seconds(client, round, seed, iterations, num_bytes)

    def turn_seconds(self, client: int, round: int, seed: int, iterations: int, num_bytes: int) -> float:
        """Return the seconds from a turn's start in a round to the arrival of its update, of `num_bytes` both ways."""
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
