"""The server's tensors from which the turns of a round start: those of the round itself, or older ones."""

from collections.abc import Sequence

from torch import Tensor

from fedgen.clients.turn import Turn


class StartPoints:
    """The server's present tensors, from which every turn of a synchronous round starts."""

    def start_round(self, number: int) -> None:
        """Before the first turn of a round, with the server's tensors taken."""

    def start_turn(self, turn: Turn) -> bool:
        """Make the server's tensors those that a client starts from; whether the module holds them, too."""
        return False

    def round_of(self, turn: Turn) -> int:
        """Return the round in which a turn has started."""
        return turn.round

    def rebase(self, update: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return what a turn's tensors mean to the server of this round.

        Args:
            update: the tensors that travel, in their order, as the turn left them.
        """
        return update

    def end_turn(self) -> None:
        """Put the server's present tensors back in place, whatever became of the turn; any number of times."""
