"""A torchmetrics class as a score, by its class path: of the model's predictions, of each client and of all."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from fedgen.class_paths import import_by_path
from fedgen.scores.aggregate import FederatedScore, combine, resolve_weights
from fedgen.scores.definition import ClientSide, GeneratedSet, Needs, ScoreDefinition

if TYPE_CHECKING:
    from torchmetrics import Metric


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
            raise ValueError(
                f"{self.metric} does not say whether more of it is better (higher_is_better); give a class that does"
            )
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
