"""The real image that is nearest to each generated one, in one pass over the distances."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedgen.scores.kernel.kernels import block_pairs
from fedgen.scores.manifold.pairwise import Points, exact_squares, lower_bounds


@dataclass(frozen=True, eq=False)
class NearestReal:
    """The nearest of a set's images to each generated one: squared distances float64 [m] and places int64 [m].

    Args:
        squares: from differences, so that copies are at exactly 0.
        places: in the set.
        count: images of the set.
    """

    squares: Tensor
    places: Tensor
    count: int

    def beside(self, other: "NearestReal") -> "NearestReal":
        """The nearest of both sets' images, the other's after these; in a tie one of these."""
        closer = other.squares < self.squares
        places = torch.where(closer, other.places + self.count, self.places)
        return NearestReal(torch.minimum(self.squares, other.squares), places, self.count + other.count)


def nearest_real(made: Points, features: Tensor) -> NearestReal:
    """The nearest of features [n, D] to each generated image."""
    others = Points(features.to(made.features.device), made.origin)
    squares = torch.full((len(made),), torch.inf, dtype=torch.float64, device=made.squares.device)
    places = torch.zeros(len(made), dtype=torch.int64, device=made.squares.device)
    for rows, columns in block_pairs(len(made), len(others), symmetric=False):
        low, column = lower_bounds(made, rows, others, columns, torch.float64).min(1)
        closer = low < squares[rows]
        squares[rows] = torch.where(closer, low, squares[rows])
        places[rows] = torch.where(closer, column + columns.start, places[rows])
    everyone = torch.arange(len(made), device=places.device)
    return NearestReal(exact_squares(made, everyone, others, places), places, len(others))
