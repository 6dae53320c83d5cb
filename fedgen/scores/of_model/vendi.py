"""The Vendi score: the number of different images that a set amounts to (Friedman and Dieng 2023, arXiv 2210.02410).

exp of the Shannon entropy of the eigenvalues of K / n, where K is a kernel of similarity with k(x, x) = 1. It is 1 for
n copies of an image and n for n images with nothing in common, knows no reference, and grows with n: compare sets of
equal sizes only.
"""

import torch
from torch import Tensor

from fedgen.scores.kernel.kernels import Kernel
from fedgen.statistics.gaussian import CHUNK, check_features


def vendi_score(features: Tensor, kernel: Kernel | None = None) -> float:
    """The Vendi score of features [n, D], in [1, n], in float64.

    Args:
        features: floating, of any number of images.
        kernel: of similarity, with k(x, x) = 1 for every image, e.g. `RBFKernel(sigma)`; n x n values are kept, and
            time grows with n^3. None is the cosine of two feature vectors: the smaller of n x n and D x D values, so
            that many images are quick. A feature vector of zeros has no direction; such images are taken as all alike,
            and unlike any other.

    Raises:
        ValueError: for unusable features, or a kernel that is not 1 between an image and itself.

    Examples:
        >>> import torch
        >>> from fedgen.scores import vendi_score
        >>> round(vendi_score(torch.eye(3)), 6)  # three unlike images
        3.0
        >>> round(vendi_score(torch.ones(3, 2)), 6)  # one image, three times
        1.0
    """
    check_features(features)
    features = features.detach()
    if kernel is None:
        matrix = _cosines(features)
    else:
        features = features.double()
        own = kernel.diagonal(features)
        if not torch.allclose(own, torch.ones_like(own), atol=1e-9):
            raise ValueError(
                f"the Vendi score needs a kernel that is 1 between an image and itself, and {kernel} gives"
                f" {float(own.min()):.4g} to {float(own.max()):.4g}; use RBFKernel(sigma), or None for cosines"
            )
        matrix = kernel.block(features, features) / len(features)
    shares = torch.linalg.eigvalsh(matrix).clamp(min=0)  # rounding makes some negative
    return float(torch.special.entr(shares / shares.sum()).sum().exp())


def _cosines(features: Tensor) -> Tensor:
    """A matrix whose eigenvalues are those of K / n for cosines, zeros apart: K / n [n, n], or X^T X / n if D < n."""
    count, dim = features.shape
    norms = torch.cat([part.double().norm(dim=1) for part in features.split(CHUNK)])
    zeros = norms == 0
    if count <= dim:
        rows = features.double() / norms.masked_fill(zeros, 1).unsqueeze(1)
        return (rows @ rows.T + torch.outer(zeros, zeros)) / count
    matrix = torch.zeros(dim + 1, dim + 1, dtype=torch.float64, device=features.device)
    for part, lengths in zip(features.split(CHUNK), norms.split(CHUNK)):
        rows = part.double() / lengths.masked_fill(lengths == 0, 1).unsqueeze(1)
        matrix[:dim, :dim] += rows.T @ rows
    matrix[dim, dim] = zeros.sum()  # the axis of images without a direction
    return matrix / count
