"""Scores to records: every value with all that it depends on."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedgen.evaluation.gaps import GAPS, gaps_of
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.real.reference import Found
from fedgen.evaluation.real.splits import Split
from fedgen.evaluation.record_names import AGGREGATES
from fedgen.evaluation.records import ScoreRecord
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.scores import FederatedScore
from fedgen.scores.aggregate import name_weights

if TYPE_CHECKING:  # stored images are scored without Lightning
    from fedgen.evaluation.plan import EvaluationPlan
    from fedgen.evaluation.real.real_side import RealSide


class RecordMaker:
    """Makes the records of an evaluation: of its scores, and of the gaps between its splits.

    Args:
        plan: which scores are measured where, with which weights and aggregates.
        real: the clients' side, which says what records may tell of clients.
        seed: of the generated images.
    """

    def __init__(self, plan: "EvaluationPlan", real: "RealSide", seed: int) -> None:
        self._plan, self._real, self._seed = plan, real, seed

    def records(
        self, found: Found, generator: str, counts: int | Mapping[tuple[str, str], int], **details: Any
    ) -> list[ScoreRecord]:
        """The records of scores, and those of the gaps between splits; arguments as for `Evaluator.records`."""
        splits = {split.name: split for split in self._plan.splits}
        panels = {panel.embedding.name: panel for panel in self._plan.panels}

        def common(place: str, split: Split, embedding: str, *others: Split) -> dict[str, Any]:
            count = counts if isinstance(counts, int) else counts[split.name, embedding]
            own = {"split": place, "num_generated": count, "reference": split.reference}
            notes = dict.fromkeys(filter(None, [details.get("note"), *(one.note for one in (*others, split))]))
            return {**own, "generator": generator, **details, "note": "; ".join(notes)}

        records: list[ScoreRecord] = []
        for (name, embedding), scores in found.items():
            split, panel, fields = splits[name], panels[embedding], common(name, splits[name], embedding)
            remarks = self._remarks(panel, split, fields["num_generated"])
            records += self._of_scores(scores, panel, split.client_names, fields, remarks)
        for embedding, panel in panels.items():
            by_split = {split: scores for (split, name), scores in found.items() if name == embedding}
            for gap, scores in gaps_of(by_split).items():
                better, worse = (splits[name] for name in GAPS[gap])
                pairs = [a if a == b else f"{b} - {a}" for a, b in zip(better.client_names, worse.client_names)]
                records += self._of_scores(scores, panel, pairs, common(gap, worse, embedding, better))
        return records

    def _of_scores(
        self,
        scores: Sequence[FederatedScore],
        panel: Panel,
        client_names: Sequence[str],
        details: Mapping[str, Any],
        remarks: Mapping[str, str] | None = None,
    ) -> list[ScoreRecord]:
        weights, embedding = self._plan.weights, panel.embedding
        common = {
            "embedding": embedding.name,
            "embedding_fingerprint": embedding.fingerprint(),
            "embedding_settings": dict(embedding.settings),
            "num_clients": len(client_names),
            "seed": self._seed,
            "weights": name_weights(weights),
            **details,
        }
        records = records_of(scores, client_names, common, self._plan.aggregates, panel.choices, remarks)
        return [self._real.described(record) for record in records]

    def _remarks(self, panel: Panel, split: Split, generated: int) -> dict[str, str]:
        """Return the scores' remarks on the sizes of a split's sets; gaps need none, as their bias cancels."""
        if panel.on_images:
            return {}
        return remarks_by_score(panel.choices, panel.embedding.dim, generated, self._real.told_counts(split))


def records_of(
    scores: Sequence[FederatedScore],
    client_names: Sequence[str],
    common: Mapping[str, Any],
    aggregates: Sequence[str] = AGGREGATES,
    choices: Sequence[ScoreChoice] = (),
    remarks: Mapping[str, str] | None = None,
) -> list[ScoreRecord]:
    """The records of scores, one an aggregate; avg carries the clients' own scores, where they are known.

    Args:
        scores: of one generated set.
        client_names: one a client.
        common: the records' other fields.
        aggregates: which; those that a score does not have are left out.
        choices: how the scores were asked for, whose settings the records keep.
        remarks: by score, what its records' notes have beside the common one.
    """
    settings = {choice.name: choice.settings for choice in choices}

    def own(name: str) -> dict[str, Any]:
        note = "; ".join(filter(None, [common.get("note", ""), (remarks or {}).get(name, "")]))
        return {**common, "score_settings": settings.get(name, {}), "note": note}

    return [
        _record(score, aggregate, client_names, own(score.name))
        for score in scores
        for aggregate in aggregates
        if aggregate in score.values
    ]


def remarks_by_score(
    choices: Sequence[ScoreChoice], dim: int, generated: float | None, clients: Sequence[float | None]
) -> dict[str, str]:
    """By score, its `remark` where there is one; arguments as there."""
    found = {choice.name: choice.definition.remark(choice.name, dim, generated, clients) for choice in choices}
    return {name: line for name, line in found.items() if line}


def _record(score: FederatedScore, aggregate: str, names: Sequence[str], common: Mapping[str, Any]) -> ScoreRecord:
    clients: dict[str, Any] = {}
    if aggregate == "avg" and len(score.per_client):
        clients = {"per_client": score.per_client.tolist(), "client_names": list(names)}
        if score.client_errors is not None:
            clients["per_client_errors"] = score.client_errors.tolist()
    return ScoreRecord(
        score=score.name,
        aggregate=aggregate,
        value=float(score.values[aggregate]),
        standard_error=score.errors.get(aggregate),
        error_parts={side: part[aggregate] for side, part in score.error_parts.items() if aggregate in part},
        terms={term: values[aggregate] for term, values in score.terms.items() if aggregate in values},
        higher_is_better=score.higher_is_better and aggregate != "var",
        error_over_clients=score.errors_over_clients.get(aggregate),
        **clients,
        **common,
    )
