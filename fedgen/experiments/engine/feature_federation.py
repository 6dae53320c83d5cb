"""Clients of an experiment as positions in one tensor of features, and the same images dealt without heterogeneity."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgen.evaluation.reference import Reference
from fedgen.experiments.engine.aggregate_rankings import CLIENTS, IID
from fedgen.scores import FederatedScore
from fedgen.scores.aggregate import Weights
from fedgen.seeds import generator


@dataclass(frozen=True, eq=False)
class FeatureFederation:
    """Clients, each some rows of the same features.

    Args:
        features: [N, D], shared, never copied as a whole.
        positions: each client's rows, int64 [n_i].
        names: one a client.

    Raises:
        ValueError: for no client, names that do not fit, or clients that share an image.
    """

    features: Tensor
    positions: tuple[Tensor, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.positions or len(self.names) != len(self.positions):
            raise ValueError(f"{len(self.positions)} clients and {len(self.names)} names; give at least one, as many")
        pooled = torch.cat(self.positions)
        values, counts = pooled.unique(return_counts=True)
        if (counts > 1).any():
            image = int(values[counts > 1][0])
            who = [name for name, own in zip(self.names, self.positions) if (own == image).any()]
            raise ValueError(f"image {image} is with {' and '.join(who)}: a client's image must be its alone")

    @property
    def counts(self) -> tuple[int, ...]:
        """Images of each client."""
        return tuple(map(len, self.positions))

    def parts(self) -> list[Tensor]:
        """Features [n_i, D] of each client: views of one tensor [n, D] that holds the clients' rows."""
        return list(self.features[torch.cat(self.positions)].split(self.counts))

    def reference(self, scores: Sequence[str | Mapping[str, Any]], weights: Weights = "examples") -> Reference:
        """The clients' side of some scores.

        Raises:
            ValueError: for clients that a score cannot take, naming the client.
        """
        return Reference(self.parts(), scores, weights)

    def iid(self, seed: int, repeat: int = 0) -> "FeatureFederation":
        """The control: the same images dealt at random to clients of the same sizes.

        Whatever avg and all disagree about over these clients is the bias and noise of few images, not heterogeneity.

        Args:
            seed: of the dealing.
            repeat: which of several dealings.
        """
        pooled = torch.cat(self.positions)
        order = torch.randperm(len(pooled), generator=generator(seed, "iid control", repeat))
        parts = tuple(part.sort().values for part in pooled[order].split(self.counts))
        return FeatureFederation(self.features, parts, tuple(f"IID {client}" for client in range(len(parts))))

    def dealt(self, seed: int, controls: int) -> dict[str, "FeatureFederation"]:
        """The clients themselves, as "clients", and IID controls, as "IID 0", "IID 1", ..."""
        return {CLIENTS: self} | {f"{IID}{number}": self.iid(seed, number) for number in range(controls)}


def rows_of(scores: Sequence[FederatedScore]) -> dict[str, dict[str, Any]]:
    """Scores of one generated set as plain numbers: {score: {"avg", "all", "worst", "errors": {...}, ...}}.

    "errors" are those over generated images, which differences of two generators scored against the same clients have;
    "total errors" those over both sides, and "over clients" those over other clients; each where it is there.
    """
    rows: dict[str, dict[str, Any]] = {}
    for score in scores:
        row: dict[str, Any] = dict(score.values)
        if score.errors:
            row["errors"] = dict(score.error_parts.get("generated", score.errors))
            row["total errors"] = dict(score.errors)
        if score.errors_over_clients:
            row["over clients"] = dict(score.errors_over_clients)
        if score.terms:
            row["terms"] = {term: dict(values) for term, values in score.terms.items()}
        rows[score.name] = row
    return rows
