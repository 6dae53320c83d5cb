"""Messages from a client to a server: versioned, checked tensors in safetensors, nothing that executes.

The summable form of a Gaussian (count, sum, outer-product sum) adds entry by entry, which is all that secure
aggregation needs. A message of fewer images than features is not anonymous: its outer products span those images.
What adds is a sum over images: the server needs the total alone, never a single client's message. Whether bits flipped
on the way is the transport's to find: one that travels carries no checksum, and is taken if it has the form of its
kind. One that is kept in a file carries a hash.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from fedgen.io.files import parse_json
from fedgen.io.tensor_files import HASH, is_whole, with_hash
from fedgen.statistics.gaussian import Gaussian

VERSION = "1"
KINDS = {  # the tensors of each kind, and how many axes they have
    "gaussian": {"count": 0, "mean": 1, "scatter": 2},
    "gaussian-images": {"count": 0, "mean": 1, "deviations": 2, "shares": 1},
    "sums": {"count": 0, "sum": 1, "outer": 1},
    "private-sums": {"count": 0, "sum": 1, "outer": 1, "clients": 0},  # with noise; read by statistics.private
    "cubic": {"count": 0, "tilted": 1, "sketch": 1, "diagonal": 0},  # read by statistics.sketches
    "fourier": {"count": 0, "cosines": 1, "sines": 1},  # likewise
    "kid": {"count": 0, "score": 0, "within": 0},  # read by scores.kernel.federated_kid
    "fid": {"count": 0, "score": 0},  # read by scores.frechet.frechet
    "features": {"features": 2},  # questions of a server (losses.distributed), and what it reads of the answers' sum
    "landmarks": {"landmarks": 2},
    "sketch": {"centre": 1},
    "moments": {},
    "terms": {"weight": 0, "value": 0, "gradient": 2},
    "kernel-means": {"weight": 0, "within": 0, "kernels": 1},
    "fixed-point": {},  # another kind's tensors as whole numbers; read by statistics.fixed_point
}
SUMMABLE = ("sums", "private-sums", "cubic", "fourier", "kid", "fid", "terms", "kernel-means", "fixed-point")
HEADER = {"fedgen", "kind", "meta", HASH}
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class MessageError(ValueError):
    """A message that cannot be trusted: damaged, of another version or kind, incomplete or not finite."""


@dataclass(frozen=True, eq=False)
class Message:
    """Named tensors of one kind, with remarks.

    Args:
        kind: a key of KINDS, which names the tensors it must hold.
        tensors: floats, kept as float64; a number is a tensor of shape []. Those of kind "fixed-point" are int64.
        meta: remarks as text, such as the embedding's fingerprint; messages with differing ones do not add.
    """

    kind: str
    tensors: Mapping[str, Tensor]
    meta: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise MessageError(f"unknown kind of message {self.kind!r}; known are {sorted(KINDS)}")
        axes = KINDS[self.kind]
        if missing := [name for name in axes if name not in self.tensors]:
            raise MessageError(f"a {self.kind!r} message needs the tensors {missing}, it holds {sorted(self.tensors)}")
        for name, tensor in self.tensors.items():
            what = f"tensor {name!r} of a {self.kind!r} message"
            if tensor.dtype not in ((torch.int64,) if self.kind == "fixed-point" else FLOATS):
                raise MessageError(f"{what} is {tensor.dtype}; 'fixed-point' messages hold int64, others floats")
            if tensor.ndim != axes.get(name, tensor.ndim):
                raise MessageError(f"{what} must have {axes[name]} axes, got {list(tensor.shape)}")
            if not torch.isfinite(tensor).all():
                raise MessageError(f"{what} holds NaN or infinity")
        if self.kind != "fixed-point":  # a narrow float that others are added to would lose their digits
            object.__setattr__(self, "tensors", {name: tensor.double() for name, tensor in self.tensors.items()})

    def to_bytes(self, dtype: torch.dtype | None = None, sealed: bool = False) -> bytes:
        """The message as safetensors, its version, kind and remarks in the header.

        Args:
            dtype: of floats that are sent in another precision than float64.
            sealed: whether a hash of it all is added, which `from_bytes` compares: for files.
        """
        header = {"fedgen": VERSION, "kind": self.kind, "meta": json.dumps(dict(self.meta), sort_keys=True)}
        sent = {n: t.to("cpu", dtype if t.is_floating_point() else None).contiguous() for n, t in self.tensors.items()}
        return save(sent, metadata=with_hash(sent, header) if sealed else header)

    def scaled(self, factor: float) -> "Message":
        """A summable message as if each image counted `factor` times: every number times it."""
        return Message(self.kind, {name: tensor * factor for name, tensor in self.tensors.items()}, self.meta)

    @staticmethod
    def from_bytes(data: bytes, kind: str | None = None) -> "Message":
        """The message in the bytes.

        Raises:
            MessageError: if they are no safetensors, of another version or kind, incomplete, not finite, or no longer
                what was sealed.
        """
        try:
            tensors = load(data)
            length = int.from_bytes(data[:8], "little")
            header = json.loads(data[8 : 8 + length]).get("__metadata__", {})
            meta = remarks_from_json(header.get("meta", "{}"))
            whole = is_whole(tensors, header)
        except Exception as error:  # SafetensorError, KeyError for a dtype that torch lacks, and others
            raise MessageError(f"no readable message in {len(data)} bytes: {error!r}") from error
        if not whole:
            raise MessageError("it holds something other than what was written")
        if unknown := sorted(header.keys() - HEADER):  # the hash's name, perhaps, with another letter
            raise MessageError(f"its header says {unknown[0]!r}, which no message's does")
        if header.get("fedgen") != VERSION:
            raise MessageError(f"message of version {header.get('fedgen')!r}, this program reads {VERSION!r}")
        if kind is not None and header.get("kind") != kind:
            raise MessageError(f"expected a {kind!r} message, got {header.get('kind')!r}")
        return Message(str(header.get("kind")), tensors, meta)


def gaussian_to_message(gaussian: Gaussian, **meta: str) -> Message:
    """A summary as a message: with its images' deviations when it is low-rank, else with its scatter matrix."""
    count = torch.tensor(gaussian.count, dtype=torch.float64)
    if gaussian.deviations is not None:
        shares = gaussian.image_shares()
        tensors = {"count": count, "mean": gaussian.mean, "deviations": gaussian.deviations, "shares": shares}
        return Message("gaussian-images", tensors, meta)
    assert gaussian.scatter is not None
    return Message("gaussian", {"count": count, "mean": gaussian.mean, "scatter": gaussian.scatter}, meta)


def gaussian_to_sums(gaussian: Gaussian, **meta: str) -> Message:
    """A summary in summable form: count, sum [D] and the upper triangle of the outer-product sum [D (D + 1) / 2].

    The server takes n mean mean^T off again, which costs covariances about 1e-16 of the squared mean: nothing beside
    usual features, but subtract a public constant from features whose mean is ten thousand standard deviations off.
    """
    count, mean = gaussian.count, gaussian.mean
    outer = gaussian.covariance(ddof=0).mul_(count).addr_(mean, mean, alpha=count)
    tensors = {"count": torch.tensor(count, dtype=torch.float64), "sum": count * mean, "outer": pack(outer)}
    return Message("sums", tensors, meta)


def add(*messages: Message) -> Message:
    """The message of all images together: one or more clients' summable messages of a kind, added entry by entry.

    Whole numbers of "fixed-point" messages are added modulo 2^64.

    Raises:
        MessageError: for no message, one of a kind that does not add, or kinds, shapes or remarks that differ.
    """
    if not messages:
        raise MessageError("nothing to add: give at least one message")
    first = messages[0]
    for message in messages:
        if message.kind not in SUMMABLE:
            raise MessageError(f"{message.kind!r} messages do not add, only {SUMMABLE}; see gaussian_to_sums")
        if message.kind != first.kind or dict(message.meta) != dict(first.meta):
            ways = [f"{each.kind!r} {dict(each.meta)}" for each in (first, message)]
            raise MessageError(f"messages were made differently: {ways[0]} and {ways[1]}")
        if _shapes(message) != _shapes(first):
            raise MessageError(f"messages of shapes {_shapes(first)} and {_shapes(message)} do not add")
    totals = {name: tensor.clone() for name, tensor in first.tensors.items()}
    for message in messages[1:]:
        for name, total in totals.items():
            if total.dtype == torch.int64:  # unsigned numbers wrap around by definition
                left = total.numpy().view(np.uint64)
                np.add(left, message.tensors[name].numpy().view(np.uint64), out=left)
            else:
                total += message.tensors[name]
    return Message(first.kind, totals, first.meta)


def message_size(message: Message) -> int:
    """Return the size of a message on the wire, in bytes, header included."""
    return len(message.to_bytes())


def pack(matrix: Tensor) -> Tensor:
    """The upper triangle of a symmetric matrix [D, D], row by row, [D (D + 1) / 2]."""
    rows, columns = torch.triu_indices(len(matrix), len(matrix))
    return matrix[rows, columns]


def unpack(packed: Tensor, dim: int) -> Tensor:
    if len(packed) != dim * (dim + 1) // 2:
        raise ValueError(f"{len(packed)} numbers are no upper triangle, {dim} features need {dim * (dim + 1) // 2}")
    rows, columns = torch.triu_indices(dim, dim)
    matrix = packed.new_zeros(dim, dim)
    matrix[rows, columns] = packed
    matrix[columns, rows] = packed
    return matrix


def gaussian_from_message(message: Message) -> Gaussian:
    """The summary in a message of kind "gaussian", "gaussian-images" or "sums".

    Raises:
        MessageError: for another kind, no image, or tensors that disagree.
    """
    if message.kind not in ("gaussian", "gaussian-images", "sums"):
        raise MessageError(f"a {message.kind!r} message is no plain summary: use private_gaussian or FixedPoint.decode")
    tensors = {name: tensor.double() for name, tensor in message.tensors.items()}
    count = float(tensors["count"])
    if count < 1:
        raise MessageError(f"a {message.kind!r} message must count at least one image, got {count:g}")
    try:
        if message.kind == "gaussian":
            return Gaussian(count, tensors["mean"], scatter=tensors["scatter"])
        if message.kind == "gaussian-images":
            shares = tensors["shares"]
            if (shares < 0).any() or abs(float(shares.sum()) - 1) > 1e-6:
                raise ValueError("shares must not be negative and add up to 1")
            return Gaussian(count, tensors["mean"], tensors["deviations"], shares)
        return gaussian_from_sums(count, tensors["sum"], tensors["outer"])
    except ValueError as error:
        raise MessageError(f"the tensors of a {message.kind!r} message disagree: {error}") from error


def remarks_from_json(text: str) -> dict[str, str]:
    """The remarks in a JSON text; raises ValueError unless it is an object of strings."""
    found = parse_json(text)
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"remarks must be a JSON object of strings, got {text[:80]!r}")
    return found


def gaussian_from_sums(count: float, total: Tensor, packed: Tensor) -> Gaussian:
    """The summary of count, sum [D] and packed outer-product sum; its scatter is what they say, noise included."""
    if len(total) < 1:
        raise ValueError("sums of no feature")
    mean = total / count
    return Gaussian(count, mean, scatter=unpack(packed, len(total)).addr_(mean, mean, alpha=-count))


def _shapes(message: Message) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in sorted(message.tensors.items())}
