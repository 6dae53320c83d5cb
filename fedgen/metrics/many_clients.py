"""Updating a metric of many clients' images against generated ones, and reporting it as avg, all, worst."""

import operator
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedgen.metrics.feature_metric import GENERATED, REAL, FeatureMetric, require_images
from fedgen.scores.aggregate import FederatedScore, Weights, aggregate, resolve_weights

Aggregate = str | float
EVERYTHING: tuple[Aggregate, ...] = ("avg", "all", "worst", "per_client")


class ManyClients(FeatureMetric):
    """`update(images, client)` and `compute()` for metrics of K clients; subclasses give the score.

    Args:
        num_clients: K. Every rank needs the same, so it is no count of the clients seen.
        weights: "examples" (n_i / n), "uniform" or K numbers, shared by avg and all.
        aggregates: "avg", "all", "worst", "per_client" or a power p >= 1 for a tensor; several of them for a dict.
        settings: the other arguments of the metric beside.

    Raises:
        ValueError: for another aggregate, unusable weights, or no client.
    """

    def __init__(
        self, num_clients: int, weights: Weights, aggregates: Aggregate | Sequence[Aggregate], **settings: Any
    ) -> None:
        if num_clients < 1:
            raise ValueError(f"num_clients must be at least 1, got {num_clients}")
        single = isinstance(aggregates, str | int | float)
        names = _aggregates(aggregates)
        resolve_weights(weights, [1.0] * num_clients)
        # The pool of all images needs no client's own.
        pooled = names == ("all",) and isinstance(weights, str) and weights == "examples"
        super().__init__(rows=1 if pooled else num_clients, made_with=("many clients", num_clients), **settings)
        self.num_clients = num_clients
        self.weights = weights if isinstance(weights, str) else torch.as_tensor(weights).tolist()
        self._names, self._single, self._pooled = names, single, pooled

    @abstractmethod
    def _score(self) -> tuple[FederatedScore, Tensor]:
        """The score of the images seen and the clients' weights; of a pooled metric, the pool is the only client."""

    def update(self, images: Tensor, client: int | Tensor | None) -> None:
        """Adds images, or features [N, D] without an embedding.

        Args:
            images: of one client, of several, or generated.
            client: the client's number; or that of each image, int64 [N]; None: these are generated.

        Raises:
            ValueError: for a client that is none of 0 ... K - 1, and images or features that cannot be used.
        """
        rows = 0 if client is None else _clients(client, len(images), self.num_clients)
        if len(images):
            side = GENERATED if client is None else REAL
            self._add(self._features(images, side), side, 0 if self._pooled else rows)

    def compute(self) -> Tensor | dict[str, Tensor]:
        """The aggregate asked for as a float64 scalar (per_client: [K]); or a dict such as {"fid_avg", "fid_all"}."""
        score, shares = self._score()
        found = {_key(score.name, name): _named(score, shares, name).to(self.device) for name in self._names}
        return next(iter(found.values())) if self._single else found

    def _require_images(self, counts: Sequence[float], generated: float, needed: int) -> None:
        """Raises ValueError unless each client (or the pool) and the generated side have the images needed."""
        for number, count in enumerate(counts):
            owner, how = ("all clients", "k") if self._pooled else (f"client {number}", str(number))
            require_images(owner, count, needed, f"update(images, client={how})")
        require_images("generated", generated, needed, "update(images, client=None)")


def _aggregates(names: Aggregate | Sequence[Aggregate]) -> tuple[Aggregate, ...]:
    """Checked names, one or several."""
    several = (names,) if isinstance(names, str | int | float) else tuple(names)
    for name in several:
        if not (name in EVERYTHING if isinstance(name, str) else name >= 1):
            raise ValueError(f"aggregate must be among {EVERYTHING} or a power of at least 1, got {name!r}")
    if not several:
        raise ValueError(f"aggregate must name at least one of {EVERYTHING}")
    return several


def _named(score: FederatedScore, shares: Tensor, name: Aggregate) -> Tensor:
    """One aggregate in float64: a scalar, or [K] for "per_client"."""
    if name == "per_client":
        return score.per_client
    value = score.values["all"] if name == "all" else aggregate(score.per_client, shares, name)
    return torch.tensor(value, dtype=torch.float64)


def _key(score: str, name: Aggregate) -> str:
    return f"{score}_{name}" if isinstance(name, str) else f"{score}_power_{name:g}"


def _clients(client: int | Tensor, images: int, num_clients: int) -> int | Tensor:
    """One client's number, or those of each image as int64 [N], once they are known to exist."""
    if isinstance(client, Tensor) and client.ndim > 0:
        if client.shape != (images,) or client.dtype == torch.bool or client.is_floating_point():
            raise ValueError(
                f"client needs one whole number an image, [{images}], got {client.dtype} {list(client.shape)}"
            )
        outside = client[(client < 0) | (client >= num_clients)]
        if len(outside):
            raise ValueError(
                f"client {int(outside[0])} is none of 0 ... {num_clients - 1}; generated images: client=None"
            )
        return client.long()
    if isinstance(client, bool) or not hasattr(client, "__index__"):
        raise ValueError(f"client is a whole number, int64 [N], or None for generated images, got {client!r}")
    number = operator.index(client)
    if not 0 <= number < num_clients:
        raise ValueError(f"client {number} is none of 0 ... {num_clients - 1}; generated images: client=None")
    return number
