"""Records of masked rounds: a round that is done again is summed over the same clients, or not at all.

A server that goes back to an earlier checkpoint asks for rounds again whose sums it has had. With a client fewer the
two sums, or the two checkpoints that they made, differ by that client's update. So the server keeps who was in each
sum, and so does every client (`pins.hold_to_clients`), who helps unmask no other.
"""

from collections.abc import Sequence
from pathlib import Path

from fedgen.io.field_types import fault
from fedgen.io.files import read_json, write_json

SUMMED = "masked_rounds.json"  # in the run folder


class MaskedRoundError(RuntimeError):
    """A masked round that is done again, without a client whose update was in its sum before."""


class MaskedRounds:
    """The clients, by name, whose updates were in each round's sum.

    Args:
        folder: of the run.

    Raises:
        ValueError: for a damaged file.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / SUMMED
        self._names: dict[str, list[str]] = {}
        if self._path.exists():
            found = read_json(self._path)
            if wrong := fault(found, dict[str, list[str]]):
                raise ValueError(
                    f"{self._path} {wrong}: it is damaged, and without it nobody knows who was summed in which round;"
                    " begin another run"
                )
            self._names = found

    def of(self, round: int) -> list[str] | None:
        """Return who was in a round's sum; None if it has had none."""
        return self._names.get(str(round))

    def note(self, round: int, names: Sequence[str]) -> None:
        """Keeps who is in a round's sum, on disk before it returns."""
        if self.of(round) is None:
            self._names[str(round)] = sorted(names)
            write_json(self._path, self._names)
