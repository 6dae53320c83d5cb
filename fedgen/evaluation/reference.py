"""The clients' side of every score, computed once."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from fedgen.data.lazy_examples import LazyInputs
from fedgen.evaluation.score_choice import ScoreChoice, ScoreLike, choose_aggregates, choose_scores, with_further
from fedgen.ranks import spread
from fedgen.scores import Density, FederatedScore
from fedgen.scores.aggregate import OverClients, Weights, joined, resolve_weights
from fedgen.scores.definition import ClientSide, FittedScore, GeneratedSet, ModelAnswers, TextFeatures
from fedgen.statistics import Gaussian

Found = dict[tuple[str, str], list[FederatedScore]]  # scores of one generated set, by the names of split and embedding


class Reference:
    """Clients in one embedding, with what each score keeps of them."""

    def __init__(
        self,
        clients: Sequence[Tensor | Gaussian | LazyInputs],
        scores: ScoreLike | Sequence[ScoreLike],
        weights: Weights = "examples",
        aggregates: Sequence[str] = (),
        held_out: Sequence[Tensor] | None = None,
        labels: Sequence[Tensor] | None = None,
        classes: Sequence[str] = (),
        texts: TextFeatures | None = None,
    ) -> None:
        self.choices = choose_scores(scores)
        self.aggregates = choose_aggregates(aggregates)
        counts = [part.count if isinstance(part, Gaussian) else len(part) for part in clients]
        self._weights = resolve_weights(weights, counts)
        check_clients_of(self.choices, counts, [f"client {k}" for k in range(len(counts))], weights)
        side = ClientSide(shared(clients), weights, held_out, labels, len(classes), texts, classes=classes)
        self._passes: list[tuple[Sequence[ScoreChoice], FittedScore]] = [
            (group, group[0].definition.fit(replace(side, asked=tuple(choice.kind for choice in group))))
            for group in passes(self.choices)
        ]

    @classmethod
    def of_fitted(
        cls, fitted: Sequence[tuple[Sequence[ScoreChoice], FittedScore]], weights: Tensor, aggregates: Sequence[str]
    ) -> "Reference":
        """Clients known by fitted scores alone; of those that one leaves out of what it gives, none are given."""
        made = cls.__new__(cls)
        made.choices, made.aggregates = tuple(one for choices, _ in fitted for one in choices), tuple(aggregates)
        made._weights, made._passes = weights, list(fitted)
        return made

    def __repr__(self) -> str:
        clients = "1 client" if len(self._weights) == 1 else f"{len(self._weights)} clients"
        return f"Reference({clients}, {', '.join(choice.name for choice in self.choices)})"

    def score(
        self,
        generated: Tensor | Gaussian,
        errors: bool = True,
        density: Density | None = None,
        only: Sequence[str] | None = None,
        labels: Tensor | None = None,
        answers: ModelAnswers | None = None,
        real: bool = False,
    ) -> list[FederatedScore]:
        """Every score of generated features [m, D] against every client and their pool, in the order asked for."""
        wanted = [choice.name for choice in self.choices] if only is None else list(only)
        made = GeneratedSet(generated, density, labels, answers, real)
        chosen = [([choice for choice in group if choice.name in wanted], score) for group, score in self._passes]
        shared_out = [one for one in chosen if one[0] and one[0][0].definition.shares_out]
        whole = [one for one in chosen if one[0] and not one[0][0].definition.shares_out]
        found: dict[str, FederatedScore] = {}
        for choices, score in shared_out:
            found |= self._score(choices, score, made, errors)
        for scores in spread(lambda one: self._score(*one, made, errors), whole):
            found |= scores
        return [found[name] for name in wanted if name in found]

    def _score(
        self, choices: Sequence[ScoreChoice], fitted: FittedScore, made: GeneratedSet, errors: bool
    ) -> dict[str, FederatedScore]:
        values = fitted.score(made, errors)
        found = {}
        for choice in choices:
            if (score := values.get(choice.kind)) is not None:  # None where remote clients leave it out
                own = with_further(scaled(score, choice.scale), choice, self.aggregates, self._weights)
                found[choice.name] = replace(own, name=choice.name, higher_is_better=choice.higher_is_better)
        return found


def passes(choices: Sequence[ScoreChoice]) -> list[list[ScoreChoice]]:
    """The choices in groups that one computation gives, in the order of first appearance."""
    groups: list[list[ScoreChoice]] = []
    for choice in choices:
        same = [group for group in groups if choice.definition.same_pass(group[0].definition)]
        if same:
            same[0].append(choice)
        else:
            groups.append([choice])
    return groups


def check_clients_of(
    choices: Sequence[ScoreChoice], counts: Sequence[float], names: Sequence[str], weights: Weights
) -> None:
    """Raise ValueError for clients of which a score cannot be computed, naming the client."""
    for count, name in zip(counts, names):
        check_count(choices, count, name)
    shares = resolve_weights(weights, counts).tolist()
    for choice in choices:
        if not choice.definition.knows_weights and 0 in shares:
            raise ValueError(
                f"{names[shares.index(0)]} has weight 0, but {choice.name} uses neighbours, which have no weights;"
                " leave the client out"
            )


def check_count(choices: Sequence[ScoreChoice], count: float, whose: str) -> None:
    """Raise ValueError for a set of images that is too small for a score, naming it."""
    for choice in choices:
        if problem := choice.definition.too_few(count, whose):
            raise ValueError(problem)


def scaled(score: FederatedScore, factor: float) -> FederatedScore:
    """A score in another unit: values, terms and errors times a positive factor."""
    if factor == 1:
        return score

    def times(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: times(part) for key, part in value.items()}
        return value.times(factor) if isinstance(value, OverClients) else value * factor

    kept = {"name", "higher_is_better", "notes", "real_influences"}  # the last take their unit from the errors
    found = {name: value for name, value in vars(score).items() if name not in kept and value is not None}
    return replace(score, **{name: times(value) for name, value in found.items()})


def shared(clients: Sequence[Any]) -> Sequence[Any]:
    """The clients' features as views of one tensor, where all are known by features of one length and dtype."""
    parts = [part.detach() for part in clients if isinstance(part, Tensor)]
    if len(parts) < len(clients) or len({(part.ndim, part.shape[-1], part.dtype, part.device) for part in parts}) != 1:
        return clients  # the scores say what is wrong
    return joined(parts).split([len(part) for part in parts])
