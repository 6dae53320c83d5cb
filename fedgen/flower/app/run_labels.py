"""The labels in a run's config: which classes there are, and how many images of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgen.federated.left_out import shorten
from fedgen.flower.wire.messages import Hello
from fedgen.own_code import rank_zero_warn
from fedgen.statistics.statistic_messages import MessageError

CLASSES, COUNTS = "classes", "label-counts"
DIGITS = 12  # of a count: all of them add up to a whole number of 63 bits


@dataclass(frozen=True)
class RunLabels:
    """The classes that a run's labels are of.

    Labels are positions among the classes of the whole federation, so whoever adds one moves the others: where they are
    not named here, they are what the clients say.

    Args:
        classes: their names in the labels' order; empty for all that clients have, sorted as a folder's are.
        counts: images of each, by which a conditional model draws labels; empty where nobody has told them.
    """

    classes: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()

    @classmethod
    def of_run(cls, config: Mapping[str, Any]) -> "RunLabels":
        """Read the labels of a run's config: "classes" and "label-counts", each separated by commas.

        Raises:
            ValueError: for a class twice, counts that are none, or as many of them as there are no classes.
        """
        classes = _parts(config, CLASSES)
        if len(set(classes)) != len(classes):
            twice = next(name for name in classes if classes.count(name) > 1)
            raise ValueError(f"{CLASSES} in the run's config names {twice!r} twice; name each class once")
        told = _parts(config, COUNTS)
        if not all(part.isdecimal() and len(part) <= DIGITS for part in told) or (told and not any(map(int, told))):
            said = shorten(str(config[COUNTS]), 80)
            raise ValueError(
                f'{COUNTS}="{said}" in the run\'s config: give whole numbers that are not all 0, one a class, of'
                f" at most {DIGITS} digits"
            )
        found = cls(classes, tuple(map(int, told)))
        if classes:
            found._check_counts(len(classes))
        return found

    def check(self, one: Hello) -> None:
        """Refuses a client that has a class which the run's config does not name.

        Raises:
            MessageError: naming both.
        """
        if self.classes and not one.classes:
            raise MessageError(f"client {one.name!r} has no labels, and {CLASSES} in the run's config names some")
        if others := [name for name in one.classes if name not in self.classes] if self.classes else []:
            raise MessageError(
                f"client {one.name!r} has the class {others[0]!r}, and {CLASSES} in the run's config names"
                f" {', '.join(self.classes)}{_of_commas(others[0])}"
            )

    def names(self, clients: Sequence[Hello]) -> tuple[str, ...]:
        """The classes of the run, in the labels' order: named ones, else all that clients have, in the order of text.

        Where clients have numbers in order of size, "10" after "9", as data sets with integers for labels, it is that.
        """
        if self.classes:
            return self.classes
        every = {name for one in clients for name in one.classes}
        lists = [list(one.classes) for one in clients]
        numbers = all(name.isdecimal() for name in every)
        by_size = numbers and all(own == sorted(own, key=_size) for own in lists)
        by_text = all(own == sorted(own) for own in lists)
        return tuple(sorted(every, key=_size) if by_size and not by_text else sorted(every))

    def count(self, classes: Sequence[str], unlabelled: Sequence[str]) -> Tensor:
        """Images of each class int64 [classes]: what a conditional model draws labels by; all alike if none are told.

        Args:
            classes: of the run.
            unlabelled: names of clients without labels.

        Raises:
            ValueError: if there are any, or for another number of counts than of classes.
        """
        if unlabelled:
            raise ValueError(
                f"client {unlabelled[0]!r} has no labels, which a conditional model needs: its images belong in folders"
                " by class; or leave out num_classes"
            )
        self._check_counts(len(classes))
        if self.counts:
            return torch.tensor(self.counts, dtype=torch.int64)
        rank_zero_warn(
            f"labels are drawn as if all {len(classes)} classes were equally frequent, as no client tells how many"
            f" images of each it has; where that is known, give {COUNTS} in the run's config"
        )
        return torch.ones(len(classes), dtype=torch.int64)

    def _check_counts(self, classes: int) -> None:
        if self.counts and len(self.counts) != classes:
            raise ValueError(f"{COUNTS} in the run's config gives {len(self.counts)} numbers for {classes} classes")


def _size(name: str) -> tuple[int, str]:
    return int(name), name


def _of_commas(name: str) -> str:
    return "; a name with a comma cannot be named there: rename it, or leave the key out" if "," in name else ""


def _parts(config: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in str(config.get(key, "")).split(",") if part.strip())
