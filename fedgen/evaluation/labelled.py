"""Generated images with the labels that they were asked for."""

from typing import Any

import torch
from torch import Tensor

from fedgen.evaluation.sampling import Sample, draw_images
from fedgen.evaluation.splits import Split
from fedgen.models.label_frequencies import LabelFrequencies


def frequencies_of(split: Split) -> LabelFrequencies | None:
    """How often each class occurs among a split's images; None where they have no labels."""
    if split.labels is None:
        return None
    found = LabelFrequencies(len(split.classes))
    found.counts.copy_(torch.bincount(split.labels, minlength=len(split.classes)))
    return found


def takes_labels(sample: Sample, frequencies: LabelFrequencies | None) -> bool:
    """Whether images can be asked for by the data's classes: a conditional model that knows all of them."""
    classes = getattr(sample, "num_classes", None)
    return frequencies is not None and classes is not None and classes >= frequencies.num_classes


def check_takes_labels(sample: Sample, frequencies: LabelFrequencies | None, score: str) -> None:
    """Nothing, for a sampler that can be asked for the data's classes; ValueError otherwise.

    Args:
        sample: the sampler.
        frequencies: of the data's classes.
        score: the name of the score that needs it.
    """
    if takes_labels(sample, frequencies):
        return
    classes = getattr(sample, "num_classes", None)
    if classes is None:
        raise ValueError(
            f"score {score} trains a classifier on images of given classes, and this model is unconditional: use one"
            f" with num_classes and sample(num_images, generator, labels), or leave {score} out"
        )
    wanted = 0 if frequencies is None else frequencies.num_classes
    raise ValueError(f"score {score} needs a model of the data's {wanted} classes, and this one has {classes}")


def draw_labelled(
    sample: Sample, num_images: int, seed: int, round: int, frequencies: LabelFrequencies, **options: Any
) -> tuple[Tensor, Tensor]:
    """Images as `draw_images` gives them, and the labels int64 [num_images] that a conditional sampler made them of.

    Each chunk's labels are drawn by the frequencies from the chunk's generator, before the sampler draws from it.

    Args:
        sample: (number, torch.Generator, labels) to images.
        num_images: how many.
        seed: base seed.
        round: the round; -1 before training.
        frequencies: of the classes.
        options: as for `draw_images`.
    """
    asked: list[Tensor] = []

    def labelled(count: int, draws: torch.Generator) -> Tensor:
        asked.append(frequencies.draw(count, draws))
        conditional: Any = sample
        return conditional(count, draws, asked[-1])

    images = draw_images(labelled, num_images, seed, round, **options)
    return images, torch.cat(asked)[:num_images]
