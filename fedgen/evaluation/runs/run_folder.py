"""A run folder: its scores and its checkpoints."""

import warnings
from collections.abc import Sequence
from html import escape
from pathlib import Path

from fedgen.evaluation.records import Columns, ScoreRecord, say_mixed
from fedgen.evaluation.runs.checkpoint_names import list_checkpoints
from fedgen.evaluation.runs.scores_file import SCORES_FILE, read_records


class Run:
    """The folder that training left.

    Args:
        folder: the run folder, with `scores.jsonl` and checkpoints.

    Raises:
        FileNotFoundError: if there is no such folder.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise FileNotFoundError(f"no run folder {self.folder}; give the folder that training wrote into")

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    def _repr_html_(self) -> str:
        """The run's scores as tables, for notebooks; its name where nothing was scored."""
        from fedgen.evaluation.tables.score_html import html_of  # which needs this module

        return html_of(read_records(self.scores_path)) or escape(repr(self))

    @property
    def scores_path(self) -> Path:
        """The file of the scores."""
        return self.folder / SCORES_FILE

    @property
    def records(self) -> list[ScoreRecord]:
        """All score records, read anew.

        Raises:
            FileNotFoundError: if nothing was scored yet.
        """
        records = read_records(self.scores_path)
        if not records:
            raise FileNotFoundError(
                f"{self.scores_path} has no scores yet; train with the FederatedEvaluation callback"
            )
        if mixed := say_mixed(records):
            warnings.warn(f"{self.scores_path}: {mixed}", stacklevel=2)
        return records

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
        chosen = (sorted(found)[-1:] if only_last else sorted(found)) if rounds is None else sorted(set(rounds))
        missing = [round for round in chosen if round not in found]
        if missing or not chosen:
            have = ", ".join(map(str, found)) or "none"
            raise FileNotFoundError(
                f"{self.folder} has no checkpoint of rounds {missing or 'any'}; it has rounds: {have}"
            )
        return {round: found[round] for round in chosen}
