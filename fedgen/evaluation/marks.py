"""Marks on scores whose embedding a training loss used: they prove little, and every table and figure marks them."""

from collections.abc import Collection, Iterable, Sequence

from fedgen.embeddings import network_of
from fedgen.evaluation.names import HELD_OUT, PART_TRAIN, PART_VAL, UNPART
from fedgen.evaluation.records import BALANCED, ScoreRecord

SAME, RELATED = "*", "(*)"
MEANINGS = {
    SAME: "a training loss used this embedding: the value proves little, look at another embedding",
    RELATED: "a training loss used this embedding on other images than these held-out ones, or its network at another"
    " size or layer: weak evidence, look at another embedding",
}
ABOUT_BALANCE = "nearest 0.5, the value of a generator without memory, is best for memorisation (1: one that copies)"
GAPS = {"gap/out_of_sample": (PART_TRAIN, PART_VAL), "gap/participation": (PART_VAL, UNPART)}
"""The gaps by name, each with the split where the score is better and the one where it is worse.

Of "What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216), section 2. A gap is
how much worse the second place is, whichever way is better. If all clients have one distribution the participation gap
is 0 in expectation.
"""
GAP_AGGREGATES = ("avg", "all")  # that have a gap


def mark_of(record: ScoreRecord) -> str:
    """ "*" for a score in the embedding of a training loss, "(*)" for a weaker tie to it, "" for none."""
    if not record.is_optimised:
        return ""
    return SAME if record.is_in_losses_embedding and record.split not in HELD_OUT else RELATED


def mark_in(embedding: str, optimised: Collection[str], held_out: bool) -> str:
    """The mark of a score that has no record, as `mark_of` has them."""
    if network_of(embedding) not in {network_of(name) for name in optimised}:
        return ""
    return SAME if embedding in optimised and not held_out else RELATED


def strongest(records: Iterable[ScoreRecord]) -> str:
    """The mark of several records of one column: the strongest of theirs."""
    marks = {mark_of(record) for record in records}
    return next((mark for mark in (SAME, RELATED) if mark in marks), "")


def marked(name: str, records: Iterable[ScoreRecord]) -> str:
    """A name with the mark of its records behind it: "fid_all *"."""
    return f"{name} {strongest(records)}".rstrip()


def say_marks(marks: Iterable[str]) -> list[str]:
    present = set(marks)
    return [f"{mark}: {meaning}" for mark, meaning in MEANINGS.items() if mark in present]


def explained(records: Iterable[ScoreRecord]) -> list[str]:
    return say_marks(mark_of(record) for record in records)


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
    words = ["higher is better"] * bool(higher) + ["lower is better"] * bool(lower)
    if higher and lower:
        words = [f"higher is better for {', '.join(higher)}, lower for {', '.join(lower)}"]
    return "; ".join([*words, ABOUT_BALANCE] if BALANCED in others else words)


def gap_title(gap: str) -> str:
    """A gap's name for readers: "gap/out_of_sample" is the "out of sample gap"."""
    return gap.removeprefix("gap/").replace("_", " ") + " gap"


def interval(record: ScoreRecord, level: float = 0.95) -> tuple[float, float] | None:
    """The interval of avg or all over the population of clients, by Student's t, where its error is known."""
    if record.error_over_clients is None or record.num_clients < 2:
        return None
    from scipy import stats  # slow to import, and most commands show no interval

    reach = float(stats.t.ppf((1 + level) / 2, record.num_clients - 1)) * record.error_over_clients
    return record.value - reach, record.value + reach
