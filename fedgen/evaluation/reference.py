"""The clients' side of every score, computed once, and the records that come of a score."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from fedgen.evaluation.records import ScoreRecord
from fedgen.scores import FederatedScore, FrechetReference, KernelReference
from fedgen.scores.aggregate import Weights
from fedgen.statistics import Gaussian

AGGREGATES = ("avg", "all", "worst")
Scorer = FrechetReference | KernelReference

SCORERS: dict[str, Callable[..., Scorer]] = {
    "fid": FrechetReference.from_features,
    "kid": KernelReference.from_features,
}
FROM_SUMMARIES = ("fid",)  # scores that need no features


class Reference:
    """Clients in one embedding, with what each score keeps of them.

    Args:
        clients: features float [n_i, D] of each client; a summary where only that is known, for fid.
        scores: "fid", "kid".
        weights: the clients' weights, shared by all scores and by avg and all.
    """

    def __init__(self, clients: Sequence[Tensor | Gaussian], scores: Sequence[str], weights: Weights) -> None:
        self._scorers = {score: SCORERS[score](clients, weights=weights) for score in scores}

    def score(self, generated: Any, errors: bool = True) -> list[FederatedScore]:
        """Every score of generated features [m, D] (a summary, for fid) against every client and their pool.

        Args:
            generated: one set for all clients.
            errors: whether to add standard errors.
        """
        return [scorer.score(generated, errors) for scorer in self._scorers.values()]


def records_of(
    scores: Sequence[FederatedScore],
    client_names: Sequence[str],
    common: dict[str, Any],
    aggregates: Sequence[str] = AGGREGATES,
) -> list[ScoreRecord]:
    """The records of scores, one an aggregate; avg carries the clients' own scores.

    Args:
        scores: of one generated set.
        client_names: one a client.
        common: the records' other fields.
        aggregates: which of "avg", "all", "worst".
    """
    return [_record(score, aggregate, client_names, common) for score in scores for aggregate in aggregates]


def check_scores(scores: Sequence[str]) -> None:
    """Nothing, for scores that are known and given once; ValueError otherwise."""
    check_distinct("score", scores)
    for score in scores:
        if score not in SCORERS:
            raise ValueError(f"unknown score {score!r}; known: {', '.join(SCORERS)}")


def check_distinct(kind: str, names: Sequence[str]) -> None:
    """Nothing, for at least one name and none given twice; ValueError otherwise."""
    if not names:
        raise ValueError(f"an evaluation needs at least one {kind}")
    for name in names:
        if list(names).count(name) > 1:
            raise ValueError(f"{kind} {name!r} is given twice; scores are stored by name, so give each its own")


def _record(score: FederatedScore, aggregate: str, names: Sequence[str], common: dict[str, Any]) -> ScoreRecord:
    clients: dict[str, Any] = {}
    if aggregate == "avg":
        clients = {"per_client": score.per_client.tolist(), "client_names": list(names)}
        if score.client_errors is not None:
            clients["per_client_errors"] = score.client_errors.tolist()
    return ScoreRecord(
        score=score.name,
        aggregate=aggregate,
        value=float(score.values[aggregate]),
        standard_error=score.errors.get(aggregate),
        error_parts={side: part[aggregate] for side, part in score.error_parts.items()},
        terms={term: values[aggregate] for term, values in score.terms.items() if aggregate in values},
        **clients,
        **common,
    )
