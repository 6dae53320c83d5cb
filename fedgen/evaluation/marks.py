"""Marks on scores whose embedding a training loss used: they prove little, and every table and figure says so."""

from collections.abc import Collection, Iterable

from fedgen.embeddings import network_of
from fedgen.evaluation.record_names import HELD_OUT
from fedgen.evaluation.records import ScoreRecord

SAME, RELATED = "*", "(*)"
MEANINGS = {
    SAME: "a training loss used this embedding: the value proves little, look at another embedding",
    RELATED: "a training loss used this embedding on other images than these held-out ones, or its network at another"
    " size or layer: weak evidence, look at another embedding",
}


def mark_of(record: ScoreRecord) -> str:
    """ "*" for a score in the embedding of a training loss, "(*)" for a weaker tie to it, "" for none.

    Weaker is a score on held-out images, which the loss did not see, and one of the same network at another size, layer
    or seed.
    """
    return _mark(record.is_optimised, record.is_in_losses_embedding, record.split in HELD_OUT)


def mark_in(embedding: str, optimised: Collection[str], held_out: bool) -> str:
    """The mark of a score that has no record, as `mark_of` has them.

    Args:
        embedding: that it was measured in.
        optimised: the embeddings that a training loss used; none for a model without such a loss.
        held_out: whether it was measured against images that the loss did not see.
    """
    related = network_of(embedding) in {network_of(name) for name in optimised}
    return _mark(related, embedding in optimised, held_out)


def _mark(related: bool, same: bool, held_out: bool) -> str:
    if not related:
        return ""
    return SAME if same and not held_out else RELATED


def strongest(records: Iterable[ScoreRecord]) -> str:
    """The mark of several records of one column: the strongest of theirs."""
    marks = {mark_of(record) for record in records}
    return next((mark for mark in (SAME, RELATED) if mark in marks), "")


def marked(name: str, records: Iterable[ScoreRecord]) -> str:
    """A name with the mark of its records behind it: "fid_all *"."""
    return f"{name} {strongest(records)}".rstrip()


def say_marks(marks: Iterable[str]) -> list[str]:
    """Return what the marks among these mean, each once."""
    present = set(marks)
    return [f"{mark}: {meaning}" for mark, meaning in MEANINGS.items() if mark in present]


def explained(records: Iterable[ScoreRecord]) -> list[str]:
    """Return what the marks of records mean, each once."""
    return say_marks(mark_of(record) for record in records)
