"""Items of anybody's map-style data sets, read into batches here or by worker processes; images found in batches."""

import os
import signal
import threading
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import accumulate, groupby
from multiprocessing import connection, parent_process
from typing import Any, NamedTuple

import torch
import torch.multiprocessing
from torch import Tensor
from torch.utils.data import Subset, TensorDataset, default_collate

from fedgen.data.formats.image_files import eight_bits, to_tensor
from fedgen.images import from_uint8
from fedgen.own_code import keep_lines
from fedgen.seeds import isolated, seed_item

ITEM = "item_of_fedgen"  # of an error in reading one: its position in all `Items`
AHEAD = 2  # batches for each worker that wait for it or for the model, as in torch's DataLoader
IMAGE_KEYS = ("image", "images", "img", "pixel_values", "x")

ImagesOf = Callable[..., Any]
"""A batch to its images or points."""


def collate_items(items: list[Any]) -> Any:
    """Torch's `default_collate`, with Pillow images as float32 [B, C, H, W] in [-1, 1]; ValueError for misfits."""
    try:
        return default_collate([without_pillow(item) for item in items] if any(map(holds_pillow, items)) else items)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"{len(items)} items cannot be put together into a batch ({error}); give a collate_fn, a function from a"
            " list of items to a batch"
        ) from error


def find_unlike(items: list[Any]) -> tuple[int, str] | None:
    """The place of the first item of other shapes than item 0, and what to do about it; None where all are alike."""
    shapes = [_shapes(without_pillow(item)) for item in items]
    for place, own in enumerate(shapes):
        for first, other in zip(shapes[0], own) if len(own) == len(shapes[0]) else ():
            if first != other:
                remedy = "resize images to one size: size= of fedgen's data sets, torchvision's v2.Resize in others"
                if first[1:] == other[1:] and {first[0], other[0]} <= {1, 2, 3, 4}:
                    remedy = "convert images to one number of channels, as image.convert('RGB') does"
                if len(first) < 2:
                    remedy = "give a collate_fn, a function from a list of items to a batch, that pads them"
                return place, f"the shapes {list(first)} and {list(other)}; {remedy}"
    return None


def _shapes(item: Any) -> list[tuple[int, ...]]:
    if isinstance(item, (Mapping, tuple, list)):
        return [shape for one in (item.values() if isinstance(item, Mapping) else item) for shape in _shapes(one)]
    return [tuple(item.shape)] if hasattr(item, "shape") else []


def holds_pillow(item: Any) -> bool:
    """Whether an item is a Pillow image, or a tuple, list or dictionary with one."""
    if isinstance(item, Mapping):
        return any(map(holds_pillow, item.values()))
    if isinstance(item, (tuple, list)):
        return any(map(holds_pillow, item))
    return hasattr(item, "getbands") and hasattr(item, "convert")


def without_pillow(item: Any) -> Any:
    """The item with its Pillow images as float32 [C, H, W] in [-1, 1], grey ones with a channel, others RGB."""
    if isinstance(item, Mapping):
        return {key: without_pillow(value) for key, value in item.items()}
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*map(without_pillow, item))
    if isinstance(item, (tuple, list)):
        return type(item)(map(without_pillow, item))
    return from_uint8(to_tensor(eight_bits(item))) if holds_pillow(item) else item


def collate_levels(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """(images float32 [B, C, H, W] in [-1, 1], labels int64 [B]) of (uint8 [C, H, W], label), all of one shape."""
    images, labels = collate_items(items)
    return from_uint8(images), labels


def first_images(batch: Any) -> Tensor:
    """The batch itself, its first tensor, its only entry, or that of `IMAGE_KEYS`; ValueError if there is none."""
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, Mapping):
        tensors = {key: value for key, value in batch.items() if isinstance(value, Tensor)}
        key = next((key for key in IMAGE_KEYS if key in tensors), None)
        if key is not None or len(tensors) == 1:
            return tensors[key] if key is not None else next(iter(tensors.values()))
        raise ValueError(f"a batch is a dictionary with the entries {', '.join(map(str, batch))}")
    if isinstance(batch, (tuple, list)):
        found = next((value for value in batch if isinstance(value, Tensor)), None)
        if found is not None:
            return found
    raise ValueError(f"a batch is a {type(batch).__name__} without tensors")


class ReadTask(NamedTuple):
    """A batch to be read: positions, and the seed of what each item's transforms draw."""

    positions: list[int]
    seeds: list[int]


@dataclass(frozen=True)
class Part:
    """One data set of several that stand one after the other; `batch_size` is its loader's, if it has one."""

    dataset: Any
    collate: Callable[[list[Any]], Any] = collate_items
    batch_size: int | None = None


class Items:
    """Data sets one after the other, from which batches are read by `num_workers` processes or (0) by this one."""

    # What an item's transforms draw follows from the task's seed of it alone, whoever reads it; the process that trains
    # has its own draws back after a batch. Workers start with the first batch and live until `close`.

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
        return AHEAD * self.num_workers

    def part_of(self, position: int) -> Part:
        return self.grouped([position])[0][0]

    def grouped(self, positions: Sequence[int]) -> list[tuple[Part, list[int]]]:
        """Runs of positions of one part, with the positions within it."""
        runs = groupby(positions, lambda position: bisect_right(self._ends, position))
        return [(self.parts[place], [position - self._starts[place] for position in run]) for place, run in runs]

    def runs(self, positions: list[int]) -> list[list[int]]:
        """The positions in runs that one `collate` can put together."""
        if len(self.parts) == 1:
            return [positions]
        return [list(run) for _, run in groupby(positions, lambda position: self.part_of(position).collate)]

    def read(self, task: ReadTask) -> Any:
        """The batch of a task, read here; moves the global generators. ValueError for items that make no batch."""
        runs = self.grouped(task.positions)
        dataset, collate = runs[0][0].dataset, runs[0][0].collate
        if any(part.collate != collate for part, _ in runs):
            raise ValueError(
                "a batch of several clients' items, whose loaders have different collate_fn; give all one, or train"
                " under FedAvgStrategy, where a batch is of one client"
            )
        if len(runs) == 1 and isinstance(dataset, TensorDataset) and collate is collate_items:
            return tuple(tensor[runs[0][1]] for tensor in dataset.tensors)
        found = [self._read_item(position, seed) for position, seed in zip(task.positions, task.seeds)]
        try:
            return collate(found)
        except ValueError as error:
            unlike = find_unlike(found) if collate in (collate_items, collate_levels) else None
            if unlike is None:
                raise
            first, odd = task.positions[0], task.positions[unlike[0]]
            told = ValueError(f"{self._name(first)} and {self._name(odd)} have {unlike[1]}")
            setattr(told, ITEM, odd)
            raise told from error

    def _read_item(self, position: int, seed: int) -> Any:
        """One item, its draws seeded; an error of the data set's own code gets a note with the item's position."""
        seed_item(seed)
        [(part, [own])] = self.grouped([position])
        try:
            return part.dataset[own]
        except Exception as error:
            error.add_note(f"{self._name(position)} was being read")
            setattr(error, ITEM, position)
            raise

    def _name(self, position: int) -> str:
        """An item as its data set counts it, whatever part of that is used."""
        [(part, [position])] = self.grouped([position])
        dataset: Any = part.dataset
        while isinstance(dataset, Subset):
            dataset, position = dataset.dataset, dataset.indices[position]
        return f"item {position} of {type(dataset).__name__}"

    def start(self, task: ReadTask) -> Future[Any] | ReadTask:
        """Begins to read a batch where there are workers; otherwise the task itself, to be read when it is needed."""
        if not self.num_workers:
            return task
        if self._pool is None:
            context = torch.multiprocessing.get_context()
            self._pool = ProcessPoolExecutor(self.num_workers, context, _begin_worker, (self,))
            weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        return self._pool.submit(_read_in_worker, task)

    def stream(self, tasks: Iterable[ReadTask]) -> Iterator[Any]:
        reading = Stream(self, tasks)
        try:
            while reading.fill(max(1, self.ahead)):
                yield reading.take()
        finally:
            reading.close()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def read_aside(self, task: ReadTask) -> Any:
        """The batch of a task, read here; the global generators are as they were."""
        with isolated(devices=False):
            return self.read(task)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None}  # processes are nobody else's


class Stream:
    """Batches of tasks, some read before they are asked for; no more tasks are drawn than are begun."""

    def __init__(self, items: Items, tasks: Iterable[ReadTask]) -> None:
        self._items, self._tasks = items, iter(tasks)
        self._begun: deque[Future[Any] | ReadTask] = deque()

    def fill(self, count: int) -> int:
        while len(self._begun) < count:
            task = next(self._tasks, None)
            if task is None:
                break
            self._begun.append(self._items.start(task))
        return len(self._begun)

    def take(self) -> Any:
        """The next batch, of those begun; RuntimeError if a worker process died."""
        begun = self._begun.popleft()
        try:
            return self._items.read_aside(begun) if isinstance(begun, ReadTask) else begun.result()
        except BrokenProcessPool as error:
            self._items.close()
            raise RuntimeError(
                f"one of the num_workers={self._items.num_workers} processes that read data died, most often for lack"
                " of memory: use fewer workers or smaller batches, or num_workers=0 to see an error of the data set"
            ) from error

    def close(self) -> None:
        for one in self._begun:
            if isinstance(one, Future):
                one.cancel()
        self._begun.clear()


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
    if (parent := parent_process()) is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _read_in_worker(task: ReadTask) -> Any:
    assert _of_worker is not None
    try:
        return _of_worker.read(task)
    except Exception as error:
        keep_lines(error)
        raise
