"""A model that answers with real digits of the class it is asked for: the best a conditional model can be."""

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from fedgen.data import Digits
from fedgen.images import from_uint8


class ClassDigits(L.LightningModule):
    """Training moves a number that nothing depends on; fewer steps of sampling darken the images.

    Args:
        num_classes: None makes it unconditional.
        optimised_on: embeddings that a loss is said to use.
    """

    def __init__(self, num_classes: int | None = 10, optimised_on: list[str] | None = None) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.zeros(()))
        self.num_classes, self.optimised_on = num_classes, optimised_on or []
        self._steps = 10

    @property
    def sampling(self) -> dict[str, Any]:
        return {"steps": self._steps}

    @sampling.setter
    def sampling(self, settings: dict[str, Any]) -> None:
        self._steps = settings["steps"]

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return (self.number - batch[0].mean()) ** 2

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def sample(self, num_images: int, generator: torch.Generator | None = None, labels: Tensor | None = None) -> Tensor:
        digits = Digits().load("train")
        asked = torch.randint(10, (num_images,), generator=generator) if labels is None else labels
        draws = torch.rand(num_images, len(digits), generator=generator) * (digits.labels == asked[:, None])
        return from_uint8(digits.inputs[draws.argmax(1)]) - 1 / self._steps
