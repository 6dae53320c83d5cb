"""Scores that are a mean over real images: one number for avg and all, to the last digit."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedgen.scores.aggregate import FederatedScore, aggregate, combine
from fedgen.scores.over_clients import OverClients
from fedgen.scores.uncertainty import mean_variance


def mean_score(
    name: str, values: Sequence[Tensor], weights: Tensor, errors: bool = True, higher_is_better: bool = False
) -> FederatedScore:
    """The score of values float64 [n_i] of each client's images.

    Standard errors are over the real images: what else varies, such as the model, is taken as given.

    Args:
        name: the score's.
        values: one tensor a client.
        weights: of the clients, float64 [K], summing to 1.
        errors: whether to add standard errors.
        higher_is_better: whether larger values are better ones.
    """
    per_client = torch.stack([part.mean() for part in values])
    pooled = aggregate(per_client, weights)  # the same to the last digit, so that no rounding ranks in two ways
    if not errors:
        return combine(name, per_client, pooled, weights, higher_is_better=higher_is_better)
    spread = torch.stack([mean_variance(part) for part in values])
    sign = 1.0 if higher_is_better else -1.0
    worst = int((sign * per_client).masked_fill(weights == 0, torch.inf).argmin())
    average = float((weights.square() @ spread).sqrt())
    over_clients = OverClients(per_client, per_client, weights)
    score = combine(name, per_client, pooled, weights, None, None, None, higher_is_better, over_clients)
    # no parts: whatever varies with the generated images is not known, so these stand for both sides
    found = {"avg": average, "all": average, "worst": float(spread[worst].sqrt())}
    return replace(score, errors=found, client_errors=spread.sqrt())
