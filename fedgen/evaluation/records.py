"""Score records: what is stored of every measured score, and the names of the columns that they form."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from numbers import Integral, Real
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedgen.data.optional_attributes import optional
from fedgen.embeddings import network_of
from fedgen.io.field_types import Between, Fits, checker
from fedgen.io.files import is_file_name
from fedgen.models.optional_hooks import GenerativeModel

Item = TypeVar("Item")
Key = TypeVar("Key")

# Settings that a model's images depend on beside its weights: a solver, its steps, the guidance.
#
# The protocol: a model that can sample in several ways has an attribute `sampling`, a dictionary of plain types that
# its `sample()` honours, e.g. {"solver": "dpm-solver++", "steps": 25}; assigning a dictionary changes the settings
# that it names, and what depends on them.


def sampling_of(model: Any) -> dict[str, Any]:
    """A copy of a model's sampling settings; none for a model that samples in one way only."""
    settings = optional(model, GenerativeModel, "sampling")
    if settings is None:
        return {}
    try:
        copied = json.loads(json.dumps(settings, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{type(model).__name__}.sampling must hold plain types alone: {error}") from error
    if not isinstance(copied, dict):
        raise TypeError(f"{type(model).__name__}.sampling must be a dictionary, got {settings!r}")
    return copied


def change_sampling(model: Any, settings: Mapping[str, Any]) -> None:
    """Changes some of a model's sampling settings, or none if one is refused."""
    before = sampling_of(model)
    known = {name: value for name, value in settings.items() if name in before}
    _change(model, known)
    try:
        _change(model, {name: value for name, value in settings.items() if name not in before})
    except ValueError:
        if known:
            model.sampling = before
        raise


def _change(model: Any, settings: Mapping[str, Any]) -> None:
    if not settings:
        return
    have = sampling_of(model)
    unknown = [name for name in settings if name not in have]
    if unknown:
        listed = ", ".join(f"{name} ({value})" for name, value in have.items())
        raise ValueError(
            f"{type(model).__name__} has no sampling setting {unknown[0]!r}; "
            + (f"it has: {listed}" if have else "it samples in one way only, so leave them out")
        )
    try:
        model.sampling = dict(settings)
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{type(model).__name__} refuses sampling={dict(settings)}: {error}") from error


def say_sampling(settings: Mapping[str, Any]) -> str:
    """Settings in words: "sampled with solver dpm-solver++, steps 25"; "" for none."""
    words = ", ".join(f"{name} {value}" for name, value in settings.items())
    return f"sampled with {words}" if words else ""


SMALL, LARGE = 1e-4, 1e6  # between these nothing is in scientific notation


def say_number(value: float, error: float | None = None, digits: int = 4) -> str:
    """ "12.34±0.56": an error to two digits and the value to the error's last; a value alone to `digits` of them."""
    if not math.isfinite(value) or error == 0 or (error is not None and not math.isfinite(error)):
        error = None
    size = max(abs(value), error or 0.0)
    if not math.isfinite(value) or size == 0:
        return f"{value:g}"
    if not SMALL <= size < LARGE:
        if error is None:
            return f"{value:.{digits - 1}g}"
        if value == 0:
            return f"0±{error:.1e}"
        shared = int(f"{value:.1e}".partition("e")[2]) - int(f"{error:.1e}".partition("e")[2]) + 1
        return f"{value:.{min(max(shared, 0), 16)}e}±{error:.1e}"
    if error is None:
        text = f"{value:z.{_places(value, digits)}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    places = _places(error, 2)
    return f"{value:z.{places}f}±{error:.{places}f}"


def say_error(error: float) -> str:
    """An error by itself, to two digits: "2.0", "0.050"."""
    return f"{error:.{_places(error, 2)}f}" if SMALL <= error < LARGE else f"{error:.1e}" if error else "0"


def say_interval(low: float, high: float, *, sign: str = "") -> str:
    """ "1.80 to 2.20": both ends to two digits of half their distance; with `sign` "+" positive ones show theirs."""
    half, size = (high - low) / 2, max(abs(low), abs(high))
    if not SMALL <= size < LARGE:
        return f"{low:{sign}.3g} to {high:{sign}.3g}"
    places = _places(max(half, SMALL / 10), 2)
    form = f"{sign or 'z'}.{places}f"  # an end that rounds to 0 keeps its sign: whether 0 is inside counts
    return f"{low:{form}} to {high:{form}}"


def _places(number: float, digits: int) -> int:
    """Decimal places that leave a number so many digits, as it is rounded; none where it has more before the point."""
    return max(0, digits - 1 - int(f"{number:.{digits - 1}e}".partition("e")[2]))


MODEL, FLOOR = "model", "floor"
LEAST_SURE = 20  # generated images; of fewer a standard error is uncertain by more than a sixth
PARTICIPANTS, MEMORISER = "participants", "memoriser"
CONTROLS = {  # of three-way splits
    FLOOR: "unscored images of all clients, scored as if generated",
    PARTICIPANTS: "unscored images of participating clients, scored as if generated",
    MEMORISER: "the images of part_train themselves, scored as if generated",
}
FINE_TUNED = "fine-tuned"  # begins the generator's name where clients fine-tuned the model first
BALANCED, BALANCE = "memorisation", 0.5  # by this score nearest to this value is best
# scores that mean one embedding, which their columns need not name
OWN_EMBEDDING = frozenset({"fd-dinov2", "cmmd", "is", "fcd", "utility", "loss"})
# JSON does not have these (a log-density of zero, a critic that diverged), so they are stored as text
NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
NUMBERS = ("value", "standard_error", "error_over_clients", "error_parts", "terms", "per_client", "per_client_errors")


@dataclass(frozen=True)
class ScoreRecord:
    """One value of one score, with all that it depends on.

    Args:
        score: "fid", "kid", "precision", ...
        aggregate: "avg", "all", "worst" or "power-p".
        value: the score.
        standard_error: over generated and real images; None if it was not computed.
        split: the clients' images it was measured against: "train", "report" (held out), ...
        embedding: the embedding's name.
        embedding_fingerprint: hash over its weights and settings.
        reference: the real images in words, e.g. "digits/train, 10 clients, 1438 images".
        num_generated: generated images.
        num_clients: clients.
        seed: seed of the generated images.
        weights: the clients' weights, "examples", "uniform", or "given" with a hash.
        round: the round after which the model was measured; -1 before training, None for the floor.
        generator: "model", or what stood in for one, all of them real images: "floor", images of others; "participants"
            and "memoriser", see `evaluation.splits`.
        checkpoint: file name of the model's checkpoint.
        embedding_settings: resize, layer, dtype and whatever else decides the features.
        optimised_on: names of the scores or embeddings that a training loss used.
        error_parts: standard errors with the other side's images held fixed: {"generated": ..., "real": ...}; under
            secure aggregation {"generated": ..., "quantisation": ...}.
        terms: parts of the value: {"mean": ..., "covariance": ...} for fid avg and all.
        per_client: the clients' scores, in avg records only.
        per_client_errors: standard errors of those.
        client_names: their names, in the same records.
        note: further remarks, e.g. "mixture of local models".
        higher_is_better: whether a better model has a larger value; by the score's name if None, as in old files.
        score_settings: the score's options that are not its defaults, e.g. {"k": 3}.
        error_over_clients: standard error of avg and all if the clients are a sample of a larger population;
            None if it was not computed.
        sampling: how the model sampled, beside its weights, e.g. {"solver": "dpm-solver++", "steps": 25}.
        real_influences: of some of the clients' images, the same for all checkpoints, float32 [p]; see
            `fedgen.scores.aggregate.kept_influences`. Stored beside the records; None where they are not at hand.
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
    higher_is_better: bool | None = None
    score_settings: dict[str, Any] = field(default_factory=dict)
    error_over_clients: float | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    real_influences: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.higher_is_better is None:
            from fedgen.evaluation.score_choice import known_scores  # loads torch, which only old files' records need

            definition = known_scores().get(self.score)
            object.__setattr__(self, "higher_is_better", definition is not None and definition().higher_is_better)

    @property
    def badness(self) -> float:
        """A number by which less is better, whatever the score: the value with a sign, or its distance from balance.

        A value that is not a number is worse than any other.
        """
        if math.isnan(self.value):
            return math.inf
        if self.score == BALANCED:
            return abs(self.value - BALANCE)
        return -self.value if self.higher_is_better else self.value

    @property
    def generated_error(self) -> float:
        """Standard error over generated images alone, the part in which models scored on the same clients differ.

        0 for a score that generated images have no part in, such as ll; the whole error where no parts are known, and
        NaN where that is unknown, or of so few images that nothing is sure.
        """
        error = self.error_parts.get("generated", 0.0) if self.error_parts else self.whole_error
        return math.nan if error and self.is_of_few else error

    @property
    def is_of_few(self) -> bool:
        """Whether it is of so few generated images that its error is unreliable; not if it needs none, as losses."""
        return 0 < self.num_generated < LEAST_SURE

    @property
    def whole_error(self) -> float:
        """The standard error, NaN where it is unknown."""
        return math.nan if self.standard_error is None else self.standard_error

    @property
    def is_model(self) -> bool:
        """Whether the images were generated; real ones stood in for them otherwise."""
        return self.generator == MODEL

    @property
    def is_fine_tuned(self) -> bool:
        """Whether the images are of clients' own models, fine-tuned from the server's."""
        return self.generator.startswith(FINE_TUNED)

    @property
    def is_floor(self) -> bool:
        """Whether real images of others stood in for generated ones."""
        return self.generator == FLOOR

    @property
    def noun(self) -> str:
        """The kind of samples that were scored, as `reference` ends: "images", "texts", "points"."""
        found = re.search(r"\d ([a-z]+)$", self.reference)
        return found[1] if found else "images"

    @property
    def real(self) -> str:
        """The real images as `reference` has them, thousands set apart: "digits/train, 10 clients, 1,438 images"."""
        return re.sub(r"\d{4,}(?= [a-z]+(,|$))", lambda found: f"{int(found[0]):,}", self.reference)

    @property
    def name(self) -> str:
        """Score and aggregate: "fid_avg"."""
        return f"{self.score}_{self.aggregate}"

    @property
    def column(self) -> tuple[str, str, str, str]:
        """Split, embedding, score and aggregate."""
        return self.split, self.embedding, self.score, self.aggregate

    @property
    def conditions(self) -> tuple[Any, ...]:
        """The fields that values of one column must share to be comparable: records of other conditions are others."""
        special = [self.score_settings, self.sampling]
        settings = json.dumps(special, sort_keys=True) if any(special) else ""  # of thousands of records most have none
        return self.embedding_fingerprint, self.reference, self.num_generated, self.weights, settings, self.seed

    @property
    def identity(self) -> tuple[Any, ...]:
        """The fields that two records share if the later replaces the earlier."""
        return self.generator, self.round, self.column, self.conditions

    @property
    def is_in_losses_embedding(self) -> bool:
        """Whether a training loss used this score's embedding, or this very score."""
        return bool({self.embedding, self.name, f"{self.embedding}/{self.score}"} & set(self.optimised_on))

    @property
    def is_optimised(self) -> bool:
        """Whether a training loss used this score's network, at whatever size or layer, so that it proves little."""
        if not self.optimised_on:
            return False
        used = {network_of(name) for name in self.optimised_on}
        return self.is_in_losses_embedding or network_of(self.embedding) in used

    def to_json(self) -> dict[str, Any]:
        """The record as plain types; empty lists, dictionaries and notes are left out where `from_json` knows them.

        Numbers that are not finite, which JSON does not have, become "inf", "-inf" and "nan".
        """
        required = {f.name for f in fields(self) if f.default is MISSING and f.default_factory is MISSING}
        values = ((f.name, getattr(self, f.name)) for f in fields(self) if f.compare)
        return {name: _written(value) for name, value in values if name in required or value not in ([], {}, "")}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "ScoreRecord":
        """The record of `to_json`; unknown keys (of a later release) are left out.

        Raises:
            ValueError: if a key that every record has is missing, or one holds something other than records do.
        """
        known = {n: _read(value) if n in NUMBERS else value for n, value in values.items() if n in _FIELDS}
        try:
            record = cls(**known)
        except TypeError as error:
            raise ValueError(f"not a score record: {error}") from error
        for name, check in _FIELDS.items():
            if name in known and (wrong := check(getattr(record, name))):
                raise ValueError(f"not a score record: its {name} {wrong}")
        clients = len(record.per_client)
        if not all(len(part) in (0, clients) for part in (record.per_client_errors, record.client_names)):
            raise ValueError("not a score record: it has more or fewer clients' errors or names than scores")
        return record


@dataclass(frozen=True)
class Columns:
    """Names of columns: "fid_avg", with split and embedding in front where they are not the run's first.

    Scores that mean one embedding, such as "cmmd", never have it in front.
    """

    split: str
    embedding: str

    @classmethod
    def of(cls, records: Sequence[ScoreRecord]) -> "Columns":
        """The names used for a run's records, in the order they were written."""
        return cls(records[0].split, records[0].embedding) if records else cls("train", "")

    def score(self, split: str, embedding: str, score: str) -> str:
        """A score's name in columns, without aggregate: "fid", "report/fid", "vgg16/fid" or "report/vgg16/fid"."""
        parts = [split] if split != self.split else []
        parts += [embedding] if embedding != self.embedding and score not in OWN_EMBEDDING else []
        return "/".join([*parts, score])

    def name(self, record: ScoreRecord) -> str:
        """A record's column, e.g. "report/vgg16/kid_all"."""
        return f"{self.score(record.split, record.embedding, record.score)}_{record.aggregate}"


def by_column(records: Sequence[ScoreRecord], columns: Columns | None = None) -> dict[str, list[ScoreRecord]]:
    """The records of models (not of controls) by column, each by round."""
    found = grouped((record for record in records if record.is_model), (columns or Columns.of(records)).name)
    for group in found.values():
        group.sort(key=lambda record: -1 if record.round is None else record.round)
    return found


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items by what a function gives of each, in their order."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def unique(records: Iterable[ScoreRecord]) -> list[ScoreRecord]:
    """The records with the later of two that share an identity, in the order of first appearance."""
    return list({record.identity: record for record in records}.values())


def _written(value: Any) -> Any:
    """A value of plain types, with numbers that are not finite as text."""
    if isinstance(value, dict):
        return {key: _written(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_written(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _read(value: Any) -> Any:
    if type(value) is float:
        return value
    if isinstance(value, dict):
        return {key: _read(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_read(part) for part in value]
    return NOT_FINITE.get(value, value) if isinstance(value, str) else value


_Text = Annotated[Any, Fits(lambda value: isinstance(value, str), "text")]  # clients' names may be no Unicode
# NaN and infinity are some that could not be computed
_Error = Annotated[Real, Fits(lambda value: not value < 0, "standard error")] | None
_HINTS: dict[str, Any] = {
    **dict.fromkeys(("score", "aggregate", "split", "embedding", "embedding_fingerprint"), _Text),
    **dict.fromkeys(("reference", "weights", "generator", "note"), _Text),
    **dict.fromkeys(("num_generated", "num_clients"), int),
    **dict.fromkeys(("standard_error", "error_over_clients"), _Error),
    **dict.fromkeys(("error_parts", "terms"), dict[Any, Real]),
    **dict.fromkeys(("per_client", "per_client_errors"), list[Real]),
    **dict.fromkeys(("optimised_on", "client_names"), list[_Text]),
    **dict.fromkeys(("embedding_settings", "score_settings", "sampling"), dict[Any, Any]),
    "value": Real,
    "seed": Integral,
    "round": Annotated[Integral, Between(-1, 2**63 - 2)] | None,
    "checkpoint": Annotated[_Text, Fits(is_file_name, "file's name")] | None,
    "higher_is_better": bool,
}
_FIELDS = {name: checker(hint) for name, hint in _HINTS.items()}  # what each field of a record must be
