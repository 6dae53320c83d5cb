"""The clients' data for Lightning: turns in cohort order under FedAvg, pooled batches under any other strategy."""

import copy
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from fedgen.clients.client import Client, hold_out
from fedgen.clients.partitions import Partition, check_assignment
from fedgen.clients.three_way import Roles, ThreeWaySplit
from fedgen.clients.turn import Turn
from fedgen.data import DataSet, Examples
from fedgen.data.model_batches import Batch, draw_batches, to_batch
from fedgen.seeds import generator, resolve, seed_all

# Lightning says this of every model without a validation_step, which generators may well be.
warnings.filterwarnings("ignore", message="You passed in a `val_dataloader` but have no `validation_step`")


class _Cohorts(Protocol):
    @property
    def seed(self) -> int: ...

    def sample_cohort(self, num_clients: int, round: int) -> list[int]: ...

    def share(self, cohort: Sequence[int], sizes: Sequence[int]) -> list[int | None]: ...


class FederatedDataModule(LightningDataModule):
    """Deals a data set to clients and serves it to training.

    Under `FedAvgStrategy` an epoch is a round and its batches are the turns of the round's cohort. Under any other
    strategy the clients' training images are pooled and shuffled: the centralised control. Validation, test and
    prediction loaders give the pooled held-out images. Batches are (images float [B, C, H, W] in [-1, 1], labels
    int64 [B]) and depend on (seed, round, client) alone, in turns with the strategy's seed: the same partition can be
    trained on with several.

    Args:
        data: a data set, or examples in memory.
        partition: how its training split is dealt to clients.
        batch_size: examples a batch (all of them for a client with fewer).
        held_out: the fraction of each client's examples kept from training, for measuring.
        iterations: batches an epoch for pooled training; None is one pass over the data.
        seed: of the partition, the held-out examples, the split and pooled training; None takes what
            `seed_everything` was given, else 0.
        split: keeps some clients from training, to be scored beside those that train; None trains on all.

    Raises:
        ValueError: for settings out of range, or if a client gets no data.
        MisconfigurationException: for pooled training in more than one process.
    """

    def __init__(
        self,
        data: DataSet | Examples,
        partition: Partition,
        batch_size: int = 64,
        held_out: float = 0.2,
        iterations: int | None = None,
        seed: int | None = None,
        split: ThreeWaySplit | None = None,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: a batch has at least one example")
        if not 0 <= held_out < 1:
            raise ValueError(f"held_out={held_out}: the fraction kept from training lies in [0, 1)")
        if iterations is not None and iterations < 1:
            raise ValueError(f"iterations={iterations}: an epoch has at least one batch")
        self.data, self.partition, self.batch_size = data, partition, batch_size
        self.held_out, self.iterations, self._given_seed = held_out, iterations, seed
        self.split = split
        self._roles: Roles | None = None

    @cached_property
    def seed(self) -> int:
        """The base of all draws; read when first used, so that `seed_everything` may come after construction."""
        return resolve(self._given_seed)

    @cached_property
    def examples(self) -> Examples:
        """The whole data set that is dealt; read on first use."""
        return self.data.load("train") if isinstance(self.data, DataSet) else self.data

    @cached_property
    def dealt(self) -> list[np.ndarray]:
        """The positions that the partition gives each client, those that no part keeps too; dealt on first use."""
        names = self.partition.names(self.examples)
        return check_assignment(self.partition.assign(self.examples, self.seed), len(self.examples), names)

    @cached_property
    def everyone(self) -> list[Client]:
        """All clients of the partition, whatever their roles."""
        parts = [self._parts(torch.from_numpy(indices), client) for client, indices in enumerate(self.dealt)]
        return [Client(name, self.examples, *part) for name, part in zip(self.partition.names(self.examples), parts)]

    def _parts(self, indices: Tensor, client: int) -> tuple[Tensor, Tensor]:
        train, held_out = hold_out(indices, self.held_out, self.seed, client)
        if self.split is None:
            return train, held_out
        cap = partial(self.split.cap, seed=self.seed, client=client)
        return cap(train, part="train"), cap(held_out, part="held_out")

    @property
    def roles(self) -> Roles:
        """Who trains and who does not; set it to take those of a stored run.

        Raises:
            ValueError: if the split leaves a role without a client, or roles that were set are of other clients.
        """
        count = len(self.everyone)
        if self._roles is None:
            self._roles = self.split.assign(count, self.seed) if self.split else Roles(tuple(range(count)), ())
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
        _ = self.everyone  # dealt once, for both
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

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of one image (channels, height, width) or point (length,), for models to check before training."""
        return tuple(self.examples.inputs.shape[1:])

    def pooled(self, part: str) -> Tensor:
        """Positions of all training clients' "train" or "held_out" examples."""
        return torch.cat([getattr(client, part) for client in self.clients])

    @property
    def round(self) -> int:
        """The present round, i.e. the trainer's epoch."""
        return 0 if self.trainer is None else self.trainer.current_epoch

    def train_dataloader(self) -> "_Turns | _PooledBatches":
        if self.trainer is not None and hasattr(self.trainer.strategy, "sample_cohort"):
            return _Turns(self, self.trainer.strategy)
        if (ranks := getattr(self.trainer, "world_size", 1)) > 1:
            raise MisconfigurationException(
                f"pooled training runs in one process: each of the {ranks} would train on the same batches; pass"
                " Trainer(devices=1, num_nodes=1)"
            )
        return _PooledBatches(self)

    def val_dataloader(self) -> "_InOrder":
        return _InOrder(self.examples, self.pooled("held_out"), self.batch_size)

    test_dataloader = val_dataloader
    predict_dataloader = val_dataloader


class _Turns:
    """One round's turns on this rank; every rank has as many, idle ones at the end."""

    def __init__(self, module: FederatedDataModule, strategy: _Cohorts) -> None:
        self._module, self._strategy = module, strategy
        self._sizes = [len(client.train) for client in module.clients]  # once: they may be many, and rounds too

    def _turns(self, round: int) -> list[int | None]:
        return self._strategy.share(self._strategy.sample_cohort(len(self._sizes), round), self._sizes)

    def __len__(self) -> int:
        return len(self._turns(0))

    def __iter__(self) -> Iterator[Turn]:
        module, round = self._module, self._module.round
        turns = self._turns(round)
        for place, client in enumerate(turns):
            if client is None:
                turn = Turn.idle(module.examples, round)
            else:
                owner = module.clients[client]
                turn = Turn(owner.data, owner.train, module.batch_size, self._strategy.seed, client, owner.name, round)
            turn.is_first, turn.is_last = place == 0, place == len(turns) - 1
            yield turn


class _PooledBatches:
    """One epoch of all clients' training images together, shuffled."""

    def __init__(self, module: FederatedDataModule) -> None:
        self._module = module
        self._indices = module.pooled("train")

    def __len__(self) -> int:
        return self._module.iterations or -(-len(self._indices) // self._module.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        module = self._module
        # As the strategy does at each turn: what the model draws in an epoch is a function of (seed, epoch).
        seed_all(module.seed, "pooled", module.round)
        draws = generator(module.seed, "pooled batches", module.round)
        for positions in draw_batches(len(self._indices), module.batch_size, len(self), draws):
            yield to_batch(module.examples, self._indices[positions])


class _InOrder:
    """Batches of examples in their order, once."""

    def __init__(self, examples: Examples, indices: Tensor, batch_size: int) -> None:
        self._examples, self._chunks = examples, [c for c in indices.split(batch_size) if len(c)]

    def __len__(self) -> int:
        return len(self._chunks)

    def __iter__(self) -> Iterator[Any]:
        return (to_batch(self._examples, chunk) for chunk in self._chunks)
