"""The clients' side of each family of scores: what is computed once, and the scores of a generated set."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from fedgen.data.lazy import join_inputs
from fedgen.embeddings import ClassifierOptions
from fedgen.evaluation.generation.answers import SeededAnswers
from fedgen.evaluation.metric_choice import PATH, make_metric
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
    UtilityReference,
    WassersteinReference,
    inception_score,
    memorisation,
)
from fedgen.scores.aggregate import Weights, combine, resolve_weights
from fedgen.scores.kernel.mmd import Estimator
from fedgen.scores.linear import mean_score
from fedgen.statistics import Gaussian

if TYPE_CHECKING:
    from torchmetrics import Metric

Options = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class ClientSide:
    """What is known of the clients in one embedding.

    Args:
        parts: features [n_i, D] of each; a summary where only that is known. Rows of one tensor are not copied. Images
            uint8 [n_i, C, H, W] for a score that needs labels; for one that asks the model also points, texts, or items
            of any structure. What lies on disk is a `LazyInputs`, read in chunks at every score.
        weights: shared by all scores and by avg and all.
        held_out: features of images that each client did not train on, where a score needs them.
        labels: int64 [n_i] of each client's images, where a score needs them.
        num_classes: of those labels.
    """

    parts: Sequence[Any]
    weights: Weights
    held_out: Sequence[Tensor] | None = None
    labels: Sequence[Tensor] | None = None
    num_classes: int = 0

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
    """What is to be scored: features of generated images, or their summary, or the images themselves; the model's
    density and its answers about examples if it has some; the labels that the images were asked for."""

    features: Tensor | Gaussian
    density: Density | None = None
    labels: Tensor | None = None
    answers: SeededAnswers | None = None

    @property
    def rows(self) -> Tensor:
        """The features.

        Raises:
            TypeError: if only their summary is known.
        """
        if isinstance(self.features, Gaussian):
            raise TypeError("this score needs features of the generated set, and only a summary is known; use fid")
        return self.features


class Score(Protocol):
    """The clients' side of one family, with what was computed once.

    Attributes:
        shares_out: whether ranks that are `together` share its work; of another, one rank does all.
    """

    shares_out: bool

    def score(self, made: Made, errors: bool) -> Mapping[str, FederatedScore]:
        """The family's scores of a generated set, by kind."""


class OfSummaries:
    """Fréchet distances, for which a summary of either side will do."""

    shares_out = True

    def __init__(self, side: ClientSide, options: Options) -> None:
        self._reference = FrechetReference.from_features(side.parts, side.weights, options["ddof"])

    def score(self, made: Made, errors: bool) -> Mapping[str, FederatedScore]:
        return {"fid": self._reference.score(made.features, errors)}


class OfFeatures:
    """One score of features, by any reference.

    Args:
        kind: the score's.
        reference: of the clients.
    """

    def __init__(self, kind: str, reference: KernelReference | SlicedReference | WassersteinReference) -> None:
        self.shares_out = not isinstance(reference, SlicedReference)
        self.kind, self._reference = kind, reference

    def score(self, made: Made, errors: bool) -> Mapping[str, FederatedScore]:
        return {self.kind: self._reference.score(made.rows, errors)}


class OfNeighbours:
    """Precision, recall, density and coverage."""

    shares_out = False

    def __init__(self, side: ClientSide, options: Options) -> None:
        self._reference = ManifoldReference.from_features(side.features, weights=side.weights, **options)

    def score(self, made: Made, errors: bool) -> Mapping[str, FederatedScore]:
        return self._reference.score(made.rows, errors)


class OfLogits:
    """The Inception Score, which knows generated images only: one value for every client, as avg, all and worst."""

    shares_out = False

    def __init__(self, side: ClientSide, options: Options) -> None:
        self._shares = resolve_weights(side.weights, [_count(part) for part in side.parts])

    def score(self, made: Made, errors: bool) -> Mapping[str, FederatedScore]:
        value, error = inception_score(made.rows)
        per_client = torch.full_like(self._shares, value)
        parts = {"generated": dict.fromkeys(("avg", "all", "worst"), error)} if errors else None
        own = {"generated": torch.full_like(self._shares, error)} if errors else None
        return {"is": combine("is", per_client, value, self._shares, None, parts, own, higher_is_better=True)}


class OfDensity:
    """Log-likelihood of the clients' points."""

    shares_out = False

    def __init__(self, side: ClientSide, options: Options) -> None:
        self._reference = LikelihoodReference.from_points(side.features, side.weights)

    def score(self, made: Made, errors: bool) -> Mapping[str, FederatedScore]:
        if made.density is None:
            raise ValueError("score ll needs a generator's density, log_prob(points [N, D]) -> [N]; none is given")
        return {"ll": self._reference.score(made.density, errors)}


class OfHeldOut:
    """Memorisation."""

    shares_out = False

    def __init__(self, side: ClientSide, options: Options) -> None:
        if side.held_out is None:
            raise ValueError("score memorisation needs held-out images of every client; none are given")
        self._train, self._held_out, self._weights = side.features, side.held_out, side.weights

    def score(self, made: Made, errors: bool) -> Mapping[str, FederatedScore]:
        return {"memorisation": memorisation(self._train, self._held_out, made.rows, self._weights)}


class OfClassifier:
    """Utility: the parts are images, not features."""

    shares_out = False

    def __init__(self, side: ClientSide, options: Options) -> None:
        if side.labels is None:
            raise ValueError("score utility needs the labels of every client's images; none are given")
        settings = ClassifierOptions(**options)
        self._reference = UtilityReference(side.parts, side.labels, side.num_classes, side.weights, settings)

    def score(self, made: Made, errors: bool) -> Mapping[str, FederatedScore]:
        if made.labels is None:
            raise ValueError("score utility needs the labels that generated images were asked for; none are given")
        return {"utility": self._reference.score(made.rows, made.labels, errors)}


class OfLosses:
    """The model's own loss of the clients' images; all of them at once, so that draws are common to equal splits."""

    shares_out = False

    def __init__(self, side: ClientSide, options: Options) -> None:
        self._images, self._labels = side.parts, side.labels
        self._weights = resolve_weights(side.weights, [len(part) for part in self._images])

    def score(self, made: Made, errors: bool) -> Mapping[str, FederatedScore]:
        if made.answers is None:
            raise ValueError("score loss needs the model's own losses, example_losses(images, labels, seed)")
        labels = None if self._labels is None else torch.cat(list(self._labels))
        losses = made.answers.losses(join_inputs(self._images), labels).split([len(part) for part in self._images])
        return {"loss": mean_score("loss", losses, self._weights, errors)}


class OfMetric:
    """A torchmetrics class of the model's predictions: each client's own value, and for all that of all examples.

    Like neighbours it knows no weights: all counts every example once. No standard errors are known of it.
    """

    shares_out = False

    def __init__(self, side: ClientSide, options: Options) -> None:
        self._parts, self._options = side.parts, options
        self._labels = [None] * len(side.parts) if side.labels is None else list(side.labels)
        self._weights = resolve_weights(side.weights, [len(part) for part in self._parts])

    def score(self, made: Made, errors: bool) -> Mapping[str, FederatedScore]:
        if made.answers is None:
            raise ValueError(f"score {self._options[PATH]} needs the model's predictions(images, labels, seed)")
        pooled, values = make_metric(self._options), []
        for part, labels in zip(self._parts, self._labels):
            own = make_metric(self._options)
            for arguments in made.answers.predictions(part, labels):
                own.update(*arguments)
                pooled.update(*arguments)
            values.append(self._value(own))
        per_client = torch.tensor(values, dtype=torch.float64)
        higher = bool(pooled.higher_is_better)
        score = combine("metric", per_client, self._value(pooled), self._weights, higher_is_better=higher)
        return {"metric": score}

    def _value(self, metric: "Metric") -> float:
        found = metric.compute()
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise ValueError(f"{self._options[PATH]} gives {found!r}, and a score is one number; ask it for its mean")
        return float(found)


def _kernel(kind: str, side: ClientSide, kernel: Kernel, estimator: Estimator) -> OfFeatures:
    return OfFeatures(kind, KernelReference.from_features(side.features, kernel, estimator, side.weights))


def _sliced(kind: str, side: ClientSide, p: int, options: Options) -> OfFeatures:
    return OfFeatures(kind, SlicedReference.from_features(side.features, p=p, weights=side.weights, **options))


def _critics(side: ClientSide, options: Options) -> OfFeatures:
    reference = WassersteinReference.from_features(side.features, CriticOptions(**options), side.weights)
    return OfFeatures("w1", reference)


def _count(part: Any) -> float:
    return part.count if isinstance(part, Gaussian) else len(part)


FAMILIES: dict[str, Callable[[ClientSide, Options], Score]] = {
    "fid": OfSummaries,
    "kid": lambda side, options: _kernel("kid", side, polynomial(options), options["estimator"]),
    "kid-rbf": lambda side, options: _kernel("kid-rbf", side, rbf(options), options["estimator"]),
    "manifold": OfNeighbours,
    "sw1": lambda side, options: _sliced("sw1", side, 1, options),
    "sw2": lambda side, options: _sliced("sw2", side, 2, options),
    "w1": _critics,
    "is": OfLogits,
    "ll": OfDensity,
    "memorisation": OfHeldOut,
    "utility": OfClassifier,
    "loss": OfLosses,
    "metric": OfMetric,
}
