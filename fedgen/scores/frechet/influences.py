"""Standard errors of avg, all and worst from the influence of every image on every client's score and on the pool's.

A score that is, to first order, a mean of some function over the generated images and another over the real ones has
the variance of these means. Generated images vary as one sample that all clients share, real ones within each client.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgen.scores.over_clients import OverClients
from fedgen.scores.uncertainty import mean_variance


@dataclass(frozen=True, eq=False)
class Influences:
    """Influences of images on the scores of K clients and of their pool, each up to a constant.

    Args:
        generated: of the generated images on every client's score, and on the pool's as the last row [K + 1, m].
        real: of each client's images on its own score, K tensors [n_i].
        pool: of each client's images on the pool's score, for client i divided by its weight, K tensors [n_i], up to
            one constant for all.
        weights: the clients' [K].
        worst: place of the worst client.
    """

    generated: Tensor
    real: list[Tensor]
    pool: list[Tensor]
    weights: Tensor
    worst: int

    def parts(self) -> dict[str, dict[str, float]]:
        """Standard errors {"generated": {"avg", "all", "worst"}, "real": {...}}."""
        own = torch.stack([mean_variance(part) for part in self.real])
        of_pool = torch.stack([mean_variance(part) for part in self.pool])
        squares = self.weights.square()
        real = {"avg": squares @ own, "all": squares @ of_pool, "worst": own[self.worst]}
        return {
            "generated": shared_errors(self.generated, self.weights, self.worst),
            "real": {key: float(value) ** 0.5 for key, value in real.items()},
        }

    def client_parts(self) -> dict[str, Tensor]:
        """Standard errors {"generated": [K], "real": [K]} of the clients' own scores."""
        real = torch.stack([mean_variance(part) for part in self.real])
        return {"generated": mean_variance(self.generated[:-1]).sqrt(), "real": real.sqrt()}

    def over_clients(self, per_client: Tensor) -> OverClients:
        """Return what clients of these scores [K] add to avg and all."""
        return OverClients(per_client, torch.stack([part.mean() for part in self.pool]), self.weights)


def shared_errors(rows: Tensor, weights: Tensor, worst: int) -> dict[str, float]:
    """Standard errors of avg, all and worst over what all clients share, from influences [K + 1, m] (pool last)."""
    variances = mean_variance(torch.stack([weights @ rows[:-1], rows[-1], rows[worst]]))
    return dict(zip(("avg", "all", "worst"), variances.sqrt().tolist()))
