"""A run folder: its scores and its checkpoints."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from rich.console import Console

from fedgen.evaluation.names import list_checkpoints
from fedgen.evaluation.records import Columns, ScoreRecord
from fedgen.evaluation.runs.scores_file import SCORES_FILE, load_influences, read_records
from fedgen.evaluation.runs.selection import (
    Ranked,
    Real,
    best_records,
    column_of,
    columns_of,
    default_column,
    is_of,
    one_kind,
    rank,
    say_kind,
    say_others,
)
from fedgen.evaluation.tables.table import are_several, html_of, inversions_found, run_tables, selection_table
from fedgen.own_code import warn
from fedgen.progress import make_console


class Run:
    """The folder of a training.

    Args:
        folder: the run folder, with `scores.jsonl` and checkpoints.
        kind: which scores, if settings differ: "50 images", "weights uniform, seed 1"; by default those of the run's
            recipe, else those of most checkpoints, and among these of most images.

    Raises:
        FileNotFoundError: if there is no such folder.
    """

    def __init__(self, folder: str | Path, kind: str = "") -> None:
        self.folder, self.kind = Path(folder), kind
        self.scores_path = self.folder / SCORES_FILE
        if not self.folder.is_dir():
            raise FileNotFoundError(f"no run folder {self.folder}; give the folder that training wrote into")

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        """The run's scores as tables, for notebooks; its name where nothing was scored."""
        return html_of(self.records if read_records(self.scores_path) else []) or escape(repr(self))

    @property
    def records(self) -> list[ScoreRecord]:
        """The score records, of one kind a column, read anew; a warning names others of the kinds asked for.

        Raises:
            FileNotFoundError: if nothing was scored yet.
            ValueError: if none are of the kind that was asked for, naming those there are.
        """
        records, kind, path = read_records(self.scores_path), self.kind, self.scores_path
        if not records:
            runs = sorted(one.parent.name for one in self.folder.glob(f"*/{SCORES_FILE}"))
            inside = f"; it holds runs: {', '.join(runs[:4])}{', ...' * (len(runs) > 4)}" if runs else ""
            raise FileNotFoundError(
                f"{path} has no scores{inside or ' yet; train with the FederatedEvaluation callback'}"
            )
        if kind and not any(is_of(record, kind) for record in records if record.is_model):
            there = "; ".join(dict.fromkeys(say_kind(record) for record in records if record.is_model))
            raise ValueError(f"{path} has no scores of {kind!r}; it has: {there or 'real images alone'}")
        shown = one_kind(records, self.folder, (lambda record: is_of(record, kind)) if kind else None)
        asked = [one for one in records if not kind or is_of(one, kind)]
        if others := say_others(asked, shown, self.folder):
            warn(f"{path}: {others}")
        return shown

    @property
    def columns(self) -> Columns:
        """The names of the run's columns."""
        return Columns.of(self.records)

    @property
    def checkpoints(self) -> dict[int, Path]:
        """The checkpoints by round."""
        return list_checkpoints(self.folder)

    def checkpoints_of(self, rounds: Sequence[int] | None, only_last: bool = False) -> dict[int, Path]:
        """The checkpoints of some rounds, ascending.

        Args:
            rounds: which; None for all.
            only_last: whether None is for the last one alone.

        Raises:
            FileNotFoundError: if there is none, or not those of `rounds`.
        """
        found = self.checkpoints
        chosen = list(found)[-1 if only_last else 0 :] if rounds is None else sorted(set(rounds))
        missing = [round for round in chosen if round not in found]
        if missing or not chosen:
            which, have = missing or "any", ", ".join(map(str, found)) or "none"
            raise FileNotFoundError(f"{self.folder} has no checkpoint of rounds {which}; it has rounds: {have}")
        return {round: found[round] for round in chosen}


RunLike = Run | str | Path
Scored = RunLike | Sequence[ScoreRecord]


def select(run: Scored, by: str | None = None, kind: str = "") -> list[Ranked]:
    """The scored checkpoints, best first: the lowest value, the highest where higher is better, or for memorisation the
    nearest to 0.5.

    The earlier of equals comes first.

    Args:
        run: a run, its folder, or records.
        by: the column, e.g. "fid_all", "report/kid_avg", "report/vgg16/fid_all"; `default_column` if None.
        kind: which scores, if numbers of images, weights or seeds differ: "50 images"; as for `Run`.

    Raises:
        ValueError: for a column that the run lacks, or lacks in that kind; lists those it has.

    Examples:
        >>> import fedgen
        >>> from fedgen.evaluation import ScoreRecord
        >>> about = {"score": "kid", "aggregate": "all", "standard_error": 0.1, "split": "train", "weights": "examples"}
        >>> about |= {"embedding": "pixels", "embedding_fingerprint": "0", "reference": "digits", "num_generated": 100}
        >>> about |= {"num_clients": 2, "seed": 0}
        >>> records = [ScoreRecord(value=2.0, round=0, **about), ScoreRecord(value=1.0, round=1, **about)]
        >>> [(found.round, found.value) for found in fedgen.select(records)]
        [(1, 1.0), (0, 2.0)]
    """
    return rank(*_column(run, by, kind))


def best_set(run: Scored, by: str | None = None, kind: str = "", real: Real = "fixed") -> list[Ranked]:
    """The checkpoints among which the best one is with 95 percent probability, the lowest value first.

    Differences of many checkpoints have many chances to be large, so it is larger than what lies within 1.96 errors of
    the best: see `fedgen.scores.rankings.best_set`. Generated images of different checkpoints count as independent.

    Args:
        run: as for `select`; so are by and kind.
        by: the column.
        kind: of scores.
        real: "fixed" for the best on these real images; "sample" for the best on new ones of the same clients, by FID's
            expectation at these numbers of images.

    Raises:
        ValueError: as `select`.
    """
    column, folder = _column(run, by, kind)
    return rank(best_records(load_influences(folder, column) if folder else column, real), folder)


def _column(run: Scored, by: str | None, kind: str) -> tuple[list[ScoreRecord], Path | None]:
    run = Run(run, kind) if isinstance(run, (str, Path)) else run
    records, folder = (run.records, run.folder) if isinstance(run, Run) else (run, None)
    columns = columns_of(records)
    return column_of(columns, by or default_column(columns, kind), kind), folder


def print_report(run: RunLike, console: Console | None = None) -> None:
    """Prints a run's tables, in the terminal by default: scores, what each column selects, and the inverted pairs.

    Raises:
        FileNotFoundError: if there is no such folder, or it has no scores.
    """
    console = console or make_console()
    records = (run if isinstance(run, Run) else Run(run)).records
    choice = (selection_table(records), inversions_found(records)) if are_several(records) else ()
    for part in (*run_tables(records, console.width), *choice):
        console.print(part)
