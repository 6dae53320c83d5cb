"""Scores of models that are single clients' own, each against that client's images alone, put together."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedgen.evaluation.aggregates import with_further
from fedgen.evaluation.evaluate import Evaluator
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.real.reference import Found
from fedgen.evaluation.real.splits import Split
from fedgen.scores import FederatedScore
from fedgen.scores.aggregate import resolve_weights, without_pool


class SingleClients:
    """Scores each client's own model in its turn; then every aggregate of them but all, which would need one model.

    The clients' real images are embedded on first use and kept.

    Args:
        evaluator: of all clients.
        splits: those of its splits that are wanted; all by default.
        panels: those of its embeddings that are wanted; all by default.

    Attributes:
        places: of each client in the splits, by its name.
    """

    def __init__(
        self, evaluator: Evaluator, splits: Sequence[Split] | None = None, panels: Sequence[Panel] | None = None
    ) -> None:
        self.evaluator = evaluator
        self.splits = list(evaluator.splits if splits is None else splits)
        self.panels = list(evaluator.panels if panels is None else panels)
        self.places: dict[str, list[tuple[Split, int]]] = {}
        for split in self.splits:
            for place, name in enumerate(split.client_names):
                self.places.setdefault(name, []).append((split, place))
        self._ones: dict[tuple[str, int], Evaluator] = {}
        self._found: dict[tuple[str, str, str], dict[int, FederatedScore]] = {}

    def score(self, client: str, model: nn.Module, round: int) -> Tensor:
        """Takes down what a client's own model scores; gives its images of the first split that the client is in.

        Args:
            client: its name.
            model: its own, as for `fedgen.evaluation.evaluate`.
            round: part of the images' seed.
        """
        made = self.evaluator.generated(self.evaluator.sampler_of(model), round)
        for split, place in self.places[client]:
            if (split.name, place) not in self._ones:
                self._ones[split.name, place] = self.evaluator.of_one(split, place, self.panels)
            one = self._ones[split.name, place]
            for (name, embedding), scores in one.measured(made, **one.asked_of(model)).items():
                for score in scores:
                    self._found.setdefault((name, embedding, score.name), {})[place] = score
        return made.first

    def take(self) -> Found:
        """The scores over all clients, each of whom was scored since the last call, by split and embedding."""
        found, self._found, plan = self._found, {}, self.evaluator.plan
        joined: Found = {}
        for split in self.splits:
            weights = resolve_weights(self.evaluator.weights, split.counts)
            for panel in self.panels:
                for choice in plan.choices(split, panel):
                    of_each = found[split.name, panel.embedding.name, choice.name]
                    values = torch.tensor([of_each[place].values["avg"] for place in range(len(split.counts))])
                    score = without_pool(choice.name, values.double(), weights, choice.higher_is_better)
                    score = with_further(score, choice, plan.aggregates, weights)
                    joined.setdefault((split.name, panel.embedding.name), []).append(score)
        return joined
