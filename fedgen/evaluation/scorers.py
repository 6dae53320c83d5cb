"""The clients' side of each family of scores: what is computed once, and a function that scores generated sets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgen.evaluation.score_choice import polynomial, rbf
from fedgen.scores import (
    CriticOptions,
    Density,
    FederatedScore,
    FrechetReference,
    Kernel,
    KernelReference,
    LikelihoodReference,
    ManifoldReference,
    SlicedReference,
    WassersteinReference,
    inception_score,
    memorisation,
)
from fedgen.scores.aggregate import Weights, combine, resolve_weights
from fedgen.statistics import Gaussian

Options = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class ClientSide:
    """What is known of the clients in one embedding.

    Args:
        parts: features [n_i, D] of each; a summary where only that is known. Rows of one tensor are not copied.
        weights: shared by all scores and by avg and all.
        held_out: features of images that each client did not train on, where a score needs them.
    """

    parts: Sequence[Tensor | Gaussian]
    weights: Weights
    held_out: Sequence[Tensor] | None = None

    @property
    def features(self) -> list[Tensor]:
        """The features of each client.

        Raises:
            TypeError: if one is known by its summary alone.
        """
        found = [part for part in self.parts if isinstance(part, Tensor)]
        if len(found) < len(self.parts):
            raise TypeError("this score needs features of every client, and of some only a summary is known; use fid")
        return found


@dataclass(frozen=True, eq=False)
class Made:
    """What is to be scored: features of generated images (or their summary), and the model's density if it has one."""

    features: Tensor | Gaussian
    density: Density | None = None

    @property
    def rows(self) -> Tensor:
        """The features.

        Raises:
            TypeError: if only their summary is known.
        """
        if isinstance(self.features, Gaussian):
            raise TypeError("this score needs features of the generated set, and only a summary is known; use fid")
        return self.features


Score = Callable[[Made, bool], Mapping[str, FederatedScore]]


def _fid(side: ClientSide, options: Options) -> Score:
    reference = FrechetReference.from_features(side.parts, side.weights, options["ddof"])
    return lambda made, errors: {"fid": reference.score(made.features, errors)}


def _kernel(name: str, kernel_of: Callable[[Options], Kernel]) -> Callable[[ClientSide, Options], Score]:
    def build(side: ClientSide, options: Options) -> Score:
        reference = KernelReference.from_features(side.features, kernel_of(options), options["estimator"], side.weights)
        return lambda made, errors: {name: reference.score(made.rows, errors)}

    return build


def _manifold(side: ClientSide, options: Options) -> Score:
    reference = ManifoldReference.from_features(side.features, weights=side.weights, **options)
    return lambda made, errors: reference.score(made.rows, errors)


def _sliced(name: str, p: int) -> Callable[[ClientSide, Options], Score]:
    def build(side: ClientSide, options: Options) -> Score:
        reference = SlicedReference.from_features(side.features, p=p, weights=side.weights, **options)
        return lambda made, errors: {name: reference.score(made.rows, errors)}

    return build


def _w1(side: ClientSide, options: Options) -> Score:
    reference = WassersteinReference.from_features(side.features, CriticOptions(**options), side.weights)
    return lambda made, errors: {"w1": reference.score(made.rows, errors)}


def _inception(side: ClientSide, options: Options) -> Score:
    """It knows generated images only: the same value for every client, as avg, all and worst."""
    shares = resolve_weights(side.weights, [_count(part) for part in side.parts])

    def score(made: Made, errors: bool) -> dict[str, FederatedScore]:
        value, error = inception_score(made.rows)
        per_client = torch.full_like(shares, value)
        parts = {"generated": dict.fromkeys(("avg", "all", "worst"), error)} if errors else None
        own = {"generated": torch.full_like(shares, error)} if errors else None
        return {"is": combine("is", per_client, value, shares, None, parts, own, higher_is_better=True)}

    return score


def _likelihood(side: ClientSide, options: Options) -> Score:
    reference = LikelihoodReference.from_points(side.features, side.weights)

    def score(made: Made, errors: bool) -> dict[str, FederatedScore]:
        if made.density is None:
            raise ValueError("score ll needs a generator's density, log_prob(points [N, D]) -> [N]; none is given")
        return {"ll": reference.score(made.density, errors)}

    return score


def _memorisation(side: ClientSide, options: Options) -> Score:
    if side.held_out is None:
        raise ValueError("score memorisation needs held-out images of every client; none are given")
    train, held_out = side.features, side.held_out
    return lambda made, errors: {"memorisation": memorisation(train, held_out, made.rows, side.weights)}


def _count(part: Tensor | Gaussian) -> float:
    return len(part) if isinstance(part, Tensor) else part.count


FAMILIES: dict[str, Callable[[ClientSide, Options], Score]] = {
    "fid": _fid,
    "kid": _kernel("kid", polynomial),
    "kid-rbf": _kernel("kid-rbf", rbf),
    "manifold": _manifold,
    "sw1": _sliced("sw1", 1),
    "sw2": _sliced("sw2", 2),
    "w1": _w1,
    "is": _inception,
    "ll": _likelihood,
    "memorisation": _memorisation,
}
