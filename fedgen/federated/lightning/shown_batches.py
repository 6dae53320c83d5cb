"""What callbacks see of a client's turn: its first batch before it has run, its last one afterwards."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from fedgen.clients.turn import Turn


class ShownBatches:
    """A turn's batches, of which the first may have been shown before the turn runs.

    Args:
        iterations: batches a turn.
    """

    def __init__(self, iterations: int) -> None:
        self._iterations = iterations
        self._turn: Turn | None = None  # whose batches have been begun
        self._begun: Iterator[Any] | None = None  # of which the first has been shown
        self._shown: Any = None

    def start_turn(self, turn: Turn) -> None:
        """Forgets the batch of the turn before."""
        if turn is not self._turn:
            self._shown = None

    def batches_of(self, turn: Turn) -> Iterator[Any]:
        """The turn's batches, with the one that was shown."""
        opened, self._begun = self._begun if turn is self._turn else None, None
        self._turn = turn
        return turn.batches(self._iterations) if opened is None else opened

    def show(self, batch: Any) -> None:
        """Takes the batch that is trained on, where the model is."""
        self._shown = batch

    def of(self, turn: Turn) -> Any:
        """The batch that callbacks see; the turn itself if its batches are elsewhere."""
        if turn.is_elsewhere:
            return turn
        if turn is self._turn:
            return self._shown
        batches = turn.batches(self._iterations)
        self._turn, self._shown = turn, next(batches)
        self._begun = chain([self._shown], batches)
        return self._shown
