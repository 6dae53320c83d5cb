"""Several losses of the same images as one objective of what each of them sees."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedgen.losses.embedded import EmbeddedLoss
from fedgen.losses.gradient_cache import cache_generator


class ImageLosses:
    """The sum of losses of the same images, from images at once or a chunk at a time.

    Args:
        losses: scores of images, or callables that turn images [m, C, H, W] in [-1, 1] into a scalar.

    Examples:
        >>> import torch
        >>> from fedgen.losses import ImageLosses
        >>> total = ImageLosses([lambda images: images.mean(), lambda images: images.square().mean()])
        >>> latents = torch.full((2, 1, 1, 1), 3.0)
        >>> [float(part) for part in total.backward_parts(torch.nn.Identity(), latents, None, note=print)]
        tensor(12.)
        [12.0]
    """

    def __init__(self, losses: Sequence[Callable[..., Any]]) -> None:
        self.losses = list(losses)
        self._widths: list[int] = []
        self._shape: tuple[int, ...] = ()

    def backward_parts(
        self, generator: nn.Module, latents: Tensor, chunk: int | None, note: Callable[[Tensor], None]
    ) -> Iterator[Tensor]:
        """Scalars whose backward passes, each before the next is taken, give the gradient of the sum.

        Args:
            generator: latents to images in [-1, 1]. One whose images depend on each other (BatchNorm in training mode)
                sees chunks as batches.
            latents: [m, ...], one an image.
            chunk: images made and embedded at once, their gradient cached; all of them by default.
            note: receives the sum, once, without gradient.
        """
        if chunk is None or chunk >= len(latents):
            images = generator(latents)
            total = torch.stack([loss(images).float() for loss in self.losses]).sum()
            note(total.detach())
            yield total
            return

        def objective(features: Tensor) -> Tensor:
            total = self._objective(features)
            note(total.detach())
            return total

        yield from cache_generator(objective, self._encode, generator, latents, chunk)

    def _encode(self, images: Tensor) -> Tensor:
        """Return what every loss sees of the images, side by side [m, sum of D]: features, or the images themselves."""
        self._shape = images.shape[1:]
        seen = [loss.encode(images) if isinstance(loss, EmbeddedLoss) else images.flatten(1) for loss in self.losses]
        self._widths = [part.shape[1] for part in seen]
        return torch.cat(seen, dim=1)

    def _objective(self, seen: Tensor) -> Tensor:
        values = []
        for loss, part in zip(self.losses, seen.split(self._widths, dim=1)):
            if isinstance(loss, EmbeddedLoss):
                values.append(loss.objective(part))
            else:
                values.append(loss(part.unflatten(1, self._shape)))
        return torch.stack([value.float() for value in values]).sum()
