"""Scores of runs against the simulated time that their rounds took."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgen.evaluation import Columns, Run, ScoreRecord, by_column
from fedgen.evaluation.directions import axis_of
from fedgen.evaluation.runs.selection import default_column
from fedgen.federated.left_out import shorten
from fedgen.federated.run_files import TIME_FILE, read_times
from fedgen.reports.figures.curves import BAND, finite
from fedgen.reports.figures.saving import save_picture

LONGEST_NAME = 60  # characters of a run's


def scores_over_time(run: str | Path, column: str) -> tuple[list[float], list[ScoreRecord]]:
    """Return a run's seconds on the simulated clock and its scores at them, of one column; the untrained model's at 0.

    Args:
        run: folder.
        column: e.g. "fid_all".

    Raises:
        FileNotFoundError: for a run that has kept no simulated time.
        ValueError: for a column that it has not, naming those it has.
    """
    if not (times := read_times(run)):
        raise FileNotFoundError(
            f"{run} has no {TIME_FILE}: train with FedBuffStrategy, or with FedAvgStrategy(speeds=...), and evaluate"
        )
    columns = by_column(Run(run).records)
    if column not in columns:
        raise ValueError(f"{run} has no column {column!r}; it has {', '.join(columns)}")
    known = [one for one in columns[column] if one.round == -1 or one.round in times]
    return [0.0 if one.round is None or one.round < 0 else times[one.round].seconds for one in known], known


def draw_over_time(runs: Sequence[str | Path], path: str | Path, column: str | None = None) -> Path:
    """Draw one column of several runs against simulated seconds, with bands of two standard errors; gives the path.

    The first run's floor, real images scored as if generated, is a dashed line.

    Args:
        runs: folders, each with the simulated time that its strategy has kept.
        path: of the picture (PNG).
        column: e.g. "fid_all"; the one that `fedgen.select` takes for the first run by default.

    Raises:
        FileNotFoundError: for a run that has kept no simulated time.
        ValueError: for a column that a run has not, naming those it has.
    """
    from matplotlib.figure import Figure

    column = column or default_column(by_column(Run(runs[0]).records))
    found = {str(run): scores_over_time(run, column) for run in runs}
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, (seconds, records) in found.items():
        _draw_run(axes, shorten(Path(name).name, LONGEST_NAME), seconds, records)
    _draw_floor(axes, runs[0], column)
    axes.set_xlabel("simulated seconds")
    axes.set_ylabel(f"{axis_of(next(iter(found.values()))[1][0])}, {column}")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=9)
    return save_picture(figure, path)


def _draw_run(axes: Any, name: str, seconds: Sequence[float], records: Sequence[ScoreRecord]) -> None:
    values = [record.value for record in records]
    spread = [2 * finite(record.standard_error) for record in records]
    (line,) = axes.plot(seconds, values, marker="o", markersize=3.5, linewidth=1.5, label=name)
    low, high = ([v + sign * s for v, s in zip(values, spread)] for sign in (-1, 1))
    axes.fill_between(seconds, low, high, color=line.get_color(), alpha=BAND, linewidth=0)


def _draw_floor(axes: Any, run: str | Path, column: str) -> None:
    records = Run(run).records
    columns = Columns.of(records)
    for record in records:
        if record.is_floor and columns.name(record) == column:
            label = f"{record.num_generated} real images"
            axes.axhline(record.value, color="black", linestyle="--", linewidth=1, label=label)
            return
