"""Eigenvectors of symmetric matrices that may be singular."""

import torch
from torch import Tensor


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending eigenvalues [..., n] and eigenvectors [..., n, n] of symmetric matrices, from their lower triangle.

    LAPACK's divide and conquer, which torch calls, may fail to converge on covariances of few images, with their many
    equal eigenvalues. Those are then solved by QR iterations, which are slower and do not.

    Raises:
        torch.linalg.LinAlgError: for NaN or infinity.
    """
    try:
        return torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError:
        if not torch.isfinite(matrix).all():
            raise
    singles = [_by_qr(single) for single in matrix.reshape(-1, *matrix.shape[-2:])]
    values, vectors = (torch.stack(list(parts)) for parts in zip(*singles))
    return values.reshape(matrix.shape[:-1]).to(matrix), vectors.reshape(matrix.shape).to(matrix)


def _by_qr(matrix: Tensor) -> tuple[Tensor, Tensor]:
    import scipy.linalg  # needed once in a thousand matrices, and slow to import

    values, vectors = scipy.linalg.eigh(matrix.cpu().numpy(), driver="ev")
    return torch.from_numpy(values), torch.from_numpy(vectors)
