"""The server's view of clients whose data it never sees: names and sizes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

import torch
from flwr.app import MessageType
from lightning.pytorch import LightningDataModule
from torch import Tensor

from fedgen.clients.client import num_held_out
from fedgen.clients.data_module import ClientBatches
from fedgen.clients.turn import Turn
from fedgen.data import Examples
from fedgen.data.examples import TYPES
from fedgen.federated import FedAvgStrategy
from fedgen.federated.left_out import KEPT_TURNS, OBJECTIVE, Entry, NotAnswering, make_entries, shorten
from fedgen.flower.app.run_config import CLASSES
from fedgen.flower.secure_aggregation.secure_mean import Masked, as_arrays
from fedgen.flower.secure_aggregation.secure_sums import Sum, read_sums
from fedgen.flower.server.asked_clients import AskedClients, connect
from fedgen.flower.server.connection import ALONE, Connection, UnansweredError, require
from fedgen.flower.wire.answer_forms import Largest
from fedgen.flower.wire.messages import Item, MaskedQuestion, Question, Told, pack
from fedgen.flower.wire.serialization import to_bytes
from fedgen.io.field_types import conforms
from fedgen.losses import EmbeddedLoss
from fedgen.statistics.statistic_messages import MessageError

_NOTHING = Examples(torch.empty(0, 1), torch.empty(0, dtype=torch.int64), "elsewhere", ())


@dataclass(frozen=True)
class RemoteClient:
    """A client elsewhere."""

    name: str
    train: range
    held_out: range


class RemoteTurn(Turn):
    """A turn that a client takes on its own machine."""

    def __init__(
        self,
        client: int,
        name: str,
        round: int,
        num_examples: int,
        batch_size: int,
        shape: tuple[int, ...] = (),
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(_NOTHING, torch.empty(0, dtype=torch.int64), batch_size, 0, client, name, round)
        self.num_examples, self.is_remote, self._shape, self._dtype = num_examples, True, shape, dtype

    @property
    def trial_batch(self) -> object:
        """Blank examples, all of the first class."""
        count = self.batch_length
        inputs = torch.zeros(count, *self._shape, dtype=self._dtype)
        return (inputs, torch.zeros(count, dtype=torch.int64)) if self._shape else None


class RemoteClients(LightningDataModule):
    """Clients elsewhere, for `FlowerStrategy`: an epoch is a round, its batches are the turns of the round's cohort.

    Args:
        batch_size: the clients' own affair; taken so that recipes may name it.
        held_out: the fraction that each client keeps from training.
        seed: as for batch_size.
        iterations: batches an epoch where the server trains alone; None: as many as one pass over all clients' images.

    Attributes:
        connection: to the clients, which a server gives; no setting of a recipe.
        clients: names and numbers, in their numbers' order.
        shape: of one example; empty for data without images.
        kind: of the examples: "images", "points", "volumes", ...
        classes: the labels' names in the whole federation.
        left_out: clients left out of an objective or an evaluation: as for a strategy's rounds, with the kind; the
            latest of a great many.
    """

    def __init__(
        self,
        batch_size: int = 64,
        held_out: float = 0.2,
        seed: int | None = None,
        iterations: int | None = None,
        _connection: Connection | None = None,
    ) -> None:
        super().__init__()
        self.batch_size, self.held_out, self.iterations = batch_size, held_out, iterations
        self.connection = require(_connection, type(self).__name__)
        known = self.connection.clients
        kept = [num_held_out(one.examples, held_out) for one in known]
        self.clients = [
            RemoteClient(one.name, range(one.examples - number), range(number))
            for one, number in zip(known, kept, strict=True)
        ]
        self.shape, self.kind = tuple(known[0].shape), known[0].kind
        self.classes = self.connection.labels.names(known)
        self._unlabelled = [one.name for one in known if not one.classes]
        self.left_out: list[Entry] = []
        self._asked: list[AskedClients] = []

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of one example, for models to check before training.

        Raises:
            AttributeError: for clients whose data have no images.
        """
        if not self.shape:
            raise AttributeError("the clients' data have no images to measure or to compare with")
        return self.shape

    def blanks(self, count: int) -> Tensor:
        """Return zeros in the shape and type of the clients' examples, of any number without the memory."""
        return torch.zeros((), dtype=TYPES.get(self.kind, torch.float32)).expand(count, *self.image_shape)

    def label_counts(self) -> Tensor:
        """Images of each class int64 [classes], as far as the server knows; see `RunLabels.count`."""
        return self.connection.labels.count(self.classes, self._unlabelled)

    def give_references(self, objective: EmbeddedLoss, device: torch.device) -> None:
        """Gives a model's losses of clients' images the clients to ask; others are the clients' own.

        Raises:
            TooFewAnswersError: if too few answer what is asked when fitting starts.
        """
        counts = [len(client.train) for client in self.clients]
        note = partial(self.note_left_out, OBJECTIVE)
        self._asked = connect(objective, self.connection, counts, self.classes, self.blanks(1), device, note)

    def note_left_out(self, kind: str, client: int, reason: str) -> None:
        """Takes down a client that was left out, of each kind once a round."""
        round = self.trainer.current_epoch if self.trainer else 0
        (entry,) = make_entries(round, {client: reason}, self, kind)
        own = ("round", "client", "kind")
        if not any(all(one[key] == entry[key] for key in own) for one in self.left_out):
            self.left_out = [*self.left_out[1 - KEPT_TURNS :], entry]

    def state_dict(self) -> dict[str, Any]:
        """Return who was left out, the round, and the classes that labels are positions among."""
        round = self.trainer.current_epoch if self.trainer else 0
        return {"left_out": list(self.left_out), "round": round, "classes": list(self.classes)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what was left out before; what was asked in this process, before it was known, is of the next round.

        Raises:
            ValueError: if it is damaged, or labels would mean other classes than before.
        """
        present = list(self.classes)
        before = state_dict.get("classes", present)  # older checkpoints have none
        if before != present:
            was, told = shorten(str(before), 200), shorten(str(present), 200)
            raise ValueError(
                f"its labels are of the classes {was} and this run's of {told}: name the former in that order"
                f" (`{CLASSES}` in the run's config), or begin another run"
            )
        if not conforms(state_dict["left_out"], list[NotAnswering]):
            raise ValueError("its list of clients that were left out is damaged; go on from the checkpoint before it")
        now = [{**entry, "round": state_dict["round"] + 1} for entry in self.left_out]
        self.left_out = [*state_dict["left_out"], *now]

    def take_metrics(self) -> dict[str, float]:
        """Return the part of the clients' weight that answered what was asked since the last call."""
        parts = [part for asked in self._asked if (part := asked.take_answered()) is not None]
        return {"clients_answered": sum(parts) / len(parts)} if parts else {}

    def ask_all(self, items: Sequence[Item], tensors: Mapping[str, Tensor]) -> dict[int, Told | str]:
        """Return each client's answer to an evaluation's question, or why there is none.

        Args:
            items: as for `Question`.
            tensors: likewise, its weights.

        Raises:
            RuntimeError: where single clients' answers are hidden.
        """
        if self.connection.hidden:
            raise RuntimeError("under secure aggregation no single client's statistics are told: ask for their sums")
        asked = {client: Question(tensors, items, client, self.classes) for client in range(len(self.clients))}
        return self.connection.send(asked, MessageType.EVALUATE, Told, "asking clients")

    def add_up(self, items: Sequence[Item], tensors: Mapping[str, Tensor], largest: Sequence[Largest]) -> list[Sum]:
        """The sums of all clients' answers to an evaluation's question; nothing else of them is revealed.

        Args:
            items: as for `Question`; answers must add.
            tensors: likewise, its weights.
            largest: of each item's answer the largest entries.

        Raises:
            UnansweredError: if a client does not answer: the sum over the others could show it another time.
            MessageError: for fewer than two clients, or sums that cannot be unmasked.
        """
        if len(self.clients) < 2:
            raise MessageError(ALONE)

        def write(client: int, among: dict[str, str]) -> Masked:
            weights, rest = pack(Question(tensors, items, client, self.classes))
            told: MaskedQuestion = {
                "names": list(weights),
                "question": rest,
                "largest": list(map(dict, largest)),
                "clients": len(among),
                "among": among,
            }
            return Masked(as_arrays(weights.values()), to_bytes(told), 1)

        round = self.trainer.current_epoch if self.trainer else 0
        made = self.connection.masked_mean(range(len(self.clients)), write, round, whole=True)
        found = read_sums(made, len(self.clients), largest)
        if found.sums is None:
            for client, why in found.failures.items():
                raise UnansweredError(client, self.clients[client].name, why)
            raise MessageError("the clients' sums could not be unmasked")
        return found.sums

    def train_dataloader(self) -> "ClientBatches | _Iterations":
        strategy = None if self.trainer is None else self.trainer.strategy
        if isinstance(strategy, FedAvgStrategy):
            return ClientBatches(_RemoteTurns(self, strategy), strategy, lambda _: (_NOTHING, torch.arange(0), 1))
        return _Iterations(self)


class _RemoteTurns:
    """One round's turns."""

    def __init__(self, data: RemoteClients, strategy: FedAvgStrategy) -> None:
        self._data, self._strategy = data, strategy

    def _drawn(self, round: int) -> Counter[int]:
        return Counter(self._strategy.sample_cohort(len(self._data.clients), round))

    def _turns(self, drawn: Counter[int]) -> list[int | None]:
        return self._strategy.share(list(drawn), [len(client.train) for client in self._data.clients])

    def __len__(self) -> int:
        return len(self._turns(self._drawn(0)))

    def __iter__(self) -> Iterator[Turn]:
        trainer: Any = self._data.trainer
        times = self._drawn(trainer.current_epoch)
        turns = self._turns(times)
        for place, number in enumerate(turns):
            turn = self._turn(number, trainer.current_epoch)
            if number is not None:
                turn.times = times[number]
            turn.is_first, turn.is_last = place == 0, place == len(turns) - 1
            yield turn

    def _turn(self, number: int | None, round: int) -> Turn:
        if number is None:
            return Turn.idle(_NOTHING, round)
        client = self._data.clients[number]
        own, dtype = self._data, torch.int64 if self._data.kind == "texts" else torch.float32
        return RemoteTurn(number, client.name, round, len(client.train), own.batch_size, own.shape, dtype)


class _Iterations:
    """An epoch of a server that trains alone, on data of its own: so many batches of nothing."""

    def __init__(self, data: RemoteClients) -> None:
        images = sum(len(client.train) for client in data.clients)
        self._number = data.iterations or -(-images // data.batch_size)

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[Tensor]:
        return repeat(torch.zeros(1), self._number)
