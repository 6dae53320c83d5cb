"""The scores of a run's controls: its recipe trained without exchange, and on pooled data."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedgen.evaluation.records import ScoreRecord
from fedgen.evaluation.runs.scores_file import SCORES_FILE, read_records

LOCAL_ONLY, CENTRALISED = "local_only", "centralised"  # options of `fedgen fit`, and the ends of their folders' names
ARMS = {"": "federated", LOCAL_ONLY: "local only", CENTRALISED: "centralised"}
CONTROLS = "controls"  # in a run's folder: the controls' scores that its recipe brings along
Controls = Mapping[str, Sequence[ScoreRecord]]
"""Records of models by the arm's name."""


def arm_of(folder: Path) -> str:
    """The arm that a run is, by its folder's name; "" for the federated one."""
    return next((arm for arm in (LOCAL_ONLY, CENTRALISED) if folder.name.endswith(f"-{arm}")), "")


def read_controls(folder: Path, records: Sequence[ScoreRecord]) -> Controls:
    """The other arms' records under the conditions of a run's own, by arm: of runs beside it, or of its recipe's."""
    mine, last = arm_of(folder), {record.column: record for record in records if record.is_model}
    base, found = folder.name.removesuffix(f"-{mine}"), dict[str, list[ScoreRecord]]()
    for arm, words in ARMS.items():
        beside = folder.with_name(f"{base}-{arm}" if arm else base) / SCORES_FILE
        path = beside if beside.exists() else folder / CONTROLS / f"{arm}.jsonl"
        own = [one for one in read_records(path) if one.is_model] if arm != mine else []
        own = [one for one in own if one.column in last and one.conditions == last[one.column].conditions]
        found |= {words: own} if own else {}
    return found
