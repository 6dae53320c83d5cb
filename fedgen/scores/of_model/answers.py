"""Scores of a model that is asked about the clients' real examples: log-likelihood, its own loss, torchmetrics classes.

The mean log-density is linear in the data, so avg = all exactly whenever both use the same weights: of all scores here
it is the one that cannot rank generators in two ways.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fedgen.class_paths import import_by_path
from fedgen.data.lazy_examples import join_inputs
from fedgen.scores.aggregate import (
    FederatedScore,
    OfClients,
    OverClients,
    Weights,
    combine,
    mean_score,
    mean_variance,
    resolve_weights,
)
from fedgen.scores.definition import ClientSide, Density, GeneratedSet, Needs, ScoreDefinition
from fedgen.statistics.gaussian import check_clients

if TYPE_CHECKING:
    from torchmetrics import Metric

CHUNK = 65536  # points whose densities are asked for together


class LikelihoodReference(OfClients):
    """The clients' points, against which densities are scored.

    Args:
        points: floating [n_i, D], one tensor a client.
        weights: "examples" (n_i / n), "uniform" or K numbers; every point of client i counts w_i / n_i in `all`.

    Raises:
        ValueError: for unusable points or weights.

    Examples:
        >>> import torch
        >>> from fedgen.scores import LikelihoodReference
        >>> reference = LikelihoodReference.from_points([torch.tensor([[0.0]]), torch.tensor([[2.0]])])
        >>> density = torch.distributions.Independent(torch.distributions.Normal(torch.zeros(1), torch.ones(1)), 1)
        >>> score = reference.score(density, errors=False)
        >>> score.per_client.round(decimals=4)  # -log(2 pi) / 2, and 2^2 / 2 less
        tensor([-0.9189, -2.9189], dtype=torch.float64)
    """

    def __init__(self, points: Iterable[Tensor], weights: Weights = "examples") -> None:
        self._parts = [part.detach().cpu().double() for part in points]
        check_clients(self._parts, "points")
        self.counts = [len(part) for part in self._parts]
        self.weights = resolve_weights(weights, self.counts)

    @classmethod
    def from_points(cls, points: Iterable[Tensor], weights: Weights = "examples") -> "LikelihoodReference":
        """Make it of the clients' points, as the class itself does."""
        return cls(points, weights)

    def score(self, density: Density, errors: bool = True) -> FederatedScore:
        """Mean log-density in nats of every client's points, "ll": avg, all, and worst, which here is the smallest.

        One point where the density is zero makes its client's score, avg and all -inf; the standard errors of those
        are infinite. The density is taken as given, so only the real points vary: `error_parts` has no "generated".

        Args:
            density: anything with `log_prob(points [N, D]) -> [N]`; it is given float64 points on the CPU.
            errors: whether to add standard errors.

        Raises:
            ValueError: if log-densities have another shape, or are NaN or +inf, naming the client.
        """
        logs = [_log_densities(density, part, client) for client, part in enumerate(self._parts)]
        per_client = torch.stack([part.mean() for part in logs])
        used = self.weights > 0
        sums = [weight / len(part) * part.sum() for part, weight in zip(logs, self.weights) if weight > 0]
        pooled = float(torch.stack(sums).sum())
        if not errors:
            return combine("ll", per_client, pooled, self.weights, higher_is_better=True)
        worst = int(per_client.masked_fill(~used, torch.inf).argmin())
        variances = torch.stack([_variance(part) for part in logs])
        average = float((self.weights[used].square() @ variances[used]).sqrt())
        parts = {"real": {"avg": average, "all": average, "worst": float(variances[worst].sqrt())}}
        own, over_clients = {"real": variances.sqrt()}, OverClients(per_client, per_client, self.weights)
        return combine("ll", per_client, pooled, self.weights, None, parts, own, True, over_clients)


@torch.no_grad()
def _log_densities(density: Density, points: Tensor, client: int) -> Tensor:
    parts = [density.log_prob(part).double().cpu() for part in points.split(CHUNK)]
    for part, asked in zip(parts, points.split(CHUNK)):
        if part.shape != asked.shape[:1]:
            found = f"got {list(part.shape)}; give a density over vectors, such as Independent(Normal(...), 1)"
            raise ValueError(f"log_prob of points {list(asked.shape)} must be [{len(asked)}], {found}")
    logs = torch.cat(parts)
    bad = (logs.isnan() | (logs == torch.inf)).nonzero().flatten()
    if len(bad):
        first = int(bad[0])
        raise ValueError(f"the log-density at point {first} of client {client} is {float(logs[first])}")
    return logs


def _variance(logs: Tensor) -> Tensor:
    """Variance of their mean; infinite where one of them is."""
    return mean_variance(logs) if torch.isfinite(logs).all() else torch.tensor(torch.inf, dtype=torch.float64)


@dataclass(frozen=True)
class DensityOfPointsScore(ScoreDefinition):
    """Mean log-density of the clients' points under a model with `log_prob`."""

    name: ClassVar[str] = "ll"
    needs: ClassVar[Needs] = "points"
    higher_is_better: ClassVar[bool] = True
    has_powers: ClassVar[bool] = False  # a density may be above or below 1

    def prepare(self, clients: ClientSide) -> LikelihoodReference:
        return LikelihoodReference.from_points(clients.features, clients.weights)

    def compare(self, prepared: LikelihoodReference, generated: GeneratedSet, errors: bool) -> FederatedScore:
        if generated.density is None:
            raise ValueError("score ll needs a generator's density, log_prob(points [N, D]) -> [N]; none is given")
        return prepared.score(generated.density, errors)


@dataclass(frozen=True)
class LossScore(ScoreDefinition):
    """The model's own loss of all examples at once, so that draws are common to equal splits.

    Of models with `example_losses`; it has no embedding.
    """

    name: ClassVar[str] = "loss"
    needs: ClassVar[Needs] = "model"
    has_powers: ClassVar[bool] = False  # a loss may be below 0

    def prepare(self, clients: ClientSide) -> ClientSide:
        return clients

    def compare(self, prepared: ClientSide, generated: GeneratedSet, errors: bool) -> FederatedScore:
        if generated.answers is None:
            raise ValueError("score loss needs the model's own losses, example_losses(images, labels, seed)")
        labels = None if prepared.labels is None else torch.cat(list(prepared.labels))
        sizes = [len(part) for part in prepared.parts]
        losses = generated.answers.losses(join_inputs(prepared.parts), labels).split(sizes)
        return mean_score("loss", losses, resolve_weights(prepared.weights, sizes), errors)


@dataclass(frozen=True)
class MetricScore(ScoreDefinition):
    """A metric of each client's examples, and for `all` of all examples; no standard errors are known of it.

    Of the model's `predictions`; it has no embedding. It is asked for by the metric's class path, such as
    "torchmetrics.text.Perplexity", and records keep that under "metric".

    Args:
        metric: its class path.
        arguments: of its class.

    Raises:
        ValueError: for a path of nothing, of no torchmetrics class, arguments that the class refuses, and a metric that
            does not say whether more is better.
    """

    name: ClassVar[str] = "metric"
    needs: ClassVar[Needs] = "model"
    has_powers: ClassVar[bool] = False  # it may be below 0

    metric: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _ = self.higher_is_better

    @property
    def options(self) -> dict[str, Any]:
        return {"metric": self.metric, **self.arguments}

    @property
    def settings(self) -> dict[str, Any]:
        return self.options

    @cached_property
    def higher_is_better(self) -> bool:
        return bool(self.make().higher_is_better)

    def make(self) -> "Metric":
        from torchmetrics import Metric  # slow to import, and used by these scores alone

        kind = import_by_path(self.metric)
        if not (isinstance(kind, type) and issubclass(kind, Metric)):
            raise ValueError(f"{self.metric} is no torchmetrics class")
        try:
            found = kind(**self.arguments)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.metric} cannot be made of {self.arguments or 'no options'}: {error}") from error
        if found.higher_is_better is None:
            raise ValueError(f"{self.metric} does not say whether more of it is better; give a class that does")
        return found

    def prepare(self, clients: ClientSide) -> ClientSide:
        return clients

    def compare(self, prepared: ClientSide, generated: GeneratedSet, errors: bool) -> FederatedScore:
        if generated.answers is None:
            raise ValueError(f"score {self.metric} needs the model's predictions(images, labels, seed)")
        parts, pooled, values = prepared.parts, self.make(), []
        for part, labels in zip(parts, [None] * len(parts) if prepared.labels is None else prepared.labels):
            own = self.make()
            for arguments in generated.answers.predictions(part, labels):
                own.update(*arguments)
                pooled.update(*arguments)
            values.append(self._value(own))
        per_client = torch.tensor(values, dtype=torch.float64)
        weights = resolve_weights(prepared.weights, [len(part) for part in parts])
        return combine("metric", per_client, self._value(pooled), weights, higher_is_better=self.higher_is_better)

    def _value(self, metric: "Metric") -> float:
        found = metric.compute()
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise ValueError(f"{self.metric} gives {found!r}, and a score is one number; ask it for its mean")
        return float(found)
