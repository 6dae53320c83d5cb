"""The server's view of clients whose data it never sees: names and sizes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningDataModule

from fedgen.clients.client import hold_out
from fedgen.clients.turn import Turn
from fedgen.data import Examples
from fedgen.deploy.messages import Hello
from fedgen.federated import FedAvgStrategy

_NOTHING = Examples(torch.empty(0, 1), torch.empty(0, dtype=torch.int64), "elsewhere", ())


@dataclass(frozen=True)
class RemoteClient:
    """A client elsewhere.

    Attributes:
        name: its name.
        train: as many positions as it trains on.
        held_out: as many as it keeps for measuring.
    """

    name: str
    train: range
    held_out: range


class RemoteTurn(Turn):
    """A turn that a client takes on its own machine."""

    def __init__(self, client: int, name: str, round: int, num_examples: int) -> None:
        super().__init__(_NOTHING, torch.empty(0, dtype=torch.int64), 1, 0, client, name, round)
        self._num_examples = num_examples

    @property
    def num_examples(self) -> int:
        return self._num_examples

    @property
    def is_elsewhere(self) -> bool:
        return True


class RemoteClients(LightningDataModule):
    """Clients elsewhere, for `FlowerStrategy`: an epoch is a round, its batches are the turns of the round's cohort.

    Args:
        batch_size: the clients' own affair; taken so that recipes may name it.
        held_out: the fraction that each client keeps from training.
        seed: as for batch_size.
    """

    def __init__(self, batch_size: int = 64, held_out: float = 0.2, seed: int | None = None) -> None:
        super().__init__()
        self.held_out = held_out
        self.clients: list[RemoteClient] = []
        self.image_shape: tuple[int, ...] = ()
        self.classes: tuple[str, ...] = ()

    def enroll(self, clients: Sequence[Hello]) -> None:
        """Tells who the clients are, in their numbers' order."""
        for one in clients:
            train, held_out = hold_out(torch.arange(one.examples), self.held_out, 0, 0)
            self.clients.append(RemoteClient(one.name, range(len(train)), range(len(held_out))))
        self.image_shape = tuple(clients[0].shape)
        self.classes = all_classes(clients)

    def train_dataloader(self) -> "_RemoteTurns":
        strategy = getattr(self.trainer, "strategy", None)
        assert isinstance(strategy, FedAvgStrategy)
        return _RemoteTurns(self, strategy)


class _RemoteTurns:
    """One round's turns."""

    def __init__(self, data: RemoteClients, strategy: FedAvgStrategy) -> None:
        self._data, self._strategy = data, strategy

    def _cohort(self, round: int) -> list[int]:
        return self._strategy.sample_cohort(len(self._data.clients), round)

    def __len__(self) -> int:
        return len(self._cohort(0))

    def __iter__(self) -> Iterator[Turn]:
        trainer: Any = self._data.trainer
        cohort = self._cohort(trainer.current_epoch)
        for place, number in enumerate(cohort):
            client = self._data.clients[number]
            turn = RemoteTurn(number, client.name, trainer.current_epoch, len(client.train))
            turn.is_first, turn.is_last = place == 0, place == len(cohort) - 1
            yield turn


def all_classes(clients: Sequence[Hello]) -> tuple[str, ...]:
    """The classes of all clients, sorted as a folder's are."""
    return tuple(sorted({name for one in clients for name in one.classes}))
