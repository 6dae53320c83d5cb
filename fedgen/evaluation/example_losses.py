"""A model's own loss of real examples, for the score that needs one."""

from typing import Any, Protocol

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor

from fedgen.data.lazy import LazyInputs
from fedgen.evaluation.methods import require_method
from fedgen.images import from_uint8
from fedgen.seeds import derive


class ExampleLosses(Protocol):
    """The losses float64 [N] of examples and their labels, at fixed draws.

    Examples are images uint8 [N, C, H, W], points float32 [N, D], texts int64 [N, T], or items of any other structure,
    which are read here.

    What is drawn for example i depends on (seed, i) alone, so that sets of one size are compared at common draws.
    """

    def __call__(self, images: Tensor | LazyInputs, labels: Tensor | None, seed: int, /) -> Tensor: ...


def losses_of(model: Any) -> ExampleLosses:
    """The losses of a model by its method `example_losses(images, labels, seed)`.

    Args:
        model: a module with that method: images [N, C, H, W] in [-1, 1], points [N, D] or texts [N, T] to losses [N].
            It is given their labels if it has classes (`num_classes`), otherwise None. Of data without images it is
            given batches of at most 64 items in their place, of the structure that `training_step` gets and on the
            module's device, without labels.

    Raises:
        TypeError: if it has none, naming it.
    """
    require_method(model, "example_losses(images, labels, seed)", "losses [N] of images [N, C, H, W]", "loss")

    def losses(images: Tensor | LazyInputs, labels: Tensor | None, seed: int) -> Tensor:
        if isinstance(images, LazyInputs) and not images.has_images:
            return _of_batches(model, images, seed)
        images = images[:]
        inputs = from_uint8(images) if images.dtype == torch.uint8 else images
        asked = labels if getattr(model, "num_classes", None) is not None else None
        return _checked(model.example_losses(inputs, asked, seed=seed), len(images), "images")

    return losses


def _of_batches(model: Any, items: LazyInputs, seed: int) -> Tensor:
    """The losses of items without images, batch by batch."""
    device, found = getattr(model, "device", "cpu"), []
    for place, (batch, count) in enumerate(items.batches()):
        moved = move_data_to_device(batch, device)
        found.append(_checked(model.example_losses(moved, None, seed=derive(seed, "losses", place)), count, "items"))
    return torch.cat(found)


def _checked(losses: Tensor, count: int, what: str) -> Tensor:
    if losses.shape != (count,):
        raise ValueError(f"example_losses of {count} {what} must be [{count}], got {list(losses.shape)}")
    return losses.detach().double().cpu()
