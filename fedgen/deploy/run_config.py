"""A run's config: what may stand in it, checked before anybody is waited for or asked."""

import math
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fedgen.deploy.ranges import RANGES, range_key
from fedgen.deploy.run_labels import CLASSES, COUNTS
from fedgen.deploy.run_statistics import DELTA, EPSILON, RADIUS
from fedgen.deploy.secure import RANGE, SECURE

CLIENTS, OUTPUT, WAIT, DEADLINE, SIMULATION = "clients", "output", "wait", "round-deadline", "simulation-data"
LEAST_ANSWERS, CHECKPOINT = "least-answers", "ckpt-path"
_NUMBERS = (WAIT, DEADLINE, LEAST_ANSWERS, RANGE, EPSILON, DELTA, RADIUS, *map(range_key, RANGES))
_TEXTS = (OUTPUT, CHECKPOINT, SIMULATION)
_LISTS = (CLASSES, COUNTS)  # a single one may have been read as a number
KEYS = (CLIENTS, SECURE, *_NUMBERS, *_TEXTS, *_LISTS)


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
        if wanted := _wanted(key, value):
            raise ValueError(f"{key}={value!r} in the run's config: give {wanted}")
    if CLIENTS not in config:
        raise ValueError(f"the run's config does not say how many `{CLIENTS}` to wait for")
    run_name(config)


def run_name(config: Mapping[str, Any]) -> str:
    """What a run's folder is called, which clients call theirs of this run.

    Raises:
        ValueError: for a place without a name of its own.
    """
    name = Path(str(config.get(OUTPUT, "fedgen-run"))).name
    if name in ("", ".."):
        raise ValueError(f"{OUTPUT}={config[OUTPUT]!r} in the run's config: give a folder with a name, as runs/first")
    return name


def _wanted(key: str, value: Any) -> str:
    """What a key's value should be; "" if it is."""
    if key == SECURE:
        return "" if isinstance(value, bool) else "true or false, without quotes"
    if key == CLIENTS:
        return "" if type(value) is int and value >= 1 else "a whole number from 1"
    if key in _NUMBERS:
        is_number = type(value) in (int, float) and 0 <= value < math.inf
        return "" if is_number else "a number from 0, without quotes"
    is_text = isinstance(value, str) or (key in _LISTS and type(value) is int)
    return "" if is_text else "text in quotes"


def _list(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
