"""The file in which a run keeps what becomes of its module's state, read without torch."""

from pathlib import Path

from fedgen.io.regular_files import read_regular

STATE_FILE = "state.txt"  # of a run's folder


def read_state(folder: str | Path) -> str:
    """Read what `state_table.write_state` kept; empty if there is no file."""
    path = Path(folder) / STATE_FILE
    return read_regular(path).decode(errors="replace").rstrip("\n") if path.exists() else ""
