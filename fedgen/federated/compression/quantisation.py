"""QSGD (Alistarh et al. 2017, "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", arXiv
1610.02132): few levels, stochastic rounding."""

import math
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from fedgen.federated.compression.compressor import Compressor, Form
from fedgen.federated.compression.packed_bits import pack, packed_size, unpack


class QSGD(Compressor):
    """Stochastic rounding to multiples of scale / s, with s = 2^(bits - 1) - 1 levels of either sign (Section 3.1).

    An entry v becomes scale sgn(v) xi / s, where xi is one of the two whole numbers around s |v| / scale, drawn so that
    the mean is v: sums over clients and rounds go right without error feedback, and nothing is kept of clients.

    With `norm="2"`, as in the theorem, the scale is the block's Euclidean norm, and the expected squared error of a
    block of n entries is at most min(n / s^2, sqrt(n) / s) |v|^2 (Lemma 3.1). With "max", which the paper's experiments
    use, it is the largest magnitude; the error is at most n / (4 s^2) max^2, and never more than one level an entry.

    Sent are bits an entry, rounded up to whole bytes a tensor, and the scale of each block in the update's type (4
    bytes for float32; half precision is compressed in float32).

    Args:
        bits: of an entry with its sign: 8 (127 levels), 4 (7) or 2 (1).
        block: entries with a scale of their own, in the tensor's order; None takes the tensor. The paper has 512.
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
        scales = -(-count // self._length(count))
        return {"codes": Form((packed_size(count, self.bits),), torch.uint8), "scales": Form((scales,), dtype)}

    def _length(self, count: int) -> int:
        """Return the entries of a block of a tensor of so many."""
        return self.block or max(1, count)

    def _blocks(self, flat: Tensor) -> Tensor:
        """Return entries in rows, a block each, the last one filled up with 0."""
        length = self._length(len(flat))
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
            raise ValueError(
                f"codes holds {int(codes.max())}, and {self.levels} levels of either sign end at {2 * self.levels}"
            )


def round_stochastically(values: Tensor, uniform: Tensor) -> Tensor:
    """Return one of the two whole numbers around each value, the upper one where its fraction is above the draw."""
    lower = values.floor()
    return lower + (uniform < values - lower)
