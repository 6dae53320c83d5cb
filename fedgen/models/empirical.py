"""A generator that needs no training: it draws from stored images.

With it the papers make generators whose quality is known: all images of one class ("perfect" for that class), mixtures
of classes, and an image with its nearest neighbours, whose number sets the variance.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedgen.data import Examples, ImageFolder
from fedgen.images import from_uint8
from fedgen.models.require import require


class EmpiricalGenerator:
    """Draws from stored images or points.

    It is a sampler, so it goes where models go: `evaluate(generator, clients)`. Without replacement nothing is drawn
    twice: its attribute `at_once` makes evaluations ask for all images in one call.

    Args:
        examples: what to draw from; the images of several groups, if there are groups.
        groups: positions of each group's images; all images as one group if None.
        shares: of the images drawn, the part from each group, normalised here; all images alike if None.
        replacement: whether an image may be drawn twice.
        name: what it is called in messages; the examples' name if None.

    Raises:
        ValueError: for no images, or shares that are not positive numbers, one a group.
    """

    def __init__(
        self,
        examples: Examples,
        groups: Sequence[Tensor] | None = None,
        shares: Sequence[float] | None = None,
        replacement: bool = False,
        name: str | None = None,
    ) -> None:
        self.inputs = examples.inputs
        self.name = name or examples.name
        self.replacement, self.at_once = replacement, not replacement
        chosen = [torch.arange(len(examples))] if groups is None else list(groups)
        if not chosen or any(len(group) == 0 for group in chosen):
            raise ValueError(f"{self.name}: there is no image to draw from")
        parts = [1.0] * len(chosen) if shares is None else list(shares)
        if len(parts) != len(chosen) or not all(0 < part < float("inf") for part in parts):
            raise ValueError(
                f"{self.name}: shares must be positive numbers, one for each of {len(chosen)}, got {shares}"
            )
        self._groups = [torch.cat(chosen)] if shares is None else chosen
        weights = torch.tensor([1.0] if shares is None else parts, dtype=torch.float64)
        self._ends = torch.cat([torch.zeros(1, dtype=torch.float64), (weights / weights.sum()).cumsum(0)])
        self._ends[-1] = 1.0

    @classmethod
    def of_classes(
        cls,
        examples: Examples,
        classes: Sequence[str] | Mapping[str, float],
        replacement: bool = False,
        name: str | None = None,
    ) -> "EmpiricalGenerator":
        """Draws from some classes: one, the union of several, or a mixture with given shares.

        Args:
            examples: labelled images.
            classes: names of classes, all their images being alike; or each with its share of the images drawn.
            replacement: whether an image may be drawn twice.
            name: what it is called; examples and classes if None.

        Raises:
            ValueError: for a class that is not there, is given twice, or has no images.
        """
        wanted = list(classes)
        known = list(examples.classes)
        for label in wanted:
            if label not in known or wanted.count(label) > 1:
                problem = "is given twice" if label in known else f"is not there; it has {', '.join(known) or 'none'}"
                raise ValueError(f"{examples.name}: class {label!r} {problem}")
        groups = [(examples.labels == known.index(label)).nonzero().flatten() for label in wanted]
        for label, group in zip(wanted, groups):
            require(len(group) > 0, f"{examples.name}: class {label!r} has no images to draw from")
        shares = list(classes.values()) if isinstance(classes, Mapping) else None
        return cls(examples, groups, shares, replacement, name or f"{examples.name}, {' and '.join(wanted)}")

    @classmethod
    def of_neighbours(
        cls,
        examples: Examples,
        features: Tensor,
        anchor: int,
        count: int,
        replacement: bool = False,
        name: str | None = None,
    ) -> "EmpiricalGenerator":
        """Draws from one image and its `count` nearest neighbours: the fewer, the less they vary.

        Args:
            examples: images or points.
            features: of all examples [N, D], in which others are near; score in another embedding than these.
            anchor: position of the image.
            count: neighbours besides it, so that count + 1 images are stored.
            replacement: whether an image may be drawn twice.
            name: what it is called; examples, anchor and count if None.

        Raises:
            ValueError: if features are not one row an example, or there is no such anchor or too few neighbours.
        """
        if len(features) != len(examples):
            raise ValueError(f"{examples.name}: features [{len(examples)}, D] are needed, got {list(features.shape)}")
        group = nearest(features, anchor, count)
        return cls(examples, [group], None, replacement, name or f"{examples.name}, {count} nearest to {anchor}")

    @classmethod
    def of_folder(
        cls, root: str | Path, size: int | None = None, channels: int = 3, replacement: bool = False
    ) -> "EmpiricalGenerator":
        """Draws from the images of a folder, as `ImageFolder` reads them."""
        return cls(ImageFolder(root, size, channels).load("train"), replacement=replacement)

    @property
    def positions(self) -> Tensor:
        """Positions of the stored images among the examples, int64, group after group."""
        return torch.cat(self._groups)

    def __len__(self) -> int:
        return sum(len(group) for group in self._groups)

    def sample(self, num_images: int, generator: torch.Generator | None = None, labels: Tensor | None = None) -> Tensor:
        """Images float32 [num_images, C, H, W] in [-1, 1], or points [num_images, D], in random order.

        Quantised again they are the stored ones to the bit. In a mixture each group's share is exact up to one image.

        Args:
            num_images: how many.
            generator: of the draws; the global one if None.
            labels: must be None: what is drawn depends on the groups alone.

        Raises:
            ValueError: if more are asked for than are stored and nothing may be drawn twice.
        """
        require(labels is None, f"{self.name} draws without labels; make a generator of_classes instead")
        require(num_images >= 0, f"num_images must not be negative, got {num_images}")
        require(num_images <= len(self) or self.replacement, self._too_few(num_images, len(self)))
        offset = torch.rand((), generator=generator, dtype=torch.float64) if len(self._groups) > 1 else 0.0
        counts = (self._ends * num_images + offset).floor().diff().long().tolist()
        drawn = torch.cat([self._draw(group, n, generator) for group, n in zip(self._groups, counts)])
        chosen = self.inputs[drawn[torch.randperm(num_images, generator=generator)]]
        return from_uint8(chosen) if chosen.dtype == torch.uint8 else chosen

    def __call__(self, num_images: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw as `sample` does: the generator is a sampler."""
        return self.sample(num_images, generator)

    def _draw(self, group: Tensor, number: int, generator: torch.Generator | None) -> Tensor:
        if self.replacement:
            return group[torch.randint(len(group), (number,), generator=generator)]
        require(number <= len(group), self._too_few(number, len(group), " from one class"))
        return group[torch.randperm(len(group), generator=generator)[:number]]

    def _too_few(self, asked: int, stored: int, where: str = "") -> str:
        return (
            f"{self.name}: {asked} images are asked for{where}, and {stored} are stored; ask for fewer, or take "
            "replacement=True"
        )


def nearest(features: Tensor, anchor: int, count: int) -> Tensor:
    """Positions int64 [count + 1] of a row and its nearest others, nearest first; of equally near the earlier."""
    total = len(features)
    require(0 <= anchor < total, f"anchor {anchor} is none of the {total} images")
    require(0 <= count < total, f"{count} neighbours are asked for, but an image has {total - 1} others")
    centre = features[anchor].double()
    distances = torch.cat([(part.double() - centre).square().sum(1) for part in features.split(4096)])
    distances[anchor] = -1.0  # before its own copies
    return distances.argsort(stable=True)[: count + 1]
