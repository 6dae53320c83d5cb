"""Directions of scores, in words for captions and axes."""

from collections.abc import Sequence

from fedgen.evaluation.marks import marked
from fedgen.evaluation.records import BALANCED, ScoreRecord

ABOUT_BALANCE = "nearest 0.5, the value of a generator without memory, is best for memorisation (1: one that copies)"


def title_of(score: str) -> str:
    """A score's name for an axis: "FID", "KID-RBF", "Precision"."""
    return score.upper() if len(score) <= 4 or "-" in score else score.capitalize()


def direction_of(record: ScoreRecord) -> str:
    """ "higher is better" or "lower is better", for the axis of one score; of memorisation, what 0.5 means."""
    if record.score == BALANCED:
        return "0.5: no memory"
    return "higher is better" if record.higher_is_better else "lower is better"


def axis_of(record: ScoreRecord) -> str:
    """The label of a score's axis: "FID (lower is better)", with the mark of an embedding that a loss used."""
    return f"{marked(title_of(record.score), [record])} ({direction_of(record)})"


def say_directions(records: Sequence[ScoreRecord]) -> str:
    """The same for several scores, naming those that differ from the others."""
    higher = list(dict.fromkeys(record.score for record in records if record.higher_is_better))
    others = list(dict.fromkeys(record.score for record in records if not record.higher_is_better))
    lower = [score for score in others if score != BALANCED]
    if higher and lower:
        words = [f"higher is better for {', '.join(higher)}, lower for {', '.join(lower)}"]
    else:
        words = ["higher is better"] * bool(higher) + ["lower is better"] * bool(lower)
    return "; ".join([*words, ABOUT_BALANCE] if BALANCED in others else words)
