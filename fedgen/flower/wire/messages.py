"""Messages between server and clients: their fields, types and bounds, which are checked as a message is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final, Literal, NamedTuple, TypedDict, get_type_hints

from torch import Tensor

from fedgen import __version__
from fedgen.federated.client_state.exchange import all_finite
from fedgen.flower.wire.serialization import from_bytes, to_bytes
from fedgen.io.field_types import Between, Length, Numbers, Text, conforms, fault
from fedgen.statistics.statistic_messages import MessageError

VERSION = 5
LONGEST_NAME, LONGEST_CLASS, MOST_CLASSES = 200, 255, 100_000  # a class is a folder's name
MOST_EXAMPLES, MOST_NUMBERS = 2**31, 2**28  # of a client, and numbers of one of them
MOST_CLIENTS = 1_000_000  # a client makes a list of their weights
MOST_METRICS, LONGEST_METRIC = 1_000, 200  # of a client in a round, and of their names
ABOUT_LOSS: Final = "loss"  # the kind of a loss's question, and behind masks the key that tells it from others
_OLDER = b"PK"  # what messages of version 2 and before start with: archives of torch.save, which is not read

Classes = Annotated[tuple[Annotated[str, Text(LONGEST_CLASS)], ...], Length(MOST_CLASSES)]
Metrics = Annotated[dict[Annotated[str, Text(LONGEST_METRIC, 1)], float], Length(MOST_METRICS)]
Asked = Literal["statistics", "sketch", "kid", "sums", "fid", "private-sums"]


@dataclass(frozen=True)
class Hello:
    """A client that introduces itself."""

    name: Annotated[str, Text(LONGEST_NAME, 1)]  # no other client's
    examples: Annotated[int, Between(1, MOST_EXAMPLES)]
    # of one example; empty for data without images
    shape: Annotated[tuple[Annotated[int, Between(1, MOST_NUMBERS)], ...], Numbers(MOST_NUMBERS)]
    classes: Classes  # its labels' names, in order; empty for data without labels
    kind: Annotated[str, Text(20, 1)] = "images"  # of its examples, as `kind_of` names it
    release: Annotated[str, Text(50)] = field(default=__version__, compare=False)  # of its fedgen


@dataclass(frozen=True, eq=False)
class Task:
    """A turn that a client is to take."""

    weights: Mapping[str, Tensor]  # the server's tensors by name, all but personal ones
    round: int  # from 0
    client: int  # its number, on which its draws depend
    clients: Annotated[int, Between(1, MOST_CLIENTS)]
    share: Annotated[float, Between(0, 1)]  # its weight in the mean over all of them
    classes: Classes  # of the whole federation
    local: dict[str, Any]  # what optimizers, schedulers and scaler begin with
    algorithm: dict[str, Any]  # what the client algorithm's server tells everyone
    fingerprints: dict[str, str] = field(default_factory=dict)  # of embeddings of the model's own loss, by name
    iterations: int = 0  # of this client that the server counts, of all turns before whose answers it took in
    steps: int = 0  # the server's `global_step`, with which the turn begins
    rounds: int = 0  # that the server plans; 0 without end
    fixed: bool = False  # whether the set of tensors that travel is fixed beforehand, as under masks
    counts: dict[str, int] = field(default_factory=dict)  # Python counters of the server's module, by dotted path
    means: dict[str, Tensor] = field(default_factory=dict)  # what is declared "mean" outside state_dict, float64
    times: Annotated[int, Between(1, MOST_CLIENTS)] = 1  # how often the client was drawn, as often as it counts


@dataclass(frozen=True, eq=False)
class Answer:
    """The outcome of a turn."""

    # by name: those that train, and of all others those that the turn has changed; none after a turn that failed
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    examples: int = 0  # that it trained on
    iterations: int = 0  # that it has taken since training began
    told: list[Any] = field(default_factory=list)  # what it tells the others as a rank; see `Recorder` and `Replies`
    metrics: Metrics = field(default_factory=dict)  # what its steps logged; nothing where privacy is promised
    failure: str = ""  # why the turn failed
    moved: bool = False  # whether its optimizers ended the turn with other settings than they began with
    steps: int = 0  # optimizer steps of the turn
    counts: dict[str, int] = field(default_factory=dict)  # as in a task, that the turn raised; none beside masks, noise
    means: dict[str, Tensor] = field(default_factory=dict)  # as in a task, what the turn made of them; likewise
    # in place of the weights that train, by parameter the parts of its update; see `fedgen.federated.compression`
    compressed: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    loss: float | None = None  # its first, at the server's weights, where the recipe's aggregator needs it


class Item(NamedTuple):
    """One thing that an evaluation asks about a client's images of one split, in one embedding."""

    # the summary of the features, a sketch of kernel means, or the KID of generated images; where only sums over
    # clients are revealed, the features' sums or the FID of generated images; or sums with noise
    ask: Asked
    split: str  # "train" or "report"
    embedding: str  # its name
    fingerprint: str  # of its weights and settings: the server's
    score: str = ""  # the name of the score, for sketch, kid and fid
    promise: str = ""  # the privacy of sums with noise, as JSON


@dataclass(frozen=True, eq=False)
class Question:
    """The questions of an evaluation to a client, all in one message: each starts a process there."""

    # by the item's place: features [m, D] of generated images, for kid; a centre [D], for sketch. By split and
    # embedding, where several items need them: those features, or for fid alone their summary
    weights: Mapping[str, Tensor]
    items: Sequence[Item]  # one after another
    client: int  # the client's number, on which it depends which images it holds out
    classes: Classes  # of the whole federation


@dataclass(frozen=True)
class LossQuestion:
    """The question of a loss at the server to a client about its images."""

    question: bytes  # of `statistics.statistic_messages`
    embedding: str  # whose features are meant, by name
    fingerprint: str  # of its weights and settings: the server's
    weight: float  # what the client multiplies its answer by
    precision: str  # of the numbers in it, "float64" or "float32"
    client: int  # the client's number, on which it depends which images it holds out
    classes: Classes  # of the whole federation


@dataclass(frozen=True)
class Told:
    """The answers of a client."""

    messages: list[bytes] = field(default_factory=list)  # of `statistics.statistic_messages`, one an item
    failure: str = ""  # why there are none


class Scale(TypedDict):
    """The largest entry of each tensor, of an answer of the weight `largest`: that of the client that weighs most."""

    ranges: dict[str, float]
    largest: float


class MaskedLoss(TypedDict):
    """A server's question for a sum of answers to a loss."""

    loss: bytes  # a `LossQuestion`
    scale: Scale


class MaskedQuestion(TypedDict):
    """A server's question for sums of an evaluation."""

    names: list[str]  # of the arrays beside it
    question: bytes
    largest: list[dict[str, float]]  # of each item's answer, by tensor the largest entry
    clients: int
    among: dict[str, str]  # their names by node


class MaskedTask(TypedDict):
    """A server's question for a sum of updates."""

    names: list[str]  # of the arrays beside it
    task: bytes
    among: dict[str, str]  # clients' names by node


class OpenPart(TypedDict):
    """The part that a client tells beside its masked update."""

    answer: bytes
    cut: Annotated[float, Between(0, 1)]  # the share of its update that was cut off


Said = Task | Answer | Hello | Question | LossQuestion | Told


def pack(message: Said) -> tuple[dict[str, Tensor], bytes]:
    """Its weights, and everything else as bytes."""
    rest: dict[str, Any] = {one.name: getattr(message, one.name) for one in fields(message)}
    weights = {name: tensor.detach().cpu() for name, tensor in rest.pop("weights", {}).items()}
    return weights, to_bytes({"version": VERSION, **rest})


def unpack(kind: type[Any], weights: Mapping[str, Tensor], rest: bytes) -> Any:
    """The message of that kind; MessageError if it is damaged, of another version or kind, or holds NaN or infinity."""
    name = kind.__name__.lower()
    if isinstance(rest, bytes) and rest.startswith(_OLDER):
        raise MessageError(f"the {name} is of version 2 or before, this fedgen speaks {VERSION}; install one release")
    found = from_bytes(rest, f"the {name}")
    if not conforms(found, dict[str, Any]):
        raise MessageError(f"what came is no {name}: it has no named parts")
    version = found.pop("version", None)
    if type(version) is not int or version != VERSION:
        raise MessageError(f"the {name} is of version {version!r}, this fedgen speaks {VERSION}; install one release")
    if any(type(tensor) is not Tensor for tensor in weights.values()):  # whose methods may be anything
        raise MessageError(f"weights of the {name} are no tensors")
    if not all_finite(list(weights.values())):
        bad = next(key for key, tensor in weights.items() if not bool(Tensor.isfinite(tensor).all()))
        raise MessageError(f"{bad} of the {name} holds NaN or infinity")
    has_weights = any(one.name == "weights" for one in fields(kind))
    try:
        made = kind(weights=dict(weights), **found) if has_weights else kind(**found)
    except TypeError as error:
        raise MessageError(f"what came is no {name}: {error}") from error
    check_types(made)
    return made


def check_types(message: Said) -> None:
    """Raises MessageError for the first field that is not what its annotation says; counts are whole numbers."""
    name = type(message).__name__.lower()
    for field_name, hint in get_type_hints(type(message), include_extras=True).items():
        if wrong := fault(getattr(message, field_name), hint):
            raise MessageError(f"{field_name} of the {name} {wrong}")
