"""A critic that separates generated from real features: the 1-Lipschitz f with the largest E_g f - E_t f, by training.

The supremum over all such f is the 1-Wasserstein distance (Kantorovich and Rubinstein), so any f gives a lower bound.

Networks are 1-Lipschitz in the Euclidean norm: every linear layer is put back after each step to where it stretches
nothing, and every activation is 1-Lipschitz. "groupsort": orthonormal layers and sorted pairs (Anil, Lucas and Grosse
2019, arXiv 1811.05381), which keep gradients of norm 1 and can approach any 1-Lipschitz function. "relu": spectral norm
1 (Miyato et al. 2018, arXiv 1802.05957) and ReLU, which cannot: where |x| is wanted it reaches |x| / 2.
"""

import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

Kind = Literal["groupsort", "relu"]
CHUNK = 8192  # images given to the critic at once where no gradient is needed
LEVELS = 3  # the learning rate is lowered this often
DECAY = 0.3  # and by this factor


class GroupSort(nn.Module):
    """Features [N, H] with each two neighbours in ascending order (H even): a permutation, so it keeps all norms."""

    def forward(self, features: Tensor) -> Tensor:
        first, second = features[:, 0::2], features[:, 1::2]
        return torch.stack([torch.minimum(first, second), torch.maximum(first, second)], 2).flatten(1)


def check_network(kind: str, hidden: int, blocks: int, last_activation: bool) -> None:
    if kind not in get_args(Kind):
        raise ValueError(f"a Lipschitz network is one of {', '.join(get_args(Kind))}, got {kind!r}")
    if blocks < 1 or hidden < 2 or hidden % 2:
        raise ValueError(f"blocks={blocks}, hidden={hidden}: at least 1 block, and an even width of at least 2")
    if last_activation and kind != "relu":
        raise ValueError("last_activation needs kind='relu': sorting a single value changes nothing")


class LipschitzNetwork(nn.Module):
    """A function of features [N, D], values [N], with |f(x) - f(y)| <= |x - y|."""

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
        linears = [skip_init(nn.Linear, before, after) for before, after in pairwise(widths)]
        self.linears: Any = nn.ModuleList(linears)
        self.activation = nn.ReLU() if kind == "relu" else GroupSort()
        self.last = nn.ReLU() if last_activation else nn.Identity()
        self.spread = min(1.0, dim / hidden) ** 0.5  # of a hidden feature, for data of spread 1 along each axis
        for linear in linears:
            nn.init.normal_(linear.weight, generator=generator)
            nn.init.normal_(linear.bias, generator=generator, std=0.5 * self.spread)  # kinks lie within the data
        self.project()
        if last_activation:
            nn.init.constant_(linears[-1].bias, 3.0)  # alive on all data: a constant does not change the objective

    def forward(self, features: Tensor) -> Tensor:
        for linear in self.linears[:-1]:
            features = self.activation(linear(features))
        return self.last(self.linears[-1](features)).squeeze(1)

    @torch.no_grad()
    def project(self) -> None:
        """Puts every layer back: onto orthonormal rows or columns ("groupsort"), or to spectral norm 1 ("relu")."""
        for linear in self.linears:
            linear.weight.copy_(_orthonormal(linear.weight) if self.kind == "groupsort" else _normalised(linear.weight))


def _gram(weight: Tensor) -> Tensor:
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


@dataclass(frozen=True)
class CriticOptions:
    """Options for building and training a critic.

    The stop rule: every `check_every` steps the objective is measured on all images meant for it. When it has not grown
    by `tolerance` of itself (of a tenth of the features' spread where that is more) for `patience` checks in a row, the
    best weights are put back and the learning rate is lowered to 0.3 of itself; the fourth time training ends.

    Args:
        network: "groupsort", or "relu" as in the paper on avg and all, which is biased low.
        hidden: width of its layers.
        blocks: linear layers with an activation.
        last_activation: whether "relu" also ends in one; the paper's texts say so.
        held_out: share of each side's images that the critic never sees and is measured on, 0 to measure it on the
            images it was trained on.
        batch_size: images of each side a step; all of them if there are no more.
        learning_rate: of Adam, divided by the square root of a layer's larger side.
        tolerance: relative, as above.
        patience: in checks.
        check_every: in steps.
        max_steps: where training ends in any case.
        seed: of weights, batches and of which images are held out.
        device: where to train.

    Raises:
        ValueError: for numbers out of range.

    Examples:
        >>> from fedgen.scores import CriticOptions
        >>> options = CriticOptions(hidden=64, max_steps=500)
        >>> options.network, options.held_out
        ('groupsort', 0.5)
    """

    network: Kind = "groupsort"
    hidden: int = 128
    blocks: int = 3
    last_activation: bool = False
    held_out: float = 0.5
    batch_size: int = 512
    learning_rate: float = 0.1
    tolerance: float = 1e-3
    patience: int = 5
    check_every: int = 10
    max_steps: int = 3000
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out must be at least 0 and below 1, got {self.held_out}")
        for name in ("batch_size", "learning_rate", "tolerance", "patience", "check_every", "max_steps"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        check_network(self.network, self.hidden, self.blocks, self.last_activation)


@dataclass(frozen=True, eq=False)
class CriticSide:
    features: Tensor
    positions: Tensor
    shares: Tensor

    @classmethod
    def plain(cls, features: Tensor, positions: Tensor) -> "CriticSide":
        return cls(features, positions, torch.full((len(positions),), 1 / len(positions), dtype=torch.float64))

    def draw(self, number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Features [n, D] and their weights [n]: all images, or as many drawn by weight with replacement."""
        if len(self.positions) <= number:
            return self.features[self.positions], self.shares
        chosen = torch.multinomial(self.shares, number, replacement=True, generator=generator)
        return self.features[self.positions[chosen]], torch.full((number,), 1 / number)


class TrainedCritic:
    def __init__(self, network: LipschitzNetwork, centre: Tensor, spread: float) -> None:
        self.network, self.centre, self.spread = network, centre, spread
        self.steps = 0
        self.converged = False

    def __call__(self, features: Tensor) -> Tensor:
        """Values [n] of features [n, D], with gradients, in the unit of `spread`."""
        inputs = (features.to(self.centre.device).double() - self.centre) / self.spread
        return self.network(inputs.float())

    @torch.no_grad()
    def values(self, side: CriticSide) -> Tensor:
        """f at each image, float64 [n] on the CPU, in the features' unit."""
        parts = [self(side.features[chosen]).double().cpu() for chosen in side.positions.split(CHUNK)]
        return torch.cat(parts) * self.spread

    def objective(self, generated: CriticSide, real: CriticSide) -> float:
        return float(generated.shares @ self.values(generated) - real.shares @ self.values(real))


def train_critic(
    fit: tuple[CriticSide, CriticSide],
    check: tuple[CriticSide, CriticSide],
    options: CriticOptions,
    generator: torch.Generator,
) -> TrainedCritic:
    critic = _untrained(fit, options, generator)
    optimizer = torch.optim.Adam(_groups(critic.network, options.learning_rate), betas=(0.9, 0.99))
    best, weights = critic.objective(*check), copy.deepcopy(critic.network.state_dict())
    waited = lowered = 0
    for step in range(1, options.max_steps + 1):
        _ascend(critic, optimizer, *(side.draw(options.batch_size, generator) for side in fit))
        critic.steps = step
        if step % options.check_every and step < options.max_steps:
            continue
        value = critic.objective(*check)
        waited = 0 if value - best > options.tolerance * max(best, 0.1 * critic.spread) else waited + 1
        if value > best:
            best, weights = value, copy.deepcopy(critic.network.state_dict())
        if waited == options.patience:
            if lowered == LEVELS:
                critic.converged = True
                break
            waited, lowered = 0, lowered + 1
            critic.network.load_state_dict(weights)
            for group in optimizer.param_groups:
                group["lr"] *= DECAY
    critic.network.load_state_dict(weights)
    return critic


def _untrained(fit: tuple[CriticSide, CriticSide], options: CriticOptions, generator: torch.Generator) -> TrainedCritic:
    """A critic on standardised features, so that learning rate and tolerance do not depend on their unit."""
    moments = [_moments(side) for side in fit]
    centre = (moments[0][0] + moments[1][0]) / 2
    square = sum((mean - centre).square() + variance for mean, variance in moments) / 2
    spread = float(torch.as_tensor(square).mean().sqrt()) or 1.0  # all features the same: any unit will do
    form = options.network, options.hidden, options.blocks, options.last_activation
    network = LipschitzNetwork(len(centre), *form, generator).to(options.device)
    return TrainedCritic(network, centre.to(options.device), spread)


def _moments(side: CriticSide) -> tuple[Tensor, Tensor]:
    chunks = list(zip(side.positions.split(CHUNK), side.shares.split(CHUNK)))
    zero = torch.zeros(side.features.shape[1], dtype=torch.float64)
    mean = sum((shares @ side.features[chosen].double() for chosen, shares in chunks), zero)
    variance = sum((shares @ (side.features[chosen].double() - mean).square() for chosen, shares in chunks), zero)
    return mean, variance


def _groups(network: LipschitzNetwork, rate: float) -> list[dict[str, object]]:
    """Adam moves every entry by about its rate: a matrix of norm 1 needs smaller steps the larger it is."""
    weights, biases = zip(*((linear.weight, linear.bias) for linear in network.linears))
    groups = [{"params": [weight], "lr": rate / max(weight.shape) ** 0.5} for weight in weights]
    return [*groups, {"params": [*biases], "lr": rate * network.spread}]


def _ascend(
    critic: TrainedCritic, optimizer: torch.optim.Optimizer, made: tuple[Tensor, Tensor], real: tuple[Tensor, Tensor]
) -> None:
    """One step uphill on features with weights, and back onto 1-Lipschitz functions."""
    signed = torch.cat([made[1], -real[1]]).to(critic.centre)
    objective = critic(torch.cat([made[0], real[0]])) @ signed.float()
    optimizer.zero_grad()
    (-objective).backward()
    optimizer.step()
    critic.network.project()
