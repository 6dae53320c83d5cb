"""The legend of columns' names: what stands before a score's name."""

from collections.abc import Collection, Sequence

from fedgen.evaluation.gaps import GAPS
from fedgen.evaluation.record_names import PART_TRAIN, PART_VAL, REPORT, UNPART
from fedgen.evaluation.records import Columns, ScoreRecord

MEANINGS = {
    REPORT: "another sample, against images that neither training nor selection has seen",
    PART_TRAIN: "against training images of clients that train",
    PART_VAL: "against held-out images of clients that train",
    UNPART: "against images of clients that never train",
}


def say_columns(records: Sequence[ScoreRecord], shown: Collection[str]) -> list[str]:
    """In words, what a split or an embedding in front of a score's name means; none where no shown column has one.

    Args:
        records: a run's.
        shown: names of columns in a table.
    """
    columns = Columns.of(records)
    own = [one for one in records if one.split not in GAPS and columns.name(one) in shown]
    splits = dict.fromkeys(one.split for one in own if columns.name(one).startswith(f"{one.split}/"))
    embeddings = dict.fromkeys(one.embedding for one in own if f"{one.embedding}/" in columns.name(one))
    found = [f"{split}/: {MEANINGS[split]}" for split in splits if split in MEANINGS]
    if embeddings:
        found.append(f"{', '.join(f'{name}/' for name in embeddings)}: in that embedding, else {columns.embedding}")
    return found
