import torch
from torch.nn import functional as F

from fedgen.models.stylegan2.augment_images import apply_linear

KERNEL = torch.tensor([[[[1.0, -2.0, 0.5]]]], dtype=torch.float64)


def filtered(x):
    return F.conv2d(F.pad(x, [1, 1, 0, 0], mode="reflect"), KERNEL.to(x))


def derivatives(apply, x):
    """The value of a cubic of the result, and its first, second and third derivatives along fixed directions."""
    found = [apply(x).pow(3).sum()]
    for order in range(3):
        (slope,) = torch.autograd.grad(found[-1], x, create_graph=True)
        found.append((slope * torch.linspace(1, order + 2, x.numel(), dtype=x.dtype).reshape(x.shape)).sum())
    return torch.stack(found)


def test_derivatives_of_every_order_are_those_of_the_function():
    torch.manual_seed(0)
    x = torch.randn(2, 1, 3, 5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(derivatives(lambda x: apply_linear(filtered, x), x), derivatives(filtered, x))
    assert torch.autograd.gradcheck(lambda x: apply_linear(filtered, x), x)


def test_a_graph_that_is_retained_can_be_asked_twice():
    x = torch.randn(1, 1, 2, 4, requires_grad=True)
    y = apply_linear(filtered, x).square().sum()
    first, second = (torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_without_gradients_there_is_no_graph():
    x = torch.randn(1, 1, 2, 4)
    assert apply_linear(filtered, x).grad_fn is None
    with torch.no_grad():
        assert apply_linear(filtered, x.requires_grad_()).grad_fn is None


def test_autocast_does_not_reach_it_in_second_derivatives_either():
    x = torch.randn(1, 1, 2, 4, requires_grad=True)

    def penalty():
        (slope,) = torch.autograd.grad(apply_linear(filtered, x).pow(2).sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), x)[0]

    exact = penalty()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(penalty(), exact)
