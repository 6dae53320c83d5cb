"""Which way is better, in words for captions and axes."""

from collections.abc import Sequence

from fedgen.evaluation.records import ScoreRecord

BALANCED = "memorisation"  # neither way is better, so it ranks nothing unless it is asked for
BALANCE = "memorisation: 0.5 is the value of a generator without memory, 1 of one that copies"


def title_of(score: str) -> str:
    """A score's name for an axis: "FID", "KID-RBF", "Precision"."""
    return score.upper() if len(score) <= 4 or "-" in score else score.capitalize()


def direction_of(record: ScoreRecord) -> str:
    """ "higher is better" or "lower is better", for the axis of one score; of memorisation, what 0.5 means."""
    if record.score == BALANCED:
        return "0.5: no memory"
    return "higher is better" if record.higher_is_better else "lower is better"


def axis_of(record: ScoreRecord) -> str:
    """The label of a score's axis: "FID (lower is better)"."""
    return f"{title_of(record.score)} ({direction_of(record)})"


def say_directions(records: Sequence[ScoreRecord]) -> str:
    """The same for several scores, naming those that differ from the others."""
    higher = list(dict.fromkeys(record.score for record in records if record.higher_is_better))
    lower = list(dict.fromkeys(record.score for record in records if not record.higher_is_better))
    if not higher:
        words = "lower is better"
    elif not lower:
        words = "higher is better"
    else:
        words = f"higher is better for {', '.join(higher)}, lower for {', '.join(lower)}"
    return f"{words}; {BALANCE}" if BALANCED in lower else words
