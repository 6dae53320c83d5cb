"""The clients' data for Lightning: turns in cohort order under FedAvg, pooled batches under any other strategy."""

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from fedgen.clients.client import Client, Roles, ThreeWaySplit, hold_out
from fedgen.clients.partitions import Partition, check_assignment
from fedgen.clients.sources import InMemory, as_clients, check_source, load_source, take_hooks
from fedgen.clients.turn import LazyTurn, Turn, own_batch_size, read_tasks
from fedgen.data import DataSet, Examples
from fedgen.data.anybody import DatasetReading, name_of
from fedgen.data.examples import Annotation, draw_batches, to_batch
from fedgen.data.lazy_examples import LazyExamples, measured_task
from fedgen.seeds import derive, generator, resolve, seed_all

Read = tuple[Examples, Tensor, int]  # a data set, the positions in it that are read, and the batch size


class LikeLoader:
    """The attributes of torch's DataLoader, such as `dataset`, `batch_size` and `sampler`."""

    def __init__(self, read: Callable[[], Read]) -> None:
        self._read = read

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        examples, indices, size = self._read()
        data: list[Dataset[Any]] = [InMemory(examples)]
        options: dict[str, Any] = {"batch_size": own_batch_size(examples, indices) or size, "drop_last": True}
        if isinstance(examples, LazyExamples):
            items, indices = examples.items, examples.positions[indices]
            data = [one.dataset for one in items.parts]
            part = items.part_of(int(indices[0]) if len(indices) else 0)
            options |= {"collate_fn": part.collate, "num_workers": items.num_workers}
        # it does not shuffle: Lightning's `overfit_batches` replaces a sampler that does, in torch's loaders alone
        own = Subset(ConcatDataset(data) if len(data) > 1 else data[0], indices.tolist())
        return getattr(DataLoader(own, **options), name)


class ClientBatches(LikeLoader):
    """The training data as a module or callback sees them in a client's turn, whose iterations are the batches."""

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
        self._sizes = [len(client.train) for client in module.clients]  # once: there may be many clients and rounds
        self._coming: dict[int, list[Turn]] = {}  # the next round's, some of which may be being read

    def __len__(self) -> int:
        return len(self._share(0)[0])

    def __iter__(self) -> Iterator[Turn]:
        round, coming = self._module.round, self._coming
        self._coming = {}
        yield from coming.get(round) or self._turns(round)

    def _share(self, round: int) -> tuple[list[int | None], Counter[int]]:
        """The round's clients on this rank in the cohort's order, None for idle turns, and how often each was drawn."""
        times = Counter(self._strategy.sample_cohort(len(self._sizes), round))
        return self._strategy.share(list(times), self._sizes), times

    def _turns(self, round: int) -> list[Turn]:
        module, seed = self._module, self._strategy.seed
        kind = LazyTurn if isinstance(module.examples, LazyExamples) else Turn
        found = []
        clients, times = self._share(round)
        for client in clients:
            if client is None:
                found.append(Turn.idle(module.examples, round))
                continue
            owner = module.clients[client]
            turn = kind(owner.data, owner.train, module.batch_size, seed, client, owner.name, round)
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
        if round + 1 not in self._coming:
            self._coming = {round + 1: self._turns(round + 1)}
        return self._coming[round + 1][0]


class PooledBatches(LikeLoader):
    """One epoch of all clients' training examples together, shuffled."""

    def __init__(self, module: "FederatedDataModule") -> None:
        super().__init__(lambda: (module.examples, self._indices, module.batch_size))
        self._module, self._indices = module, module.pooled("train")
        self._batch_size = own_batch_size(module.examples, self._indices) or module.batch_size

    def __len__(self) -> int:
        return self._module.iterations or -(-len(self._indices) // self._batch_size)

    def __iter__(self) -> Iterator[Any]:
        module, examples = self._module, self._module.examples
        # As the strategy does at each turn: what the model draws in an epoch is a function of (seed, epoch).
        seed_all(module.seed, "pooled", module.round)
        draws = generator(module.seed, "pooled batches", module.round)
        if isinstance(examples, LazyExamples):
            base = derive(module.seed, "pooled items", module.round)
            tasks = read_tasks(examples, self._indices, self._batch_size, draws, base)
            yield from examples.items.stream(islice(tasks, len(self)))
            return
        drawn = draw_batches(len(self._indices), self._batch_size, len(self), draws)
        yield from (to_batch(examples, self._indices[positions]) for positions in drawn)


class InOrder:
    """Batches of examples in their order, once, as they are measured."""

    def __init__(self, examples: Examples, indices: Tensor, batch_size: int) -> None:
        self._examples, self._chunks = examples, [c for c in indices.split(batch_size) if len(c)]

    def __len__(self) -> int:
        return len(self._chunks)

    def __iter__(self) -> Iterator[Any]:
        examples = self._examples
        if isinstance(examples, LazyExamples):
            inputs = examples.inputs
            tasks = (measured_task(inputs.positions[chunk].tolist()) for chunk in self._chunks)
            yield from inputs.reader.items.stream(tasks)
        else:
            yield from (to_batch(examples, chunk) for chunk in self._chunks)


# Lightning warns so of every model without a validation_step, as generators often are.
warnings.filterwarnings("ignore", message="You passed in a `val_dataloader` but have no `validation_step`")


if TYPE_CHECKING:
    Source: TypeAlias = DataSet | Examples | Dataset[Any] | LightningDataModule | Any
else:  # what recipes can name by class path
    Source = DataSet | Examples | Dataset | LightningDataModule


class FederatedDataModule(LightningDataModule):
    """Partitions data among clients and serves them to training.

    Under `FedAvgStrategy` an epoch is a round and its batches are the turns of the round's cohort. Under any other
    strategy the clients' training examples are pooled and shuffled: the centralised control. Validation, test and
    prediction loaders give the pooled held-out examples. Batches depend on (seed, round, client) alone, in turns with
    the strategy's seed: the same partition can be trained on with several.

    Images uint8 [N, C, H, W] and points float32 [N, D] in memory (a data set of the kit, `Examples`, arrays `X` or
    `(X, y)`) give batches (float [B, C, H, W] in [-1, 1], labels int64 [B]). All else is read when it is needed, with
    the transforms of its `__getitem__`, and its batches are what `collate_fn` makes, of any structure: a torch
    `Dataset` (items are tensors, Pillow images, numbers, texts, tuples or dictionaries of these), other arrays, a data
    set of the library `datasets`, the dataset of a `DataLoader`. What transforms draw from torch, NumPy and `random`
    depends on (seed, round, client, item) alone, whatever `num_workers`.

    Args:
        data: one of these; or a LightningDataModule, whose other loaders stay: the dataset, collate_fn and batch_size
            of its `train_dataloader()` go before those given here, of num_workers the larger counts; or clients' own
            data, `{client: any of these}` or a list.
        partition: assigns the data to clients; left out where they come by client, or with `owners`.
        batch_size: examples a batch (all of them for a client with fewer).
        held_out: the fraction of each client's examples kept from training, for measuring.
        iterations: batches an epoch for pooled training; None is one pass over the data.
        seed: of the partition, the held-out examples, the split and pooled training; None takes what
            `seed_everything` was given, else 0.
        split: keeps some clients from training, to be scored beside those that train; None trains on all.
        labels: the classes that partitions go by: an attribute or column of the data set by name, a function of an
            item's position, or one value an item ([] for none); looked for as `targets`, `labels` or the column "label"
            by default. Integers keep their numbers. No item is read for them.
        owners: who made each item, likewise, for the partition `Natural`, which is then the default.
        collate_fn: makes a batch of a list of items; torch's own by default, which takes Pillow images here, too.
        num_workers: processes that read items, also of the next turn while one trains, and live as long as the run; 0
            reads in this process.
        images_of: gives a batch's images, for measuring; by default the first tensor of a tuple, the only one of a
            dictionary, or its entry "image".
        value_range: of float images that are measured, such as (0, 1); [-1, 1] by default, and others are refused.
        evaluation_data: the same items in the same order as they are measured and validated on, such as without
            augmentation; `data` itself by default.

    Raises:
        TypeError: for data or a partition of an unknown kind.
        ValueError: for settings out of range, missing labels or owners, items that cannot be read, or if a
            client gets no data.
        MisconfigurationException: for pooled training in more than one process.

    Examples:
        >>> from fedgen import ByClass, Digits, FederatedDataModule
        >>> data = FederatedDataModule(Digits(), ByClass(), batch_size=32)
        >>> len(data.clients), data.clients[3].name
        (10, 'class 3')
    """

    def __init__(
        self,
        data: Source,
        partition: Partition | None = None,
        batch_size: int = 64,
        held_out: float = 0.2,
        iterations: int | None = None,
        seed: int | None = None,
        split: ThreeWaySplit | None = None,
        labels: Annotation = None,
        owners: Annotation = None,
        collate_fn: Callable[..., Any] | None = None,
        num_workers: int = 0,
        images_of: Callable[..., Any] | None = None,
        value_range: tuple[float, float] | None = None,
        evaluation_data: Source | None = None,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: a batch has at least one example")
        if not 0 <= held_out < 1:
            raise ValueError(f"held_out={held_out}: the fraction kept from training lies in [0, 1)")
        if iterations is not None and iterations < 1:
            raise ValueError(f"iterations={iterations}: an epoch has at least one batch")
        self._reading = DatasetReading(labels, owners, collate_fn, num_workers, images_of, value_range)
        self.partition = check_source(data, partition, self._reading)
        self.data, self.evaluation_data, self.batch_size = data, evaluation_data, batch_size
        self.held_out, self.iterations, self._given_seed = held_out, iterations, seed
        self.split = split
        self._roles: Roles | None = None
        self._inner = data if isinstance(data, LightningDataModule) else None
        if self._inner is not None:
            take_hooks(self, self._inner)
        waits = any(isinstance(part, (DataSet, LightningDataModule)) for part in as_clients(data).values() or [data])
        if not waits and isinstance(examples := self.examples, LazyExamples):  # else loading waits for the first use
            examples.items.read_aside(examples.tasks(torch.tensor([0]), 0))  # raises now if items cannot be read

    def __getattr__(self, name: str) -> Any:
        inner = vars(self).get("_inner")
        if inner is None or name.startswith("_") or hasattr(type(self), name):
            return object.__getattribute__(self, name)  # raises AttributeError, or a property's own error
        return getattr(inner, name)

    @cached_property
    def seed(self) -> int:
        """The base of all draws; read when first used, so that `seed_everything` may come after construction."""
        return resolve(self._given_seed)

    @cached_property
    def examples(self) -> Examples:
        """All clients' examples; data sets of the kit and Lightning data modules are loaded on first use."""
        return load_source(self.data, self._reading, self.evaluation_data)

    @cached_property
    def dealt(self) -> list[np.ndarray]:
        """The positions that the partition assigns to each client, also those over `max_examples`."""
        names = self.partition.names(self.examples)
        return check_assignment(self.partition.assign(self.examples, self.seed), len(self.examples), names)

    @cached_property
    def everyone(self) -> list[Client]:
        """All clients of the partition, of any role."""
        found = []
        for client, (name, own) in enumerate(zip(self.partition.names(self.examples), self.dealt)):
            train, held_out = hold_out(torch.from_numpy(own), self.held_out, self.seed, client)
            if self.split is not None:
                train = self.split.cap(train, self.seed, client, "train")
                held_out = self.split.cap(held_out, self.seed, client, "held_out")
            found.append(Client(name, self.examples, train, held_out))
        return found

    @property
    def roles(self) -> Roles:
        """The clients that train and those that do not; set it to take those of a stored run.

        Raises:
            ValueError: if the split leaves a role without a client, or roles that were set are of other clients.
        """
        count = len(self.everyone)
        if self._roles is None:
            names = [client.name for client in self.everyone]
            self._roles = self.split.assign(names, self.seed) if self.split else Roles(tuple(range(count)), ())
        if self._roles.count != count:
            raise ValueError(f"the split is one of {self._roles.count} clients, and the partition gives {count}")
        return self._roles

    @roles.setter
    def roles(self, roles: Roles) -> None:
        self._roles = roles
        self.__dict__.pop("clients", None)

    def with_roles(self, roles: Roles) -> "FederatedDataModule":
        """The same clients and images with other roles, for another trainer.

        Args:
            roles: of all clients.
        """
        _ = self.everyone  # computed once, for both
        other = copy.copy(self)
        other.trainer = None
        other.roles = roles
        return other

    @cached_property
    def clients(self) -> list[Client]:
        """The clients that train."""
        return [self.everyone[number] for number in self.roles.participating]

    @property
    def unparticipating(self) -> list[Client]:
        """The clients that never train and are scored; none without a split."""
        return [self.everyone[number] for number in self.roles.unparticipating]

    def setup(self, stage: str) -> None:
        _ = self.clients
        if self._inner is not None:
            self._inner.trainer = self.trainer
            if stage != "fit":  # for which it was set up to get the examples
                self._inner.setup(stage)

    def teardown(self, stage: str) -> None:
        """Ends the processes that read; they start again when they are needed."""
        if isinstance(examples := self.__dict__.get("examples"), LazyExamples):
            examples.items.close()
            examples.inputs.reader.items.close()
        if self._inner is not None:
            self._inner.teardown(stage)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of one image (channels, height, width) or point (length,), for models to check before training.

        Raises:
            AttributeError: for data without images.
        """
        examples = self.examples
        try:
            return tuple(examples.inputs.shape[1:])
        except ValueError as error:
            raise AttributeError(str(error)) from error

    def pooled(self, part: str) -> Tensor:
        """Positions of all training clients' "train" or "held_out" examples."""
        return torch.cat([getattr(client, part) for client in self.clients])

    @property
    def round(self) -> int:
        """The present round, i.e. the trainer's epoch."""
        return 0 if self.trainer is None else self.trainer.current_epoch

    def _read(self, client: int | None) -> Read:
        return self.examples, self.pooled("train") if client is None else self.clients[client].train, self.batch_size

    def train_dataloader(self) -> ClientBatches | PooledBatches:
        if self.trainer is not None and hasattr(self.trainer.strategy, "sample_cohort"):
            return ClientBatches(Turns(self, self.trainer.strategy), self.trainer.strategy, self._read)
        if (ranks := 1 if self.trainer is None else self.trainer.world_size) > 1:
            raise MisconfigurationException(
                f"pooled training runs in one process: each of the {ranks} would train on the same batches; pass"
                " Trainer(devices=1, num_nodes=1)"
            )
        return PooledBatches(self)

    def val_dataloader(self) -> Any:
        return self._held_out_loader("val_dataloader")

    def test_dataloader(self) -> Any:
        return self._held_out_loader("test_dataloader")

    def predict_dataloader(self) -> Any:
        return self._held_out_loader("predict_dataloader")

    def _held_out_loader(self, name: str) -> Any:
        if self._inner is not None and is_overridden(name, self._inner, LightningDataModule):
            return getattr(self._inner, name)()
        return InOrder(self.examples, self.pooled("held_out"), self.batch_size)

    def __repr__(self) -> str:
        known = self.__dict__.get("examples")
        if known is None:
            return f"FederatedDataModule({name_of(self.data)}, not loaded yet, {self.partition!r})"
        count = len(self.dealt)
        clients = "1 client" if count == 1 else f"{count} clients"
        return f"FederatedDataModule({known.name}, {clients}, {sum(map(len, self.dealt))} examples, {self.partition!r})"

    __str__ = __repr__
