"""The last lines of a run: what it says in words, where to look, and what to do next."""

import shlex
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap

from fedgen.evaluation import ScoreRecord, by_column
from fedgen.evaluation.runs.rebuild import RECIPE
from fedgen.evaluation.tables.conclusion import CENTRALISED, LOCAL_ONLY, conclude

EVENTS = "events.out.tfevents.*"  # what TensorBoard writes
INDENT = "  "
REPORTS = "fedgen.reports"  # the package of `fedgen report`


def closing_lines(
    folder: Path,
    records: Sequence[ScoreRecord],
    pictures: Sequence[Path] = (),
    recipe: str | None = None,
    width: int = 160,
) -> list[str]:
    """A run's conclusion, its pictures and logs, and the commands that go on from here, under a heading each.

    Args:
        folder: the run's.
        records: its scores.
        pictures: drawn of them just now.
        recipe: its name or path, as it was given to `fedgen fit`; None of runs in Python.
        width: of the terminal: sentences are wrapped, and words on commands are put above them where there is no room.
    """
    room = width - len(INDENT)
    parts = {
        "In short": [part for line in conclude(records, folder) for part in wrap(line, room, subsequent_indent="  ")],
        "To look at": looks(folder, pictures),
        "What next": beside(steps(folder, records, recipe), room),
    }
    return [part for heading, lines in parts.items() if lines for part in (f"{heading}:", *(INDENT + x for x in lines))]


def beside(commands: Mapping[str, str], room: int) -> list[str]:
    """Commands with what they are for: behind them if that fits into so many columns, else above them."""
    if not commands:
        return []
    longest = max(map(len, commands))
    if longest + max(map(len, commands.values())) + 4 <= room:
        return [f"{command:<{longest}}  # {words}" for command, words in commands.items()]
    return [line for command, words in commands.items() for line in (f"# {words}", command)]


def looks(folder: Path, pictures: Sequence[Path] = ()) -> list[str]:
    """The newest grid of samples, the figures, and the logs: TensorBoard's command, or the newest table."""
    grids = sorted((folder / "samples").glob("round=*.png"))
    found = [f"{path}  # samples, above real images" for path in grids[-1:]]
    found += [str(path) for path in pictures]
    found += [str(path) for path in sorted(folder.glob("*.html"))]
    newest = sorted(folder.rglob(EVENTS), key=lambda path: path.stat().st_mtime)
    found += [f"tensorboard --logdir {_quoted(path.parent)}" for path in newest[-1:]]
    tables = sorted(folder.rglob("metrics.csv"), key=lambda path: path.stat().st_mtime)
    return found + [f"{path}  # logged values" for path in tables[-1:]]


def steps(folder: Path, records: Sequence[ScoreRecord], recipe: str | None = None) -> dict[str, str]:
    """Commands that go on from a run, with what they are for."""
    columns = by_column(records)
    if not columns:
        return {}
    place, first = _quoted(folder), next(record for record in records if record.is_model)
    found: dict[str, str] = {}
    if find_spec(REPORTS):
        found[f"fedgen report {place}"] = "the run as one page"
    by = next((name for name, group in columns.items() if group[0].aggregate == "avg"), next(iter(columns)))
    found[f"fedgen select {place} --by {by}"] = "rank the checkpoints by another column"
    if (folder / RECIPE).exists() and first.embedding not in ("identity", ""):
        other = "pixels" if first.embedding != "pixels" else "efficientnet-lite0-32"
        found[f"fedgen evaluate {place} {other} --num_images {first.num_generated}"] = "score them in another embedding"
    if recipe is not None and not folder.name.endswith((LOCAL_ONLY, CENTRALISED)):
        given = f"fedgen fit {_quoted(Path(recipe))}"
        for end, words in ((LOCAL_ONLY, "control: no exchange"), (CENTRALISED, "control: pooled data")):
            if not folder.with_name(folder.name + end).exists():
                found[f"{given} --{end[1:]}"] = words
    return found


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
