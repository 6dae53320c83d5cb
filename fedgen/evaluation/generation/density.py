"""The density of a model, for the score that needs one."""

from typing import Any

import torch
from torch import Tensor, nn

from fedgen.evaluation.generation.methods import require_method
from fedgen.models.sampling import evaluating
from fedgen.scores import Density


class ModuleDensity:
    """The log-density of a module in eval mode, on its device and in its precision, without gradients.

    Args:
        module: with `log_prob(points [N, D]) -> [N]`.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module: Any = module

    @torch.no_grad()
    def log_prob(self, points: Tensor, /) -> Tensor:
        """Natural logarithm of the density, float64 [N] on the CPU, at points [N, D]."""
        own = next((tensor for tensor in self.module.parameters() if tensor.is_floating_point()), points)
        with evaluating(self.module):
            return self.module.log_prob(points.to(own.device, own.dtype)).double().cpu()


def density_of(model: Any) -> Density:
    """The density of a model.

    Args:
        model: a module with `log_prob(points)`, or any other object with one, such as a distribution.

    Raises:
        TypeError: if it has none, naming it.
    """
    require_method(model, "log_prob(points)", "the log-density [N] at points [N, D]", "ll")
    return ModuleDensity(model) if isinstance(model, nn.Module) else model
