"""A run's config: its keys, checked before any client is asked, its labels, and the noise of its statistics."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor

from fedgen.federated.left_out import shorten
from fedgen.flower.wire.answer_forms import RANGES, range_key
from fedgen.flower.wire.messages import Hello
from fedgen.io.field_types import Between, conforms
from fedgen.own_code import rank_zero_warn
from fedgen.statistics import Privacy
from fedgen.statistics.statistic_messages import MessageError

CLIENTS, OUTPUT, WAIT, DEADLINE, SIMULATION = "clients", "output", "wait", "round-deadline", "simulation-data"
LEDGER = "epsilon"  # the folder of a client beside those of its runs: what each release has spent
LEAST_ANSWERS, MOST_IMAGES, CHECKPOINT = "least-answers", "most-images", "ckpt-path"
SECURE, RANGE = "secure-aggregation", "update-range"
EPSILON, DELTA, RADIUS = "statistics-epsilon", "statistics-delta", "statistics-radius"
CLASSES, COUNTS = "classes", "label-counts"
DIGITS = 12  # of a count: all of them add up to a whole number of 63 bits
_NUMBERS = (WAIT, DEADLINE, LEAST_ANSWERS, RANGE, EPSILON, DELTA, RADIUS, *map(range_key, RANGES))
_TEXTS = (OUTPUT, CHECKPOINT, SIMULATION)
_LISTS = (CLASSES, COUNTS)  # a single one may have been read as a number
_OF_KEYS: dict[str, tuple[Any, str]] = {  # what a value may be, and the words for it
    CLIENTS: (Annotated[int, Between(1)], "a whole number from 1"),
    MOST_IMAGES: (int, "a whole number from 0"),
    SECURE: (bool, "true or false, without quotes"),
    **dict.fromkeys(_NUMBERS, (Annotated[float, Between(0, sys.float_info.max)], "a number from 0, without quotes")),
    **dict.fromkeys(_TEXTS, (str, "text in quotes")),
    **dict.fromkeys(_LISTS, (str | int, "text in quotes")),
}
KEYS = tuple(_OF_KEYS)


def check_config(config: Mapping[str, Any]) -> None:
    """Refuses a run's config with a key that there is not, or a value of another type than the key's."""
    for key, value in config.items():
        if key not in KEYS:
            near = get_close_matches(key, KEYS, 1)
            meant = f"did you mean {near[0]}? K" if near else "k"
            keys = f"{', '.join(KEYS[:-1])} and {KEYS[-1]}"
            raise ValueError(f"{key}={value!r} in the run's config: there is no such key; {meant}eys are {keys}")
        hint, wanted = _OF_KEYS[key]
        if not conforms(value, hint):
            raise ValueError(f"{key}={value!r} in the run's config: give {wanted}")
    if CLIENTS not in config:
        raise ValueError(f"the run's config does not say how many `{CLIENTS}` to wait for")
    run_name(config)


def run_name(config: Mapping[str, Any]) -> str:
    """Return the name of a run's folder, which clients give theirs of this run."""
    name = Path(str(config.get(OUTPUT, "fedgen-run"))).name
    if name in ("", "..", LEDGER):  # clients keep what all runs have spent beside their folders
        raise ValueError(
            f"{OUTPUT}={config.get(OUTPUT)!r} in the run's config: give a folder with a name, as runs/first, and not"
            f" {LEDGER!r}"
        )
    return name


@dataclass(frozen=True)
class RunLabels:
    """The classes of a run's labels, by default all that clients say, and images of each, to draw labels by."""

    classes: tuple[str, ...] = ()
    counts: tuple[int, ...] = ()

    @classmethod
    def of_run(cls, config: Mapping[str, Any]) -> "RunLabels":
        """Read the labels of a run's config: "classes" and "label-counts", each separated by commas."""
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
        """Refuses a client that has a class which the run's config does not name."""
        if self.classes and not one.classes:
            raise MessageError(f"client {one.name!r} has no labels, and {CLASSES} in the run's config names some")
        if others := [name for name in one.classes if name not in self.classes] if self.classes else []:
            cannot = "; a name with a comma cannot be named there: rename it, or leave the key out"
            remedy = cannot if "," in others[0] else ""
            raise MessageError(
                f"client {one.name!r} has the class {others[0]!r}, and {CLASSES} in the run's config names"
                f" {', '.join(self.classes)}{remedy}"
            )

    def names(self, clients: Sequence[Hello]) -> tuple[str, ...]:
        """The run's classes in the labels' order: named ones, else all, by size if clients order numbers so."""
        if self.classes:
            return self.classes
        every = {name for one in clients for name in one.classes}
        lists = [list(one.classes) for one in clients]
        numbers = all(name.isdecimal() for name in every)
        by_size = numbers and all(own == sorted(own, key=_size) for own in lists)
        by_text = all(own == sorted(own) for own in lists)
        return tuple(sorted(every, key=_size) if by_size and not by_text else sorted(every))

    def count(self, classes: Sequence[str], unlabelled: Sequence[str]) -> Tensor:
        """Images of each class int64 [classes], by which a conditional model draws; all alike if none are told."""
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


def _parts(config: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in str(config.get(key, "")).split(",") if part.strip())


def privacy_of(config: Mapping[str, Any]) -> Privacy | None:
    """The privacy of sums with noise, for one embedding and a client's message by itself; None without noise."""
    # how many images a client has is no secret here, so the promise is about an image in another's place
    if not has_noise(config):
        return None
    values = {name: float(config.get(name, 0)) for name in (EPSILON, DELTA, RADIUS)}
    try:
        return Privacy(values[EPSILON], values[DELTA], values[RADIUS], "replace", "public")
    except ValueError as error:
        said = " ".join(f"{name}={value:g}" for name, value in values.items())
        raise ValueError(f"{said} in the run's config: {error}") from error


def has_noise(config: Mapping[str, Any]) -> bool:
    """Whether a run's clients tell sums with noise alone."""
    return float(config.get(EPSILON, 0)) != 0
