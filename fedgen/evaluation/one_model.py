"""The scores of one model against clients, in one call."""

from typing import Unpack

from torch import nn

from fedgen.data.optional_attributes import optional
from fedgen.evaluation.evaluate import Evaluator, EvaluatorOptions
from fedgen.evaluation.generation.image_sampling import Sample
from fedgen.evaluation.real.federation_splits import Clients
from fedgen.evaluation.records import ScoreRecord
from fedgen.models.optional_hooks import FederatedModule


def evaluate(
    model: nn.Module | Sample, clients: Clients, round: int = 0, **options: Unpack[EvaluatorOptions]
) -> list[ScoreRecord]:
    """The score records of one model against clients; `score_table(records)` is their table.

    Args:
        model: a module with `sample(num_images, generator=None)` where a score needs images, or a sampler; for the
            score "ll" also with `log_prob(points)`, for "loss" with `example_losses(images, labels, seed)`. Scores in
            the embeddings that its attribute `optimised_on` names are marked.
        clients: a FederatedDataModule; its `clients`, of whom the images that they train on count; a list of Examples,
            one a client; splits; or {split: [examples of each client]}.
        round: stored in the records, and part of the images' seed.
        options: as for `Evaluator`: `embeddings`, `num_images`, `scores`, `weights`, `seed`, `cache`, `batch_size`,
            `device`, `chunk`, `aggregates`, `presets` and `controls`.

    Raises:
        TypeError: for a model without `sample`, `log_prob` or `example_losses` where a score needs it; for other
            clients; for an unknown option.
        ValueError: as for `Evaluator`.

    Examples:
        >>> import torch
        >>> import fedgen
        >>> data = fedgen.FederatedDataModule(fedgen.Digits(), fedgen.ByClass())
        >>> def noise(count, generator):
        ...     return torch.rand(count, 1, 8, 8, generator=generator) * 2 - 1
        >>> records = fedgen.evaluate(noise, data, embeddings=["pixels"], num_images=100, scores=["kid"])
        >>> sorted({record.name for record in records})
        ['kid_all', 'kid_avg', 'kid_worst']
    """
    evaluator = Evaluator(clients, **options)
    sample = evaluator.sampler_of(model) if isinstance(model, nn.Module) else model
    asked = evaluator.asked_of(model)
    evaluator.try_out(sample, **asked)
    # scores in an embedding that its training optimised are marked, as where a run is scored
    used = optional(model, FederatedModule, "optimised_on")
    return evaluator.evaluate(sample, round, optimised_on=used, **asked).records
