"""Generated images for a score: the same ones for the same (seed, round), whatever else the process draws."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.data.examples import kind_of
from fedgen.data.lazy_examples import join_inputs
from fedgen.data.optional_attributes import optional
from fedgen.data.text import encode_all, widened
from fedgen.evaluation.records import sampling_of
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
    """A sampler with its settings: a model's, as `sampler_of` makes it, or a function's."""

    draw: Callable[..., Tensor]  # gives images for their number and what it `takes`, by name
    sampling: Mapping[str, Any] = field(default_factory=dict)  # as `DescribedSampler` has it, likewise the next
    num_classes: int | None = None
    takes: Sequence[str] = ("generator",)  # of "generator" and "labels"
    context: Callable[[], AbstractContextManager[Any]] = nullcontext  # in which it draws, such as a model's eval mode
    name: str = "the sampler"  # for messages
    at_once: bool = False

    @classmethod
    def of(cls, sample: "Sample") -> "ImageSampler":
        """The sampler of a function of (number, torch.Generator), and of labels if it has `num_classes`."""
        if isinstance(sample, cls):
            return sample
        names = "sampling", "num_classes", "at_once"
        sampling, classes, at_once = (optional(sample, DescribedSampler, name) for name in names)
        takes = ("generator",) if classes is None else ("generator", "labels")
        return cls(lambda num, **given: sample(num, *given.values()), sampling, classes, takes, at_once=at_once)

    def given(self, draws: torch.Generator, labels: Tensor | None) -> dict[str, Any]:
        asked = {"generator": draws} if labels is None else {"generator": draws, "labels": labels}
        return {name: value for name, value in asked.items() if name in self.takes}

    def __call__(self, num_images: int, draws: torch.Generator, labels: Tensor | None = None) -> Tensor:
        """Draw images, or texts as tokens; image i is of class labels[i] where labels are given."""
        with self.context():
            made = self.draw(num_images, **self.given(draws, labels))
        return _checked(made, num_images, self.name)

    def labels_problem(self, frequencies: LabelFrequencies | None) -> str:
        """The reason why images cannot be asked for by the data's classes; "" for a model that knows all of them."""
        if self.num_classes is None:
            return (
                "needs images of given classes, and this model is unconditional: use one with num_classes and"
                " sample(num_images, generator, labels), or leave the score out"
            )
        wanted = 0 if frequencies is None else frequencies.num_classes
        known = 0 < wanted <= self.num_classes
        return "" if known else f"needs a model of the data's {wanted} classes, and this one has {self.num_classes}"


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
    frequencies: LabelFrequencies | None = None,
    first: int = 0,
) -> Tensor:
    """Images uint8 [num_images, C, H, W] of a sampler, texts' tokens int64 [num_images, T], or float32 points
    [num_images, D], series, volumes or other arrays [num_images, ...] as they are.

    Drawn in chunks of fixed size, chunk i with the generator of (seed, stream, round, i), so that the first n images
    are the same however many are drawn. Global generators are seeded likewise, for samplers that use them, and put back
    afterwards: drawing changes nothing in the training's random streams. Ranks that are `together` share the chunks.

    Args:
        sample: (number, torch.Generator) to images in [-1, 1], quantised at once; or to uint8 images, floats of
            another rank, or texts, as strings or tokens; see `DescribedSampler`.
        num_images: how many.
        seed: base seed.
        round: the round; -1 before training.
        stream: a name; other streams are independent.
        chunk: images drawn at once; all of them from a sampler that draws from a finite store
            (`DescribedSampler.at_once`).
        description: text of the progress bar.
        seen: takes note of the images' range, and has warned already where several sets are drawn of one model. Floats
            that look like [0, 1] are warned of, no more: they end no training.
        frequencies: of the classes that a class-conditional sampler is asked for; see `drawn_labels`.
        first: how many of the images are drawn already and left out; whole chunks.

    Raises:
        TypeError: if the sampler gives anything but one tensor or a list of strings.
        ValueError: if it gives another number of images, another shape or type, or NaN or infinity.
    """
    images: Tensor | None = None
    seen = SeenRange(*SAMPLES) if seen is None else seen
    seen.start()
    sampler = ImageSampler.of(sample)
    if sampler.at_once and frequencies is None:
        chunk = max(1, num_images)

    def drawn(i: int) -> Tensor:
        """Chunk i on the CPU: uint8, int64 for texts, float32 for all others."""
        seed_all(seed, "sample", stream, round, i)
        draws = generator(seed, "sample", stream, round, i)
        given = sampler.given(draws, None if frequencies is None else frequencies.draw(chunk, draws))
        with sampler.context():
            made = sampler.draw(chunk, **given)
        part = _checked(made, chunk, sampler.name)
        if part.dtype == torch.int64:
            return part.cpu()
        if part.ndim == 4:
            seen.see(part)
            return (part if part.dtype == torch.uint8 else to_uint8(part)).cpu()
        if not torch.isfinite(part).all():
            raise ValueError(f"{kind_of(part)} hold NaN or infinity; check the generator that made them")
        return part.float().cpu()

    with isolated():
        parts, count = spread(drawn, range(first // chunk, -(-num_images // chunk))), num_images - first
        for i, part in enumerate(track(parts, description, total=count, unit="images", step=chunk)):
            if images is None:
                images = torch.empty((count, *part.shape[1:]), dtype=part.dtype)
            if part.dtype == torch.int64:  # a chunk's texts are as long as its longest
                width = max(part.shape[1], images.shape[1])
                part, images = widened(part, width), widened(images, width)
            elif part.shape[1:] != images.shape[1:]:
                raise ValueError(f"the sampler gave {list(part.shape[1:])} after {list(images.shape[1:])}")
            images[i * chunk : (i + 1) * chunk] = part[: count - i * chunk]
    if images is None:
        raise ValueError(f"num_images={num_images}: draw at least one image")
    seen.warn()
    return images


def _checked(made: Any, count: int, whose: str) -> Tensor:
    """The images, texts' tokens or other floats that a sampler gave."""
    if isinstance(made, list | tuple) and all(isinstance(one, str) for one in made):
        made = encode_all(made)
    wanted = (
        f"{whose}: sample({count}) must give one tensor, [{count}, C, H, W] of floats in [-1, 1], or floats of"
        f" another rank ([{count}, D], [{count}, C, T], [{count}, C, D, H, W]), or a list of strings"
    )
    if not isinstance(made, Tensor):
        parts = f" of {', '.join(type(part).__name__ for part in made)}" if isinstance(made, tuple | list) else ""
        given = "None" if made is None else f"a {type(made).__name__}{parts[:80]}; return the images alone"
        raise TypeError(f"{wanted}, and gave {given}")
    if made.ndim < 2 or len(made) != count:
        raise ValueError(f"{wanted}, and gave {list(made.shape)}")
    if made.ndim != 2 and not (made.is_floating_point() or (made.ndim == 4 and made.dtype == torch.uint8)):
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
    takes = [name for name in ("generator", "labels") if name in inspect.signature(method).parameters]
    classes = classes if "labels" in takes and isinstance(classes, int) else None
    return ImageSampler(method, sampling_of(module), classes, takes, partial(evaluating, module), type(module).__name__)


def inside(context: Callable[[], AbstractContextManager[Any]], sample: Sample) -> ImageSampler:
    """The sampler that enters a context before it samples, e.g. the one that puts a client's model in place."""
    sampler = ImageSampler.of(sample)

    @contextmanager
    def both() -> Iterator[None]:
        with context(), sampler.context():
            yield

    return replace(sampler, context=both)


def mixture(samplers: Sequence[Sample], weights: Tensor) -> ImageSampler:
    """The sampler of a mixture: sampler k makes a share w_k of the images.

    Within a chunk the shares are exact up to one image (systematic sampling with a random offset, so no small share is
    always rounded away), and the images come in random order, so that any first n are a sample of the mixture too. It
    takes no labels. The weights [K] of the K samplers sum to 1.
    """
    ends = torch.cat([torch.zeros(1, dtype=torch.float64), weights.double().cumsum(0)])
    ends[-1] = 1.0

    def mixed(num_images: int, generator: torch.Generator) -> Tensor:
        offset = torch.rand((), generator=generator, dtype=torch.float64)
        counts = (ends * num_images + offset).floor().diff().long().tolist()
        parts = [sample(count, generator).cpu() for sample, count in zip(samplers, counts) if count]
        return join_inputs(parts)[torch.randperm(num_images, generator=generator)]

    return ImageSampler(mixed, optional(samplers[0], DescribedSampler, "sampling"))


def drawn_labels(
    num_images: int, seed: int, round: int, stream: str, chunk: int, frequencies: LabelFrequencies | None
) -> Tensor | None:
    """The labels int64 [num_images] that `draw_images` asked for, if it did; another rank may have."""
    if frequencies is None:
        return None
    draws = [generator(seed, "sample", stream, round, i) for i in range(-(-num_images // chunk))]
    return torch.cat([frequencies.draw(chunk, one) for one in draws])[:num_images]
