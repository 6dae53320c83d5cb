"""Distances between clients, from features and owners alone: no generator.

Each function gives one number a client, whose mean with weights n_i / n is the federation's. Clients that are random
samples of the same images ("IID") do not give 0 throughout: what they give is found by dealing the same images at
random, and stated where it is known.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgen.scores.frechet.frechet import frechet_distance
from fedgen.scores.kernel.kernels import Kernel, PolynomialKernel, block_pairs, within_sums
from fedgen.scores.of_model.vendi import vendi_score
from fedgen.statistics.gaussian import CHUNK, check_features, summarize


def sizes_of(owners: Tensor) -> Tensor:
    """Return the number of images of each client, int64 [K], of owners int64 [N] in 0..K-1.

    Raises:
        ValueError: if there is no image, or a client without one.
    """
    if owners.ndim != 1 or not len(owners) or int(owners.min()) < 0:
        raise ValueError(f"owners must be client numbers from 0, one an image, got {tuple(owners.shape)}")
    sizes = owners.bincount()
    if not sizes.all():
        raise ValueError(f"client {int((sizes == 0).nonzero()[0])} has no image; number clients without gaps")
    return sizes


def variance_between(features: Tensor, owners: Tensor) -> Tensor:
    """|m_i - m|^2 / tr C of each client, float64 [K]; their mean is the share of the variance between clients.

    With m and C the mean and the covariance (divisor n) of all features, and m_i a client's mean,
    sum_i (n_i / n) |m_i - m|^2 = tr C - sum_i (n_i / n) tr C_i. Over random deals to clients of the same sizes the
    share is (K - 1) / (n - 1) in expectation, exactly. 0 for features that do not vary.

    Args:
        features: [N, D].
        owners: int64 [N] in 0..K-1.
    """
    _check(features, owners)
    sizes, dim = sizes_of(owners), features.shape[1]
    mean = sum((part.sum(0, dtype=torch.float64) for part in features.split(CHUNK)), torch.zeros(dim)) / len(features)
    sums, total = torch.zeros(len(sizes), dim, dtype=torch.float64), 0.0
    for part, own in zip(features.split(CHUNK), owners.split(CHUNK)):
        centred = part.double() - mean
        sums.index_add_(0, own, centred)
        total += float(centred.square().sum()) / len(features)
    return (sums / sizes.unsqueeze(1)).square().sum(1) / total if total > 0 else torch.zeros(len(sizes)).double()


def fid_to_pool(features: Tensor, deals: Sequence[Tensor]) -> Tensor:
    """The Fréchet distance from each client to all clients together, float64 [R, K]; under several deals at once.

    Biased upwards as every Fréchet distance of few images, and most of it is bias where a client has fewer images than
    features: see what clients of the same sizes give that are dealt at random, or `kid_to_pool`. Divisors are n - 1;
    NaN for a client of one image.

    Args:
        features: [N, D].
        deals: owners int64 [N] in 0..K-1, once a deal; all with the same K.
    """
    for owners in deals:
        _check(features, owners)
    pooled, count = summarize(features), len(sizes_of(deals[0]))
    found = torch.full((len(deals), count), torch.nan, dtype=torch.float64)
    for values, owners in zip(found, deals):
        for client in range(count):
            if (own := owners == client).sum() > 1:
                values[client] = frechet_distance(summarize(features[own]), pooled)[0]
    return found


def kid_to_pool(features: Tensor, deals: Sequence[Tensor], kernel: Kernel | None = None) -> Tensor:
    """MMD^2 from each client to all clients together, float64 [R, K]; under several deals of the same images at once.

    (1 - n_i / n)^2 times the U-statistic between the client's images and the others', because the pool is the client
    and the others. No bias: over random deals it is 0 in expectation, exactly, whatever the sizes. NaN for a client of
    one image, or where all others have one.

    Args:
        features: [N, D].
        deals: owners int64 [N] in 0..K-1, once a deal; all with the same K.
        kernel: PolynomialKernel(), that of KID, if None.
    """
    kernel = kernel or PolynomialKernel()
    for owners in deals:
        _check(features, owners)
    own, every = _kernel_sums(features, deals, kernel)
    return torch.stack([_unbiased(one, every, owners) for one, owners in zip(own, deals)])


def vendi_of_clients(features: Tensor, owners: Tensor, kernel: Kernel | None = None) -> Tensor:
    """The Vendi score of each client, float64 [K]: smaller than at random where a client's images are alike.

    Args:
        features: [N, D].
        owners: int64 [N] in 0..K-1.
        kernel: as `vendi_score` has it; cosines if None.
    """
    _check(features, owners)
    clients = range(len(sizes_of(owners)))
    return torch.tensor([vendi_score(features[owners == client], kernel) for client in clients], dtype=torch.float64)


def label_distance(labels: Tensor, owners: Tensor) -> Tensor:
    """Return the distance of each client's labels from all clients': total variation in [0, 1], float64 [K].

    Half the sum over labels of |share at the client - share of all|: the share of the client's images that would have
    to change their label.

    Args:
        labels: int64 [N], at least 0.
        owners: int64 [N] in 0..K-1.
    """
    counts = label_table(labels, owners).double()
    shares, pooled = counts / counts.sum(1, keepdim=True), counts.sum(0) / counts.sum()
    return (shares - pooled).abs().sum(1) / 2


def label_table(labels: Tensor, owners: Tensor, num_labels: int | None = None) -> Tensor:
    """Return the number of images of each client and label, int64 [K, L].

    Args:
        labels: int64 [N].
        owners: int64 [N] in 0..K-1.
        num_labels: L; the largest label and one more if None.
    """
    clients, count = len(sizes_of(owners)), num_labels or int(labels.max()) + 1
    return (owners * count + labels).bincount(minlength=clients * count).view(clients, count)


def _kernel_sums(features: Tensor, deals: Sequence[Tensor], kernel: Kernel) -> tuple[list[Tensor], Tensor]:
    """Each image's kernel's sums over its owner's other images (for each deal) and over all others: float64 [N]."""
    if kernel.monomials(features[:1]) is not None:  # time in N, so each deal for itself
        found = [_sorted_sums(features, owners, kernel) for owners in deals]
        return [own for own, _ in found], found[0][1]
    own = [torch.zeros(len(features), dtype=torch.float64) for _ in deals]
    every = torch.zeros_like(own[0])
    for rows, columns in block_pairs(len(features), len(features), symmetric=True):
        block = kernel.block(features[rows].double(), features[columns].double())
        sides = [(rows, 1)] if rows == columns else [(rows, 1), (columns, 0)]
        if rows == columns:
            block.diagonal().zero_()
        for side, axis in sides:
            every[side] += block.sum(axis)
        for sums, owners in zip(own, deals):
            shared = block * (owners[rows].unsqueeze(1) == owners[columns])
            for side, axis in sides:
                sums[side] += shared.sum(axis)
    return own, every


def _sorted_sums(features: Tensor, owners: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
    order = owners.argsort(stable=True)
    ones = torch.ones(len(owners), dtype=torch.float64)
    found = []
    for values in within_sums(features[order], kernel, owners[order], ones):
        found.append(torch.empty_like(values).index_copy_(0, order, values))
    return found[0], found[1]


def _unbiased(own: Tensor, every: Tensor, owners: Tensor) -> Tensor:
    """(1 - n_i / n)^2 times the U-statistic of each client against the others, from sums over images."""
    sizes = sizes_of(owners).double()
    within, touched = (torch.zeros_like(sizes).index_add_(0, owners, part) for part in (own, every))
    rest = len(owners) - sizes
    client = within / (sizes * (sizes - 1))
    others = every.sum() - 2 * touched + within
    between = (touched - within) / (sizes * rest)
    value = (rest / len(owners)) ** 2 * (client + others / (rest * (rest - 1)) - 2 * between)
    return value.where((sizes > 1) & (rest > 1), torch.nan)


def _check(features: Tensor, owners: Tensor) -> None:
    check_features(features)
    if owners.shape != features.shape[:1]:
        raise ValueError(f"{len(features)} features and owners {tuple(owners.shape)}; give each image's client")
