"""A model's own loss of real images, for the score that needs one."""

from typing import Any, Protocol

import torch
from torch import Tensor

from fedgen.evaluation.methods import require_method
from fedgen.images import from_uint8


class ExampleLosses(Protocol):
    """The losses float64 [N] of images uint8 [N, C, H, W], or points float32 [N, D], and their labels, at fixed draws.

    What is drawn for example i depends on (seed, i) alone, so that sets of one size are compared at common draws.
    """

    def __call__(self, images: Tensor, labels: Tensor | None, seed: int, /) -> Tensor: ...


def losses_of(model: Any) -> ExampleLosses:
    """The losses of a model by its method `example_losses(images, labels, seed)`.

    Args:
        model: a module with that method: images [N, C, H, W] in [-1, 1] to losses [N]. It is given the images' labels
            if it has classes (`num_classes`), otherwise None.

    Raises:
        TypeError: if it has none, naming it.
    """
    require_method(model, "example_losses(images, labels, seed)", "losses [N] of images [N, C, H, W]", "loss")

    def losses(images: Tensor, labels: Tensor | None, seed: int) -> Tensor:
        inputs = from_uint8(images) if images.dtype == torch.uint8 else images
        asked = labels if getattr(model, "num_classes", None) is not None else None
        found: Tensor = model.example_losses(inputs, asked, seed=seed)
        if found.shape != (len(images),):
            raise ValueError(f"example_losses of {len(images)} images must be [{len(images)}], got {list(found.shape)}")
        return found.detach().double().cpu()

    return losses
