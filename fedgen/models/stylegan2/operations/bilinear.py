"""Convolutions as functions linear in images and linear in kernels, each derivative of which is a convolution again.

PyTorch's second derivative of a convolution forms gradients of kernels as convolutions whose kernels are as large as
the maps, which is several times slower than the routine that its first derivative uses. Here every derivative of every
order is one of three: a convolution, its transpose, and the gradient of a kernel by that routine. Gradient penalties
are made of second derivatives.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen.models.stylegan2.operations.precision import is_autocast


@dataclass(frozen=True)
class _Plan:
    """A convolution or, transposed, the derivative of one for its input. Kernels are [O, I, k, k] of the former."""

    stride: int
    padding: int
    transposed: bool = False
    extra: tuple[int, int] = (0, 0)  # rows and columns of a transposed convolution that its stride leaves open

    def run(self, x: Tensor, kernel: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.transposed:
            return F.conv_transpose2d(x, kernel, bias, self.stride, self.padding, self.extra)
        return F.conv2d(x, kernel, bias, self.stride, self.padding)

    def kernel_gradient(self, x: Tensor, gradient: Tensor, kernel: Tensor) -> Tensor:
        """Return the gradient of the sum of gradient * run(x, kernel), [O, I, k, k]; of the kernel, shape and format
        alone are used.
        """
        if self.transposed:  # the same sum; of a transpose with 1 x 1 kernels of one channel, channels last, cuDNN errs
            x, gradient = gradient, x
        geometry = [self.stride] * 2, [self.padding] * 2, [1, 1]
        wanted = [False, True, False]
        return torch.ops.aten.convolution_backward(gradient, x, kernel, None, *geometry, False, [0, 0], 1, wanted)[1]

    def transpose(self, x: Tensor, y: Tensor, kernel: Tensor) -> "_Plan":
        """The plan that takes gradients of run(x, kernel) = y to those of x."""
        if self.transposed:
            return replace(self, transposed=False, extra=(0, 0))
        open_sides = [
            x.shape[side] - ((y.shape[side] - 1) * self.stride - 2 * self.padding + kernel.shape[side])
            for side in (2, 3)
        ]
        return replace(self, transposed=True, extra=(open_sides[0], open_sides[1]))


def conv2d(x: Tensor, kernel: Tensor, bias: Tensor | None = None, stride: int = 1, padding: int = 0) -> Tensor:
    """`torch.nn.functional.conv2d` with derivatives of all orders at the cost of the first.

    Args:
        x: [N, I, H, W].
        kernel: [O, I, k, k].
        bias: [O].
        stride: along both axes.
        padding: zeros on every side.
    """
    return _convolve(x, kernel, _Plan(stride, padding), bias)


def conv_transpose2d(x: Tensor, kernel: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
    """`torch.nn.functional.conv_transpose2d` with derivatives of all orders at the cost of the first; no bias.

    Args:
        x: [N, O, H, W].
        kernel: [O, I, k, k], of the convolution that this is the transpose of.
        stride: of that convolution.
        padding: of that convolution.
    """
    return _convolve(x, kernel, _Plan(stride, padding, transposed=True))


def _convolve(x: Tensor, kernel: Tensor, plan: _Plan, bias: Tensor | None = None) -> Tensor:
    given = [tensor for tensor in (kernel, bias) if tensor is not None]
    own = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, *given))
    # a compiler finds its own derivatives, and autocast casts what a function's own backward pass would not
    if not own or torch.compiler.is_compiling() or is_autocast(x):
        return plan.run(x, kernel, bias)
    # what is passed by the pair is used and no input: autograd shall not take the way to it for one through this node
    y = _OfImages.apply(x, (kernel, bias), plan)
    others = [_OfKernels.apply(kernel, (x, y.shape), plan)] if kernel.requires_grad else []
    others += [] if bias is None else [bias[:, None, None].expand(y.shape)]
    return _Join.apply(y, *others) if others else y


class _OfImages(torch.autograd.Function):
    """The convolution, with the derivative for its images alone: the others are nodes of their own, to be left out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: tuple[Tensor, Tensor | None], plan: _Plan) -> Tensor:
        kernel, bias = weights
        y = plan.run(x, kernel, bias)
        ctx.save_for_backward(kernel)
        ctx.plan = plan.transpose(x, y, kernel)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (kernel,) = ctx.saved_tensors
        return _convolve(gradients[0], kernel, ctx.plan), None, None


class _OfKernels(torch.autograd.Function):
    """Zeros that take no memory, with the convolution's derivative for its kernel."""

    @staticmethod
    def forward(ctx: Any, kernel: Tensor, around: tuple[Tensor, torch.Size], plan: _Plan) -> Tensor:
        x, shape = around
        ctx.save_for_backward(x, kernel)
        ctx.plan = plan
        return x.new_zeros(()).expand(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        x, kernel = ctx.saved_tensors
        return _KernelGradient.apply(x, gradients[0], kernel.detach(), ctx.plan), None, None


class _Join(torch.autograd.Function):
    """The first alone; the gradient goes to all."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, *others: Tensor) -> Tensor:
        ctx.count = 1 + len(others)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients * ctx.count


class _KernelGradient(torch.autograd.Function):
    """The gradient of a kernel: linear in the images and in the gradient of the result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gradient: Tensor, kernel: Tensor, plan: _Plan) -> Tensor:
        ctx.save_for_backward(x, gradient)
        ctx.plan, ctx.transpose = plan, plan.transpose(x, gradient, kernel)
        return plan.kernel_gradient(x, gradient, kernel)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, gradient = ctx.saved_tensors
        of_x = _convolve(gradient, gradients[0], ctx.transpose) if ctx.needs_input_grad[0] else None
        of_gradient = _convolve(x, gradients[0], ctx.plan) if ctx.needs_input_grad[1] else None
        return of_x, of_gradient, None, None
