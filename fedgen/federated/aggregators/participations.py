"""Counts of a run's releases that each client has been part of, which compose their privacy."""

import math
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, TypedDict

from fedgen.clients.cohort import sample_cohort
from fedgen.io.field_types import Fits, fault
from fedgen.io.files import read_json, write_json
from fedgen.io.tensor_files import HASH, is_whole, with_hash

RELEASES = "releases.json"  # in the run folder


class Participations:
    """Counts for each client the rounds that drew it and whose sum was released, a round done again as often as it was.

    Cohorts are those of `sample_cohort`. A client that was drawn and left out counts too.

    Args:
        clients: of which each round draws.
        cohort: so many.
        seed: of the draws.

    Attributes:
        rounds: every round before it has been counted.
        times: releases of each client, in order.
    """

    def __init__(self, clients: int, cohort: int, seed: int) -> None:
        self._cohort, self._seed = cohort, seed
        self.rounds, self.times = 0, [0] * clients

    @property
    def most(self) -> int:
        """The largest number of releases that any client has taken part in."""
        return max(self.times)

    def reach(self, rounds: int) -> None:
        """Counts each round before `rounds` that has not been counted, once."""
        while self.rounds < rounds:
            self._draw(self.rounds)
            self.rounds += 1

    def add(self, round: int) -> None:
        """Counts a release of a round, also where it has been counted; so are rounds before it that have not been."""
        again = round < self.rounds
        self.reach(round + 1)
        if again:
            self._draw(round)

    def _draw(self, round: int) -> None:
        for client in sample_cohort(len(self.times), self._cohort, self._seed, round):
            self.times[client] += 1

    def save(self, folder: Path, noise_multiplier: float) -> None:
        """Writes the counts into a run folder, on disk before it returns.

        Args:
            folder: of the run.
            noise_multiplier: of every release.
        """
        state = {"noise_multiplier": noise_multiplier, "rounds": self.rounds, "times": self.times}
        # a digit that became another would make epsilon too small
        write_json(folder / RELEASES, with_hash({}, state))

    def load(self, folder: Path, noise_multiplier: float) -> None:
        """Goes on from the counts of a run folder, if it has any.

        Args:
            folder: of the run.
            noise_multiplier: of every release.

        Raises:
            ValueError: for a damaged file, or one of other clients or other noise, with the remedy.
        """
        path = folder / RELEASES
        if not path.exists():
            return
        found = _read(path)
        here = (len(self.times), noise_multiplier)
        if (there := (len(found["times"]), found["noise_multiplier"])) != here:
            raise ValueError(
                f"{path} counts releases of {there[0]} clients with noise {there[1]:g}, and this run has {here[0]} and"
                f" noise {here[1]:g}: choose another folder; where clients are the same, its epsilon comes on top"
            )
        self.rounds, self.times = found["rounds"], found["times"]


class _Counts(TypedDict):
    noise_multiplier: Annotated[Real, Fits(math.isfinite, "finite number")]
    rounds: int
    times: list[int]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
        counts = {name: value for name, value in found.items() if name != HASH} if isinstance(found, dict) else found
        if wrong := fault(counts, _Counts):
            raise ValueError(f"it {wrong}")
        if not is_whole({}, found):
            raise ValueError("it holds other counts than were written")
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged ({error}), and without it nobody knows what this run has released: begin another run,"
            " whose epsilon comes on top"
        ) from error
    return counts
