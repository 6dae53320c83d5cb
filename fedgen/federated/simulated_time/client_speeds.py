"""Seconds that clients' turns take in a simulation: fast and slow machines, and the lines that messages travel on."""

import math
from collections.abc import Sequence
from typing import Literal

from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.federated.client_state.exchange import Exchange
from fedgen.federated.simulated_time.simulated_clock import TurnSeconds
from fedgen.seeds import numpy_generator

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
