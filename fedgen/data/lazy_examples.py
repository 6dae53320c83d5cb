"""Examples that lie on disk, or in anybody's Dataset: labels and owners at hand, images read when they are needed."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from fedgen.data.examples import RANKS, Examples
from fedgen.data.items import ImagesOf, Items, ReadTask, collate_items, collate_levels, first_images
from fedgen.data.optional_attributes import DescribedDataset, optional
from fedgen.data.text import widened
from fedgen.images import channels_first, to_uint8
from fedgen.io.tensor_files import hash_chunks
from fedgen.seeds import derive, item_seed

PROBED = 64  # images that tell the range of all
CHUNK = 64  # images read at a time
OR_LOSS = "; or measure the model's own loss alone, scores=['loss']"
_MEASURED = derive(0, "measured")  # what transforms draw where images are measured: the same in every run


class NoImagesError(ValueError):
    """Items that have no images or floats to measure; a model may still be asked for its losses of them."""


class ImageReader:
    """Images (uint8, or floats in [-1, 1] or `value_range`) or floats as they are, of items, as they are measured."""

    def __init__(self, items: Items, name: str, images_of: ImagesOf, value_range: tuple[float, float] | None) -> None:
        if value_range is not None and not value_range[0] < value_range[1]:
            raise ValueError(f"value_range={value_range}: give the least and the largest value of images, as (0, 1)")
        self.items, self.name, self.images_of = items, name, images_of
        self.value_range = None if value_range is None else (float(value_range[0]), float(value_range[1]))

    @cached_property
    def probe(self) -> Tensor:
        """The first sample [1, ...] as it is measured; ValueError without, or for floats of unknown range."""
        found = self._found(self.items.read_aside(measured_task([0])))
        if found.is_floating_point() and found.ndim == 4 and self.value_range is None:
            some = np.unique(np.linspace(0, len(self.items) - 1, min(PROBED, len(self.items)), dtype=np.int64))
            self._check_range([self._found(self.items.read_aside(measured_task([at]))) for at in some])
        return self._measured(found)

    def read(self, positions: Sequence[int]) -> Tensor:
        """The images uint8 [n, C, H, W], or floats float32 [n, ...] of other ranks, at these positions."""
        _ = self.probe
        runs = self.items.runs(list(positions))
        return torch.cat([self._measured(self._found(self.items.read_aside(measured_task(run)))) for run in runs])

    def stream(self, chunks: Sequence[Sequence[int]]) -> Iterator[Tensor]:
        """The images of each of these lists of positions, read ahead where the items have workers."""
        _ = self.probe
        yield from (self._measured(self._found(batch)) for batch in self.items.stream(map(measured_task, chunks)))

    def _found(self, batch: Any) -> Tensor:
        try:
            images = torch.as_tensor(self.images_of(batch))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise NoImagesError(
                f"{self.name} has no images to measure ({error}); give images_of, a function from a batch to its"
                f" images [B, C, H, W] or points [B, D]{OR_LOSS}"
            ) from error
        is_images = images.ndim == 4 and (images.dtype == torch.uint8 or images.is_floating_point())
        if not (is_images or (images.ndim >= 2 and images.is_floating_point())):
            raise NoImagesError(
                f"{self.name} has no images to measure: images_of gives {images.dtype} {list(images.shape)}, not images"
                f" [B, C, H, W] (uint8, or floats) or floats [B, D], [B, C, T], [B, C, D, H, W]"
                f"{'; grey images need a channel, x[:, None]' * (images.ndim == 3)}{OR_LOSS}"
            )
        return channels_first(images) if is_images else images

    def _measured(self, images: Tensor) -> Tensor:
        if images.ndim != 4:
            if not torch.isfinite(images).all():
                raise ValueError(f"{self.name}: {RANKS.get(images.ndim, 'arrays')} hold NaN or infinity")
            return images.float()
        if images.dtype == torch.uint8:
            return images
        if self.value_range is not None and self.value_range != (-1, 1):
            least, most = self.value_range
            images = (images.float() - least) * (2 / (most - least)) - 1
        return to_uint8(images)

    def _check_range(self, images: Sequence[Tensor]) -> None:
        least, most = min(float(image.min()) for image in images), max(float(image.max()) for image in images)
        if least < 0 and least >= -1.001 and most <= 1.001:
            return
        looks = "[0, 1], as ToTensor() makes them" if least >= 0 and most <= 1.001 else f"[{least:.3g}, {most:.3g}]"
        likely = (0, 255) if least >= 0 and 1.001 < most <= 255 else (0, 1)
        raise ValueError(
            f"float images of {self.name} lie in {looks}, and images are measured in [-1, 1]: say"
            f" value_range={likely}, or what it is ((-1, 1) if these values are meant)"
        )


class LazyInputs:
    """Images uint8 [N, C, H, W], or floats float32 [N, ...], of a reader, which are read where they are indexed."""

    def __init__(self, reader: ImageReader, positions: Tensor) -> None:
        self.reader, self.positions = reader, positions

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def has_images(self) -> bool:
        """Whether there are images or floats to measure; if not, there are `batches` alone."""
        try:
            _ = self.reader.probe
        except NoImagesError:
            return False
        return True

    def batches(self, size: int = CHUNK) -> Iterator[tuple[Any, int]]:
        """Batches of at most `size` items, as their `collate_fn` makes them, in order, with how many each has."""
        runs = self._runs(size)
        yield from zip(self.reader.items.stream(map(measured_task, runs)), map(len, runs))

    def _runs(self, size: int) -> list[list[int]]:
        chunks = [chunk.tolist() for chunk in self.positions.split(size) if len(chunk)]
        return [run for chunk in chunks for run in self.reader.items.runs(chunk)]

    @property
    def dtype(self) -> torch.dtype:
        return self.reader.probe.dtype

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), *self.reader.probe.shape[1:]))

    @property
    def ndim(self) -> int:
        return self.reader.probe.ndim

    def __getitem__(self, index: Any) -> Tensor:
        """The images at a slice, or at positions, in memory."""
        chosen = self.positions[torch.as_tensor(index) if isinstance(index, np.ndarray) else index]
        if chosen.ndim == 0:
            return self.reader.read([int(chosen)])[0]
        parts = list(LazyInputs(self.reader, chosen).split(CHUNK))
        return torch.cat(parts) if parts else self.reader.probe[:0]

    def view(self, own: Tensor | slice) -> "LazyInputs":
        """Those at some of these positions, to be read later."""
        return LazyInputs(self.reader, self.positions[own])

    def split(self, size: int) -> "_Chunks":
        return _Chunks(self.reader, self._runs(size))

    def identity(self) -> str | None:
        """These images' identity, as their data sets know it by `content_id()` without reading them; None otherwise."""
        told = [optional(part.dataset, DescribedDataset, "content_id") for part in self.reader.items.parts]
        functions = [self.reader.images_of, *(part.collate for part in self.reader.items.parts)]
        if not all(told) or any(f not in (first_images, collate_items, collate_levels) for f in functions):
            return None  # a user's function may make other images of the same items
        own = hash_chunks("positions", torch.int64, [len(self)], [self.positions])
        reading = [*(f.__name__ for f in functions), self.reader.value_range]
        return json.dumps([[one() for one in told if one], own, list(self.shape[1:]), reading])


class _Chunks(Sequence[Tensor]):
    """Lists of positions as the images there; going through them reads ahead."""

    def __init__(self, reader: ImageReader, positions: list[list[int]]) -> None:
        self._reader, self._positions = reader, positions

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _Chunks(self._reader, self._positions[index])
        return self._reader.read(self._positions[index])

    def __iter__(self) -> Iterator[Tensor]:
        return self._reader.stream(self._positions)


@dataclass(frozen=True, eq=False, repr=False)
class LazyExamples(Examples):
    """Examples that are read when needed: `inputs` as they are measured, `items` at `positions` for training."""

    inputs: Any
    items: Items = None  # type: ignore[assignment]
    positions: Tensor = None  # type: ignore[assignment]

    def _check_inputs(self) -> None:
        if self.positions is None:
            object.__setattr__(self, "positions", torch.arange(len(self.items)))

    def _tensor(self, part: str, values: Any) -> Any:
        return values if part == "inputs" else super()._tensor(part, values)

    def __repr__(self) -> str:
        return f"LazyExamples({self.name!r}, {len(self)} items, {len(self.classes)} classes)"

    @property
    def is_images(self) -> bool:
        try:
            return bool(self.inputs.ndim == 4)
        except ValueError:
            return False

    def inputs_at(self, positions: Tensor) -> Any:
        return self.inputs.view(positions)

    def subset(self, indices: Tensor | np.ndarray | Sequence[int], name: str | None = None) -> Self:
        found = super().subset(indices, name)
        return replace(found, positions=self.positions[self._positions_of(indices)])

    def tasks(
        self, positions: Tensor, base: int, visits: Tensor | None = None, places: Tensor | None = None
    ) -> ReadTask:
        """The task of a batch at positions int64 [B]: items draw by `base`, their visits so far, and their places."""
        known = (positions if places is None else places).tolist()
        counted = [0] * len(known) if visits is None else visits.tolist()
        seeds = [item_seed(base, place, visit) for place, visit in zip(known, counted)]
        return ReadTask(self.positions[positions].tolist(), seeds)


def make_lazy(
    items: Items,
    name: str,
    labels: Tensor | None = None,
    classes: tuple[str, ...] = (),
    owners: Tensor | None = None,
    owner_names: tuple[str, ...] = (),
    measured: Items | None = None,
    images_of: ImagesOf | None = None,
    value_range: tuple[float, float] | None = None,
) -> LazyExamples:
    """Lazy examples of all items; `measured` are the same ones without augmentation (ValueError if not as many)."""
    measured = measured or items
    if len(measured) != len(items):
        raise ValueError(
            f"evaluation_data of {name} has {len(measured)} items and data {len(items)}; they must be the same items"
        )
    reader = ImageReader(measured, name, images_of or first_images, value_range)
    inputs = LazyInputs(reader, torch.arange(len(items)))
    labels = torch.zeros(len(items), dtype=torch.int64) if labels is None else labels
    return LazyExamples(inputs, labels, name, classes, owners, owner_names, items)


def measured_task(positions: Sequence[int]) -> ReadTask:
    """The task of items as they are measured: what transforms draw is the same in every run."""
    return ReadTask([int(at) for at in positions], [item_seed(_MEASURED, int(at)) for at in positions])


def join_inputs(parts: Sequence[Any]) -> Any:
    """Inputs one after the other: tensors, or views of data on disk, of which nothing is read if all are alike."""
    if all(isinstance(part, Tensor) for part in parts):
        texts = all(part.dtype == torch.int64 and part.ndim == 2 for part in parts)
        width = max((part.shape[1] for part in parts), default=0) if texts else 0  # one client's texts may be longer
        return torch.cat([widened(part, width) for part in parts] if texts else list(parts))
    lazy = [part for part in parts if isinstance(part, LazyInputs)]
    readers = list({id(part.reader): part.reader for part in lazy}.values())
    if len(lazy) < len(parts) or len({(reader.images_of, reader.value_range) for reader in readers}) > 1:
        return torch.cat([part[:] for part in parts])
    if len(readers) == 1:
        return LazyInputs(readers[0], torch.cat([part.positions for part in lazy]))
    workers = max(reader.items.num_workers for reader in readers)
    items = Items([part for reader in readers for part in reader.items.parts], workers)
    name = f"{readers[0].name} and {len(readers) - 1} more"
    starts = dict(zip(map(id, readers), accumulate((len(reader.items) for reader in readers), initial=0)))
    positions = torch.cat([part.positions + starts[id(part.reader)] for part in lazy])
    return LazyInputs(ImageReader(items, name, readers[0].images_of, readers[0].value_range), positions)


def in_parts(inputs: Any, counts: Sequence[int]) -> Sequence[Any]:
    """Inputs cut into so many each: a tensor, or a view of data on disk, of which nothing is read."""
    if isinstance(inputs, Tensor):
        return inputs.split(list(counts))
    return [inputs.view(slice(start, end)) for start, end in pairwise(accumulate(counts, initial=0))]
