import pytest
import torch

from fedgen.losses.feature_loss import ClosedForm


def test_gives_the_value_and_the_gradient_scaled_by_what_comes_after() -> None:
    features = torch.ones(2, 3, dtype=torch.float16, requires_grad=True)
    value, gradient = torch.tensor(7.0).double(), torch.arange(6.0).reshape(2, 3).double()
    loss = ClosedForm.apply(features, value, gradient)
    assert loss.item() == 7
    loss *= 5
    loss.backward()
    assert features.grad is not None
    assert features.grad.dtype == torch.float16
    assert torch.equal(features.grad.double(), 5 * gradient)
    assert value.item() == 7


def test_second_derivatives_are_refused() -> None:
    features = torch.ones(2, 3, requires_grad=True)
    loss = ClosedForm.apply(features, torch.tensor(1.0), torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(loss, features, create_graph=True)
