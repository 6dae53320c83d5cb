"""Items of anybody's map-style data sets, read into batches here or by worker processes."""

import os
import signal
import threading
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from multiprocessing import connection, parent_process
from typing import Any, NamedTuple

import torch
import torch.multiprocessing
from torch.utils.data import Subset, TensorDataset

from fedgen.data.collate import collate_items, collate_levels, find_unlike
from fedgen.own_code import keep_lines
from fedgen.seeds import isolated, seed_item

ITEM = "item_of_fedgen"  # of an error in reading one: its position in all `Items`
AHEAD = 2  # batches for each worker that wait for it or for the model, as in torch's DataLoader


class ReadTask(NamedTuple):
    """A batch to be read: positions, and the seed of what each item's transforms draw."""

    positions: list[int]
    seeds: list[int]


@dataclass(frozen=True)
class Part:
    """One data set of several that stand one after the other.

    Args:
        dataset: map-style: `len` and items by position.
        collate: a list of its items to a batch.
        batch_size: its own, for data that come with a loader.
    """

    dataset: Any
    collate: Callable[[list[Any]], Any] = collate_items
    batch_size: int | None = None


class Items:
    """Data sets one after the other, from which batches are read.

    What an item's transforms draw from torch, NumPy and Python follows from the task's seed of it alone, whoever reads
    it; the process that trains has its own draws back after a batch. Generators that a data set keeps for itself are
    its own affair.

    Args:
        parts: the data sets.
        num_workers: processes that read; they start with the first batch and live until `close`. 0 reads in this one.
    """

    def __init__(self, parts: Sequence[Part], num_workers: int = 0) -> None:
        self.parts, self.num_workers = list(parts), num_workers
        lengths = [len(part.dataset) for part in self.parts]
        self._ends = list(accumulate(lengths))
        self._starts = [end - length for end, length in zip(self._ends, lengths)]
        self._pool: ProcessPoolExecutor | None = None

    def __len__(self) -> int:
        return self._ends[-1]

    @property
    def ahead(self) -> int:
        """Batches that are read before they are asked for."""
        return AHEAD * self.num_workers

    def part_of(self, position: int) -> Part:
        """The part that has a position."""
        return self.parts[bisect_right(self._ends, position)]

    def grouped(self, positions: Sequence[int]) -> list[tuple[Part, list[int]]]:
        """Runs of positions of one part, with the positions within it."""
        found: list[tuple[Part, list[int]]] = []
        before = -1
        for position in positions:
            place = bisect_right(self._ends, position)
            if place != before:
                found.append((self.parts[place], []))
            found[-1][1].append(position - self._starts[place])
            before = place
        return found

    def runs(self, positions: list[int]) -> list[list[int]]:
        """The positions in runs that one `collate` can put together."""
        if len(self.parts) == 1:
            return [positions]
        found: list[list[int]] = []
        before: Any = None
        for position in positions:
            collate = self.part_of(position).collate
            if not found or collate != before:
                found.append([])
            found[-1].append(position)
            before = collate
        return found

    def read(self, task: ReadTask) -> Any:
        """The batch of a task, read here; moves the global generators.

        Raises:
            ValueError: for a batch of parts that are collated differently, or of items of several shapes.
        """
        places = [bisect_right(self._ends, position) for position in task.positions]
        own = [self.parts[place] for place in dict.fromkeys(places)]
        if any(part.collate != own[0].collate for part in own):
            raise ValueError(
                "a batch of several clients' items, whose loaders have different collate_fn; give all one, or train"
                " under FedAvgStrategy, where a batch is of one client"
            )
        if len(own) == 1 and isinstance(own[0].dataset, TensorDataset) and own[0].collate is collate_items:
            start = self._starts[places[0]]
            return tuple(tensor[[at - start for at in task.positions]] for tensor in own[0].dataset.tensors)
        found = [self._read_item(position, seed) for position, seed in zip(task.positions, task.seeds)]
        try:
            return own[0].collate(found)
        except ValueError as error:
            unlike = find_unlike(found) if own[0].collate in (collate_items, collate_levels) else None
            if unlike is None:
                raise
            first, odd = task.positions[0], task.positions[unlike[0]]
            told = ValueError(f"{self._name(first)} and {self._name(odd)} have {unlike[1]}")
            setattr(told, ITEM, odd)
            raise told from error

    def _read_item(self, position: int, seed: int) -> Any:
        """One item, its draws seeded; an error of the data set's own code gets a note with the item's position."""
        seed_item(seed)
        place = bisect_right(self._ends, position)
        try:
            return self.parts[place].dataset[position - self._starts[place]]
        except Exception as error:
            error.add_note(f"{self._name(position)} was being read")
            setattr(error, ITEM, position)
            raise

    def _name(self, position: int) -> str:
        """An item as its data set counts it, whatever part of that is used."""
        place = bisect_right(self._ends, position)
        dataset: Any = self.parts[place].dataset
        position -= self._starts[place]
        while isinstance(dataset, Subset):
            dataset, position = dataset.dataset, dataset.indices[position]
        return f"item {position} of {type(dataset).__name__}"

    def start(self, task: ReadTask) -> "Future[Any] | _Later":
        """Begins to read a batch, where there are workers; otherwise it is read when its result is asked for."""
        if not self.num_workers:
            return _Later(partial(self.read_aside, task))
        if self._pool is None:
            self._pool = self._start_workers()
        return self._pool.submit(_read_in_worker, task)

    def stream(self, tasks: Iterable[ReadTask]) -> Iterator[Any]:
        """The batches of these tasks, in their order, read ahead."""
        reading = Stream(self, tasks)
        try:
            while reading.fill(max(1, self.ahead)):
                yield reading.take()
        finally:
            reading.close()

    def close(self) -> None:
        """Ends the workers; others start with the next batch."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def read_aside(self, task: ReadTask) -> Any:
        """The batch of a task, read here; the global generators are as they were."""
        with isolated(devices=False):
            return self.read(task)

    def _start_workers(self) -> ProcessPoolExecutor:
        context = torch.multiprocessing.get_context()
        pool = ProcessPoolExecutor(self.num_workers, context, _begin_worker, (self,))
        weakref.finalize(self, pool.shutdown, wait=False, cancel_futures=True)
        return pool

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}  # processes are nobody else's


class Stream:
    """Batches of tasks, some of which are being read before they are asked for.

    Args:
        items: what is read.
        tasks: as many as will do; no more are drawn than are begun.
    """

    def __init__(self, items: Items, tasks: Iterable[ReadTask]) -> None:
        self._items, self._tasks = items, iter(tasks)
        self._begun: deque[Future[Any] | _Later] = deque()

    def fill(self, count: int) -> int:
        """Begins tasks until so many wait to be taken, or none is left; how many wait."""
        while len(self._begun) < count:
            task = next(self._tasks, None)
            if task is None:
                break
            self._begun.append(self._items.start(task))
        return len(self._begun)

    def take(self) -> Any:
        """The next batch, of those begun.

        Raises:
            RuntimeError: if a worker process died.
        """
        try:
            return self._begun.popleft().result()
        except BrokenProcessPool as error:
            self._items.close()
            raise RuntimeError(
                f"one of the num_workers={self._items.num_workers} processes that read data died, most often for lack"
                " of memory: use fewer workers or smaller batches, or num_workers=0 to see an error of the data set"
            ) from error

    def close(self) -> None:
        """Leaves what was begun and not taken."""
        for one in self._begun:
            one.cancel()
        self._begun.clear()


class _Later:
    """A value that is worked out when it is asked for, as a future that nobody runs."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.result = work

    def cancel(self) -> bool:
        return True


_of_worker: Items | None = None  # a worker process's own


def _begin_worker(items: Items) -> None:
    """Prepares a worker process: one thread, signals left to the parent, an end when the parent ends."""
    global _of_worker
    _of_worker = items
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears of Ctrl-C, too, and ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _read_in_worker(task: ReadTask) -> Any:
    assert _of_worker is not None
    try:
        return _of_worker.read(task)
    except Exception as error:
        keep_lines(error)
        raise
