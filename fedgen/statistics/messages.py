"""What a client sends to a server: versioned, checked tensors in safetensors, nothing that executes.

The summable form of a Gaussian (count, sum, outer-product sum) adds entry by entry, which is all that secure
aggregation needs. A message of fewer images than features is not anonymous: its outer products span those images.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedgen.statistics.gaussian import Gaussian

VERSION = "1"
KINDS = {  # the tensors of each kind, and how many axes they have
    "gaussian": {"count": 0, "mean": 1, "scatter": 2},
    "gaussian-images": {"count": 0, "mean": 1, "deviations": 2, "shares": 1},
    "sums": {"count": 0, "sum": 1, "outer": 1},
}


class MessageError(ValueError):
    """A message that cannot be trusted: damaged, of another version or kind, incomplete or not finite."""


@dataclass(frozen=True, eq=False)
class Message:
    """Named tensors of one kind, with remarks.

    Args:
        kind: a key of KINDS, which names the tensors it must hold.
        tensors: float64 tensors; a number is a tensor of shape [].
        meta: remarks as text, such as the embedding's fingerprint; messages with differing ones do not add.
    """

    kind: str
    tensors: Mapping[str, Tensor]
    meta: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise MessageError(f"unknown kind of message {self.kind!r}; known are {sorted(KINDS)}")
        missing = [name for name in KINDS[self.kind] if name not in self.tensors]
        if missing:
            raise MessageError(f"a {self.kind!r} message needs the tensors {missing}, it holds {sorted(self.tensors)}")
        for name, axes in KINDS[self.kind].items():
            tensor = self.tensors[name]
            if tensor.ndim != axes or not tensor.is_floating_point():
                found = f"{tensor.dtype} {tuple(tensor.shape)}"
                raise MessageError(
                    f"tensor {name!r} of a {self.kind!r} message must be floats on {axes} axes, got {found}"
                )
        for name, tensor in self.tensors.items():
            if not torch.isfinite(tensor).all():
                raise MessageError(f"tensor {name!r} of a {self.kind!r} message holds NaN or infinity")

    def to_bytes(self) -> bytes:
        """The message as safetensors, its version, kind and remarks in the header."""
        header = {"fedgen": VERSION, "kind": self.kind, "meta": json.dumps(dict(self.meta), sort_keys=True)}
        return save({name: tensor.cpu().contiguous() for name, tensor in self.tensors.items()}, metadata=header)

    @staticmethod
    def from_bytes(data: bytes, kind: str | None = None) -> "Message":
        """The message in the bytes.

        Raises:
            MessageError: if they are no safetensors, of another version or kind, incomplete or not finite.
        """
        try:
            tensors = load(data)
            length = int.from_bytes(data[:8], "little")
            header = json.loads(data[8 : 8 + length]).get("__metadata__", {})
            meta = dict(json.loads(header.get("meta", "{}")))
        except (SafetensorError, ValueError, TypeError) as error:
            raise MessageError(f"no readable message in {len(data)} bytes: {error}") from error
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
    """A summary in summable form: count, sum [D] and the upper triangle of the outer-product sum [D (D + 1) / 2]."""
    count, mean = gaussian.count, gaussian.mean
    outer = gaussian.covariance(ddof=0).mul_(count).addr_(mean, mean, alpha=count)
    rows, columns = torch.triu_indices(gaussian.dim, gaussian.dim)
    tensors = {"count": torch.tensor(count, dtype=torch.float64), "sum": count * mean, "outer": outer[rows, columns]}
    return Message("sums", tensors, meta)


def add(left: Message, right: Message) -> Message:
    """The summable message of the union of two clients' images.

    Raises:
        MessageError: if a message is not of kind "sums", or shapes or remarks differ.
    """
    for message in (left, right):
        if message.kind != "sums":
            raise MessageError(f"only 'sums' messages add, got {message.kind!r}; make them with gaussian_to_sums")
    if dict(left.meta) != dict(right.meta):
        raise MessageError(f"messages were made differently: {dict(left.meta)} and {dict(right.meta)}")
    if left.tensors["sum"].shape != right.tensors["sum"].shape:
        raise MessageError(f"{len(left.tensors['sum'])} and {len(right.tensors['sum'])} features do not add")
    return Message("sums", {name: left.tensors[name] + right.tensors[name] for name in KINDS["sums"]}, left.meta)


def gaussian_from_message(message: Message) -> Gaussian:
    """The summary in a message of any kind of KINDS."""
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
        return _from_sums(count, tensors["sum"], tensors["outer"])
    except ValueError as error:
        raise MessageError(f"the tensors of a {message.kind!r} message disagree: {error}") from error


def _from_sums(count: float, total: Tensor, packed: Tensor) -> Gaussian:
    mean, dim = total / count, len(total)
    if len(packed) != dim * (dim + 1) // 2:
        raise ValueError(f"outer has {len(packed)} numbers, {dim} features need {dim * (dim + 1) // 2}")
    rows, columns = torch.triu_indices(dim, dim)
    scatter = torch.zeros(dim, dim, dtype=torch.float64)
    scatter[rows, columns] = packed
    scatter[columns, rows] = packed
    return Gaussian(count, mean, scatter=scatter.addr_(mean, mean, alpha=-count))
