"""Signs with a scale (Karimireddy et al. 2019, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
arXiv 1901.09847)."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedgen.federated.compression.compressor import Compressor, Form
from fedgen.federated.compression.packed_bits import pack, packed_size, unpack


class ScaledSign(Compressor):
    """The signs of each tensor times its mean magnitude, |v|_1 / d sgn(v): EF-signSGD (Algorithm 1), layer by layer.

    With sgn(0) = 1 the squared error is |v|_2^2 - |v|_1^2 / d exactly. Signs are biased: without error feedback
    training may not converge, which the paper is about.

    Sent are a bit an entry, rounded up to whole bytes a tensor, and the scale in the update's type.

    Args:
        error_feedback: whether clients keep what was not sent for their next turn.

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
        return {"signs": Form((packed_size(math.prod(shape), 1),), torch.uint8), "scale": Form((), dtype)}

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
