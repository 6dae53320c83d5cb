"""Several processes work on one federation: which rank does what, and what ranks tell each other."""

import atexit
import pickle
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Item = TypeVar("Item")
Result = TypeVar("Result")
Name = TypeVar("Name", bound=Hashable)
SHORT = 4096  # bytes of a value that ranks exchange at once
_no = bool  # as a function without arguments
_together: ContextVar[bool] = ContextVar("together", default=False)


class LostRankError(ConnectionError):
    """Another process of the job has ended, or cannot be reached."""


@contextmanager
def heard() -> Iterator[None]:
    """Turns what torch.distributed raises where a rank does not answer into LostRankError."""
    try:
        yield
    except RuntimeError as error:
        raise LostRankError(
            f"another process of this job has ended or cannot be reached ({str(error).splitlines()[0]}); see what it"
            " said last. The same command resumes from the last checkpoint, on any number of processes"
        ) from error


class Ranks:
    """The `size` processes of a job; each method is a collective, and raises LostRankError where one has ended."""

    def __init__(self) -> None:
        started = dist.is_available() and dist.is_initialized()
        self.size: int = dist.get_world_size() if started else 1
        self.rank: int = dist.get_rank() if started else 0

    @heard()
    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in order of ranks; plain types and tensors on the CPU."""
        if self.size == 1:
            return [value]
        message = pickle.dumps(value)
        if dist.get_backend() == dist.Backend.GLOO:  # short ones at once, in half the time of torch's two steps
            framed = bytearray((len(message).to_bytes(8, "big") + message[:SHORT]).ljust(8 + SHORT, b"\0"))
            sent = torch.frombuffer(framed, dtype=torch.uint8)
            received = [torch.empty_like(sent) for _ in range(self.size)]
            dist.all_gather(received, sent)
            frames = [bytes(one.numpy()) for one in received]
            if all(int.from_bytes(frame[:8], "big") <= SHORT for frame in frames):
                return [pickle.loads(frame[8:]) for frame in frames]  # of this job's own processes
        messages: list[Any] = [None] * self.size
        dist.all_gather_object(messages, message)
        return list(map(pickle.loads, messages))

    @heard()
    def add(self, tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
        """The sums over ranks of tensors that have the same shapes on each; one exchange a type, through the device."""
        found = list(tensors)
        if self.size == 1:
            return found
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
            flat = torch.cat([tensors[place].detach().reshape(-1).to(device) for place in places])
            dist.all_reduce(flat)
            parts = flat.split([tensors[place].numel() for place in places])
            for place, part in zip(places, parts):
                found[place] = part.view(tensors[place].shape).to(tensors[place].device)
        return found

    def add_named(self, tensors: Mapping[Name, Tensor], device: torch.device) -> dict[Name, Tensor]:
        """The sums over ranks of tensors by name, of which a rank may lack some; through the device."""
        kinds: dict[Name, tuple[torch.Size, torch.dtype]] = {}
        for told in self.gather({name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}):
            kinds = {**told, **kinds}
        parts = [
            tensors[name] if name in tensors else torch.zeros(shape, dtype=dtype)
            for name, (shape, dtype) in kinds.items()
        ]
        return dict(zip(kinds, self.add(parts, device)))

    @heard()
    @torch.no_grad()
    def copy_first(self, tensors: Iterable[Tensor]) -> None:
        if self.size > 1:
            for tensor in tensors:
                dense = tensor.detach().contiguous()
                dist.broadcast(dense, 0)
                tensor.copy_(dense)


@contextmanager
def alone() -> Iterator[None]:
    """Within it torch.distributed knows this process only, and `is_initialized()` is false; other groups stay."""
    if Ranks().size == 1:
        yield
        return
    world, is_initialized = dist.group.WORLD, dist.is_initialized
    try:
        dist.group.WORLD, torch.distributed.is_initialized = _group_within(world), _no
        yield
    finally:
        dist.group.WORLD, torch.distributed.is_initialized = world, is_initialized


def is_alone() -> bool:
    """Whether this process of several is within `alone`."""
    return dist.is_available() and dist.is_initialized is _no


@lru_cache(maxsize=1)
def _group_within(world: Any) -> Any:
    """The group of this process alone, made once for a default group."""
    return dist.new_group([dist.get_rank()], use_local_synchronization=True)


def leave_at_exit() -> None:
    """Have this process leave its process group before Python ends; once, however often it is called."""
    # tensors that gloo's threads free after Python has ended abort the process, whose work was done
    atexit.unregister(_leave)
    atexit.register(_leave)


def _leave() -> None:
    _group_within.cache_clear()
    if dist.is_initialized() and dist.get_backend() == dist.Backend.GLOO:  # NCCL's would wait for lost processes
        dist.destroy_process_group()


def share_out(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """Places of clients of these sizes for each rank, rising: largest first to the least loaded, numbers equal."""
    # equal numbers keep Lightning's loops in step, which exchange a word a batch where its SIGTERM handler stays
    room = -(-len(sizes) // ranks)
    found: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        rank = min((rank for rank in range(ranks) if len(found[rank]) < room), key=lambda rank: loads[rank])
        found[rank].append(place)
        loads[rank] += sizes[place]
    return [sorted(places) for places in found]


@contextmanager
def together(are: bool = True) -> Iterator[None]:
    """Within it `spread` deals work out to the ranks, all of which must do the same; False: this rank alone."""
    before = _together.set(are)
    try:
        yield
    finally:
        _together.reset(before)


def agreed(fact: bool) -> bool:
    """Whether it holds on every rank; here alone unless they are `together`."""
    return all(Ranks().gather(fact)) if _together.get() else fact


def spread(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """The work's results in the items' order, each worked out by one rank where they are `together`."""
    # Ranks take turns, so items should be about equal, or the long ones first. Results are plain types and tensors on
    # the CPU. What this rank's work raises comes here; another rank's is a RuntimeError that names it.
    ranks = Ranks()
    if ranks.size == 1 or not _together.get():
        yield from map(work, items)
        return
    for start in range(0, len(items), ranks.size):
        mine: list[Result] = []
        failed: Exception | None = None
        try:
            with together(False):
                mine = [work(item) for item in items[start + ranks.rank : start + ranks.rank + 1]]
        except Exception as error:  # the other ranks wait for a word of it
            failed = error
        told = ranks.gather((mine, failed and f"{type(failed).__name__}: {failed}"))
        if failed:
            raise failed
        for rank, (_, failure) in enumerate(told):
            if failure:
                raise RuntimeError(f"rank {rank} failed: {failure}")
        yield from (result for results, _ in told for result in results)
