"""1-Wasserstein distance of generated features to every client and to their pool, from below, by trained critics.

A critic for each client and one for the pool separates generated from real features: the 1-Lipschitz f with the largest
E_g f - E_t f, by training. The supremum over all such f is the distance (Kantorovich and Rubinstein), so on images that
f never saw any gives a lower bound in expectation, whose slack depends on network and images: compare values of one set
of options only. Measured where the distance is known, as parts of it: mean shifts, "groupsort" 0.94 to 1 on the images
of its training and in up to 64 dimensions on others, but 0.66 where 750 images of 512 features are all there is to
train on ("relu" 0.82: it overfits less); N(0, I) against N(0, 4 I) in the plane, "groupsort" 0.93, "relu" 0.45.

Networks are 1-Lipschitz in the Euclidean norm: every linear layer is put back after each step to where it stretches
nothing, and every activation is 1-Lipschitz. "groupsort": orthonormal layers and sorted pairs (Anil, Lucas and Grosse
2019, arXiv 1811.05381), which keep gradients of norm 1 and can approach any 1-Lipschitz function. "relu": spectral norm
1 (Miyato et al. 2018, arXiv 1802.05957) and ReLU, which cannot: where |x| is wanted it reaches |x| / 2.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from fedgen import seeds
from fedgen.ranks import spread
from fedgen.scores.aggregate import (
    FederatedScore,
    OfFeatures,
    SharedVariances,
    Weights,
    combine,
    joined,
    resolve_weights,
    with_influences,
)
from fedgen.scores.definition import ClientSide, ScoreDefinition
from fedgen.statistics.gaussian import check_clients, check_generated

Kind = Literal["groupsort", "relu"]
CHUNK = 8192  # images given to the critic at once where no gradient is needed
LEVELS = 3  # the learning rate is lowered this often
DECAY = 0.3  # and by this factor
CHECKED = 0.25  # share of the training images on which the stop rule looks, where images are held out
PURPOSES = ("fit", "check", "measure")
Parts = dict[str, Tensor]  # positions of images by purpose


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


class WassersteinReference(OfFeatures):
    """The clients' features and which of them critics are trained on, checked on and measured on.

    Args:
        features: floating [n_i, D], one tensor a client.
        options: of the critics; `CriticOptions()` if None.
        weights: "examples" (n_i / n), "uniform" or K numbers; the pool is the mixture sum_i w_i P_i.

    Raises:
        ValueError: for unusable features or weights, or a client with too few images to hold some out.

    Attributes:
        critics: of the last `score`: one a client, then the pool's; each says how many steps it took and whether it
            converged.

    Examples:
        >>> import torch
        >>> from fedgen.scores import CriticOptions, WassersteinReference
        >>> draws = torch.Generator().manual_seed(0)
        >>> client, generated = torch.randn(200, 1, generator=draws), torch.randn(200, 1, generator=draws) + 2.0
        >>> reference = WassersteinReference.from_features([client], CriticOptions(hidden=8, blocks=1, max_steps=200))
        >>> 1.5 < reference.score(generated, errors=False).values["all"] < 2.5  # a shift of 2
        True
    """

    def __init__(
        self, features: Iterable[Tensor], options: CriticOptions | None = None, weights: Weights = "examples"
    ) -> None:
        parts = [part.detach().cpu() for part in features]
        check_clients(parts)
        self.options = options or CriticOptions()
        self.counts = [len(part) for part in parts]
        self.weights = resolve_weights(weights, self.counts)
        self.features = joined(parts)
        self.critics: list[TrainedCritic] = []
        self._parts: list[Parts] = []
        for client, count in enumerate(self.counts):
            mine = self._divided(count, f"client {client}", "client", client)
            self._parts.append({purpose: chosen + sum(self.counts[:client]) for purpose, chosen in mine.items()})

    def score(self, generated: Tensor, errors: bool = True) -> FederatedScore:
        """Lower bounds of the distance of generated features [m, D] to every client, "w1": avg, all and worst.

        The same generated images are held out for all clients, and the pool's critic is trained on the images that the
        clients' critics are trained on. A value on held-out images may be negative where the distributions are close.

        Args:
            generated: floating features; one set for all clients.
            errors: whether to add standard errors: those of the measured means, for the critics as they came out. How
                far another training would land is not in them.

        Raises:
            ValueError: for unusable features, another D, or too few images to hold some out.
        """
        check_generated(generated, self.features.shape[1])
        generated = generated.detach().cpu()
        divided = self._divided(len(generated), "the generated set", "generated")
        number = len(self.counts)
        groups = [[client] for client in range(number)] + ([list(range(number))] if number > 1 else [])
        # the pool's training is the longest; ranks that are `together` share the critics
        self.critics = [*spread(lambda group: self._train(generated, divided, group), groups[::-1])][::-1]
        measured = CriticSide.plain(generated, divided["measure"])
        rows = torch.stack([critic.values(measured) for critic in self.critics])
        sides = [CriticSide.plain(self.features, parts["measure"]) for parts in self._parts]
        real = [critic.values(side) for critic, side in zip(self.critics, sides)]
        pool = [self.critics[-1].values(side) for side in sides]
        per_client = rows[:number].mean(1) - torch.stack([part.mean() for part in real])
        pooled = float(rows[-1].mean() - self.weights @ torch.stack([part.mean() for part in pool]))
        score = combine("w1", per_client, pooled, self.weights)
        if not errors:
            return score
        shared = SharedVariances(self.weights)
        shared.add(slice(number), rows[:number])
        return with_influences(score, shared, rows[-1], real, pool)

    def _train(self, generated: Tensor, divided: Parts, clients: list[int]) -> TrainedCritic:
        fit, check = (
            (CriticSide.plain(generated, divided[purpose]), self._real(clients, purpose))
            for purpose in ("fit", "check")
        )
        path = ("client", clients[0]) if len(clients) == 1 else ("pool",)
        return train_critic(fit, check, self.options, seeds.generator(self.options.seed, "critic", *path))

    def _real(self, clients: list[int], purpose: str) -> CriticSide:
        """Images of some clients, those of client i with w_i / n_i, clients of weight 0 left out where others count."""
        counted = [client for client in clients if self.weights[client] > 0] or clients
        positions = [self._parts[client][purpose] for client in counted]
        masses = [(float(self.weights[i]) or 1.0) / len(own) for i, own in zip(counted, positions)]
        shares = torch.tensor(masses, dtype=torch.float64).repeat_interleave(torch.tensor([*map(len, positions)]))
        return CriticSide(self.features, torch.cat(positions), shares / shares.sum())

    def _divided(self, count: int, owner: str, *path: str | int) -> Parts:
        """Positions of one owner's images by purpose; with nothing held out, all serve every purpose."""
        if self.options.held_out == 0:
            return dict.fromkeys(PURPOSES, torch.arange(count))
        measured = round(count * self.options.held_out)
        checked = max(1, round((count - measured) * CHECKED))
        if min(measured, count - measured - checked) < 1:
            share = self.options.held_out
            raise ValueError(f"{owner} has {count} images, too few to hold out {share:g} of them; use held_out=0")
        order = torch.randperm(count, generator=seeds.generator(self.options.seed, "held out", *path))
        sizes = [count - measured - checked, checked, measured]
        return dict(zip(PURPOSES, order.split(sizes)))


def wasserstein_critic(generated: Tensor, real: Tensor, options: CriticOptions | None = None) -> tuple[float, float]:
    """A lower bound of the 1-Wasserstein distance between features [m, D] and [n, D], and its standard error.

    Args:
        generated: floating features.
        real: likewise; m and n may differ.
        options: of the critic; with `held_out=0` the bound is one of the distance between these very images, which is
            larger than that of their populations.

    Raises:
        ValueError: for unusable features, or too few images to hold some out.

    Examples:
        >>> import torch
        >>> from fedgen.scores import CriticOptions, wasserstein_critic
        >>> draws = torch.Generator().manual_seed(0)
        >>> real, generated = torch.randn(200, 1, generator=draws), torch.randn(200, 1, generator=draws) + 2.0
        >>> distance, error = wasserstein_critic(generated, real, CriticOptions(hidden=8, blocks=1, max_steps=200))
        >>> 1.5 < distance < 2.5  # a shift of 2
        True
    """
    score = WassersteinReference.from_features([real], options).score(generated)
    return score.values["all"], score.errors["all"]


@dataclass(frozen=True)
class CriticScore(CriticOptions, ScoreDefinition):
    """Lower bound of the 1-Wasserstein distance by a critic a client and one for the pool; options are the critics'.

    They are trained at every evaluation, which takes minutes.
    """

    name: ClassVar[str] = "w1"
    shares_out: ClassVar[bool] = True
    has_powers: ClassVar[bool] = False  # a lower bound from held-out images may be below 0

    def prepare(self, clients: ClientSide) -> WassersteinReference:
        return WassersteinReference.from_features(clients.features, self, clients.weights)

    def too_few(self, count: float, whose: str) -> str:
        try:  # its rule of how many are held out, on features that cost nothing
            WassersteinReference.from_features([torch.zeros(int(count), 1)], self)
        except ValueError as error:
            return str(error).replace("client 0", whose)
        return ""
