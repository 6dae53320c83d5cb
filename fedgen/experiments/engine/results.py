"""Results of an experiment: its numbers with the settings and versions that made them, tables and a figure."""

import json
import platform
import reprlib
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.io.files import atomic_write, read_json, write_json

RESULTS = "results.json"
LIBRARIES = ("fedgen", "torch", "lightning", "torchmetrics", "numpy", "scipy")


def save_results(folder: str | Path, name: str, settings: dict[str, Any], numbers: dict[str, Any]) -> Path:
    """Writes `results.json` atomically: experiment, settings, versions, every number; returns its path."""
    versions = {"python": platform.python_version()} | {library: version(library) for library in LIBRARIES}
    path = Path(folder) / RESULTS
    write_json(path, {"experiment": name, "settings": settings, "versions": versions, "numbers": numbers})
    return path


def read_results(folder: str | Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The numbers that the same settings left in a folder; None if there are none.

    An option that was not there yet when they were stored counts as off, 0 or None.

    Raises:
        ValueError: if the folder holds the numbers of other settings, naming those that differ, or a damaged file.
    """
    path = Path(folder) / RESULTS
    if not path.exists():
        return None
    try:
        stored = read_json(path)
        before, numbers = stored["settings"], stored["numbers"]
        if not isinstance(before, dict) or not isinstance(numbers, dict):
            raise TypeError("settings and numbers must be objects")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); remove it to run the experiment again") from error
    now = json.loads(json.dumps(settings))  # tuples as lists, as they are stored
    alone = {
        key: value for one, other in ((before, now), (now, before)) for key, value in one.items() if key not in other
    }
    changed = sorted(key for key in before.keys() | now.keys() if alone.get(key, before.get(key) != now.get(key)))
    if changed:
        lines = [
            f"  {key}: {reprlib.repr(before.get(key))} there, {reprlib.repr(now.get(key))} now" for key in changed[:5]
        ]
        raise ValueError(
            f"{path} holds results of other settings; choose another --output, or remove it\n" + "\n".join(lines)
        )
    return numbers


def make_table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    notes: str | Sequence[str] = (),
    left: int = 1,
    max_width: int | None = None,
) -> Table:
    """Return a table of texts.

    Args:
        title: above it.
        headings: of the columns.
        rows: of as many cells; one without cells begins a section.
        notes: lines below it.
        left: how many columns say what a row is, and stand to the left unwrapped.
        max_width: of the others, in characters.
    """
    caption = notes if isinstance(notes, str) else "\n".join(notes)
    table = Table(title=title, caption=caption or None, caption_justify="left")
    for place, heading in enumerate(headings):
        if place < left:
            table.add_column(heading, no_wrap=True)
        else:
            table.add_column(heading, justify="right", max_width=max_width)
    for row in rows:
        if row:
            table.add_row(*row)
        else:
            table.add_section()
    return table


def save_figure(figure: Any, path: str | Path) -> Path:
    """Writes a matplotlib figure as PNG, atomically; returns its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=130)
    return Path(path)
