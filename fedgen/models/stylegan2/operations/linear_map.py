"""Linear functions of images, differentiable any number of times through their first derivatives alone.

The derivative of a linear function is its transpose, and the transpose's is the function again. PyTorch does not know
that a filter is constant: the second derivative of its grouped convolutions also forms that of the filter, in a loop
over groups, and costs many times the first; the second derivative of `grid_sample` not every PyTorch has.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedgen.models.stylegan2.operations.precision import without_autocast

Function = Callable[[Tensor], Tensor]


def apply_linear(function: Function, x: Tensor) -> Tensor:
    """function(x), differentiable in x twice and more; in x's precision, also under autocast.

    Args:
        function: linear in its argument (an offset would be lost in derivatives), constant in all else, and
            differentiable once.
        x: floating point.
    """
    return _Forward.apply(x, function)


class _Forward(torch.autograd.Function):
    """function(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Function) -> Tensor:
        wanted = ctx.needs_input_grad[0]
        # backward passes may run under autocast, where second derivatives come through here again
        with torch.set_grad_enabled(wanted), without_autocast(x):
            x = x.detach().requires_grad_(wanted)
            y = function(x)
        ctx.graph, ctx.function = (x, y), function
        return y.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Transpose.apply(gradients[0], ctx.graph, ctx.function), None


class _Transpose(torch.autograd.Function):
    """The transpose of the function whose graph is given, applied to a gradient of y."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, graph: tuple[Tensor, Tensor], function: Function) -> Tensor:
        ctx.function = function
        x, y = graph
        # the graph may be asked again, by another backward pass
        return torch.autograd.grad(y, x, gradient, retain_graph=True)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _Forward.apply(gradients[0], ctx.function), None, None
