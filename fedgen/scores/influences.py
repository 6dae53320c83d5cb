"""Standard errors of avg, all and worst from the influence of every image on every client's score and on the pool's.

A score that is, to first order, a mean of some function over the generated images and another over the real ones has
the variance of these means. Generated images vary as one sample that all clients share, real ones within each client.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from fedgen.scores.aggregate import FederatedScore, OverClients, aggregate, combine, mean_variance

PAIRS = 2**22  # of clients and generated images whose numbers are held at once: 34 MB of float64


def mean_score(
    name: str, values: Sequence[Tensor], weights: Tensor, errors: bool = True, higher_is_better: bool = False
) -> FederatedScore:
    per_client = torch.stack([part.mean() for part in values])
    pooled = aggregate(per_client, weights)  # the same to the last digit, so that no rounding ranks in two ways
    score = combine(name, per_client, pooled, weights, higher_is_better=higher_is_better)
    if not errors:
        return score
    spread = torch.stack([mean_variance(part) for part in values])
    sign = 1.0 if higher_is_better else -1.0
    worst = int((sign * per_client).masked_fill(weights == 0, torch.inf).argmin())
    average = float((weights.square() @ spread).sqrt())
    beyond = OverClients(per_client, per_client, weights)
    # no parts: whatever varies with the generated images is not known, so these stand for both sides
    found = {"avg": average, "all": average, "worst": float(spread[worst].sqrt())}
    return replace(score, errors=found, client_errors=spread.sqrt(), over_clients=beyond)


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The values of torch.cat(parts), [n, D]: a view where the parts are consecutive rows of one tensor (a split's)."""
    if any(not _follows(before, after) for before, after in pairwise(parts)):
        return torch.cat(list(parts))
    first = parts[0]
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride(), first.storage_offset())


def _follows(before: Tensor, after: Tensor) -> bool:
    forms = [(t.shape[1:], t.dtype, t.device, t.stride(), t.untyped_storage().data_ptr()) for t in (before, after)]
    end = before.storage_offset() + len(before) * before.stride(0)
    return forms[0] == forms[1] and bool(after.storage_offset() == end)


def client_blocks(counts: Sequence[int], generated: int) -> Iterator[tuple[slice, slice]]:
    """Places of clients, and of their images, by blocks of at most `PAIRS` pairs with generated images, or a client."""
    ends, step = [0, *accumulate(counts)], max(1, PAIRS // generated)
    for start in range(0, len(counts), step):
        stop = min(start + step, len(counts))
        yield slice(start, stop), slice(ends[start], ends[stop])


class SharedVariances:
    """Variances over what all clients share, as generated images are, from rows of one block of clients at a time."""

    def __init__(self, weights: Tensor, variance: Callable[[Tensor], Tensor] = mean_variance) -> None:
        self.weights, self._variance = weights, variance
        self.of_clients = torch.zeros_like(weights)
        self._average: Tensor | float = 0.0

    def add(self, clients: slice, rows: Tensor) -> None:
        """Take in the rows [b, m] of some clients; each client's once."""
        self.of_clients[clients] = self._variance(rows)
        self._average = self._average + self.weights[clients] @ rows

    def errors(self, worst: int, pool: Tensor | None = None) -> dict[str, float]:
        """Standard errors of avg, all and worst, with the pool's row [m]; None where it is the clients' mean."""
        assert isinstance(self._average, Tensor)
        average = float(self._variance(self._average))
        of_pool = average if pool is None else float(self._variance(pool))
        variances = {"avg": average, "all": of_pool, "worst": float(self.of_clients[worst])}
        return {key: variance**0.5 for key, variance in variances.items()}


def with_errors(
    score: FederatedScore,
    shared: SharedVariances,
    pool: Tensor | None,
    real: tuple[float | Tensor, float | Tensor, Tensor],
    over_clients: OverClients,
) -> FederatedScore:
    """A score with errors over generated images and, by the variances of avg, all and clients [K], over real ones."""
    weights, sign, own = shared.weights, 1.0 if score.higher_is_better else -1.0, real[2]
    worst = int((sign * score.per_client).masked_fill(weights == 0, torch.inf).argmin())
    variances = {"avg": real[0], "all": real[1], "worst": own[worst]}
    parts = {
        "generated": shared.errors(worst, pool),
        "real": {key: float(value) ** 0.5 for key, value in variances.items()},
    }
    of_clients = {"generated": shared.of_clients.sqrt(), "real": own.sqrt()}
    values = score.name, score.per_client, score.values["all"], weights
    return combine(*values, None, parts, of_clients, score.higher_is_better, over_clients)


def with_influences(
    score: FederatedScore, shared: SharedVariances, generated: Tensor, real: Sequence[Tensor], pool: Sequence[Tensor]
) -> FederatedScore:
    """A score with its errors, from influences of generated [m] and real images, each up to a constant.

    `generated` and `pool` are influences on the pool's score, `real` those of clients' images on the client's own.
    """
    own, of_pool = (torch.stack([mean_variance(part) for part in parts]) for parts in (real, pool))
    squares = shared.weights.square()
    beyond = OverClients(score.per_client, torch.stack([part.mean() for part in pool]), shared.weights)
    return with_errors(score, shared, generated, (squares @ own, squares @ of_pool, own), beyond)
