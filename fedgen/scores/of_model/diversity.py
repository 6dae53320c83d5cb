"""Scores of generated images alone, which know no clients and no real images: higher is better.

The Inception Score (Salimans et al. 2016, arXiv 1606.03498) is exp(mean_i KL(p_i || q)) with p_i the class
probabilities of image i and q their mean. Feed it the published network's logits: the embedding
`inception-v3-compat-logits_unbiased` (1008 classes, no bias in the last layer).

The Vendi score (Friedman and Dieng 2023, arXiv 2210.02410) is the number of different images that a set amounts to:
exp of the Shannon entropy of the eigenvalues of K / n, where K is a kernel of similarity with k(x, x) = 1. It is 1 for
n copies of an image and n for n images with nothing in common, and grows with n: compare sets of equal sizes only.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedgen.scores.aggregate import FederatedScore, combine, jackknife_variance, resolve_weights
from fedgen.scores.definition import ClientSide, GeneratedSet, Needs, ScoreDefinition
from fedgen.scores.kernel.kernels import Kernel
from fedgen.statistics.gaussian import CHUNK, check_features

BLOCK = 4096  # images whose probabilities are formed together


def inception_score(logits: Tensor) -> tuple[float, float]:
    """The score of all images at once and its standard error (jackknife that leaves out one image at a time).

    Between 1 and the number of classes. Few images make it too low, since q is then closer to each p_i; splits, as
    `inception_score_splits` takes them, are few images each.

    Args:
        logits: [N, classes], any floating dtype; computed in float64.

    Raises:
        ValueError: for unusable logits.

    Examples:
        >>> import torch
        >>> from fedgen.scores import inception_score
        >>> sure = torch.tensor([[50.0, -50.0], [-50.0, 50.0]])  # two images, each surely of its own class
        >>> round(inception_score(sure)[0], 6)
        2.0
    """
    check_features(logits, "logits")
    logits = logits.detach().cpu()
    count = len(logits)
    total = torch.zeros(logits.shape[1], dtype=torch.float64)
    entropies = []
    for part in logits.split(BLOCK):
        logs = part.double().log_softmax(1)
        total += logs.exp().sum(0)
        entropies.append(-(logs.exp() * logs).sum(1))
    entropy = torch.cat(entropies)
    value = (torch.special.entr(total / count).sum() - entropy.mean()).exp()
    if count < 2:
        return float(value), 0.0
    without = []
    for part in logits.split(BLOCK):
        rest = total - part.double().softmax(1)
        without.append(torch.special.entr((rest / (count - 1)).clamp(min=0)).sum(1))  # rounding may leave -1e-17
    left_out = torch.cat(without) - (entropy.sum() - entropy) / (count - 1)
    return float(value), float(jackknife_variance(left_out.exp()).sqrt())


def inception_score_splits(
    logits: Tensor, splits: int = 10, shuffle: bool = True, seed: int = 2020
) -> tuple[float, float]:
    """Mean and standard deviation (ddof 0) of the score over splits, as torch-fidelity prints them.

    Shuffled by one RandomState(seed). The deviation over splits is not a standard error of the mean.

    Args:
        logits: [N, classes].
        splits: parts of N / splits images each.
        shuffle: whether to shuffle first; images that come class by class need it.
        seed: of the shuffle.

    Raises:
        ValueError: for unusable logits, or fewer images than splits.

    Examples:
        >>> import torch
        >>> from fedgen.scores import inception_score_splits
        >>> sure = torch.tensor([[50.0, -50.0], [-50.0, 50.0]]).repeat(2, 1)
        >>> mean, spread = inception_score_splits(sure, splits=2, shuffle=False)
        >>> round(mean, 6), round(spread, 6)
        (2.0, 0.0)
    """
    check_features(logits, "logits")
    count = len(logits)
    if not 1 <= splits <= count:
        raise ValueError(f"splits must be between 1 and the number of images, {count}, got {splits}")
    logits = logits.detach().cpu()
    if shuffle:
        logits = logits[torch.from_numpy(np.random.RandomState(seed).permutation(count))]
    bounds = [split * count // splits for split in range(splits + 1)]
    values = [inception_score(logits[start:end])[0] for start, end in pairwise(bounds)]
    return float(np.mean(values)), float(np.std(values))


@dataclass(frozen=True)
class LogitsScore(ScoreDefinition):
    """The Inception Score, which knows generated images only: one value for every client, as avg, all and worst.

    Of an embedding whose features are logits.
    """

    name: ClassVar[str] = "is"
    needs: ClassVar[Needs] = "logits"
    has_distribution: ClassVar[bool] = False
    higher_is_better: ClassVar[bool] = True

    def prepare(self, clients: ClientSide) -> Tensor:
        return resolve_weights(clients.weights, clients.counts)

    def compare(self, prepared: Tensor, generated: GeneratedSet, errors: bool) -> FederatedScore:
        value, error = inception_score(generated.rows)
        per_client = torch.full_like(prepared, value)
        parts = {"generated": dict.fromkeys(("avg", "all", "worst"), error)} if errors else None
        own = {"generated": torch.full_like(prepared, error)} if errors else None
        return combine("is", per_client, value, prepared, None, parts, own, higher_is_better=True)


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
            found = f"{kernel} gives {float(own.min()):.4g} to {float(own.max()):.4g}; use RBFKernel(sigma) or None"
            raise ValueError(f"the Vendi score needs a kernel that is 1 between an image and itself, {found}")
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
