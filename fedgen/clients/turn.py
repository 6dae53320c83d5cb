"""A client's turn, which the data module passes to the strategy as one Lightning batch."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fedgen.data import Examples
from fedgen.data.examples import Batch, draw_batches, endless_batches
from fedgen.data.items import ReadTask, Stream
from fedgen.data.lazy_examples import LazyExamples
from fedgen.images import from_uint8
from fedgen.own_code import warn
from fedgen.seeds import derive, generator


class Turn:
    """One client's local training within a round, as a lazy source of its batches.

    `batches` gives the batches. Iterating a turn is for `self.log`, which looks for a batch size there: it gives the
    tensors of the batch that is being trained on, before and after training one of a batch's length.

    Attributes:
        client: the client's index in the data module.
        name: the client's name.
        round: the round, from 0.
        is_first, is_last: True for the first and the last turn of the round on this rank.
        num_examples: the client's training examples, its weight under `client_weights="examples"`.
        is_idle: True if no client trains: the rank waits for others that have one client more.
        is_remote: True if nothing is trained in this process: an idle turn, or a client's on another machine.
        times: how often the client was drawn, and counts.
        is_left_out: True if the turn failed, so that it has no part in the round.
        following: gives the turn after this one, of the next round after the last; None if that is not known.

    Examples:
        >>> import torch
        >>> from fedgen.clients import Turn
        >>> from fedgen import Digits
        >>> turn = Turn(Digits().read("train"), torch.arange(100), batch_size=32, seed=0, client=0, name="0", round=0)
        >>> turn.num_examples
        100
        >>> [len(images) for images, labels in turn.batches(2)]
        [32, 32]
    """

    following: "Callable[[], Turn | None] | None" = None
    is_left_out = False

    def __init__(
        self, examples: Examples, indices: Tensor, batch_size: int, seed: int, client: int, name: str, round: int
    ) -> None:
        self._examples, self._indices, self._seed = examples, indices, seed
        self._batch_size = own_batch_size(examples, indices) or batch_size
        self.client, self.name, self.round = client, name, round
        self.num_examples = len(indices)
        self.is_idle = self.is_remote = client < 0
        self.is_first = self.is_last = False
        self.times = 1
        self.current: object = None

    @property
    def is_elsewhere(self) -> bool:
        """The former name of `is_remote`."""
        warn("Turn.is_elsewhere is called is_remote since fedgen 0.3", DeprecationWarning)
        return self.is_remote

    @property
    def batch_length(self) -> int:
        """The examples in each of its batches."""
        return min(self._batch_size, self.num_examples)

    @classmethod
    def idle(cls, examples: Examples, round: int) -> "Turn":
        """A turn in which no client trains."""
        return cls(examples, torch.empty(0, dtype=torch.int64), 1, 0, -1, "nobody", round)

    def batches(self, iterations: int) -> Iterator[Batch]:
        """The client's batches of this round, a function of (seed, round, client) alone."""
        examples, are_images = self._examples, self._examples.is_images
        draws = generator(self._seed, "batches", self.round, self.client)
        for positions in draw_batches(self.num_examples, self._batch_size, iterations, draws):
            chosen = self._indices[positions]
            inputs = examples.inputs[chosen]
            yield from_uint8(inputs) if are_images else inputs, examples.labels[chosen]

    @property
    def trial_batch(self) -> object:
        """A batch like those of the turn, for a model to be tried with; None if their form is not known here."""
        return None if self.is_idle else next(iter(self.batches(1)))

    def __iter__(self) -> Iterator[object]:
        current = (self._indices[: self._batch_size],) if self.current is None else self.current
        return iter(current if isinstance(current, (tuple, list)) else (current,))

    def __repr__(self) -> str:
        return f"Turn(client={self.client}, name={self.name!r}, round={self.round}, num_examples={self.num_examples})"


class LazyTurn(Turn):
    """A turn over `LazyExamples`, with the same draws of examples as one in memory."""

    _examples: LazyExamples
    _begun: Stream | None = None

    def batches(self, iterations: int) -> Iterator[Any]:
        stream, self._begun = self._begun or self._stream(), None
        ahead = self._examples.items.ahead
        try:
            for done in range(iterations):
                begun = stream.fill(max(1, min(ahead, iterations - done)))
                if begun < ahead:
                    self._read_following(ahead - begun, iterations)
                try:
                    batch = stream.take()
                except Exception as error:
                    error.add_note(f"for client {self.name!r} in round {self.round}")
                    raise
                yield batch
        finally:
            stream.close()

    def read_ahead(self, room: int, iterations: int) -> None:
        """Begins to read at most `room` batches, of this turn first and then of those that follow."""
        if not self.is_idle:
            self._begun = self._begun or self._stream()
            room -= self._begun.fill(min(room, iterations))
        if room > 0:
            self._read_following(room, iterations)

    def _read_following(self, room: int, iterations: int) -> None:
        turn = self.following() if self.following is not None else None
        if isinstance(turn, LazyTurn):
            turn.read_ahead(room, iterations)

    def _stream(self) -> Stream:
        draws = generator(self._seed, "batches", self.round, self.client)
        base = derive(self._seed, "items", self.round, self.client)
        return Stream(self._examples.items, read_tasks(self._examples, self._indices, self._batch_size, draws, base))


def read_tasks(
    examples: LazyExamples, indices: Tensor, batch_size: int, draws: torch.Generator, base: int
) -> Iterator[ReadTask]:
    """Endless batches of the examples at some positions, drawn from `draws`; `base` seeds the items' transforms."""
    for places, visits in endless_batches(len(indices), batch_size, draws):
        yield examples.tasks(indices[places], base, visits, places)


def own_batch_size(examples: Examples, indices: Tensor) -> int | None:
    """The batch size of the loader that examples came with; None if they came without one."""
    if isinstance(examples, LazyExamples) and len(indices):
        return examples.items.part_of(int(examples.positions[indices[0]])).batch_size
    return None
