"""Convolutions whose derivatives of all orders are convolutions, against PyTorch's own."""

from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedgen.models.stylegan2 import operations
from fedgen.models.stylegan2.operations import conv2d, conv_transpose2d
from fedgen.models.stylegan2.training_steps import r1_penalty


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


SIZES = [(4, 1, 1), (5, 1, 0), (6, 2, 0), (5, 2, 1), (6, 2, 1)]  # rows, stride, padding


@pytest.mark.parametrize(("rows", "stride", "padding"), SIZES)
@pytest.mark.parametrize(("own", "theirs"), [(conv2d, F.conv2d), (conv_transpose2d, F.conv_transpose2d)])
def test_values_and_derivatives_of_three_orders_are_those_of_pytorch(
    own: object, theirs: object, rows: int, stride: int, padding: int
) -> None:
    inputs = [draw(1, 2, rows, rows + 1), draw(3, 2, 3, 3, seed=1), draw(3, seed=2)]
    if own is conv_transpose2d:  # without a bias
        inputs = [draw(1, 2, rows - 1, rows), draw(2, 3, 3, 3, seed=1)]

    def found(convolution: object) -> list[Tensor]:
        assert callable(convolution)
        parts = orders = [convolution(*inputs, stride=stride, padding=padding)]
        for _ in range(3):
            loss = sum(part.square().sum() for part in parts)
            parts = torch.autograd.grad(loss, inputs, create_graph=True)
            orders = [*orders, *parts]
        return orders

    ours, expected = found(own), found(theirs)
    assert torch.equal(ours[0], expected[0])
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("constant", [0, 1, 2])
def test_constants_get_no_gradient(constant: int) -> None:
    tensors = [draw(2, 3, 5, 5), draw(4, 3, 3, 3, seed=1), draw(4, seed=2)]
    tensors[constant] = tensors[constant].detach()
    rest = [tensor for tensor in tensors if tensor.requires_grad]
    ours = torch.autograd.grad(conv2d(*tensors, padding=1).square().sum(), rest)
    theirs = torch.autograd.grad(F.conv2d(*tensors, padding=1).square().sum(), rest)
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected)
    assert not conv2d(*[tensor.detach() for tensor in tensors]).requires_grad


def test_slopes_of_images_form_no_gradient_of_kernels() -> None:
    images, kernels = draw(2, 3, 5, 5), [draw(4, 3, 3, 3, seed=1), draw(1, 4, 3, 3, seed=2)]
    with mock.patch.object(operations._Plan, "kernel_gradient", autospec=True) as formed:
        logits = conv2d(conv2d(images, kernels[0]).square(), kernels[1]).sum(dim=(1, 2, 3))
        penalty = r1_penalty(logits, images).sum()
        assert formed.call_count == 0
    with mock.patch.object(operations, "_OfImages", wraps=operations._OfImages) as convolved:
        torch.autograd.grad(penalty, kernels)
        assert convolved.apply.call_count == 0  # no graph of the last derivatives is built


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32])
def test_maps_keep_precision_and_format(precision: torch.dtype) -> None:
    x = draw(2, 8, 6, 6).detach().to(precision).contiguous(memory_format=torch.channels_last).requires_grad_()
    kernel = draw(8, 8, 3, 3, seed=1).detach().to(precision).requires_grad_()
    y = conv2d(x, kernel, padding=1)
    gradients = torch.autograd.grad(y.float().square().sum(), [x, kernel], create_graph=True)
    assert {tensor.dtype for tensor in (y, *gradients)} == {precision}
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert gradients[0].is_contiguous(memory_format=torch.channels_last)
    torch.autograd.grad(gradients[0].float().square().sum(), kernel)


def test_autocast_is_obeyed() -> None:
    x, kernel = draw(2, 3, 5, 5).detach().float().requires_grad_(), draw(4, 3, 3, 3, seed=1).detach().float()
    with torch.autocast("cpu", torch.bfloat16):
        y = conv2d(x, kernel)
    assert y.dtype == torch.bfloat16
    assert torch.autograd.grad(y.float().square().sum(), x)[0].dtype == torch.float32
