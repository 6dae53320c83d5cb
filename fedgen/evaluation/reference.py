"""One split in one embedding: the clients' side of every score, computed once."""

from collections.abc import Callable, Sequence

from torch import Tensor

from fedgen.embeddings import Embedding
from fedgen.evaluation.splits import Split
from fedgen.scores import FederatedScore, FrechetReference, KernelReference
from fedgen.scores.aggregate import Weights

Scorer = FrechetReference | KernelReference

SCORERS: dict[str, Callable[..., Scorer]] = {
    "fid": FrechetReference.from_features,
    "kid": KernelReference.from_features,
}


class Reference:
    """The clients' images of a split, embedded, with what each score keeps of them.

    Args:
        split: the clients' images.
        embedding: what embedded them.
        features: float [N, D], the features of `split.images`.
        scores: "fid", "kid".
        weights: the clients' weights, shared by all scores and by avg and all.
    """

    def __init__(
        self, split: Split, embedding: Embedding, features: Tensor, scores: Sequence[str], weights: Weights
    ) -> None:
        self.split, self.embedding = split, embedding
        parts = list(features.split(list(split.counts)))
        self._scorers = {score: SCORERS[score](parts, weights=weights) for score in scores}

    def score(self, generated: Tensor) -> list[FederatedScore]:
        """Every score of generated features [m, D] against every client and their pool, with standard errors."""
        return [scorer.score(generated) for scorer in self._scorers.values()]
