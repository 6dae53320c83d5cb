"""Samplers of cohorts: uniform, by size, and among the clients that are available."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.foreign_text import is_number
from fedgen.io.field_types import is_count
from fedgen.io.files import read_csv, read_json
from fedgen.own_code import rank_zero_warn
from fedgen.seeds import numpy_generator


def sample_cohort(num_clients: int, size: int | None, seed: int, round: int) -> list[int]:
    """The round's clients, sorted: all of them if size is None, else `size` drawn uniformly without replacement.

    A function of (seed, round) alone, so a resumed run draws the same cohorts.

    Raises:
        ValueError: if size is not in 1..num_clients.

    Examples:
        >>> from fedgen.clients import sample_cohort
        >>> len(sample_cohort(num_clients=10, size=3, seed=0, round=7))
        3
        >>> sample_cohort(num_clients=3, size=None, seed=0, round=0)
        [0, 1, 2]
    """
    if size is None:
        return list(range(num_clients))
    if not 1 <= size <= num_clients:
        raise ValueError(f"cohort_size={size}, but there are {num_clients} clients; choose 1 to {num_clients}, or null")
    draws = numpy_generator(seed, "cohort", round)
    return sorted(int(client) for client in draws.choice(np.arange(num_clients), size, replace=False))


class CohortSampler(ABC):
    """Draws the clients of each round.

    What `draw` gives depends on its arguments and on those of `start` alone, so that a resumed run, and each of several
    processes, draws the same cohorts.

    Attributes:
        weighs: True if drawing itself gives clients their weights, so that those that are drawn count equally.
        draws_uniformly: True if all `available` clients are equally likely, and drawn without replacement.

    Examples:
        >>> from fedgen.clients.samplers import CohortSampler
        >>> class Alternating(CohortSampler):
        ...     def draw(self, sizes, size, seed, round):
        ...         return list(range(round % 2, len(sizes), 2))
        >>> Alternating().draw([10, 10, 10, 10], None, seed=0, round=1)
        [1, 3]
    """

    weighs = False
    draws_uniformly = False

    def start(self, names: Sequence[str], sizes: Sequence[int], rounds: int) -> None:  # noqa: B027 - most need nothing
        """Prepares for the clients; called before the first round.

        Args:
            names: of all clients that train.
            sizes: their numbers of training examples.
            rounds: planned; -1 without end.

        Raises:
            ValueError: for clients among which it cannot draw.
        """

    def available(self, clients: Sequence[int], round: int) -> list[int]:
        """Return those of the clients, by number, that may be drawn for a round, from 0; by default all."""
        return list(clients)

    @abstractmethod
    def draw(self, sizes: Sequence[int], size: int | None, seed: int, round: int) -> list[int]:
        """Return the round's clients by number, rising; a client that counts n times is listed n times.

        If it is empty, the round passes without training.

        Args:
            sizes: training examples of every client.
            size: `cohort_size`; None for all.
            seed: base of all draws.
            round: from 0.
        """


class UniformSampler(CohortSampler):
    """Draws uniformly without replacement, as a strategy does without a sampler.

    Examples:
        >>> from fedgen.clients.samplers import UniformSampler
        >>> UniformSampler().draw([5, 5, 90], None, seed=0, round=0)
        [0, 1, 2]
    """

    draws_uniformly = True

    def draw(self, sizes: Sequence[int], size: int | None, seed: int, round: int) -> list[int]:
        return sample_cohort(len(sizes), size, seed, round)


class CohortDraws:
    """The clients of each round, drawn uniformly or by a sampler."""

    def __init__(self, size: int | None, sampler: CohortSampler | None) -> None:
        self._size, self._sampler = size, sampler
        self._examples: list[int] = []  # of each client

    def start(self, clients: Sequence[Any] | None, rounds: int) -> None:
        if self._sampler is None:
            return
        if not clients:
            raise MisconfigurationException(
                f"{type(self._sampler).__name__} draws among clients, and the trainer's data module names none; pass a"
                " FederatedDataModule to fit"
            )
        self._examples = [len(client.train) for client in clients]
        self._sampler.start([str(client.name) for client in clients], self._examples, rounds)

    def draw(self, num_clients: int, seed: int, round: int) -> list[int]:
        if self._sampler is None:
            return sample_cohort(num_clients, self._size, seed, round)
        return self._sampler.draw(self._examples, self._size, seed, round)

    def sizes(self, clients: Sequence[Any] | None) -> tuple[int, int]:
        """The number of clients, as far as the data name them, and of those that a round draws."""
        number = len(clients or ()) or self._size or 1
        return number, min(self._size or number, number)


class SizeSampler(CohortSampler):
    """Draws `cohort_size` times, with replacement, client k with probability n_k / n (scheme I of the paper).

    Those that are drawn count equally, as often as they are drawn: with p_k = n_k / n and K draws the server's model is
    sum_k (times_k / K) w_k, whose expectation over the draws is sum_k p_k w_k, what FedAvg gives if all take part. A
    uniform draw weighted by n_k has another expectation: its weights are normalised within the cohort. A client that
    is drawn twice takes one turn, so that a round has `cohort_size` turns at most.

    It takes `client_weights="uniform"`. Without a `cohort_size` there are as many draws as clients.

    Examples:
        >>> from fedgen.clients.samplers import SizeSampler
        >>> drawn = [SizeSampler().draw([1, 1, 98], 2, seed=0, round=round) for round in range(100)]
        >>> sum(cohort == [2, 2] for cohort in drawn) > 90
        True
    """

    weighs = True

    def draw(self, sizes: Sequence[int], size: int | None, seed: int, round: int) -> list[int]:
        chances = np.asarray(sizes, dtype=np.float64)
        draws = numpy_generator(seed, "cohort by size", round)
        found = draws.choice(len(sizes), len(sizes) if size is None else size, p=chances / chances.sum())
        return sorted(int(client) for client in found)


class Shifts:
    """Clients available for some rounds of each period, one after the other, as devices of other time zones.

    Client k is available in a round r if (r + every k) modulo `period` is below `on`.

    Args:
        period: rounds after which the pattern begins anew.
        on: of them, in which a client is available.
        every: rounds between the shifts of one client and the next.

    Raises:
        ValueError: for numbers out of range.

    Examples:
        >>> from fedgen.clients.samplers import Shifts
        >>> day = Shifts(period=4, on=2)
        >>> [[client for client in range(4) if day(client, round)] for round in range(4)]
        [[0, 1], [0, 3], [2, 3], [1, 2]]
    """

    def __init__(self, period: int, on: int, every: int = 1) -> None:
        if not 1 <= on <= period:
            raise ValueError(f"on={on}, period={period}: a client is available in 1 to {period} rounds of each period")
        self.period, self.on, self.every = period, on, every

    def __call__(self, client: int, round: int) -> bool:
        return (round + self.every * client) % self.period < self.on


MOST_NAMES = 10  # of clients in a warning

Availability = Callable[[int, int], bool]  # of a client's number and a round, from 0


class AvailabilitySampler(CohortSampler):
    """Draws each round's cohort among the clients that are available in it.

    A round with fewer of them than `cohort_size` takes those; one with none passes without training: the server's model
    stays, and the next round begins. Clients that are available in no planned round are named when fitting starts. If
    all clients are always available, the cohorts are those without a trace.

    Args:
        trace: a file, `.csv` with lines client,first,last or `.json` with {"client": [round, [first, last], ...]};
            rounds count from 0, and both ends are included. Or a function of a client's number and a round, such as
            `Shifts`, that always gives the same for the same two.
        period: rounds after which the trace begins anew; None for one that does not.
        then: draws among those that are available; `UniformSampler` by default.

    Raises:
        ValueError: for a period below 1; when fitting starts, for a file that cannot be used, naming the line, or if
            no client is ever available.

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
        """True for a client known to be available in no planned round."""
        lengths = [length for length in (rounds, self.period) if length is not None and length >= 0]
        if not lengths:  # rounds without end
            return isinstance(self._available, Trace) and client not in self._available
        return not any(self.is_available(client, round) for round in range(min(lengths)))

    def is_available(self, client: int, round: int) -> bool:
        """True if a client is available in a round; RuntimeError for a trace in a file before fitting has started."""
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


COLUMNS = ("client", "first", "last")


class Trace(dict[int, list[tuple[int, int]]]):
    """The first and last rounds, both included, of each time a client is available, by its number."""

    def __call__(self, client: int, round: int) -> bool:
        return any(first <= round <= last for first, last in self.get(client, ()))


def read_trace(path: str | Path, names: Sequence[str], period: int | None) -> Trace:
    kinds = {".csv": _rows_of_csv, ".json": _rows_of_json}
    if (read := kinds.get(Path(path).suffix.lower())) is None:
        raise ValueError(f"{path}: a trace of availability is a .csv or a .json file")
    numbers = {name: client for client, name in reversed(list(enumerate(names)))}
    trace = Trace()
    for name, first, last, place in read(path):
        client = _number_of(name, names, numbers, place)
        if first > last:
            raise ValueError(f"{place}: the last round, {last}, comes before the first, {first}; swap them")
        if period is not None and last >= period:
            raise ValueError(
                f"{place}: round {last} lies beyond period={period}, after which the trace begins anew; rounds of a"
                f" period count from 0 to {period - 1}"
            )
        trace.setdefault(client, []).append((first, last))
    return trace


def _rows_of_csv(path: str | Path) -> Iterator[tuple[str, int, int, str]]:
    header, rows = read_csv(path)
    if missing := [name for name in COLUMNS if name not in header]:
        raise ValueError(
            f"{path} has the columns {', '.join(header) or 'of an empty file'} and lacks {', '.join(missing)}: its"
            f" first line is {','.join(COLUMNS)}, and below it each line has a client and its first and last round"
        )
    for line, row in rows:
        place = f"{path}, line {line}"
        for name in COLUMNS[1:]:
            if not is_number(row[name].strip()):
                raise ValueError(
                    f"{place}: {name} is {row[name][:40]!r}, which is not a round; rounds are whole numbers from 0"
                )
        yield row["client"], int(row["first"]), int(row["last"]), place


def _rows_of_json(path: str | Path) -> Iterator[tuple[str, int, int, str]]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(f'{path} is not an object of clients; write {{"client": [0, [4, 9]]}}: round 0, rounds 4 to 9')
    for client, entries in found.items():
        place = f"{path}, client {client!r}"
        if not isinstance(entries, list):
            raise ValueError(f"{place}: its rounds are {entries!r}; give a list of rounds and of pairs [first, last]")
        for entry in entries:
            ends = entry if isinstance(entry, list) else [entry, entry]
            if len(ends) != 2 or not all(map(is_count, ends)):
                raise ValueError(f"{place}: {entry!r} is neither a round nor a pair [first, last]; rounds count from 0")
            yield client, ends[0], ends[1], place


def _number_of(client: str, names: Sequence[str], numbers: Mapping[str, int], place: str) -> int:
    if client in numbers:
        return numbers[client]
    if is_number(client) and int(client) < len(names):
        return int(client)
    known = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
    raise ValueError(
        f"{place}: {client[:80]!r} is none of the {len(names)} clients that train ({known});"
        f" name a client as the data do, or by its number, 0 to {len(names) - 1}"
    )
