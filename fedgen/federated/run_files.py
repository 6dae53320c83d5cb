"""Files of a run's folder that are read without torch: what becomes of its module's state, and simulated time."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from fedgen.io.field_types import Between, conforms
from fedgen.io.files import atomic_write, parse_json
from fedgen.io.regular_files import read_regular

STATE_FILE = "state.txt"  # of a run's folder
TIME_FILE = "simulated_time.jsonl"  # beside scores.jsonl


def read_state(folder: str | Path) -> str:
    """Read what `state_table.write_state` kept; empty if there is no file."""
    path = Path(folder) / STATE_FILE
    return read_regular(path).decode(errors="replace").rstrip("\n") if path.exists() else ""


class RoundTime(NamedTuple):
    round: Annotated[int, Between(0)]
    seconds: Annotated[float, Between(0)]
    turns: Annotated[int, Between(0)]
    staleness: Annotated[float, Between(0)]
    largest_staleness: Annotated[int, Between(0)]


def write_times(folder: str | Path, rounds: Sequence[RoundTime]) -> None:
    """Keep the rounds in a run's folder, a line each; no file if there are none."""
    path = Path(folder) / TIME_FILE
    if not rounds:
        path.unlink(missing_ok=True)
        return
    with atomic_write(path) as file:
        file.write("".join(json.dumps(one._asdict()) + "\n" for one in rounds).encode())


def read_times(folder: str | Path) -> dict[int, RoundTime]:
    """Return what `write_times` kept, by round; nothing if there is no file."""
    path = Path(folder) / TIME_FILE
    if not path.exists():
        return {}
    try:
        lines = [parse_json(line) for line in read_regular(path).decode().splitlines()]
        rounds = [RoundTime(**line) for line in lines]
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}); remove it, a resumed run writes it again") from error
    if not all(conforms(one, RoundTime) for one in rounds):
        raise ValueError(f"{path} is damaged: it holds something other than rounds and seconds; remove it")
    return {one.round: one for one in rounds}
