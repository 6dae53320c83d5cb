"""A client's turn: what the data module hands to the strategy as one Lightning batch."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fedgen.data import Examples
from fedgen.images import from_uint8
from fedgen.seeds import generator

Batch = tuple[Tensor, Tensor]


def to_batch(examples: Examples, indices: Tensor) -> Batch:
    """Model inputs and labels at the indices: images as floats in [-1, 1], points as they are."""
    inputs = examples.inputs[indices]
    return from_uint8(inputs) if examples.is_images else inputs, examples.labels[indices]


def draw_batches(count: int, batch_size: int, iterations: int, draws: torch.Generator) -> Tensor:
    """Positions int64 [iterations, min(batch_size, count)] in 0..count-1 for a number of shuffled batches.

    One random permutation after another, cut into full batches, so every example is seen equally often (to one)
    however many iterations there are; a batch is never larger than the data.
    """
    size = min(batch_size, count)
    needed = iterations * size
    epochs = [torch.randperm(count, generator=draws) for _ in range(-(-needed // count))]
    return torch.cat(epochs)[:needed].view(iterations, size)


class Turn:
    """One client's local training within a round, as a lazy source of its batches.

    `batches` gives the batches. Iterating a turn is for `self.log`, which looks for a batch size there: it gives the
    tensors of the batch that is being trained on, before and after training one of a batch's length.

    Attributes:
        client: the client's index in the data module.
        name: the client's name.
        round: the round, from 0.
        is_first, is_last: whether the turn opens or closes its round.
        num_examples: the client's training examples, its weight under `client_weights="examples"`.
    """

    def __init__(
        self, examples: Examples, indices: Tensor, batch_size: int, seed: int, client: int, name: str, round: int
    ) -> None:
        self._examples, self._indices, self._batch_size, self._seed = examples, indices, batch_size, seed
        self.client, self.name, self.round = client, name, round
        self.is_first = self.is_last = False
        self.current: object = None

    @property
    def num_examples(self) -> int:
        return len(self._indices)

    def batches(self, iterations: int) -> Iterator[Batch]:
        """The client's batches of this round, a function of (seed, round, client) alone."""
        draws = generator(self._seed, "batches", self.round, self.client)
        for positions in draw_batches(self.num_examples, self._batch_size, iterations, draws):
            yield to_batch(self._examples, self._indices[positions])

    def __iter__(self) -> Iterator[object]:
        current = (self._indices[: self._batch_size],) if self.current is None else self.current
        return iter(current if isinstance(current, (tuple, list)) else (current,))

    def __repr__(self) -> str:
        return f"Turn(client={self.client}, name={self.name!r}, round={self.round}, num_examples={self.num_examples})"
