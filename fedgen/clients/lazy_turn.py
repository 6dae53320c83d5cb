"""A client's turn whose batches are read from disk, those of the turns that follow while this one trains."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from fedgen.clients.turn import Turn
from fedgen.data import Examples
from fedgen.data.items import ReadTask, Stream
from fedgen.data.lazy_examples import LazyExamples
from fedgen.data.model_batches import endless_batches
from fedgen.seeds import derive, generator


class LazyTurn(Turn):
    """A turn over `LazyExamples`. It draws the examples that a turn in memory does.

    What an item's transforms draw depends on (seed, round, client, the item's place among the client's, how often it
    was read in the turn) alone, whatever the number of workers.
    """

    def __init__(
        self, examples: LazyExamples, indices: Tensor, batch_size: int, seed: int, client: int, name: str, round: int
    ) -> None:
        own = examples.items.part_of(int(examples.positions[indices[0]])).batch_size if len(indices) else None
        super().__init__(examples, indices, own or batch_size, seed, client, name, round)
        self._items = examples.items
        self._begun: Stream | None = None

    def batches(self, iterations: int) -> Iterator[Any]:
        """The client's batches of this round, as its data set and collate_fn make them."""
        stream, self._begun = self._begun or self._stream(), None
        ahead = self._items.ahead
        try:
            for done in range(iterations):
                begun = stream.fill(max(1, min(ahead, iterations - done)))
                if begun < ahead:
                    self._read_following(ahead - begun, iterations)
                yield self._take(stream)
        finally:
            stream.close()

    def _take(self, stream: Stream) -> Any:
        """The next batch; an error in reading it gets a note with the client's name."""
        try:
            return stream.take()
        except Exception as error:
            error.add_note(f"for client {self.name!r} in round {self.round}")
            raise

    def read_ahead(self, room: int, iterations: int) -> None:
        """Begins to read at most `room` batches of this turn, and where it has fewer, of those that follow."""
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
        return Stream(self._items, self._tasks())

    def _tasks(self) -> Iterator[ReadTask]:
        draws = generator(self._seed, "batches", self.round, self.client)
        base = derive(self._seed, "items", self.round, self.client)
        examples = self._examples
        assert isinstance(examples, LazyExamples)
        for places, visits in endless_batches(self.num_examples, self._batch_size, draws):
            yield examples.tasks(self._indices[places], base, visits, places)


def make_turn(
    examples: Examples, indices: Tensor, batch_size: int, seed: int, client: int, name: str, round: int
) -> Turn:
    """The turn over examples in memory, or over those that are read when they are needed."""
    if isinstance(examples, LazyExamples):
        return LazyTurn(examples, indices, batch_size, seed, client, name, round)
    return Turn(examples, indices, batch_size, seed, client, name, round)
