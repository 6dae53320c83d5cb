"""The images that one evaluation asks of models: the same ones for the same seed and round."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedgen.data.optional_attributes import optional
from fedgen.evaluation.generation.image_sampling import (
    CHUNK,
    SAMPLES,
    DescribedSampler,
    Sample,
    chunk_draws,
    draw_images,
)
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.real.real_side import RealSide
from fedgen.evaluation.real.splits import Split
from fedgen.images import SeenRange
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
    classes = optional(sample, DescribedSampler, "num_classes")
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
    classes = optional(sample, DescribedSampler, "num_classes")
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


class GeneratedImages:
    """The generated images of one model, drawn once a stream and embedded once a stream and embedding.

    Args:
        real: which embeds.
        draw: images and their labels, of a stream.

    Attributes:
        first: the images of the first stream that was asked for; none where no score needed some.
    """

    def __init__(self, real: RealSide, draw: Callable[..., tuple[Tensor, Tensor | None]]) -> None:
        self._real, self._draw = real, draw
        self._stream = ""
        self._features: dict[str, Tensor] = {}
        self._images = self.first = torch.empty(0)
        self._labels: Tensor | None = None

    def of(self, split: Split, panel: Panel) -> tuple[Tensor, Tensor | None]:
        """Features, or images for a panel that takes those, and labels. Splits of one stream come one after another."""
        if panel.on_model:
            return torch.empty(0), None
        if split.stream != self._stream:
            self._images, self._labels = self._draw(stream=split.stream, description=f"sampling for {split.stream}")
            self.first = self.first if self._stream else self._images
            self._stream, self._features = split.stream, {}
        name = panel.embedding.name
        if name not in self._features:
            self._features[name] = self._real.embed(panel, self._images) if len(self._images) else self._images
        return self._features[name], self._labels


class ImageDraws:
    """Draws images of models; of a class-conditional one, by the classes of the data as often as they occur.

    Args:
        split: whose classes those are.
        seed: of all images.
        chunk: images drawn at once.
        needed: whether a score needs images; where none does, none are drawn.
    """

    def __init__(self, split: Split, seed: int, chunk: int = CHUNK, needed: bool = True) -> None:
        self._frequencies = frequencies_of(split)
        self._seed, self._chunk, self._needed = seed, chunk, needed
        self._seen = SeenRange(*SAMPLES)

    def check_labels(self, sample: Sample, score: str) -> None:
        """Raise ValueError for a model that cannot be asked for the data's classes, where a score needs that.

        Args:
            sample: the model's sampler.
            score: the name of the score.
        """
        check_takes_labels(sample, self._frequencies, score)

    def draw(
        self, sample: Sample, count: int, round: int, chunk: int | None = None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Images, and the labels that they were asked for if the data have labels and the model takes them.

        No images where no score needs some. Of each model a range that looks wrong is warned of, once in all.

        Args:
            sample: the model's sampler.
            count: how many.
            round: part of the seed.
            chunk: images drawn at once; as for all by default.
            options: `stream` and `description`, as for `draw_images`.
        """
        if not self._needed:
            return torch.empty(0), None
        self._seen = SeenRange(*SAMPLES, told=self._seen.told)
        options |= {"chunk": self._chunk if chunk is None else chunk, "seen": self._seen}
        if self._frequencies is not None and takes_labels(sample, self._frequencies):
            return draw_labelled(sample, count, self._seed, round, self._frequencies, **options)
        return draw_images(sample, count, self._seed, round, **options), None
