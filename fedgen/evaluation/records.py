"""Score records: what is stored of every measured score, and the names of the columns that they form."""

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

MODEL, FLOOR = "model", "floor"


@dataclass(frozen=True)
class ScoreRecord:
    """One value of one score, with all that it depends on.

    Args:
        score: "fid" or "kid".
        aggregate: "avg", "all" or "worst".
        value: the score; lower is better.
        standard_error: over generated and real images; None if it was not computed.
        split: the clients' images it was measured against: "train", "report" (held out), ...
        embedding: the embedding's name.
        embedding_fingerprint: hash over its weights and settings.
        reference: the real images in words, e.g. "digits/train, 10 clients, 1438 images".
        num_generated: generated images.
        num_clients: clients.
        seed: seed of the generated images.
        weights: the clients' weights, "examples", "uniform" or "given".
        round: the round after which the model was measured; -1 before training, None for the floor.
        generator: "model", or "floor": real images scored as if they were generated.
        checkpoint: file name of the model's checkpoint.
        embedding_settings: resize, layer, dtype and whatever else decides the features.
        optimised_on: names of the scores or embeddings that a training loss used.
        error_parts: standard errors with the other side's images held fixed: {"generated": ..., "real": ...}.
        terms: parts of the value: {"mean": ..., "covariance": ...} for fid avg and all.
        per_client: the clients' scores, in avg records only.
        per_client_errors: standard errors of those.
        client_names: their names, in the same records.
        note: what else a reader must know, e.g. "mixture of local models".
    """

    score: str
    aggregate: str
    value: float
    standard_error: float | None
    split: str
    embedding: str
    embedding_fingerprint: str
    reference: str
    num_generated: int
    num_clients: int
    seed: int
    weights: str = "examples"
    round: int | None = None
    generator: str = MODEL
    checkpoint: str | None = None
    embedding_settings: dict[str, Any] = field(default_factory=dict)
    optimised_on: list[str] = field(default_factory=list)
    error_parts: dict[str, float] = field(default_factory=dict)
    terms: dict[str, float] = field(default_factory=dict)
    per_client: list[float] = field(default_factory=list)
    per_client_errors: list[float] = field(default_factory=list)
    client_names: list[str] = field(default_factory=list)
    note: str = ""

    @property
    def is_floor(self) -> bool:
        """Whether real images stood in for generated ones."""
        return self.generator == FLOOR

    @property
    def name(self) -> str:
        """Score and aggregate: "fid_avg"."""
        return f"{self.score}_{self.aggregate}"

    @property
    def identity(self) -> tuple[Any, ...]:
        """What two records share if the later replaces the earlier: generator, round and column."""
        return self.generator, self.round, self.split, self.embedding, self.score, self.aggregate

    @property
    def conditions(self) -> tuple[Any, ...]:
        """What values of one column must share to be comparable: other conditions, other number."""
        return self.embedding_fingerprint, self.reference, self.num_generated, self.weights

    @property
    def is_optimised(self) -> bool:
        """Whether a training loss used this score's embedding (or this very score), so that it proves little."""
        return bool({self.embedding, self.name, f"{self.embedding}/{self.score}"} & set(self.optimised_on))

    def to_json(self) -> dict[str, Any]:
        """The record as plain types; empty lists, dictionaries and notes are left out where `from_json` knows them."""
        required = {f.name for f in fields(self) if f.default is MISSING and f.default_factory is MISSING}
        values = asdict(self)
        return {name: value for name, value in values.items() if name in required or value not in ([], {}, "")}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "ScoreRecord":
        """The record of `to_json`; unknown keys (of a later release) are left out.

        Raises:
            ValueError: if a key that every record has is missing, or the value is no number.
        """
        known = {f.name for f in fields(cls)}
        try:
            record = cls(**{name: value for name, value in values.items() if name in known})
        except TypeError as error:
            raise ValueError(f"not a score record: {error}") from error
        if not isinstance(record.value, (int, float)):
            raise ValueError(f"not a score record: its value is {record.value!r}")
        return record


@dataclass(frozen=True)
class Columns:
    """Names of columns: "fid_avg", with split and embedding in front where they are not the run's first.

    Args:
        split: the run's first split.
        embedding: the run's first embedding.
    """

    split: str
    embedding: str

    @classmethod
    def of(cls, records: Sequence[ScoreRecord]) -> "Columns":
        """The names used for a run's records, in the order they were written."""
        return cls(records[0].split, records[0].embedding) if records else cls("train", "")

    def prefix(self, split: str, embedding: str) -> str:
        """What stands before "fid_avg": "", "report/", "vgg16/" or "report/vgg16/"."""
        parts = [name for name, first in ((split, self.split), (embedding, self.embedding)) if name != first]
        return "".join(f"{part}/" for part in parts)

    def name(self, record: ScoreRecord) -> str:
        """A record's column, e.g. "report/vgg16/kid_all"."""
        return self.prefix(record.split, record.embedding) + record.name


def by_column(records: Sequence[ScoreRecord], columns: Columns | None = None) -> dict[str, list[ScoreRecord]]:
    """The records of models (not the floor) by column, each by round."""
    names = columns or Columns.of(records)
    found: dict[str, list[ScoreRecord]] = {}
    for record in records:
        if not record.is_floor:
            found.setdefault(names.name(record), []).append(record)
    return {name: sorted(group, key=_round) for name, group in found.items()}


def unique(records: Iterable[ScoreRecord]) -> list[ScoreRecord]:
    """The records with the later of two that share an identity, in the order of first appearance."""
    return list({record.identity: record for record in records}.values())


def _round(record: ScoreRecord) -> int:
    return -1 if record.round is None else record.round
