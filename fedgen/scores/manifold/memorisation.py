"""Generators that are closer to the images they were trained on than other images of their kind would be.

Memorisation is the nearest-neighbour form of the data-copying test of Meehan, Chaudhuri and Dasgupta (2020, arXiv
2004.05675): they rank distances to the nearest training image, of generated against held-out images; here each
generated image asks whether its own nearest real image was trained on. Scores of fidelity and diversity do not isolate
memorisation (Stein et al. 2023, arXiv 2306.04675).

Authenticity (Alaa, van Breugel, Saveliev and van der Schaar 2022, "How faithful is your synthetic data?", arXiv
2102.08921) needs no held-out images: with r the training image nearest to a generated image g, g is authentic if it is
farther from r than r's own nearest other training image is. 0 for copies. A generator without memory has no fixed value
(fresh draws of a normal distribution of 1, 8 and 64 dimensions, 1,000 beside 1,000: 0.34, 0.6 and 0.8), and images off
the data have more: read it beside the floor, that of held-out images.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedgen.scores.aggregate import (
    FederatedScore,
    OfFeatures,
    SharedVariances,
    Weights,
    client_blocks,
    combine,
    joined,
    resolve_weights,
)
from fedgen.scores.definition import ClientSide, GeneratedSet, Needs, ScoreDefinition
from fedgen.scores.manifold.neighbours import NearestReal, Points, nearest, nearest_real, positive_weights
from fedgen.statistics.gaussian import check_clients, check_features, check_generated


def memorisation(
    train: Sequence[Tensor], held_out: Sequence[Tensor], generated: Tensor, weights: Weights = "examples"
) -> FederatedScore:
    """The balanced share of generated images [m, D] nearest to a training image, per client, avg, all and worst.

    With T and H the mean numbers of generated images to which a training and a held-out image are nearest, the score is
    T / (T + H): 0.5 for a generator that knows training images only as it knows held-out ones, 1 for one that copies,
    below 0.5 for one that avoids them. Means over images and not sums, so unequal numbers of either do not matter, and
    none is left out. It needs held-out images drawn as the training images were, from the same clients.

    For `all` the nearest image is sought among all clients' images, and T and H are sum_i w_i T_i and sum_i w_i H_i: a
    client that held out few images is balanced on its own. Clients of weight 0 take no part in it.

    Errors are those of a generator without memory: the spread around 0.5 if each client's training and held-out images
    changed sides at random. They cover the choice of real and of generated images; an error over generated images alone
    would miss that a few real images are nearest to many of them. That of avg takes clients as independent.
    Measured on Gaussians of 2 to 64 dimensions without memory (two clients, 100 draws each): means 0.489 to 0.517, and
    0.5 within 1.96 errors in 93 to 99 percent of the draws, also at 900 training and 100 held-out images.

    Args:
        train: features [n_i, D] of the images each client trained on, of any floating dtype.
        held_out: features [h_i, D] of images it did not train on, in the same order of clients.
        generated: features [m, D].
        weights: "examples" (by training images), "uniform" or one number a client.

    Raises:
        ValueError: for unusable features, differing D, lists of different length or empty, or a client that lacks
            training or held-out images.

    Examples:
        >>> import torch
        >>> from fedgen.scores import memorisation
        >>> train, held_out = [torch.tensor([[0.0], [10.0]])], [torch.tensor([[3.0], [13.0]])]
        >>> memorisation(train, held_out, torch.tensor([[0.0], [10.1]])).values["all"]  # copies
        1.0
        >>> memorisation(train, held_out, torch.tensor([[0.1], [2.9]])).values["all"]  # one to either
        0.5
    """
    check_generated(generated, check_sides(train, held_out))
    weight = resolve_weights(weights, [len(part) for part in train])
    made = Points(generated.detach())
    alone: list[tuple[float, float]] = []
    sides: list[NearestReal] = []
    for client, parts in enumerate(zip(train, held_out)):
        own = [nearest_real(made, part.detach()) for part in parts]
        alone.append(_balance([[counts] for counts in _credit(own)], [1.0]))
        if weight[client] > 0:
            sides = [side.beside(part) for side, part in zip(sides, own)] if sides else own
    used = [client for client, w in enumerate(weight.tolist()) if w > 0]
    sizes = ([len(parts[client]) for client in used] for parts in (train, held_out))
    pooled = _balance([counts.split(size) for counts, size in zip(_credit(sides), sizes)], weight[used].tolist())
    per_client, errors = torch.tensor(alone, dtype=torch.float64).unbind(1)
    worst = int(per_client.masked_fill(weight == 0, -1.0).argmax())
    found = {"avg": float((weight * errors).norm()), "all": pooled[1], "worst": float(errors[worst])}
    return replace(combine("memorisation", per_client, pooled[0], weight), errors=found, client_errors=errors)


def _credit(sides: Sequence[NearestReal]) -> list[Tensor]:
    """To how many generated images each training and each held-out image is the nearest of all; halves in a tie."""
    ours, theirs = (side.squares for side in sides)
    credits = (ours < theirs).double() + (ours == theirs) / 2, (theirs < ours).double() + (ours == theirs) / 2
    return [ours.new_zeros(side.count).index_add_(0, side.places, credit) for side, credit in zip(sides, credits)]


def _balance(sides: Sequence[Sequence[Tensor]], weights: Sequence[float]) -> tuple[float, float]:
    """T / (T + H) from the counts of each client's images, and its standard error under exchange of the sides."""
    ours, theirs = (sum(w * float(counts.mean()) for w, counts in zip(weights, side)) for side in sides)
    both = [torch.cat(pair) for pair in zip(*sides)]
    level = sum(w * float(counts.mean()) for w, counts in zip(weights, both))
    variance = sum(
        w**2 * float(counts.var()) * (1 / len(own) + 1 / len(other))
        for w, counts, own, other in zip(weights, both, *sides)
    )
    return ours / (ours + theirs), variance**0.5 / (4 * level)


def check_sides(train: Sequence[Tensor], held_out: Sequence[Tensor]) -> int:
    """D; ValueError unless every client has usable features of it on both sides."""
    if len(train) != len(held_out) or not train:
        raise ValueError(f"{len(train)} clients with training images and {len(held_out)} with held-out ones; give both")
    dim = train[0].shape[-1]
    for parts, side in ((train, "training"), (held_out, "held-out")):
        for client, features in enumerate(parts):
            check_features(features, f"{side} features of client {client}")
            if features.shape[1] != dim:
                found = f"{features.shape[1]} {side} features of client {client}"
                raise ValueError(f"{found} do not fit {dim} training ones of client 0")
    return dim


@dataclass(frozen=True)
class MemorisationScore(ScoreDefinition):
    """The share of images by which generated ones are closer to the clients' training images than to held-out ones.

    Measured in the first split, where a split "report" has held-out images of the same clients.
    """

    name: ClassVar[str] = "memorisation"
    needs: ClassVar[Needs] = "held out"
    has_powers: ClassVar[bool] = False  # the middle is best

    def prepare(self, clients: ClientSide) -> ClientSide:
        if clients.held_out is None:
            raise ValueError("score memorisation needs held-out images of every client; none are given")
        return clients

    def compare(self, prepared: ClientSide, generated: GeneratedSet, errors: bool) -> FederatedScore:
        return memorisation(prepared.features, prepared.held_out or (), generated.rows, prepared.weights)


class AuthenticityReference(OfFeatures):
    """The clients' training images, each with the distance to its nearest other one: in its client, and in the pool.

    Args:
        features: [n_i, D] of the images that each client trained on, at least two, of any floating dtype.
        weights: of the clients in avg: "examples" (n_i / n), "uniform" or K positive numbers. Distances to neighbours
            know no weights, so that in `all` every image counts once.

    Raises:
        ValueError: for unusable features or weights, a weight of 0, or a client of one image.

    Examples:
        >>> import torch
        >>> from fedgen.scores import AuthenticityReference
        >>> training = torch.tensor([[0.0], [1.0], [4.0]])  # nearest others at 1, 1 and 3
        >>> reference = AuthenticityReference.from_features([training])
        >>> reference.score(torch.tensor([[0.1], [2.4], [6.0], [8.0]]), errors=False).values["all"]  # 2.4 and 8
        0.5
    """

    def __init__(self, features: Iterable[Tensor], weights: Weights = "examples") -> None:
        parts = [part.detach() for part in features]
        check_clients(parts)
        for client, part in enumerate(parts):
            if len(part) < 2:
                raise ValueError(f"client {client} has 1 image, authenticity needs 2: add images or leave it out")
        self.counts = [len(part) for part in parts]
        self.weights = positive_weights(weights, self.counts)
        self._points = Points(joined(parts))
        clients = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(self.counts))
        own, pool = nearest(self._points, 1, clients)
        self._own = own.squares[:, 0].split(self.counts)
        self._pool = pool.squares[:, 0]

    def score(self, generated: Tensor, errors: bool = True) -> FederatedScore:
        """Authenticity of generated features [m, D], in [0, 1]: clients, avg, all and worst, the smallest.

        For a client its own training images alone are looked at, for `all` those of all clients: a copy of client 1's
        image is found by client 1 and by `all`. An image as far from r as r's nearest other one is not authentic.

        Args:
            generated: floating features; one set for all clients.
            errors: whether to add standard errors, over generated images alone: the root of the variance (divisor
                m - 1) of what each image counts, 0 or 1 (in avg the mean of its K), over m. The training images are
                the ones asked about and stay as they are.

        Raises:
            ValueError: for unusable features or another D.
        """
        features = self._points.features
        check_generated(generated, features.shape[1])
        made = Points(generated.detach().to(features.device), self._points.origin)
        parts, shared, values = features.split(self.counts), SharedVariances(self.weights), []
        of_all: NearestReal | None = None
        for clients, _ in client_blocks(self.counts, len(made)):
            rows = []
            for part, radii in zip(parts[clients], self._own[clients]):
                near = nearest_real(made, part)
                rows.append(near.squares > radii[near.places])
                of_all = near if of_all is None else of_all.beside(near)
            authentic = torch.stack(rows).double().cpu()
            values.append(authentic.mean(1))
            if errors:
                shared.add(clients, authentic)
        assert of_all is not None
        per_client, pooled = torch.cat(values), (of_all.squares > self._pool[of_all.places]).double().cpu()
        parts = {"generated": shared.errors(int(per_client.argmin()), pooled)} if errors else None
        own = {"generated": shared.of_clients.sqrt()} if errors else None
        return combine("authenticity", per_client, float(pooled.mean()), self.weights, None, parts, own, True)


@dataclass(frozen=True)
class AuthenticityScore(ScoreDefinition):
    """Share of generated images farther from their nearest training image than its nearest other one (Alaa et al. 2022,
    arXiv 2102.08921).

    It asks about training images: read it in the first split, beside its floor there, the value of held-out images.
    `all` counts every image once, whatever the clients' weights.
    """

    name: ClassVar[str] = "authenticity"
    knows_weights: ClassVar[bool] = False
    higher_is_better: ClassVar[bool] = True

    def too_few(self, count: float, whose: str) -> str:
        need = f"{whose} has {count:g} image(s), and {self.name} needs 2, to find the nearest other one: more images"
        return "" if count > 1 else need

    def prepare(self, clients: ClientSide) -> AuthenticityReference:
        return AuthenticityReference.from_features(clients.features, clients.weights)
