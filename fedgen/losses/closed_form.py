"""A scalar whose gradient is computed beside it."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class ClosedForm(Function):
    """`ClosedForm.apply(features, value, gradient)`: the value, with this gradient [m, D] in the features.

    The backward pass keeps the gradient alone.

    Raises:
        RuntimeError: from a backward pass with create_graph=True.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        ctx.dtype = features.dtype
        return value.clone()  # an input returned as it is could not be changed in place, as by loss *= 5

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("a score's gradient in closed form cannot be differentiated again: no create_graph=True")
        (gradient,) = ctx.saved_tensors
        return (upstream * gradient).to(ctx.dtype), None, None
