"""A client's data on its own machine, as Lightning is given it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule

from fedgen.clients.client import Client, hold_out
from fedgen.clients.data_module import ClientBatches, Source
from fedgen.clients.sources import load_source, take_hooks
from fedgen.clients.turn import LazyTurn, Turn
from fedgen.data import DataSet, Examples
from fedgen.data.annotations import Annotation
from fedgen.data.anybody import DatasetReading, renumber, with_classes
from fedgen.data.items import Items
from fedgen.data.lazy_examples import LazyExamples, NoImagesError
from fedgen.flower.client.reuse.made_once import MadeOnce
from fedgen.losses import EmbeddedLoss
from fedgen.seeds import resolve


class LocalDataModule(LightningDataModule):
    """One client's data; an epoch is its turn.

    Which of its images it holds out, and its batches, depend on (seed, client) and (seed, round, client) as where the
    federation is simulated: `enroll` says which client this is.

    Args:
        data: read here; all of it is the client's: any of what a `FederatedDataModule` takes from one source.
        batch_size: examples a batch (all of them for a client with fewer).
        held_out: the fraction kept from training, for measuring.
        seed: of the held-out examples; None takes what `seed_everything` was given, else 0.
        name: the client's.
        iterations: the server's affair; taken so that recipes may name it.
        labels: as for `FederatedDataModule`, as the rest.
        collate_fn: likewise.
        num_workers: likewise; the processes live as long as a turn.
        images_of: likewise.
        value_range: likewise.
        evaluation_data: likewise.
        features: folder that keeps the images' features, for a model's own loss of them; None keeps none.

    Raises:
        ValueError: for settings out of range.
    """

    is_one_client = True
    once: MadeOnce | None = None  # what the client has made for messages before; None makes everything

    def __init__(
        self,
        data: Source,
        batch_size: int = 64,
        held_out: float = 0.2,
        seed: int | None = None,
        name: str = "client",
        iterations: int | None = None,
        labels: Annotation = None,
        collate_fn: Callable[..., Any] | None = None,
        num_workers: int = 0,
        images_of: Callable[..., Any] | None = None,
        value_range: tuple[float, float] | None = None,
        evaluation_data: Source | None = None,
        features: str | None = None,
    ) -> None:
        super().__init__()
        if batch_size < 1 or not 0 <= held_out < 1:
            raise ValueError(f"batch_size={batch_size} counts from 1, and held_out={held_out} lies in [0, 1)")
        self.data, self.batch_size, self.held_out, self.name = data, batch_size, held_out, name
        self.evaluation_data, self._given_seed, self._features = evaluation_data, seed, features
        self._reading = DatasetReading(labels, None, collate_fn, num_workers, images_of, value_range)
        if isinstance(data, LightningDataModule):
            take_hooks(self, data)
        self.number = 0
        self._classes: tuple[str, ...] | None = None

    @cached_property
    def read(self) -> Examples:
        """The data as they lie here."""
        load = partial(load_source, self.data, self._reading, self.evaluation_data)
        return load() if self.once is None else self.once.read(self.places(), load)

    def places(self) -> list[Path] | None:
        """Return the files and folders that the data are read from; None where somebody's own code may read others."""
        reading = self._reading
        others = (reading.collate_fn, reading.images_of, self.evaluation_data)
        if not isinstance(self.data, DataSet) or not isinstance(reading.labels, str | None):
            return None
        if any(one is not None for one in others):
            return None
        # a subclass may read elsewhere
        return self.data.read_from() if "read_from" in vars(type(self.data)) else None

    @cached_property
    def examples(self) -> Examples:
        """The data, with labels as the whole federation numbers them."""
        return (
            self.read if self._classes is None else relabelled(self.read, self._classes, self._reading.labels is None)
        )

    def read_again(self) -> None:
        """Has the data read when they are needed next, as by a data module that has just been made."""
        for name in ("read", "examples"):
            self.__dict__.pop(name, None)
        self.number, self._classes = 0, None

    def enroll(self, number: int, classes: Sequence[str]) -> None:
        """Tells the client its number and all clients' classes.

        Raises:
            ValueError: if a class of its own is not among them.
        """
        self.number, self._classes = number, tuple(classes)
        self.__dict__.pop("examples", None)
        _ = self.examples

    @property
    def client(self) -> Client:
        """The client."""
        everything = torch.arange(len(self.examples))
        parts = hold_out(everything, self.held_out, resolve(self._given_seed), self.number)
        return Client(self.name, self.examples, *parts)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of one image (channels, height, width) or point (length,); () for data without images."""
        try:
            return tuple(self.read.inputs.shape[1:])
        except NoImagesError:
            return ()

    def give_references(self, objective: EmbeddedLoss, device: torch.device) -> None:
        """Gives a model's own loss of clients' images those that this client trains on."""
        if self._features is not None:
            objective.cache = self._features
        objective.client_weights = "examples"  # the only one has all the weight, whoever else there is
        objective.set_references([self.client.train_examples.inputs], device)

    def train_dataloader(self) -> ClientBatches:
        own, strategy = self.client, self.trainer and self.trainer.strategy
        return ClientBatches(_OneTurn(self), strategy, lambda _: (own.data, own.train, self.batch_size))

    def teardown(self, stage: str) -> None:
        """Ends the processes that read."""
        if isinstance(examples := self.__dict__.get("examples"), LazyExamples):
            examples.items.close()
            examples.inputs.reader.items.close()


class _OneTurn:
    """The epoch's only batch: the client's turn."""

    def __init__(self, data: LocalDataModule) -> None:
        self._data = data

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Turn]:
        data, trainer = self._data, self._data.trainer
        assert trainer is not None
        seed, client = trainer.strategy.seed, data.client
        kind = LazyTurn if isinstance(client.data, LazyExamples) else Turn
        turn = kind(client.data, client.train, data.batch_size, seed, data.number, data.name, trainer.current_epoch)
        turn.is_first = turn.is_last = True
        yield turn


def relabelled(examples: Examples, classes: Sequence[str], in_batches: bool = True) -> Examples:
    """The examples with labels that are positions in other classes, among which theirs are.

    Args:
        examples: of one client.
        classes: of all clients.
        in_batches: whether batches that are read from disk have these labels; with `labels=` they need not.

    Raises:
        ValueError: if a class is not among the others, or batches of somebody's own form would mean other classes.
    """
    found = with_classes(examples, classes)
    if found is examples or not isinstance(examples, LazyExamples) or not in_batches:
        return found
    assert isinstance(found, LazyExamples)
    parts = renumber(examples.items.parts, examples.classes, classes, f"the data {examples.name}")
    return replace(found, items=Items(parts, examples.items.num_workers))
