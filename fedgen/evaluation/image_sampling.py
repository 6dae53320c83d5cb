"""Generated images for a score: the same ones for the same (seed, round), whatever else the process draws."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.data.optional_attributes import optional
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.records import sampling_of
from fedgen.evaluation.splits import Split
from fedgen.images import SeenRange, to_uint8
from fedgen.models.label_frequencies import LabelFrequencies
from fedgen.models.optional_hooks import GenerativeModel
from fedgen.models.sampling import evaluating
from fedgen.progress import track
from fedgen.ranks import spread
from fedgen.seeds import generator, isolated, seed_all

CHUNK = 500
SAMPLES = "the model's samples", "let sample() return images * 2 - 1"  # whose range, and the remedy, for `SeenRange`
Sample = Callable[[int, torch.Generator], Tensor]


@dataclass(frozen=True)
class ImageSampler:
    """A sampler with its settings."""

    draw: Callable[..., Tensor]
    sampling: Mapping[str, Any] = field(default_factory=dict)
    num_classes: int | None = None

    def __call__(self, num_images: int, draws: torch.Generator, labels: Tensor | None = None) -> Tensor:
        """Draw images as `draw` does; image i is of class labels[i] where labels are given."""
        return self.draw(num_images, draws) if labels is None else self.draw(num_images, draws, labels)


class DescribedSampler:
    """A sampler with its settings, all of them optional: a bare function of (number, torch.Generator) has none.

    Attributes:
        sampling: settings that its images depend on beside the weights, as records keep them.
        num_classes: of labels 0 to num_classes - 1 that it takes as its third argument; None if it takes none.
        at_once: whether it draws from a finite store, so that all images are to be asked for in one call.
    """

    sampling: Mapping[str, Any] = MappingProxyType({})
    num_classes: int | None = None
    at_once: bool = False


@torch.no_grad()
def draw_images(
    sample: Sample,
    num_images: int,
    seed: int,
    round: int,
    stream: str = "train",
    chunk: int = CHUNK,
    description: str = "sampling",
    seen: SeenRange | None = None,
) -> Tensor:
    """Images uint8 [num_images, C, H, W] (or points float32 [num_images, D]) of a sampler.

    Drawn in chunks of fixed size, chunk i with the generator of (seed, stream, round, i), so that the first n images
    are the same however many are drawn. Global generators are seeded likewise, for samplers that use them, and put back
    afterwards: drawing changes nothing in the training's random streams. Ranks that are `together` share the chunks.

    Args:
        sample: (number, torch.Generator) to images in [-1, 1], quantised at once; or to uint8 images or points.
        num_images: how many.
        seed: base seed.
        round: the round; -1 before training.
        stream: a name; other streams are independent.
        chunk: images drawn at once; all of them from a sampler that draws from a finite store
            (`DescribedSampler.at_once`).
        description: text of the progress bar.
        seen: takes note of the images' range, and has warned already where several sets are drawn of one model. Floats
            that look like [0, 1] are warned of, no more: they end no training.

    Raises:
        TypeError: if the sampler gives anything but one tensor.
        ValueError: if it gives another number of images, another shape or type, or NaN or infinity.
    """
    images: Tensor | None = None
    seen = SeenRange(*SAMPLES) if seen is None else seen
    if optional(sample, DescribedSampler, "at_once"):
        chunk = max(1, num_images)

    def drawn(i: int) -> Tensor:
        """Chunk i on the CPU: uint8, or float32 for points."""
        seed_all(seed, "sample", stream, round, i)
        part = _checked(sample(chunk, generator(seed, "sample", stream, round, i)), chunk, "the sampler")
        if part.ndim == 4:
            seen.see(part)
            return (part if part.dtype == torch.uint8 else to_uint8(part)).cpu()
        if not torch.isfinite(part).all():
            raise ValueError("points hold NaN or infinity; check the generator that made them")
        return part.float().cpu()

    with isolated():
        parts = spread(drawn, range(-(-num_images // chunk)))
        for i, part in enumerate(track(parts, description, total=num_images, unit="images", step=chunk)):
            if images is None:
                images = torch.empty((num_images, *part.shape[1:]), dtype=part.dtype)
            elif part.shape[1:] != images.shape[1:]:
                raise ValueError(f"the sampler gave {list(part.shape[1:])} after {list(images.shape[1:])}")
            images[i * chunk : (i + 1) * chunk] = part[: num_images - i * chunk]
    if images is None:
        raise ValueError(f"num_images={num_images}: draw at least one image")
    seen.warn()
    return images


def _checked(made: Any, count: int, whose: str) -> Tensor:
    wanted = f"{whose}: sample({count}) must give one tensor, [{count}, C, H, W] of floats in [-1, 1] or [{count}, D]"
    if not isinstance(made, Tensor):
        parts = f" of {', '.join(type(part).__name__ for part in made)}" if isinstance(made, tuple | list) else ""
        raise TypeError(f"{wanted}, and gave a {type(made).__name__}{parts[:80]}; return the images alone")
    if made.ndim not in (2, 4) or len(made) != count:
        raise ValueError(f"{wanted}, and gave {list(made.shape)}")
    if made.ndim == 4 and not (made.is_floating_point() or made.dtype == torch.uint8):
        raise ValueError(f"{wanted}, and gave {made.dtype}; grey levels are torch.uint8")
    return made


def sampler_of(module: nn.Module) -> ImageSampler:
    """The sampler of a model: its `sample` in eval mode, each submodule back in its own mode afterwards.

    A model is class-conditional if its attribute `num_classes` is a number and `sample` takes `labels`, int64 [N]. What
    its images depend on beside its weights is its attribute `sampling` (see `sampling_of`), read here.

    Raises:
        TypeError: if the model has no `sample(num_images, ...)`; of the sampler, for what is not a tensor.
    """
    method, classes = (optional(module, GenerativeModel, name) for name in ("sample", "num_classes"))
    if not callable(method):
        raise TypeError(
            f"{type(module).__name__} has no method sample(num_images, generator=None), which gives images float"
            " [N, C, H, W] in [-1, 1]; add one, so that it can be evaluated"
        )
    taken = inspect.signature(method).parameters

    def sample(num_images: int, draws: torch.Generator, labels: Tensor | None = None) -> Tensor:
        options: dict[str, Any] = {"generator": draws} if "generator" in taken else {}
        options |= {} if labels is None else {"labels": labels}
        with evaluating(module):
            return _checked(method(num_images, **options), num_images, type(module).__name__)

    is_conditional = "labels" in taken and isinstance(classes, int)
    return ImageSampler(sample, sampling_of(module), classes if is_conditional else None)


def inside(context: Callable[[], AbstractContextManager[Any]], sample: Sample) -> ImageSampler:
    """The sampler that enters a context before it samples, e.g. the one that puts a client's model in place."""

    def sample_inside(num_images: int, draws: torch.Generator) -> Tensor:
        with context():
            return sample(num_images, draws).cpu()

    return ImageSampler(sample_inside, optional(sample, DescribedSampler, "sampling"))


def mixture(samplers: Sequence[Sample], weights: Tensor) -> ImageSampler:
    """The sampler of a mixture: sampler k makes a share w_k of the images.

    Within a chunk the shares are exact up to one image (systematic sampling with a random offset, so no small share is
    always rounded away), and the images come in random order, so that any first n are a sample of the mixture too. It
    takes no labels. The weights [K] of the K samplers sum to 1.
    """
    ends = torch.cat([torch.zeros(1, dtype=torch.float64), weights.double().cumsum(0)])
    ends[-1] = 1.0

    def mixed(num_images: int, draws: torch.Generator) -> Tensor:
        offset = torch.rand((), generator=draws, dtype=torch.float64)
        counts = (ends * num_images + offset).floor().diff().long().tolist()
        parts = [sample(count, draws).cpu() for sample, count in zip(samplers, counts) if count]
        return torch.cat(parts)[torch.randperm(num_images, generator=draws)]

    return ImageSampler(mixed, optional(samplers[0], DescribedSampler, "sampling"))


def frequencies_of(split: Split) -> LabelFrequencies | None:
    """The frequencies of the classes among a split's images; None where they have no labels."""
    if split.labels is None:
        return None
    found = LabelFrequencies(len(split.classes))
    found.counts.copy_(torch.bincount(split.labels, minlength=len(split.classes)))
    return found


def labels_problem(sample: Sample, frequencies: LabelFrequencies | None) -> str:
    """The reason why images cannot be asked for by the data's classes; "" for a model that knows all of them."""
    classes = optional(sample, DescribedSampler, "num_classes")
    if classes is None:
        return (
            "needs images of given classes, and this model is unconditional: use one with num_classes and"
            " sample(num_images, generator, labels), or leave the score out"
        )
    wanted = 0 if frequencies is None else frequencies.num_classes
    return "" if 0 < wanted <= classes else f"needs a model of the data's {wanted} classes, and this one has {classes}"


def draw_labelled(
    sample: Sample,
    num_images: int,
    seed: int,
    round: int,
    frequencies: LabelFrequencies | None,
    stream: str = "train",
    chunk: int = CHUNK,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Images as `draw_images` gives them, and the labels int64 [num_images] that a conditional sampler made them of."""
    if frequencies is None or labels_problem(sample, frequencies):
        return draw_images(sample, num_images, seed, round, stream, chunk, **options), None

    def labelled(count: int, draws: torch.Generator) -> Tensor:
        conditional: Any = sample
        return conditional(count, draws, frequencies.draw(count, draws))

    images = draw_images(labelled, num_images, seed, round, stream, chunk, **options)
    # drawn once more: another rank may have drawn the chunk's images
    draws = [generator(seed, "sample", stream, round, i) for i in range(-(-num_images // chunk))]
    return images, torch.cat([frequencies.draw(chunk, one) for one in draws])[:num_images]


class GeneratedImages:
    """The generated images of one model, drawn once a stream and embedded once a stream and embedding."""

    def __init__(
        self, draw: Callable[..., tuple[Tensor, Tensor | None]], embed: Callable[[Panel, Tensor], Tensor]
    ) -> None:
        self._draw, self._embed = draw, embed
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
            self._features[name] = self._embed(panel, self._images) if len(self._images) else self._images
        return self._features[name], self._labels
