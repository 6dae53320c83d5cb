import pytest
import torch

from fedgen.scores import PolynomialKernel, RBFKernel
from fedgen.scores.kernel import kernels
from fedgen.scores.kernel.kernels import Kernel, cross_sums, within_sums

KERNELS = [
    PolynomialKernel(),
    PolynomialKernel(degree=1),
    PolynomialKernel(degree=2, gamma=0.5, coef0=0.0),
    PolynomialKernel(degree=4, coef0=-0.3),
    RBFKernel(),
    RBFKernel(1.5),
]


def draw(count: int, seed: int, dim: int = 5) -> torch.Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def arguments(kernel: Kernel, x: torch.Tensor, y: torch.Tensor, origin: torch.Tensor) -> torch.Tensor:
    """u [n, m] as the class describes it."""
    offsets = [kernel.offsets(side - origin, origin)[0] for side in (x, y)]
    return (x - origin) @ (y - origin).T + offsets[0].unsqueeze(1) + offsets[1]


def test_by_hand() -> None:
    x, y, origin = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 0.0]]), torch.tensor([1.0, 1.0])
    assert arguments(PolynomialKernel(), x, y, origin).item() == 3  # <x, y>
    values, slopes = PolynomialKernel().profile(torch.tensor([[3.0]], dtype=torch.float64), dim=2)
    assert (values.item(), slopes.item()) == (2.5**3, 3 * 2.5**2 / 2)
    assert arguments(RBFKernel(), x, y, origin).item() == -4  # -|x - y|^2 / 2
    values, slopes = RBFKernel(2.0).profile(torch.tensor([[0.0]], dtype=torch.float64), dim=2)
    assert (values.item(), slopes.item()) == (1, 0.25)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_profile_around_any_origin_is_the_kernel(kernel: Kernel, shift: float) -> None:
    x, y = draw(6, 1), draw(4, 2)
    values, _ = kernel.profile(arguments(kernel, x, y, draw(1, 3)[0] + shift), 5)
    torch.testing.assert_close(values, kernel.block(x, y), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_slopes_and_offsets_have_their_derivatives(kernel: Kernel) -> None:
    u, step = draw(4, 1), 1e-6
    (above, _), (below, _) = kernel.profile(u + step, 5), kernel.profile(u - step, 5)
    torch.testing.assert_close(kernel.profile(u, 5)[1], (above - below) / (2 * step), rtol=1e-7, atol=1e-8)
    centred = draw(4, 2).requires_grad_()
    offsets, gradient = kernel.offsets(centred, draw(1, 3)[0])
    (expected,) = torch.autograd.grad(offsets.sum(), centred)
    torch.testing.assert_close(gradient.expand(4, 5), expected)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_values_and_slopes_share_no_memory(kernel: Kernel) -> None:
    values, slopes = kernel.profile(draw(3, 1), 5)
    before = values.clone()
    slopes.zero_()
    assert torch.equal(values, before)


@pytest.mark.parametrize("kernel", [PolynomialKernel(), RBFKernel()], ids=repr)
def test_around_their_mean_single_precision_keeps_small_differences(kernel: Kernel) -> None:
    x, origin = draw(6, 1) + 1000, torch.full((5,), 1000.0, dtype=torch.float64)
    centred = (x - origin).float()
    exact = kernel.block(centred.double() + origin, centred.double() + origin)
    offsets, _ = kernel.offsets(centred, origin)
    u = (centred @ centred.T).double() + offsets.unsqueeze(1) + offsets
    values, slopes = kernel.profile(u, 5)
    assert ((values - exact).abs() < 3e-6 * slopes).all()  # products of numbers around 1, not around 1000


def test_monomials_by_hand() -> None:
    phi = PolynomialKernel(degree=2, gamma=1.0).monomials(torch.tensor([[3.0, 5.0]]))
    assert phi is not None
    # (x x' + y y' + 1)^2: x^2, sqrt(2) x y, sqrt(2) x, y^2, sqrt(2) y, 1
    expected = torch.tensor([[9, 15 * 2**0.5, 3 * 2**0.5, 25, 5 * 2**0.5, 1]], dtype=torch.float64)
    torch.testing.assert_close(phi.sort(1).values, expected.sort(1).values)


@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("kernel", [PolynomialKernel(), PolynomialKernel(2, 0.5, 0.0), PolynomialKernel(1)], ids=repr)
def test_sums_by_monomials_are_those_over_pairs(kernel: Kernel, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, shares = draw(50, 1, dim), draw(30, 2, dim) + 1, draw(50, 3, 1)[:, 0].abs()
    clients = torch.arange(50) // 18
    assert kernel.monomials(x) is not None
    found = [*within_sums(x, kernel, clients, shares), *cross_sums(x, clients, 3, y, kernel)]
    monkeypatch.setattr(kernels, "MONOMIALS", 0)
    assert kernel.monomials(x) is None
    pairs = [*within_sums(x, kernel, clients, shares), *cross_sums(x, clients, 3, y, kernel)]
    for ours, theirs in zip(found, pairs):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_kernels_without_few_monomials_have_none() -> None:
    assert RBFKernel().monomials(draw(3, 1, 2)) is None
    assert PolynomialKernel().monomials(draw(3, 1, 6)) is None
    assert PolynomialKernel(coef0=-0.3).monomials(draw(3, 1, 2)) is None
