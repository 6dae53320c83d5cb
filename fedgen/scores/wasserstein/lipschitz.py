"""Networks that are 1-Lipschitz in the Euclidean norm, whatever their weights are trained for.

Every linear layer is put back after each step to where it stretches nothing, and every activation is 1-Lipschitz, so
the whole is. "groupsort": orthonormal layers and sorted pairs (Anil, Lucas and Grosse 2019, arXiv 1811.05381), which
keep gradients of norm 1 and can approach any 1-Lipschitz function. "relu": spectral norm 1 (Miyato et al. 2018, arXiv
1802.05957) and ReLU, which cannot: where |x| is wanted it reaches |x| / 2.
"""

from itertools import pairwise
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

Kind = Literal["groupsort", "relu"]


class GroupSort(nn.Module):
    """Features [N, H] with each two neighbours in ascending order (H even): a permutation, so it keeps all norms."""

    def forward(self, features: Tensor) -> Tensor:
        first, second = features[:, 0::2], features[:, 1::2]
        return torch.stack([torch.minimum(first, second), torch.maximum(first, second)], 2).flatten(1)


def check_network(kind: str, hidden: int, blocks: int, last_activation: bool) -> None:
    """Refuses what a `LipschitzNetwork` cannot be made of, without making one.

    Raises:
        ValueError: for another kind, no block, an odd width, or a last activation that would change nothing.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"a Lipschitz network is one of {', '.join(get_args(Kind))}, got {kind!r}")
    if blocks < 1 or hidden < 2 or hidden % 2:
        raise ValueError(f"blocks={blocks}, hidden={hidden}: at least 1 block, and an even width of at least 2")
    if last_activation and kind != "relu":
        raise ValueError("last_activation needs kind='relu': sorting a single value changes nothing")


class LipschitzNetwork(nn.Module):
    """A function of features [N, D], values [N], with |f(x) - f(y)| <= |x - y|.

    Args:
        dim: D.
        kind: "groupsort" or "relu".
        hidden: width of the layers but the last, even for "groupsort".
        blocks: linear layers, an activation after each; the last has width 1.
        last_activation: whether the activation also follows the last layer; only "relu" has one for a single value.
        generator: of the first weights.

    Raises:
        ValueError: for an unknown kind or sizes out of range.
    """

    def __init__(
        self,
        dim: int,
        kind: Kind = "groupsort",
        hidden: int = 128,
        blocks: int = 3,
        last_activation: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_network(kind, hidden, blocks, last_activation)
        self.kind = kind
        widths = [dim, *[hidden] * (blocks - 1), 1]
        # nn.Linear would draw its own first weights from the global generator
        self.layers = nn.ModuleList(skip_init(nn.Linear, before, after) for before, after in pairwise(widths))
        self.activation = nn.ReLU() if kind == "relu" else GroupSort()
        self.last = nn.ReLU() if last_activation else nn.Identity()
        self.spread = min(1.0, dim / hidden) ** 0.5  # of a hidden feature, for data of spread 1 along each axis
        for linear in self.linears:
            nn.init.normal_(linear.weight, generator=generator)
            nn.init.normal_(linear.bias, generator=generator, std=0.5 * self.spread)  # kinks lie within the data
        self.project()
        if last_activation:
            nn.init.constant_(self.linears[-1].bias, 3.0)  # alive on all data: a constant does not change the objective

    @property
    def linears(self) -> list[nn.Linear]:
        """The linear layers in order."""
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]

    def forward(self, features: Tensor) -> Tensor:
        for linear in self.linears[:-1]:
            features = self.activation(linear(features))
        return self.last(self.linears[-1](features)).squeeze(1)

    @torch.no_grad()
    def project(self) -> None:
        """Puts every layer back: onto orthonormal rows or columns ("groupsort"), or to spectral norm 1 ("relu")."""
        for linear in self.linears:
            linear.weight.copy_(_orthonormal(linear.weight) if self.kind == "groupsort" else _normalised(linear.weight))

    @torch.no_grad()
    def lipschitz_bound(self) -> float:
        """Product of the layers' largest singular values: no two points are stretched by more."""
        norms = [torch.linalg.matrix_norm(linear.weight.double(), 2) for linear in self.linears]
        return float(torch.stack(norms).prod())


def _gram(weight: Tensor) -> Tensor:
    """W W^T or W^T W, the smaller, float64."""
    small = weight.double()
    return small @ small.T if small.shape[0] <= small.shape[1] else small.T @ small


def _orthonormal(weight: Tensor) -> Tensor:
    """The nearest matrix whose rows (columns, if it has more rows) are orthonormal: (W W^T)^(-1/2) W."""
    values, vectors = torch.linalg.eigh(_gram(weight))
    inverse = (vectors * values.clamp(min=1e-12 * float(values[-1])).rsqrt()) @ vectors.T
    wide = weight.shape[0] <= weight.shape[1]
    return (inverse @ weight.double() if wide else weight.double() @ inverse).to(weight)


def _normalised(weight: Tensor) -> Tensor:
    scaled = weight.double() / torch.linalg.eigvalsh(_gram(weight))[-1].clamp(min=1e-24).sqrt()
    return scaled.masked_fill(scaled.abs() < 1e-20, 0.0).to(weight)  # what shrinks at each step ends in slow subnormals
