"""Slopes of the distance to the pool as its mixture moves towards each client: the influence of a client as a whole.

It is the mean of the images' influence h over the client's images, which needs no images. With the transport map
T = W W^T of the pool, its scale c, d_i = mu_i - mu_pool and population covariances C_i = R_i^T R_i it is
    2 (mu_pool - mu_G)^T d_i + c (tr C_i + |d_i|^2 - |R_i W|^2 - |d_i W|^2) + const.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedgen.scores.frechet.roots import Roots, solved, squared_norms
from fedgen.scores.uncertainty import Spectrum


class PoolSlopes:
    """Slopes of the pool's distance towards K clients; of a map W it has still to be told the clients.

    Args:
        number: of clients K.
        found: the slopes themselves, float64 [K].
        map: W, float64 [D, r].
    """

    def __init__(self, number: int, found: Tensor | None = None, map: Tensor | None = None) -> None:
        self._transported = torch.zeros(number, dtype=torch.float64)
        self._found, self._map = found, map

    @classmethod
    def from_images(cls, number: int, influences: Tensor, shares: Tensor, clients: Tensor) -> "PoolSlopes":
        """Those that the influences [p] of all the pool's images give, with their shares and their clients."""
        sums, masses = torch.zeros(number, dtype=torch.float64), torch.zeros(number, dtype=torch.float64)
        sums.index_add_(0, clients, (influences * shares).to(sums))
        masses.index_add_(0, clients, shares.to(masses))
        return cls(number, found=torch.where(masses > 0, sums / masses, 0.0))

    @classmethod
    def from_map(cls, number: int, roots: Roots, seen: Spectrum) -> "PoolSlopes":
        """Those of the pool's transport map, from its root and spectrum."""
        rank = int(seen.ranks[0])
        vectors, sizes = seen.vectors[0][:, -rank:], seen.roots()[0][-rank:]
        return cls(number, map=solved(roots, vectors * sizes.sqrt()))

    def transported(self, roots: Roots) -> Tensor | None:
        """|R_i W|^2 float64 [k] of some clients by their covariances' roots; None where no map is needed."""
        return None if self._map is None else squared_norms(roots, self._map).double()

    def note(self, members: list[int], transported: Tensor | None) -> None:
        """Keeps what `transported` gave for clients."""
        if transported is not None:
            self._transported[members] = transported

    def result(
        self, means: Sequence[Tensor], generated: Tensor, traces: Sequence[Tensor], scales: Sequence[float]
    ) -> Tensor:
        """The slopes, float64 [K], up to a constant.

        Args:
            means: of the clients' features, then the pool's.
            generated: mean of the generated features [D].
            traces: of the clients' covariances, then the pool's.
            scales: n / (n - ddof) of the clients, then the pool: what the covariances are of the populations'.
        """
        if self._found is not None:
            return self._found
        assert self._map is not None
        away = torch.stack(list(means[:-1])) - means[-1]
        own = (torch.stack(list(traces[:-1])) - self._transported) / torch.tensor(scales[:-1], dtype=torch.float64)
        between = away.square().sum(1) - (away @ self._map).square().sum(1)
        return 2 * (away @ (means[-1] - generated)) + scales[-1] * (own + between)
