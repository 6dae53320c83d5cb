"""The last lines of a run: what it says in words, where to look, and what to do next."""

import shlex
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from fedgen.evaluation import ScoreRecord, by_column
from fedgen.evaluation.conclusion import CENTRALISED, LOCAL_ONLY, conclude
from fedgen.evaluation.rebuild import RECIPE

EVENTS = "events.out.tfevents.*"  # what TensorBoard writes
REPORTS = "fedgen.reports"  # the package of `fedgen report`


def closing_lines(
    folder: Path, records: Sequence[ScoreRecord], pictures: Sequence[Path] = (), recipe: str | None = None
) -> list[str]:
    """A run's conclusion, its pictures and logs, and the commands that go on from here, under a heading each.

    Args:
        folder: the run's.
        records: its scores.
        pictures: drawn of them just now.
        recipe: its name or path, as it was given to `fedgen fit`; None of runs in Python.
    """
    parts = {
        "In short": conclude(records, folder),
        "To look at": looks(folder, pictures),
        "What next": steps(folder, records, recipe),
    }
    return [line for heading, lines in parts.items() if lines for line in (f"{heading}:", *(f"  {x}" for x in lines))]


def looks(folder: Path, pictures: Sequence[Path] = ()) -> list[str]:
    """The newest grid of samples, the figures, and TensorBoard's command if there are logs."""
    grids = sorted((folder / "samples").glob("round=*.png"))
    found = [f"{path}  # generated images, and real ones of the same clients" for path in grids[-1:]]
    found += [str(path) for path in pictures]
    found += [str(path) for path in sorted(folder.glob("*.html"))]
    newest = sorted(folder.rglob(EVENTS), key=lambda path: path.stat().st_mtime)
    return found + [f"tensorboard --logdir {_quoted(path.parent)}" for path in newest[-1:]]


def steps(folder: Path, records: Sequence[ScoreRecord], recipe: str | None = None) -> list[str]:
    """Commands that go on from a run, with what they are for."""
    columns = by_column(records)
    if not columns:
        return []
    place, first = _quoted(folder), next(record for record in records if record.is_model)
    found = {}
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
    longest = max(map(len, found))
    return [f"{command:<{longest}}  # {words}" for command, words in found.items()]


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
