"""Compressors, which send an update's tensors as fewer bytes: by quantisation, signs, largest entries or low rank."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from typing import Literal, NamedTuple

import torch
from torch import Tensor


class Form(NamedTuple):
    """The shape and type of a tensor that is sent."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """The bytes of its numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


class Compressor(ABC):
    """An update's tensor as named tensors of fewer bytes, and back; each tensor of a model by itself.

    `FedAvgStrategy(compression=...)` gives it what a client's turn added to the server's parameters, in float32 at
    least. How many bytes are sent depends on the tensor's shape and type alone, so that a server knows what to expect.

    Attributes:
        error_feedback: True if a client keeps what was not sent, and adds it to its next update (Karimireddy et al.
            2019, "Error Feedback Fixes SignSGD", arXiv 1901.09847, Algorithm 2). Biased compressors need it.
        carried: the part of what was sent that a client keeps as a start for its next turn; "" for none.

    Examples:
        >>> import torch
        >>> from fedgen.federated.compression import Compressor, Form
        >>> class Halves(Compressor):  # in half precision
        ...     def forms(self, shape, dtype):
        ...         return {"halves": Form(tuple(shape), torch.float16)}
        ...     def encode(self, update, draws, start=None):
        ...         return {"halves": update.half()}
        ...     def decode(self, payload, shape, dtype):
        ...         return payload["halves"].to(dtype)
        >>> Halves().num_bytes((10, 3), torch.float32)
        60
    """

    error_feedback = False
    carried = ""

    @property
    def keeps_clients(self) -> bool:
        """True if something is kept of each client, which then trains in the same process in every round."""
        return self.error_feedback or bool(self.carried)

    @abstractmethod
    def forms(self, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Form]:
        """Return the forms of the tensors that are sent for an update of this shape and type, by name."""

    @abstractmethod
    def encode(self, update: Tensor, draws: torch.Generator, start: Tensor | None = None) -> dict[str, Tensor]:
        """Return what is sent for a finite update, float32 or float64 and not to be changed, by name, in `forms`.

        `draws` is on the CPU, seeded by seed, round and client; `start` is the `carried` part of what this client sent
        last, None if there is none.
        """

    @abstractmethod
    def decode(self, payload: Mapping[str, Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the update that the server takes in, of this shape and type, from what `encode` gave."""

    def check_values(self, payload: Mapping[str, Tensor], shape: tuple[int, ...]) -> None:  # noqa: B027 - most take any
        """Raises ValueError for values that `encode` never gives for an update of this shape; the forms are right."""

    def check(self, payload: Mapping[str, Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> None:
        """Raises ValueError, naming the part, for what `encode` never gives for an update of this shape and type."""
        forms = self.forms(shape, dtype)
        if payload.keys() != forms.keys():
            raise ValueError(f"it has the parts {sorted(payload)}, and {type(self).__name__} sends {sorted(forms)}")
        for name, form in forms.items():
            found = payload[name]
            if (tuple(found.shape), found.dtype) != form:
                raise ValueError(f"{name} is {found.dtype} {list(found.shape)} and not {form.dtype} {list(form.shape)}")
            if not bool(found.isfinite().all()):
                raise ValueError(f"{name} holds NaN or infinity")
        self.check_values(payload, shape)

    def num_bytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Return the bytes that are sent for an update of this shape and type: those of the numbers in `forms`."""
        return sum(form.num_bytes for form in self.forms(shape, dtype).values())


def pack(codes: Tensor, bits: int) -> Tensor:
    """Return whole numbers as bytes, the first in the lowest bits; the last byte is filled up with 0."""
    rows = torch.nn.functional.pad(codes, (0, -len(codes) % (8 // bits))).view(-1, 8 // bits)
    return (rows << _shifts(bits, codes.device)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """Return the first `count` numbers that `pack` was given."""
    numbers = (packed.unsqueeze(1) >> _shifts(bits, packed.device)) & (2**bits - 1)
    return numbers.view(-1)[:count]


def _shifts(bits: int, device: torch.device) -> Tensor:
    return torch.arange(0, 8, bits, dtype=torch.uint8, device=device)


class QSGD(Compressor):
    """Stochastic rounding to multiples of scale / s, with s = 2^(bits - 1) - 1 levels of either sign.

    Section 3.1 of Alistarh et al. 2017, "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding"
    (arXiv 1610.02132). An entry v becomes scale sgn(v) xi / s, where xi is one of the two whole numbers around s |v| /
    scale, drawn so that the mean is v: sums over clients and rounds go right without error feedback, and nothing is
    kept of clients.

    With `norm="2"`, as in the theorem, the scale is the block's Euclidean norm, and the expected squared error of a
    block of n entries is at most min(n / s^2, sqrt(n) / s) |v|^2 (Lemma 3.1). With "max", which the paper's experiments
    use, it is the largest magnitude; the error is at most n / (4 s^2) max^2, and never more than one level an entry.
    Sent are bits an entry, rounded up to whole bytes a tensor, and the scale of each block in the update's type.

    Args:
        bits: of an entry with its sign: 8 (127 levels), 4 (7) or 2 (1).
        block: entries that share a scale, in the tensor's order; None takes the tensor. The paper has 512.
        norm: "max" or "2".

    Raises:
        ValueError: for settings out of range.
        FloatingPointError: when the norm of an update's block is beyond its type.

    Examples:
        >>> import torch
        >>> from fedgen.federated.compression import QSGD
        >>> rule = QSGD(bits=4)
        >>> sent = rule.encode(torch.tensor([7.0, -2.0, 0.0]), torch.Generator())
        >>> rule.decode(sent, (3,), torch.float32)  # a level is 1: nothing is to be rounded
        tensor([ 7., -2.,  0.])
        >>> rule.num_bytes((3,), torch.float32)  # 3 half bytes, rounded up, and a scale
        6
    """

    def __init__(self, bits: Literal[8, 4, 2] = 8, block: int | None = 512, norm: Literal["max", "2"] = "max") -> None:
        if bits not in (8, 4, 2):
            raise ValueError(f"bits={bits}: choose 8, 4 or 2")
        if block is not None and block < 1:
            raise ValueError(f"block={block}: a block has at least one entry; None takes the whole tensor")
        if norm not in ("max", "2"):
            raise ValueError(f"norm={norm!r}: choose 'max' or '2'")
        self.bits, self.block, self.norm = bits, block, norm
        self.levels = 2 ** (bits - 1) - 1

    def forms(self, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Form]:
        count = math.prod(shape)
        scales = -(-count // (self.block or max(1, count)))
        return {"codes": Form((-(-count * self.bits // 8),), torch.uint8), "scales": Form((scales,), dtype)}

    def _blocks(self, flat: Tensor) -> Tensor:
        """Return entries in rows, a block each, the last one filled up with 0."""
        length = self.block or max(1, len(flat))
        return torch.nn.functional.pad(flat, (0, -len(flat) % length)).view(-1, length)

    def encode(self, update: Tensor, draws: torch.Generator, start: Tensor | None = None) -> dict[str, Tensor]:
        flat = update.reshape(-1)
        rows = self._blocks(flat)
        wide = rows.double()  # in which squares of float32 do not overflow
        scales = (wide.abs().amax(1) if self.norm == "max" else wide.norm(dim=1)).to(update.dtype)
        if not bool(scales.isfinite().all()):
            raise FloatingPointError(f"the Euclidean norm of an update is beyond {update.dtype}")
        positive = torch.where(scales > 0, scales, 1).unsqueeze(1)
        wanted = (rows.abs() / positive * self.levels).view(-1)[: len(flat)]
        uniform = torch.rand(len(flat), generator=draws).to(update.device)
        found = round_stochastically(wanted, uniform).clamp_(max=self.levels)  # a norm's last digit may be rounded down
        codes = (found * flat.sign() + self.levels).to(torch.uint8)
        return {"codes": pack(codes, self.bits), "scales": scales}

    def decode(self, payload: Mapping[str, Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = math.prod(shape)
        whole = unpack(payload["codes"], self.bits, count).to(dtype) - self.levels
        rows = self._blocks(whole / self.levels) * payload["scales"].unsqueeze(1)
        return rows.view(-1)[:count].view(shape)

    def check_values(self, payload: Mapping[str, Tensor], shape: tuple[int, ...]) -> None:
        if bool((payload["scales"] < 0).any()):
            raise ValueError("scales holds a negative number")
        codes = unpack(payload["codes"], self.bits, math.prod(shape))
        if bool((codes > 2 * self.levels).any()):
            raise ValueError(f"codes holds {int(codes.max())}, and the largest is {2 * self.levels}")


def round_stochastically(values: Tensor, uniform: Tensor) -> Tensor:
    """Return one of the two whole numbers around each value, the upper one where its fraction is above the draw."""
    lower = values.floor()
    return lower + (uniform < values - lower)


class ScaledSign(Compressor):
    """The signs of each tensor times its mean magnitude, |v|_1 / d sgn(v): EF-signSGD, layer by layer.

    Algorithm 1 of Karimireddy et al. 2019, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes" (arXiv
    1901.09847). With sgn(0) = 1 the squared error is |v|_2^2 - |v|_1^2 / d exactly. Signs are biased: without error
    feedback training may not converge. Sent are a bit an entry, rounded up to whole bytes a tensor, and the scale in
    the update's type.

    Args:
        error_feedback: True keeps what was not sent for the client's next turn.

    Examples:
        >>> import torch
        >>> from fedgen.federated.compression import ScaledSign
        >>> rule = ScaledSign()
        >>> sent = rule.encode(torch.tensor([3.0, -1.0]), torch.Generator())
        >>> rule.decode(sent, (2,), torch.float32)
        tensor([ 2., -2.])
        >>> rule.num_bytes((2,), torch.float32)  # two bits, rounded up, and a scale
        5
    """

    def __init__(self, error_feedback: bool = True) -> None:
        self.error_feedback = error_feedback

    def forms(self, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Form]:
        return {"signs": Form((-(-math.prod(shape) // 8),), torch.uint8), "scale": Form((), dtype)}

    def encode(self, update: Tensor, draws: torch.Generator, start: Tensor | None = None) -> dict[str, Tensor]:
        flat = update.reshape(-1)
        scale = flat.abs().double().sum() / max(1, len(flat))
        return {"signs": pack((flat >= 0).to(torch.uint8), 1), "scale": scale.to(update.dtype)}

    def decode(self, payload: Mapping[str, Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        signs = unpack(payload["signs"], 1, math.prod(shape)).to(dtype) * 2 - 1
        return (signs * payload["scale"]).view(shape)

    def check_values(self, payload: Mapping[str, Tensor], shape: tuple[int, ...]) -> None:
        if bool(payload["scale"] < 0):
            raise ValueError(f"scale is {float(payload['scale'])}, and a mean magnitude is not negative")


class TopK(Compressor):
    """The k entries of each tensor that are largest in magnitude, as they are; of equal ones the first.

    k is `share` of the tensor's d entries, rounded up. What is left out is at most (1 - k / d) |v|^2 (Definition 2.1 of
    Stich et al. 2018, "Sparsified SGD with Memory", arXiv 1809.07599), and error feedback sends it later. Sent are k
    values in the update's type and k places in int32 (int64 in tensors of more than 2^31 entries), rising.

    Args:
        share: of the entries, in (0, 1].
        error_feedback: True keeps what was not sent for the client's next turn.

    Raises:
        ValueError: for a share out of range.

    Examples:
        >>> import torch
        >>> from fedgen.federated.compression import TopK
        >>> rule = TopK(share=0.5)
        >>> sent = rule.encode(torch.tensor([1.0, -5.0, 2.0, 0.5]), torch.Generator())
        >>> rule.decode(sent, (4,), torch.float32)
        tensor([ 0., -5.,  2.,  0.])
        >>> rule.num_bytes((4,), torch.float32)  # two values and two places
        16
    """

    def __init__(self, share: float = 0.01, error_feedback: bool = True) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share={share}: the share of entries that are sent lies in (0, 1]")
        self.share, self.error_feedback = share, error_feedback

    def forms(self, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Form]:
        count = math.prod(shape)
        kept = (min(count, math.ceil(Fraction(str(self.share)) * count)),)  # 0.07 of 100 are 7, and 8 in floats
        return {"places": Form(kept, torch.int32 if count <= 2**31 else torch.int64), "values": Form(kept, dtype)}

    def encode(self, update: Tensor, draws: torch.Generator, start: Tensor | None = None) -> dict[str, Tensor]:
        (kept,), kind = self.forms(tuple(update.shape), update.dtype)["places"]
        flat, sizes = update.reshape(-1), update.reshape(-1).abs()
        # `topk` does not promise the first of equal entries
        least = sizes.topk(kept).values[-1:]
        above = (sizes > least).nonzero().view(-1)
        equal = (sizes == least).nonzero().view(-1)[: kept - len(above)]
        places = torch.cat([above, equal]).sort().values
        return {"places": places.to(kind), "values": flat[places]}

    def decode(self, payload: Mapping[str, Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        found = torch.zeros(math.prod(shape), dtype=dtype, device=payload["values"].device)
        found[payload["places"].long()] = payload["values"]
        return found.view(shape)

    def check_values(self, payload: Mapping[str, Tensor], shape: tuple[int, ...]) -> None:
        places, count = payload["places"].long(), math.prod(shape)
        if bool(((places < 0) | (places >= count)).any()):
            raise ValueError(f"places lie from {int(places.min())} to {int(places.max())}, and the tensor has {count}")
        if bool((places.diff() <= 0).any()):
            raise ValueError("places do not rise: one is there twice, or out of order")


class PowerSGD(Compressor):
    """A product of rank r, P Q^T, found by one step of subspace iteration.

    Algorithm 1 of Vogels et al. 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization"
    (arXiv 1905.13727). A tensor is taken as a matrix M [n, m] of its first dimension by all others. From Q, normal
    draws or what the client sent last (warm start, which makes the steps of many rounds one iteration), P =
    orthonormal(M Q) and Q = M^T P: the server takes in the projection P P^T M, which is M where its rank is r or less.
    The paper averages P and Q over workers on the way; here each client sends its own, and the mean over clients may
    have a higher rank. Sent are r (n + m) numbers in the update's type; vectors, and matrices that would not shrink, as
    they are.

    Args:
        rank: r, from 1; the paper has 1 to 4.
        error_feedback: True keeps what was not sent for the client's next turn.
        warm_start: True keeps Q for the client's next turn.

    Raises:
        ValueError: for a rank below 1.

    Examples:
        >>> import torch
        >>> from fedgen.federated.compression import PowerSGD
        >>> rule, outer = PowerSGD(rank=1), torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.0, 0.0, 0.0]])
        >>> sent = rule.encode(outer, torch.Generator().manual_seed(0))
        >>> (rule.decode(sent, (3, 3), torch.float32) - outer).abs().max() < 1e-5
        tensor(True)
        >>> rule.num_bytes((3, 3), torch.float32), rule.num_bytes((3,), torch.float32)
        (24, 12)
    """

    def __init__(self, rank: int = 2, error_feedback: bool = True, warm_start: bool = True) -> None:
        if rank < 1:
            raise ValueError(f"rank={rank}: a product has a rank from 1")
        self.rank, self.error_feedback, self.warm_start = rank, error_feedback, warm_start
        self.carried = "right" if warm_start else ""

    def forms(self, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Form]:
        rows, columns = _matrix(shape)
        if self.rank * (rows + columns) >= rows * columns:
            return {"whole": Form(tuple(shape), dtype)}
        return {"left": Form((rows, self.rank), dtype), "right": Form((columns, self.rank), dtype)}

    def encode(self, update: Tensor, draws: torch.Generator, start: Tensor | None = None) -> dict[str, Tensor]:
        forms = self.forms(tuple(update.shape), update.dtype)
        if "whole" in forms:
            return {"whole": update.clone()}
        matrix, right = update.reshape(_matrix(tuple(update.shape))), forms["right"]
        fresh = torch.randn(right.shape, generator=draws).to(update)
        # a column of zeros, as after a turn that changed nothing, would stay one for good
        basis = fresh if start is None else torch.where(start.any(0), start, fresh)
        left = torch.linalg.qr(matrix @ basis).Q
        return {"left": left, "right": matrix.T @ left}

    def decode(self, payload: Mapping[str, Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        whole = payload.get("whole")
        return (payload["left"] @ payload["right"].T).view(shape) if whole is None else whole


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)
