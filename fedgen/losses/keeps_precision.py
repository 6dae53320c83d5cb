"""Modules whose numbers a parent in half precision must not round."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn


class KeepsPrecision(nn.Module):
    """A module that follows a parent to another device but keeps its precision: half of it would be another score."""

    def __init__(self) -> None:
        super().__init__()
        self._device = torch.device("cpu")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._device = fn(torch.empty(0, device=self._device)).device
        return super()._apply(lambda tensor: tensor.to(self._device), recurse)
