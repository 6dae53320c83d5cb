"""Inception Score of generated images alone (Salimans et al. 2016, arXiv 1606.03498): higher is better.

exp(mean_i KL(p_i || q)) with p_i the class probabilities of image i and q their mean. It knows no clients and no real
images, so it is the same for all of them. Feed it the published network's logits: the embedding
`inception-v3-compat-logits_unbiased` (1008 classes, no bias in the last layer).
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedgen.scores.aggregate import FederatedScore, combine, jackknife_variance, resolve_weights
from fedgen.scores.definition import ClientSide, GeneratedSet, Needs, ScoreDefinition
from fedgen.statistics.gaussian import check_features

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
