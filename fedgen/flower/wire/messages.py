"""Messages between server and clients in a round, and when they meet: their weights, and the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from torch import Tensor

from fedgen import __version__
from fedgen.federated.client_state.exchange import all_finite
from fedgen.flower.wire.serialization import from_bytes, to_bytes
from fedgen.io.field_types import Between, Length, Numbers, Text, conforms, fault
from fedgen.statistics.statistic_messages import MessageError

VERSION = 4
LONGEST_NAME, LONGEST_CLASS, MOST_CLASSES = 200, 255, 100_000  # a class is a folder's name
MOST_EXAMPLES, MOST_NUMBERS = 2**31, 2**28  # of a client, and numbers of one of them
MOST_CLIENTS = 1_000_000  # a client makes a list of their weights
MOST_METRICS, LONGEST_METRIC = 1_000, 200  # of a client in a round, and of their names
_OLDER = b"PK"  # what messages of version 2 and before start with: archives of torch.save, which is not read


Classes = Annotated[tuple[Annotated[str, Text(LONGEST_CLASS)], ...], Length(MOST_CLASSES)]
"""Names of labels, in order."""


@dataclass(frozen=True)
class Hello:
    """A client that introduces itself.

    Args:
        name: no other client's.
        examples: how many it has.
        shape: of one of them; empty for data without images.
        classes: its labels' names; empty for data without labels.
        release: of its fedgen.
    """

    name: Annotated[str, Text(LONGEST_NAME, 1)]
    examples: Annotated[int, Between(1, MOST_EXAMPLES)]
    shape: Annotated[tuple[Annotated[int, Between(1, MOST_NUMBERS)], ...], Numbers(MOST_NUMBERS)]
    classes: Classes
    release: Annotated[str, Text(50)] = field(default=__version__, compare=False)


@dataclass(frozen=True, eq=False)
class Task:
    """A turn that a client is to take.

    Args:
        weights: the server's tensors by name, all but personal ones.
        round: from 0.
        client: its number, on which its draws depend.
        clients: how many there are.
        share: its weight in the mean over all of them.
        classes: the labels' names in the whole federation, in order.
        local: what optimizers, schedulers and scaler begin with.
        algorithm: what the client algorithm's server tells everyone.
        fingerprints: of the embeddings that the model's own loss of clients' images has at the server, by name.
        iterations: of this client that the server counts, of all turns before whose answers it took in.
        steps: the server's `global_step`, with which the turn begins.
        rounds: that the server plans; 0 without end.
        fixed: whether the set of tensors that travel is fixed beforehand, as under masks.
        counts: Python counters of the server's module, by dotted path, with which the turn begins.
        means: what is declared "mean" and lies outside state_dict, float64, by dotted path, with which it begins.
        times: how often the client was drawn for the round, as often as it counts.
    """

    weights: Mapping[str, Tensor]
    round: int
    client: int
    clients: Annotated[int, Between(1, MOST_CLIENTS)]
    share: Annotated[float, Between(0, 1)]
    classes: Classes
    local: dict[str, Any]
    algorithm: dict[str, Any]
    fingerprints: dict[str, str] = field(default_factory=dict)
    iterations: int = 0
    steps: int = 0
    rounds: int = 0
    fixed: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    means: dict[str, Tensor] = field(default_factory=dict)
    times: Annotated[int, Between(1, MOST_CLIENTS)] = 1


@dataclass(frozen=True, eq=False)
class Answer:
    """The outcome of a turn.

    Args:
        weights: the client's tensors that are exchanged, by name: those that train, and of all others those that the
            turn has changed; none after a turn that failed.
        examples: that it trained on.
        iterations: that it has taken since training began.
        told: what it tells the others as a rank; see `deploy.replies`.
        metrics: what its steps logged; nothing where privacy is promised.
        failure: why the turn failed; "" if it did not.
        moved: whether the client's optimizers ended the turn with other settings than they began with.
        steps: optimizer steps of the turn.
        counts: Python counters that the turn raised, by dotted path; none beside masks or noise.
        means: what the turn made of what is declared "mean" and lies outside state_dict, float64, by dotted path;
            none beside masks or noise.
        compressed: in place of the weights that train, where the recipe compresses updates: by parameter the parts of
            what is sent of its update; see `fedgen.federated.compression`.
        loss: its first, at the server's weights, where the recipe's aggregator needs it.
    """

    weights: Mapping[str, Tensor] = field(default_factory=dict)
    examples: int = 0
    iterations: int = 0
    told: list[Any] = field(default_factory=list)
    metrics: Annotated[dict[Annotated[str, Text(LONGEST_METRIC, 1)], float], Length(MOST_METRICS)] = field(
        default_factory=dict
    )
    failure: str = ""
    moved: bool = False
    steps: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    means: dict[str, Tensor] = field(default_factory=dict)
    compressed: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    loss: float | None = None


Asked = Literal["statistics", "sketch", "kid", "sums", "fid", "private-sums"]


class Item(NamedTuple):
    """One thing that an evaluation asks about a client's images of one split, in one embedding.

    Args:
        ask: for the summary of the features, a sketch of kernel means, or the KID of generated images; where only sums
            over clients are revealed, for the features' sums or the FID of generated images; or for sums with noise.
        split: "train" or "report".
        embedding: its name.
        fingerprint: of its weights and settings: the server's.
        score: the name of the score, for sketch, kid and fid.
        promise: the privacy of sums with noise, as JSON.
    """

    ask: Asked
    split: str
    embedding: str
    fingerprint: str
    score: str = ""
    promise: str = ""


@dataclass(frozen=True, eq=False)
class Question:
    """The questions of an evaluation to a client, all in one message: each starts a process there.

    Args:
        weights: by the item's place: features [m, D] of generated images, for kid; a centre [D], for sketch. By split
            and embedding, where several items need them: those features, or for fid alone their summary.
        items: one after another.
        client: the client's number, on which it depends which images it holds out.
        classes: as in a task.
    """

    weights: Mapping[str, Tensor]
    items: Sequence[Item]
    client: int
    classes: Classes


@dataclass(frozen=True)
class LossQuestion:
    """The question of a loss at the server to a client about its images.

    Args:
        question: of `statistics.statistic_messages`, as bytes.
        embedding: whose features are meant, by name.
        fingerprint: of its weights and settings: the server's.
        weight: what the client multiplies its answer by.
        precision: of the numbers in it, "float64" or "float32".
        client: the client's number, on which it depends which images it holds out.
        classes: as in a task.
    """

    question: bytes
    embedding: str
    fingerprint: str
    weight: float
    precision: str
    client: int
    classes: Classes


@dataclass(frozen=True)
class Told:
    """The answers of a client.

    Args:
        messages: of `statistics.statistic_messages`, as bytes, one an item.
        failure: why there are none; "" if there are.
    """

    messages: list[bytes] = field(default_factory=list)
    failure: str = ""


Said = Task | Answer | Hello | Question | LossQuestion | Told


def pack(message: Said) -> tuple[dict[str, Tensor], bytes]:
    """Its weights, and everything else as bytes."""
    rest: dict[str, Any] = {one.name: getattr(message, one.name) for one in fields(message)}
    weights = {name: tensor.detach().cpu() for name, tensor in rest.pop("weights", {}).items()}
    return weights, to_bytes({"version": VERSION, **rest})


def unpack(kind: type[Any], weights: Mapping[str, Tensor], rest: bytes) -> Any:
    """The message of that kind.

    Raises:
        MessageError: if it is damaged, of another version or kind, has a field of another type, or holds NaN or
            infinity.
    """
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
