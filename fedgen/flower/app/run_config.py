"""A run's config: what may stand in it, checked before anybody is waited for or asked."""

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from fedgen.flower.app.run_labels import CLASSES, COUNTS
from fedgen.flower.app.run_statistics import DELTA, EPSILON, RADIUS, SECURE
from fedgen.flower.secure_aggregation.secure_mean import RANGE
from fedgen.flower.wire.ranges import RANGES, range_key
from fedgen.io.field_types import Between, conforms

CLIENTS, OUTPUT, WAIT, DEADLINE, SIMULATION = "clients", "output", "wait", "round-deadline", "simulation-data"
LEDGER = "epsilon"  # the folder of a client beside those of its runs: what each release has spent
LEAST_ANSWERS, MOST_IMAGES, CHECKPOINT = "least-answers", "most-images", "ckpt-path"
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
    """Refuses a run's config with a key that there is not, or a value of another type than the key's.

    Raises:
        ValueError: naming key and value, and saying what to give.
    """
    for key, value in config.items():
        if key not in KEYS:
            near = get_close_matches(key, KEYS, 1)
            meant = f"did you mean {near[0]}? K" if near else "k"
            raise ValueError(f"{key}={value!r} in the run's config: there is no such key; {meant}eys are {_list(KEYS)}")
        hint, wanted = _OF_KEYS[key]
        if not conforms(value, hint):
            raise ValueError(f"{key}={value!r} in the run's config: give {wanted}")
    if CLIENTS not in config:
        raise ValueError(f"the run's config does not say how many `{CLIENTS}` to wait for")
    run_name(config)


def run_name(config: Mapping[str, Any]) -> str:
    """Return the name of a run's folder, which clients give theirs of this run.

    Raises:
        ValueError: for a place without a name of its own.
    """
    name = Path(str(config.get(OUTPUT, "fedgen-run"))).name
    if name in ("", "..", LEDGER):  # clients keep what all runs have spent beside their folders
        raise ValueError(
            f"{OUTPUT}={config.get(OUTPUT)!r} in the run's config: give a folder with a name, as runs/first, and not"
            f" {LEDGER!r}"
        )
    return name


def _list(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
