"""The scores of one model against clients, in one call."""

from collections.abc import Sequence

import torch
from torch import nn

from fedgen.embeddings import FeatureCache
from fedgen.evaluation.evaluate import Evaluator
from fedgen.evaluation.federation_splits import Clients
from fedgen.evaluation.panels import DEFAULT_SCORES, EmbeddingLike, PresetLike
from fedgen.evaluation.records import ScoreRecord
from fedgen.evaluation.sampling import CHUNK, Sample
from fedgen.evaluation.score_choice import ScoreLike
from fedgen.scores.aggregate import Weights


def evaluate(
    model: nn.Module | Sample,
    clients: Clients,
    round: int = 0,
    *,
    embeddings: Sequence[EmbeddingLike] | None = None,
    num_images: int = 10_000,
    scores: ScoreLike | Sequence[ScoreLike] = DEFAULT_SCORES,
    weights: Weights = "examples",
    seed: int | None = None,
    cache: FeatureCache | None = None,
    batch_size: int = 64,
    device: torch.device | str | None = None,
    chunk: int = CHUNK,
    aggregates: Sequence[str] = (),
    presets: Sequence[PresetLike] = (),
    controls: bool = False,
) -> list[ScoreRecord]:
    """The score records of one model against clients; `score_table(records)` is their table.

    Args:
        model: a module with `sample(num_images, generator=None)` where a score needs images, or a sampler; for the
            score "ll" also with `log_prob(points)`, for "loss" with `example_losses(images, labels, seed)`. Scores in
            the embeddings that its attribute `optimised_on` names are marked.
        clients: a FederatedDataModule; its `clients`, of whom the images that they train on count; a list of Examples,
            one a client; splits; or {split: [examples of each client]}.
        round: stored in the records, and part of the images' seed.
        embeddings: as for `Evaluator`, as all that follow.
        num_images: generated images a split.
        scores: names, or {"name": ..., options}.
        weights: of the clients, "examples", "uniform" or numbers.
        seed: of the generated images.
        cache: keeps the real images' features on disk.
        batch_size: images embedded at once.
        device: where to embed.
        chunk: images sampled at once.
        aggregates: beside avg, all and worst.
        presets: scores in embeddings of their own.
        controls: whether to score the other real images in a generator's place.

    Raises:
        TypeError: for a model without `sample`, `log_prob` or `example_losses` where a score needs it; for other
            clients.
        ValueError: as for `Evaluator`.
    """
    evaluator = Evaluator(
        clients,
        embeddings,
        num_images,
        scores,
        weights,
        seed,
        cache,
        batch_size,
        device,
        chunk,
        aggregates,
        presets,
        controls,
    )
    sample = evaluator.sampler_of(model) if isinstance(model, nn.Module) else model
    asked = evaluator.asked_of(model)
    evaluator.try_out(sample, **asked)
    # scores in an embedding that its training optimised are marked, as where a run is scored
    used = getattr(model, "optimised_on", ())
    return evaluator.evaluate(sample, round, optimised_on=used, **asked).records
