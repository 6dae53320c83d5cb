"""A critic that tells generated from real features: the 1-Lipschitz f with the largest E_g f - E_t f, by training.

The supremum over all such f is the 1-Wasserstein distance (Kantorovich and Rubinstein), so any f gives a lower bound.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedgen.scores.wasserstein.lipschitz import Kind, LipschitzNetwork, check_network

CHUNK = 8192  # images given to the critic at once where no gradient is needed
LEVELS = 3  # the learning rate is lowered this often
DECAY = 0.3  # and by this factor


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

    def build(self, dim: int, generator: torch.Generator) -> LipschitzNetwork:
        """An untrained network for features [N, dim]."""
        return LipschitzNetwork(dim, self.network, self.hidden, self.blocks, self.last_activation, generator)


@dataclass(frozen=True, eq=False)
class CriticSide:
    """Some of the images of one side, with weights.

    Args:
        features: [N, D] of more images than these, so that nothing is copied.
        positions: which of them, int64 [n].
        shares: weight of each, float64 [n], summing to 1.
    """

    features: Tensor
    positions: Tensor
    shares: Tensor

    @classmethod
    def plain(cls, features: Tensor, positions: Tensor) -> "CriticSide":
        """Images that all weigh the same."""
        return cls(features, positions, torch.full((len(positions),), 1 / len(positions), dtype=torch.float64))

    def draw(self, number: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Features [n, D] and their weights [n]: all images, or as many drawn by weight with replacement."""
        if len(self.positions) <= number:
            return self.features[self.positions], self.shares
        chosen = torch.multinomial(self.shares, number, replacement=True, generator=generator)
        return self.features[self.positions[chosen]], torch.full((number,), 1 / number)


class TrainedCritic:
    """A trained f.

    Attributes:
        network: on features that are centred and divided by `spread`; its values are multiplied by it again, so f is
            1-Lipschitz in the features' own unit.
        centre: [D].
        spread: root of the features' mean variance along an axis.
        steps: of training.
        converged: whether the stop rule ended it, not `max_steps`.
    """

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
        """E_g f - E_t f, in the features' unit."""
        return float(generated.shares @ self.values(generated) - real.shares @ self.values(real))


def train_critic(
    fit: tuple[CriticSide, CriticSide],
    check: tuple[CriticSide, CriticSide],
    options: CriticOptions,
    generator: torch.Generator,
) -> TrainedCritic:
    """The critic that separates generated from real images best.

    Args:
        fit: generated and real images to train on.
        check: those on which the stop rule measures it and the best weights are chosen.
        options: the rest.
        generator: of weights and batches.
    """
    critic = _untrained(fit, options, generator)
    optimizer = torch.optim.Adam(_groups(critic.network, options.learning_rate), betas=(0.9, 0.99))
    best, weights = critic.objective(*check), copy.deepcopy(critic.network.state_dict())
    waited = lowered = 0
    for step in range(1, options.max_steps + 1):
        _ascend(critic, fit, optimizer, options.batch_size, generator)
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
    network = options.build(len(centre), generator).to(options.device)
    return TrainedCritic(network, centre.to(options.device), spread)


def _moments(side: CriticSide) -> tuple[Tensor, Tensor]:
    """Mean and variance along each axis, float64 [D] twice."""
    chunks = list(zip(side.positions.split(CHUNK), side.shares.split(CHUNK)))
    zero = torch.zeros(side.features.shape[1], dtype=torch.float64)
    mean = sum((shares @ side.features[chosen].double() for chosen, shares in chunks), zero)
    variance = sum((shares @ (side.features[chosen].double() - mean).square() for chosen, shares in chunks), zero)
    return mean, variance


def _groups(network: LipschitzNetwork, rate: float) -> list[dict[str, object]]:
    """Adam moves every entry by about its rate: a matrix of norm 1 needs smaller steps the larger it is."""
    groups: list[dict[str, object]] = [
        {"params": [linear.weight], "lr": rate / max(linear.weight.shape) ** 0.5} for linear in network.linears
    ]
    biases: list[nn.Parameter] = [linear.bias for linear in network.linears]
    return [*groups, {"params": biases, "lr": rate * network.spread}]


def _ascend(
    critic: TrainedCritic,
    fit: tuple[CriticSide, CriticSide],
    optimizer: torch.optim.Optimizer,
    batch_size: int,
    generator: torch.Generator,
) -> None:
    """One step uphill, and back onto 1-Lipschitz functions."""
    (generated, plus), (real, minus) = (side.draw(batch_size, generator) for side in fit)
    signed = torch.cat([plus, -minus]).to(critic.centre)
    objective = critic(torch.cat([generated, real])) @ signed.float()
    optimizer.zero_grad()
    (-objective).backward()
    optimizer.step()
    critic.network.project()
