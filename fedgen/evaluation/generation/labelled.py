"""Generated images with the labels that they were asked for."""

from typing import Any

import torch
from torch import Tensor

from fedgen.evaluation.generation.image_sampling import CHUNK, Sample, chunk_draws, draw_images, of_sampler
from fedgen.evaluation.real.splits import Split
from fedgen.models.label_frequencies import LabelFrequencies


def frequencies_of(split: Split) -> LabelFrequencies | None:
    """Return how often each class occurs among a split's images; None where they have no labels."""
    if split.labels is None:
        return None
    found = LabelFrequencies(len(split.classes))
    found.counts.copy_(torch.bincount(split.labels, minlength=len(split.classes)))
    return found


def takes_labels(sample: Sample, frequencies: LabelFrequencies | None) -> bool:
    """Whether images can be asked for by the data's classes: a conditional model that knows all of them."""
    classes = of_sampler(sample).num_classes
    return frequencies is not None and classes is not None and classes >= frequencies.num_classes


def check_takes_labels(sample: Sample, frequencies: LabelFrequencies | None, score: str) -> None:
    """Raise ValueError for a sampler that cannot be asked for the data's classes.

    Args:
        sample: the sampler.
        frequencies: of the data's classes.
        score: the name of the score that needs it.
    """
    if takes_labels(sample, frequencies):
        return
    classes = of_sampler(sample).num_classes
    if classes is None:
        raise ValueError(
            f"score {score} needs images of given classes, and this model is unconditional: use one"
            f" with num_classes and sample(num_images, generator, labels), or leave {score} out"
        )
    wanted = 0 if frequencies is None else frequencies.num_classes
    raise ValueError(f"score {score} needs a model of the data's {wanted} classes, and this one has {classes}")


def draw_labelled(
    sample: Sample,
    num_images: int,
    seed: int,
    round: int,
    frequencies: LabelFrequencies,
    stream: str = "train",
    chunk: int = CHUNK,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Images as `draw_images` gives them, and the labels int64 [num_images] that a conditional sampler made them of.

    Each chunk's labels are drawn by the frequencies from the chunk's generator, before the sampler draws from it.

    Args:
        sample: (number, torch.Generator, labels) to images.
        num_images: how many.
        seed: base seed.
        round: the round; -1 before training.
        frequencies: of the classes.
        stream: as for `draw_images`.
        chunk: likewise.
        options: likewise.
    """

    def labelled(count: int, draws: torch.Generator) -> Tensor:
        conditional: Any = sample
        return conditional(count, draws, frequencies.draw(count, draws))

    images = draw_images(labelled, num_images, seed, round, stream, chunk, **options)
    # drawn once more: another rank may have drawn the chunk's images
    draws = [chunk_draws(seed, round, stream, i) for i in range(-(-num_images // chunk))]
    return images, torch.cat([frequencies.draw(chunk, one) for one in draws])[:num_images]
