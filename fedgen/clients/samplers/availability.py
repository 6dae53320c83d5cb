"""Draws among the clients that are available in a round."""

from collections.abc import Callable, Sequence
from pathlib import Path

from fedgen.clients.samplers.sampler import CohortSampler, UniformSampler
from fedgen.clients.samplers.trace_file import Trace, read_trace
from fedgen.own_code import rank_zero_warn

MOST_NAMES = 10  # of clients in a warning

Availability = Callable[[int, int], bool]
"""Whether a client, by number, is available in a round, from 0."""


class AvailabilitySampler(CohortSampler):
    """Draws each round's cohort among the clients that are available in it.

    A round with fewer of them than `cohort_size` takes those; one with none passes without training: the server's model
    stays, and the next round begins. Clients that are available in no planned round are named when fitting starts. If
    all clients are always available, the cohorts are those without a trace.

    Args:
        trace: a file, `.csv` with lines client,first,last or `.json` with {"client": [round, [first, last], ...]};
            rounds count from 0, and both ends are included. Or a function of a client's number and a round, such as
            `Shifts`, which gives the same whenever it is asked.
        period: rounds after which the trace begins anew; None for one that does not.
        then: draws among those that are available; `UniformSampler` by default.

    Raises:
        ValueError: for a period below 1; when fitting starts, for a file that cannot be used, naming the line, or if
            nobody is ever available.

    Examples:
        >>> from fedgen.clients.samplers import AvailabilitySampler
        >>> sampler = AvailabilitySampler(lambda client, round: client != round, period=3)
        >>> sampler.start(["a", "b", "c"], [10, 10, 10], rounds=6)
        >>> [sampler.draw([10, 10, 10], None, seed=0, round=round) for round in range(4)]
        [[1, 2], [0, 2], [0, 1], [1, 2]]
    """

    def __init__(
        self, trace: str | Path | Availability, period: int | None = None, then: CohortSampler | None = None
    ) -> None:
        if period is not None and period < 1:
            raise ValueError(f"period={period}: a trace begins anew after 1 round or more; None if it does not")
        self.trace, self.period, self.then = trace, period, then or UniformSampler()
        self.weighs, self.draws_uniformly = self.then.weighs, self.then.draws_uniformly
        self._available: Availability | None = None if isinstance(trace, str | Path) else trace

    def start(self, names: Sequence[str], sizes: Sequence[int], rounds: int) -> None:
        self.then.start(names, sizes, rounds)
        if isinstance(self.trace, str | Path):
            self._available = read_trace(self.trace, names, self.period)
        never = [name for client, name in enumerate(names) if self._is_away(client, rounds)]
        if len(never) == len(names):
            raise ValueError(
                f"none of the {len(names)} clients is available in any planned round by {self.trace}: rounds count"
                " from 0; with period=... a short trace begins anew"
            )
        if never:
            shown = ", ".join(never[:MOST_NAMES]) + (", ..." if len(never) > MOST_NAMES else "")
            rank_zero_warn(f"{len(never)} of {len(names)} clients are available in no planned round: {shown}")

    def _is_away(self, client: int, rounds: int) -> bool:
        """Whether a client is available in no planned round, as far as that can be known."""
        lengths = [length for length in (rounds, self.period) if length is not None and length >= 0]
        if not lengths:  # rounds without end
            return isinstance(self._available, Trace) and not self._available.spans.get(client)
        return not any(self.is_available(client, round) for round in range(min(lengths)))

    def is_available(self, client: int, round: int) -> bool:
        """Whether a client is available in a round.

        Raises:
            RuntimeError: of a trace in a file, before fitting has started.
        """
        if self._available is None:
            raise RuntimeError(f"{self.trace} is read when fitting starts, with the clients' names: call start() first")
        return self._available(client, round if self.period is None else round % self.period)

    def available(self, clients: Sequence[int], round: int) -> list[int]:
        return [client for client in clients if self.is_available(client, round)]

    def draw(self, sizes: Sequence[int], size: int | None, seed: int, round: int) -> list[int]:
        present = self.available(range(len(sizes)), round)
        if not present:
            return []
        size = None if size is None else min(size, len(present))
        return [present[place] for place in self.then.draw([sizes[one] for one in present], size, seed, round)]
