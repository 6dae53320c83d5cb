"""The data module's loaders: turns of a round, pooled batches of an epoch, held-out batches in order."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from fedgen.clients.lazy_turn import make_turn
from fedgen.clients.sources import InMemory
from fedgen.clients.turn import Turn
from fedgen.data import Examples
from fedgen.data.lazy_examples import LazyExamples, measured_task
from fedgen.data.model_batches import draw_batches, to_batch
from fedgen.seeds import derive, generator, seed_all

if TYPE_CHECKING:
    from fedgen.clients.data_module import FederatedDataModule


Read = tuple[Examples, Tensor, int]  # a data set, the positions in it that are read, and the batch size


class LikeLoader:
    """Has what torch's DataLoader has beside batches, such as `dataset`, `batch_size` and `sampler`."""

    def __init__(self, read: Callable[[], Read]) -> None:
        self._read = read

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        examples, indices, size = self._read()
        data: list[Dataset[Any]] = [InMemory(examples)]
        options: dict[str, Any] = {}
        if isinstance(examples, LazyExamples):
            items, indices = examples.items, examples.positions[indices]
            part = items.part_of(int(indices[0]) if len(indices) else 0)
            data, size = [one.dataset for one in items.parts], part.batch_size or size
            options = {"collate_fn": part.collate, "num_workers": items.num_workers}
        # it does not shuffle: Lightning's `overfit_batches` replaces a sampler that does, in torch's loaders alone
        own = Subset(ConcatDataset(data) if len(data) > 1 else data[0], indices.tolist())
        return getattr(DataLoader(own, size, drop_last=True, **options), name)


class ClientBatches(LikeLoader):
    """The training data as a client's own code knows them: as many batches as its turn has iterations.

    Outside rounds' turns the batches are those of the round's first client, and the data set is that of all clients.

    Args:
        turns: of a round, which Lightning's loops take in place of this.
        strategy: that takes them.
        read: what a client reads, by its number; None for all clients.
    """

    def __init__(self, turns: Any, strategy: Any, read: Callable[[int | None], Read]) -> None:
        super().__init__(lambda: read(strategy.round.turn.client if strategy.in_turns else None))
        self.turns, self._strategy, turns.view = turns, strategy, self

    def __len__(self) -> int:
        return int(self._strategy.communication_interval)

    def __iter__(self) -> Iterator[Any]:
        turn = self._strategy.round.turn if self._strategy.in_turns else next(iter(self.turns))
        return iter(turn.batches(len(self)))


class Turns:
    """One round's turns on this rank; every rank has as many, idle ones at the end."""

    def __init__(self, module: "FederatedDataModule", strategy: Any) -> None:
        self._module, self._strategy = module, strategy
        self._sizes = [len(client.train) for client in module.clients]  # once: they may be many, and rounds too
        self._coming: tuple[int, list[Turn]] | None = None  # the next round's, some of which may be being read

    def _drawn(self, round: int) -> Counter[int]:
        """The round's clients, in the cohort's order, and how often each was drawn."""
        return Counter(self._strategy.sample_cohort(len(self._sizes), round))

    def __len__(self) -> int:
        return len(self._strategy.share(list(self._drawn(0)), self._sizes))

    def __iter__(self) -> Iterator[Turn]:
        round, coming = self._module.round, self._coming
        self._coming = None
        yield from coming[1] if coming is not None and coming[0] == round else self._turns(round)

    def _turns(self, round: int) -> list[Turn]:
        module, seed = self._module, self._strategy.seed
        found, times = [], self._drawn(round)
        for client in self._strategy.share(list(times), self._sizes):
            if client is None:
                found.append(Turn.idle(module.examples, round))
                continue
            owner = module.clients[client]
            turn = make_turn(owner.data, owner.train, module.batch_size, seed, client, owner.name, round)
            turn.times = times[client]
            found.append(turn)
        found[0].is_first = found[-1].is_last = True
        for place, turn in enumerate(found):
            turn.following = partial(self._after, found, place, round)
        return found

    def _after(self, turns: list[Turn], place: int, round: int) -> Turn | None:
        """The turn after one, in its round or the next; None at the end of training."""
        if place + 1 < len(turns):
            return turns[place + 1]
        trainer = self._module.trainer
        last = None if trainer is None else trainer.max_epochs
        if last is not None and 0 <= last <= round + 1:
            return None
        if self._coming is None or self._coming[0] != round + 1:
            self._coming = round + 1, self._turns(round + 1)
        return self._coming[1][0]


class PooledBatches(LikeLoader):
    """One epoch of all clients' training examples together, shuffled."""

    def __init__(self, module: "FederatedDataModule") -> None:
        super().__init__(lambda: (module.examples, self._indices, module.batch_size))
        self._module = module
        self._indices = module.pooled("train")
        self._batch_size = module.batch_size
        if isinstance(examples := module.examples, LazyExamples):
            first = int(examples.positions[self._indices[0]])
            self._batch_size = examples.items.part_of(first).batch_size or module.batch_size

    def __len__(self) -> int:
        return self._module.iterations or -(-len(self._indices) // self._batch_size)

    def __iter__(self) -> Iterator[Any]:
        module, examples = self._module, self._module.examples
        # As the strategy does at each turn: what the model draws in an epoch is a function of (seed, epoch).
        seed_all(module.seed, "pooled", module.round)
        draws = generator(module.seed, "pooled batches", module.round)
        drawn = draw_batches(len(self._indices), self._batch_size, len(self), draws)
        if not isinstance(examples, LazyExamples):
            yield from (to_batch(examples, self._indices[positions]) for positions in drawn)
            return
        base = derive(module.seed, "pooled items", module.round)
        visits = (torch.arange(drawn.numel()) // len(self._indices)).view(drawn.shape)
        tasks = (examples.tasks(self._indices[at], base, often, at) for at, often in zip(drawn, visits))
        yield from examples.items.stream(tasks)


class InOrder:
    """Batches of examples in their order, once; as they are measured, where that differs."""

    def __init__(self, examples: Examples, indices: Tensor, batch_size: int) -> None:
        self._examples, self._chunks = examples, [c for c in indices.split(batch_size) if len(c)]

    def __len__(self) -> int:
        return len(self._chunks)

    def __iter__(self) -> Iterator[Any]:
        examples = self._examples
        if not isinstance(examples, LazyExamples):
            return (to_batch(examples, chunk) for chunk in self._chunks)
        inputs = examples.inputs
        tasks = (measured_task(inputs.positions[chunk].tolist()) for chunk in self._chunks)
        stream: Iterator[Any] = inputs.reader.items.stream(tasks)
        return stream
