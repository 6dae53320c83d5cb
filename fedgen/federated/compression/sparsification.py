"""Top-k sparsification (Stich et al. 2018, "Sparsified SGD with Memory", arXiv 1809.07599)."""

import math
from collections.abc import Mapping
from fractions import Fraction

import torch
from torch import Tensor

from fedgen.federated.compression.compressor import Compressor, Form

MOST_PLACES = 2**31  # that int32 counts


class TopK(Compressor):
    """The k entries of each tensor that are largest in magnitude, as they are; of equal ones the first.

    k is `share` of the tensor's d entries, rounded up. What is left out is at most (1 - k / d) |v|^2 (Definition 2.1 of
    the paper), and error feedback sends it later.

    Sent are k values in the update's type and k places in int32 (int64 in tensors of more than 2^31 entries), rising.

    Args:
        share: of the entries, in (0, 1].
        error_feedback: whether clients keep what was not sent for their next turn.

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

    def _kept(self, count: int) -> int:
        """Return k, of so many entries."""
        return min(count, math.ceil(Fraction(str(self.share)) * count))  # 0.07 of 100 are 7, and 8 in floats

    def forms(self, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Form]:
        kept = (self._kept(count := math.prod(shape)),)
        return {"places": Form(kept, torch.int32 if count <= MOST_PLACES else torch.int64), "values": Form(kept, dtype)}

    def encode(self, update: Tensor, draws: torch.Generator, start: Tensor | None = None) -> dict[str, Tensor]:
        flat, kind = update.reshape(-1), self.forms(tuple(update.shape), update.dtype)["places"].dtype
        places = _largest(flat.abs(), self._kept(len(flat)))
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


def _largest(sizes: Tensor, count: int) -> Tensor:
    """Return the places of the largest numbers, rising; of equal ones the first, which torch.topk does not promise."""
    if not count:
        return torch.zeros(0, dtype=torch.int64, device=sizes.device)
    least = sizes.topk(count).values[-1]
    above = (sizes > least).nonzero().view(-1)
    equal = (sizes == least).nonzero().view(-1)[: count - len(above)]
    return torch.cat([above, equal]).sort().values
