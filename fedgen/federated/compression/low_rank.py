"""PowerSGD (Vogels et al. 2019, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", arXiv
1905.13727)."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedgen.federated.compression.compressor import Compressor, Form


class PowerSGD(Compressor):
    """A product of rank r, P Q^T, found by one step of subspace iteration (Algorithm 1).

    A tensor is taken as a matrix M [n, m] of its first dimension by all others. From Q, normal draws or what the client
    sent last (warm start, which makes the steps of many rounds one iteration), P = orthonormal(M Q) and Q = M^T P: what
    the server takes in is the projection P P^T M. It is M itself where M has rank r or less. In the paper P and Q are
    averaged over workers on the way; here each client sends its own, which is what an aggregator of updates takes, and
    the mean over clients may have a higher rank.

    Sent are r (n + m) numbers in the update's type; vectors, and matrices with which nothing would be saved, as they
    are.

    Args:
        rank: r, from 1; the paper has 1 to 4.
        error_feedback: whether clients keep what was not sent for their next turn.
        warm_start: whether clients keep Q.

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
    """Return rows and columns of a tensor as a matrix."""
    return (shape[0], math.prod(shape[1:])) if shape else (1, 1)
