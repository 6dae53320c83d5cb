"""Feature likelihood divergence: how likely held-out images are under a density of generated ones.

Jiralerspong, Bose, Gemp, Qin, Bachrach and Gidel (2023, arXiv 2302.04440): features are scaled to mean 0 and variance 1
by those of the held-out images; `AdaptiveDensity` of the generated ones is fitted to the training images; and
FLD = 100 (L - C), with L the mean negative log-likelihood of the held-out images over D, and C that under a density of
half of the training images fitted to the other half. Real images have about 0, and less where training images are few.
Poor, uniform or copied images give more: normals around copies become narrow, and held-out images lie in none. C is the
mean over `HALVINGS`, drawn among ranks along a random direction: the order of images or clients changes no value.

The density is that of the code of Jiralerspong et al. (github.com/marcojira/fld, commit ffbbf20 of 2024): isotropic
normals of equal weight around the images; variances begin at (smallest squared distance to a training image + 1e-3) / D
and take up to 50 passes of Adam at rate 0.5 on their logarithms, in batches of 10,000, clamped to [-40, 40], until the
loss stays within 5e-4 for five passes. The loss is the mean negative log-likelihood of training images over D, of the
mixture and a broad normal of fitted variance around the training images' mean, which bounds it where a training image
is far from all generated ones; the density itself has no such part. Sums are float64 and in a fixed order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedgen.scores.aggregate import FederatedScore, OfFeatures, Weights, combine, joined, mean_variance, resolve_weights
from fedgen.scores.definition import ClientSide, GeneratedSet, Needs, ScoreDefinition, require_whole
from fedgen.scores.manifold.memorisation import check_sides
from fedgen.scores.manifold.neighbours import Points, exact_squares, positive_weights
from fedgen.seeds import generator
from fedgen.statistics.gaussian import check_generated

RATE, PASSES, BATCH = 0.5, 50, 10_000
FIRST, SETTLED, WITHIN = 7, 5, 5e-4  # passes at least; of these the last, whose losses differ by less, end the fit
LEAST, BOUNDS = 1e-3, (-40.0, 40.0)  # added to squared distances; of the logarithms of variances
HALVINGS = 8  # of the training images
SHRINK = (1 - 0.1) ** 2  # of squared distances to the training images' mean, in the broad normal
ROWS = 256  # training images of a step's part: a few such rows of float64 beside the stored distances
FAR = -700.0  # exp of less is nothing beside 1, and several times slower
CLOSE = 1e-8  # of |x|^2 + |y|^2: squared distances below are formed from differences


class AdaptiveDensity:
    def __init__(self, centres: Tensor, training: Tensor) -> None:
        self._centres, points, dim = _points(centres), _points(training), training.shape[1]
        parts = torch.arange(len(training), device=training.device).split(ROWS)
        squares = torch.cat([_squares(points, rows, self._centres).float() for rows in parts])
        away = SHRINK * (training - training.mean(0)).square().sum(1)
        self.log_variances = logs = ((squares.amin(0).double() + LEAST) / dim).log()
        broad = torch.zeros(1, dtype=torch.float64, device=training.device)
        optimizer = torch.optim.Adam([logs, broad], RATE)
        batches = list(zip(squares.split(BATCH), away.split(BATCH)))
        losses: list[float] = []  # of passes, each the mean over its batches
        while len(losses) < PASSES:
            losses.append(0.0)
            for batch in batches:
                logs.grad, broad.grad, loss = _slopes(*batch, logs, broad, dim)
                optimizer.step()
                logs.clamp_(*BOUNDS)
                losses[-1] += loss / len(batches)
            if len(losses) >= FIRST and all(abs(loss - losses[-1]) < WITHIN for loss in losses[-SETTLED:]):
                break

    def log_density(self, features: Tensor, of_others: bool = False) -> Tensor:
        points, dim = _points(features), features.shape[1]
        found = []
        for rows in torch.arange(len(features), device=features.device).split(ROWS):
            squares = _squares(points, rows, self._centres)
            logs, number = _log_normals(squares, self.log_variances, dim), torch.tensor(squares.shape[1])
            if of_others:
                own = squares <= CLOSE * (points.squares[rows].unsqueeze(1) + self._centres.squares)
                logs, number = logs.masked_fill_(own, -math.inf), (~own).sum(1)
            found.append(logs.logsumexp(1) - number.double().log())
        return torch.cat(found)


def _slopes(squares: Tensor, away: Tensor, logs: Tensor, broad: Tensor, dim: int) -> tuple[Tensor, Tensor, float]:
    """Derivatives of a batch's loss by the logarithms of variances [m] and by the broad normal's [1], and the loss."""
    of_logs, of_broad, loss = torch.zeros_like(logs), torch.zeros_like(broad), torch.zeros_like(broad)
    for near, far in zip(squares.split(ROWS), away.split(ROWS)):
        normals, around = _log_normals(near.double(), logs, dim), _log_normals(far.unsqueeze(1), broad, dim)
        normals -= math.log(len(logs))
        largest = torch.maximum(normals.amax(1, keepdim=True), around)
        shares, other = normals.sub_(largest).clamp_(min=FAR).exp_(), (around - largest).exp_()
        sums = shares.sum(1) + other[:, 0]
        loss -= (largest[:, 0] + sums.log()).sum()
        scale = 1 / sums
        # of -log sum_j exp(a_j) by v_j: -r_j (s_j exp(-v_j) - D) / 2, with r_j the share of the j-th normal in the sum
        of_logs += dim * (scale @ shares) - (scale @ shares.mul_(near)) * (-logs).exp()
        of_broad += (scale * other[:, 0] * (dim - far * (-broad).exp())).sum()
    size = len(squares) * dim
    return of_logs / (2 * size), of_broad / (2 * size), float(loss) / size


def _log_normals(squares: Tensor, log_variances: Tensor, dim: int) -> Tensor:
    """Log-densities [r, m] of isotropic normals at squared distances [r, m] from their centres."""
    constants = dim / 2 * (log_variances + math.log(2 * math.pi))
    return squares * (-0.5 * (-log_variances).exp()) - constants


def _points(features: Tensor) -> Points:
    return Points(features, torch.zeros(features.shape[1], dtype=torch.float64, device=features.device))


def _squares(points: Points, rows: Tensor, centres: Points) -> Tensor:
    """Squared distances of some points to all centres, float64 [r, m]: exactly 0 for copies."""
    sums = points.squares[rows].unsqueeze(1) + centres.squares
    found = torch.addmm(sums, points.features[rows], centres.features.T, alpha=-2).clamp_(min=0)
    close = found <= CLOSE * sums
    i, j = close.nonzero(as_tuple=True)
    found[i, j] = exact_squares(points, rows[i], centres, j)
    return found


PERCENT = 100.0


class FeatureLikelihoodReference(OfFeatures):
    """The clients' training and held-out images, and the pool's.

    Args:
        train: features [n_i, D] of the images each client trained on, at least two, of any floating dtype.
        held_out: features [h_i, D] of images it did not train on, at least two, in the same order of clients.
        weights: of the clients in avg: "examples" (by training images), "uniform" or K positive numbers. In `all` every
            image counts once.
        seed: of the halves of training images.

    Raises:
        ValueError: for unusable features, differing D, lists of different length or empty, a weight of 0, a client of
            one training or held-out image, or one whose held-out images are all alike.

    Examples:
        >>> import torch
        >>> from fedgen.scores import FeatureLikelihoodReference
        >>> train, held_out, fresh = torch.randn(3, 200, 2, generator=torch.Generator().manual_seed(0))
        >>> reference = FeatureLikelihoodReference.from_features([train], [held_out])
        >>> -10 < reference.score(fresh).values["all"] < 10
        True
        >>> reference.score(train[:100]).values["all"] > 100  # copies
        True
    """

    def __init__(
        self, train: Sequence[Tensor], held_out: Sequence[Tensor], weights: Weights = "examples", seed: int = 0
    ) -> None:
        self._dim = check_sides(train, held_out)
        for parts, side in ((train, "training"), (held_out, "held-out")):
            if 1 in (counts := [len(part) for part in parts]):
                client = counts.index(1)
                raise ValueError(f"client {client} has 1 {side} image, and FLD needs 2; leave the client out")
        self.counts = [len(part) for part in train]
        self.weights = positive_weights(weights, self.counts)
        self._held_out_counts = [len(part) for part in held_out]
        pairs = list(zip([part.detach() for part in train], [part.detach() for part in held_out]))
        if len(pairs) > 1:
            pairs.append((joined([own for own, _ in pairs]), joined([other for _, other in pairs])))
        names = [f"client {client}" for client in range(len(train))] + ["all clients"]
        self._sides = [_Side(*pair, seed, name) for pair, name in zip(pairs, names)]

    def score(self, generated: Tensor, errors: bool = True, real: bool = False) -> FederatedScore:
        """FLD of generated features [m, D]: clients, avg, all and worst, the largest.

        Each client's is that to its own images, and avg the mean of these; for `all` the clients' training images are
        one set, and their held-out ones another. Halves of training images are the same for all generated sets of one
        size. The time is that of up to 100 passes over the [m, n] distances, and once of 400 over those of halves.

        Args:
            generated: floating features; one set for all clients.
            errors: whether to add standard errors, over held-out images, each client's on its own, and over halves of
                training images: the generated and the training images stay as they are.
            real: whether these are held-out images in a generator's place. Each is then left out of the density at
                itself.

        Raises:
            ValueError: for unusable features or another D.
        """
        check_generated(generated, self._dim)
        made = generated.detach()
        values = [side.differences(made, real) for side in self._sides]
        per_client = torch.stack([part.mean() for part, _ in values[: len(self.counts)]])
        score = combine("fld", per_client, float(values[-1][0].mean()), self.weights)
        return self._with_errors(score, *zip(*values)) if errors else score

    def _with_errors(
        self, score: FederatedScore, values: Sequence[Tensor], baselines: Sequence[Tensor]
    ) -> FederatedScore:
        single = len(self.counts)
        own = torch.stack([mean_variance(part) for part in values[:single]])
        of_pool = torch.stack([mean_variance(part) for part in values[-1].split(self._held_out_counts)])
        shares = resolve_weights("examples", self._held_out_counts)
        halves = torch.stack(list(baselines[:single]))  # of clients, who may be halved alike
        each = own + mean_variance(halves)
        found = {
            "avg": float((self.weights.square() @ own + mean_variance(self.weights @ halves)).sqrt()),
            "all": float((shares.square() @ of_pool + mean_variance(baselines[-1])).sqrt()),
            "worst": float(each[int(score.per_client.argmax())].sqrt()),
        }
        return replace(score, errors=found, client_errors=each.sqrt())


class _Side:
    """One client, or the pool: scaled features, and C at each held-out image for a number of generated ones."""

    def __init__(self, train: Tensor, held_out: Tensor, seed: int, whose: str) -> None:
        self._kept = held_out.amax(0) > held_out.amin(0)
        if not self._kept.any():
            raise ValueError(f"the held-out images of {whose} are all alike, so features have no scale; hold out more")
        kept = held_out[:, self._kept].double()
        self._mean, self._deviation = kept.mean(0), kept.std(0)
        self._train, self._held_out = train, held_out
        draws, scaled = generator(seed, "halves of training images"), self._scale(train)
        direction = torch.randn(scaled.shape[1], generator=draws, dtype=torch.float64).to(scaled.device)
        ranked = (scaled * direction).sum(1).argsort()
        self._halvings = [ranked[torch.randperm(len(train), generator=draws)] for _ in range(HALVINGS)]
        self._baselines: dict[int, Tensor] = {}

    def _scale(self, features: Tensor) -> Tensor:
        return (features.to(self._mean.device)[:, self._kept].double() - self._mean) / self._deviation

    def differences(self, generated: Tensor, real: bool) -> tuple[Tensor, Tensor]:
        """100 (L - C) at each held-out image, float64 [h], and 100 C by each halving, [HALVINGS], on the CPU."""
        train, held_out = self._scale(self._train), self._scale(self._held_out)
        size = min(len(generated), len(train) // 2)
        if size not in self._baselines:
            found = [AdaptiveDensity(train[one[:size]], train[one[size:]]) for one in self._halvings]
            self._baselines[size] = torch.stack([density.log_density(held_out) for density in found])
        density = AdaptiveDensity(self._scale(generated), train[self._halvings[0]])  # batches are in an order of ranks
        baselines, factor = self._baselines[size], PERCENT / held_out.shape[1]
        differences = baselines.mean(0) - density.log_density(held_out, of_others=real)
        return (factor * differences).cpu(), (-factor * baselines.mean(1)).cpu()


@dataclass(frozen=True)
class FeatureLikelihoodScore(ScoreDefinition):
    """Loss of held-out images under a density of generated ones that is fitted to training images, less that under one
    of half of them (Jiralerspong et al. 2023, arXiv 2302.04440): about 0 for real images, and less of few.

    Measured in the first split, where a split "report" has held-out images of the same clients; read it beside its
    floor there. `all` counts every image once, whatever the clients' weights.

    Args:
        seed: of the halves of training images that it compares with, over which it is a mean.
    """

    name: ClassVar[str] = "fld"
    needs: ClassVar[Needs] = "held out"
    knows_weights: ClassVar[bool] = False
    has_floor: ClassVar[bool] = True  # of held-out images, each left out where it is itself asked about
    has_powers: ClassVar[bool] = False  # below 0 where generated images are better than half of the training images

    seed: int = 0

    def __post_init__(self) -> None:
        require_whole(0, seed=self.seed)

    def too_few(self, count: float, whose: str) -> str:
        need = f"{whose} has {count:g} image(s), and {self.name} needs 2, of which it takes halves: more images"
        return "" if count > 1 else need

    def prepare(self, clients: ClientSide) -> FeatureLikelihoodReference:
        if clients.held_out is None:
            raise ValueError("score fld needs held-out images of every client; none are given")
        return FeatureLikelihoodReference.from_features(clients.features, clients.held_out, clients.weights, self.seed)

    def compare(self, prepared: FeatureLikelihoodReference, generated: GeneratedSet, errors: bool) -> FederatedScore:
        return prepared.score(generated.rows, errors, generated.real)
