"""1-Wasserstein distance of generated features to every client and to their pool, from below, by trained critics.

A critic for each client and one for the pool. On images that it never saw, E_g f - E_t f is in expectation at most the
distance of the two populations: a lower bound, whose slack depends on network and images, so compare values of one set
of options only. Measured where the distance is known, as parts of it: mean shifts, "groupsort" 0.94 to 1 on the images
of its training and in up to 64 dimensions on others, but 0.66 where 750 images of 512 features are all there is to
train on ("relu" 0.82: it overfits less); N(0, I) against N(0, 4 I) in the plane, "groupsort" 0.93, "relu" 0.45.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedgen import seeds
from fedgen.ranks import spread
from fedgen.scores.aggregate import FederatedScore, OfFeatures, Weights, combine, resolve_weights
from fedgen.scores.definition import ClientSide, ScoreDefinition
from fedgen.scores.influences import SharedVariances, joined, with_influences
from fedgen.scores.wasserstein.critic import CriticOptions, CriticSide, TrainedCritic, train_critic
from fedgen.statistics.gaussian import check_clients, check_generated

CHECKED = 0.25  # share of the training images on which the stop rule looks, where images are held out
PURPOSES = ("fit", "check", "measure")
Parts = dict[str, Tensor]  # positions of images by purpose


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
