import copy
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor, nn
from torch_fidelity.metric_kid import kid_features_to_metric
from torchmetrics.image.kid import poly_mmd

from fedgen.losses import mmd2 as module
from fedgen.losses.mmd2 import MMD2Loss
from fedgen.scores import KernelReference, PolynomialKernel, RBFKernel
from fedgen.scores.kernel.kernels import Kernel
from fedgen.statistics import summarize
from tests.quick import first_quick

KERNELS = [PolynomialKernel(), PolynomialKernel(degree=2, gamma=0.5, coef0=0.0), RBFKernel(), RBFKernel(1.5)]
AGGREGATES = ["all", "avg", "own"]
WEIGHTS = ["examples", "uniform", [0.1, 0.6, 0.3]]


def draw(count: int, seed: int, scale: float = 1.0, shift: float = 0.0, dim: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator, dtype=torch.float64) * scale + shift


CLIENTS = [draw(20, 1), draw(7, 2, 2, 1), draw(33, 3, 0.5, -1)]
BATCH = draw(9, 4, 1.2, 0.3)


def gradient_of(loss: nn.Module, features: Tensor) -> Tensor:
    features = features.clone().requires_grad_()
    return torch.autograd.grad(loss(features), features)[0]


def scored(kernel: Kernel, estimator: str, aggregate: str, weights: str | list[float]) -> float:
    """What `KernelReference` says; under "own" about client 1."""
    score = KernelReference.from_features(CLIENTS, kernel, estimator, weights).score(BATCH, errors=False)
    return float(score.per_client[1]) if aggregate == "own" else score.values[aggregate]


def plain_kernel(kernel: Kernel, x: Tensor, y: Tensor) -> Tensor:
    """The kernel matrix by its textbook formula, for autograd to differentiate."""
    if isinstance(kernel, RBFKernel):
        squares = (x.unsqueeze(1) - y).square().sum(2)
        return torch.exp(-squares / (2 * (kernel.sigma or x.shape[1] ** 0.5) ** 2))
    assert isinstance(kernel, PolynomialKernel)
    return ((kernel.gamma or 1 / x.shape[1]) * (x @ y.T) + kernel.coef0) ** kernel.degree


def plain_mmd2(kernel: Kernel, unbiased: bool, x: Tensor, y: Tensor) -> Tensor:
    def mean_within(z: Tensor) -> Tensor:
        matrix = plain_kernel(kernel, z, z)
        total = matrix.sum() - matrix.diagonal().sum() if unbiased else matrix.sum()
        return total / (len(z) * (len(z) - unbiased))

    return mean_within(x) + mean_within(y) - 2 * plain_kernel(kernel, x, y).mean()


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize(("estimator", "aggregate"), [*product("uv", AGGREGATES)])
def test_the_value_is_the_score(kernel: Kernel, estimator: str, aggregate: str, weights: str | list[float]) -> None:
    expected = scored(kernel, estimator, aggregate, weights)
    loss = MMD2Loss(kernel, estimator, aggregate).set_references(CLIENTS, weights)
    loss.start_turn(1)
    value = loss(BATCH)
    assert value.dtype == torch.float64
    assert value.shape == ()
    assert value.item() == pytest.approx(expected, rel=1e-12, abs=1e-13)


def test_two_images_a_side_by_hand() -> None:
    loss = MMD2Loss().set_references([torch.tensor([[0.0], [1.0]])])
    batch = torch.tensor([[1.0], [2.0]], requires_grad=True)
    # (xy + 1)^3: within the references 1, within the batch 27, between 1 1 8 27
    value = loss(batch)
    assert value.item() == pytest.approx(1 + 27 - 2 * 37 / 4)
    # 3 y (xy + 1)^2: of x = 1 to 2 54, to 1 12; of x = 2 to 1 27, to 1 27; zeros to 0
    value.backward()
    assert batch.grad is not None
    assert batch.grad.flatten().tolist() == pytest.approx([54 - 12 / 2, 27 - 27 / 2])


def test_the_value_is_that_of_torch_fidelity_and_torchmetrics() -> None:
    real, fake = draw(50, 1), draw(50, 2, 1.2)
    value = MMD2Loss().set_references([real])(fake).item()
    peer = kid_features_to_metric(fake, real, kid_subsets=1, kid_subset_size=50, verbose=False)
    assert value == pytest.approx(peer["kernel_inception_distance_mean"], rel=1e-12)
    assert value == pytest.approx(poly_mmd(real, fake).item(), rel=1e-12)
    options = {"kid_kernel": "rbf", "kid_kernel_rbf_sigma": 2.0}
    peer = kid_features_to_metric(fake, real, kid_subsets=1, kid_subset_size=50, verbose=False, **options)
    value = MMD2Loss(RBFKernel(2.0)).set_references([real])(fake).item()
    assert value == pytest.approx(peer["kernel_inception_distance_mean"], rel=1e-9)


# each kernel with both estimators and all aggregates
CASES = [
    (kernel, estimator, aggregate)
    for first, kernel in enumerate(KERNELS)
    for estimator, aggregate in zip("uvu" if first % 2 else "vuv", AGGREGATES)
]


@pytest.mark.parametrize(("kernel", "estimator", "aggregate"), first_quick(CASES, of=2, several=True), ids=repr)
def test_the_gradient_passes_gradcheck(kernel: Kernel, estimator: str, aggregate: str) -> None:
    loss = MMD2Loss(kernel, estimator, aggregate).set_references(CLIENTS, "uniform")
    loss.start_turn(1)
    assert torch.autograd.gradcheck(loss, BATCH.clone().requires_grad_())


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("estimator", ["u", "v"])
def test_value_and_gradient_are_those_of_an_explicit_kernel_matrix(kernel: Kernel, estimator: str) -> None:
    real = torch.cat(CLIENTS)
    loss = MMD2Loss(kernel, estimator).set_references([real])
    features = BATCH.clone().requires_grad_()
    expected = plain_mmd2(kernel, estimator == "u", features, real)
    assert loss(BATCH).item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(
        gradient_of(loss, BATCH), torch.autograd.grad(expected, features)[0], rtol=1e-10, atol=1e-14
    )


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@pytest.mark.parametrize("kernel", [PolynomialKernel(), RBFKernel()], ids=repr)
@pytest.mark.parametrize("estimator", ["u", "v"])
def test_avg_and_all_have_one_gradient_the_weighted_mean_of_the_clients(
    kernel: Kernel, estimator: str, weights: str | list[float]
) -> None:
    losses = {how: MMD2Loss(kernel, estimator, how).set_references(CLIENTS, weights) for how in AGGREGATES}
    pool = gradient_of(losses["all"], BATCH)
    torch.testing.assert_close(gradient_of(losses["avg"], BATCH), pool, rtol=1e-10, atol=0)
    mean = torch.zeros_like(pool)
    for client, weight in enumerate(KernelReference.from_features(CLIENTS, weights=weights).weights):
        losses["own"].start_turn(client)
        mean += weight * gradient_of(losses["own"], BATCH)
    torch.testing.assert_close(mean, pool, rtol=1e-10, atol=1e-14)


def test_own_takes_the_turns_client_and_avg_between_turns() -> None:
    loss = MMD2Loss(aggregate="own").set_references(CLIENTS)
    for client, features in enumerate(CLIENTS):
        loss.start_turn(client)
        single = MMD2Loss().set_references([features])
        assert loss(BATCH).item() == pytest.approx(single(BATCH).item(), rel=1e-12)
        torch.testing.assert_close(gradient_of(loss, BATCH), gradient_of(single, BATCH), rtol=1e-10, atol=1e-14)
    loss.start_turn(None)
    assert loss(BATCH).item() == pytest.approx(scored(PolynomialKernel(), "u", "avg", "examples"), rel=1e-12)
    loss.start_turn(3)
    with pytest.raises(ValueError, match="references"):
        loss(BATCH)


@pytest.mark.parametrize("kernel", [PolynomialKernel(), RBFKernel()], ids=repr)
def test_the_u_statistic_is_unbiased_at_any_batch_size_and_v_is_not(kernel: Kernel) -> None:
    population = draw(4, 5, 1.5)
    expected = {}
    for estimator in ("u", "v"):
        reference = KernelReference.from_features([CLIENTS[0]], kernel, estimator)
        between = plain_kernel(kernel, population, CLIENTS[0]).mean()
        # two independent draws from the population, possibly of the same point
        expected[estimator] = reference.within_pool + plain_kernel(kernel, population, population).mean() - 2 * between
    for size in (2, 3):
        every = [population[list(chosen)] for chosen in product(range(4), repeat=size)]
        loss = {e: MMD2Loss(kernel, e).set_references([CLIENTS[0]]) for e in ("u", "v")}
        means = {e: torch.stack([loss[e](batch) for batch in every]).mean() for e in ("u", "v")}
        torch.testing.assert_close(means["u"], expected["u"], rtol=1e-11, atol=1e-13)
        assert means["v"] > expected["v"] + 1e-3


@pytest.mark.parametrize("kernel", [PolynomialKernel(), RBFKernel()], ids=repr)
@pytest.mark.parametrize("estimator", ["u", "v"])
def test_blocks_do_not_matter(kernel: Kernel, estimator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = MMD2Loss(kernel, estimator).set_references(CLIENTS)
    value, gradient = loss(BATCH), gradient_of(loss, BATCH)
    for name, block in (("BLOCK", 1), ("BLOCK", 4), ("BLOCK", 9), ("CHUNK", 5)):
        monkeypatch.setattr(module, name, block)
        loss.set_references(CLIENTS)
        torch.testing.assert_close(loss(BATCH), value, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(gradient_of(loss, BATCH), gradient, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_without_the_constant_only_the_constant_is_missing(aggregate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = MMD2Loss(aggregate=aggregate).set_references(CLIENTS)
    monkeypatch.setattr(KernelReference, "__init__", lambda *_: pytest.fail("a pass over all pairs of references"))
    without = MMD2Loss(aggregate=aggregate, constant=False).set_references(CLIENTS)
    missing = [(loss(batch) - without(batch)).item() for batch in (BATCH, BATCH * 2, draw(30, 8))]
    assert missing == pytest.approx([missing[0]] * 3, rel=1e-12)
    assert missing[0] > 1
    assert torch.equal(gradient_of(loss, BATCH), gradient_of(without, BATCH))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [PolynomialKernel(), RBFKernel()], ids=repr)
def test_single_precision_is_as_accurate_as_documented(kernel: Kernel, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()))
    spectrum = torch.logspace(0, -2, 2048, dtype=torch.float64)
    real, near, far = (
        (draw(n, n, dim=2048) * spectrum + 0.4 + s).float() for n, s in ((2000, 0.0), (128, 0.0), (128, 0.05))
    )
    double, single = (MMD2Loss(kernel, dtype=d).set_references([real]) for d in (torch.float64, torch.float32))
    for fake in (near, far):
        features = fake.double().requires_grad_()
        exact = double(features)
        (exact_gradient,) = torch.autograd.grad(exact, features)
        mean_kernel = plain_kernel(kernel, features[:2].detach(), real.double()).mean().item()
        rounding = 2**-24 * abs(exact.item())  # at the very end
        for precision, of_value, of_gradient in (("highest", 1e-9, 3e-7), ("medium", 1e-6, 5e-3)):
            torch.set_float32_matmul_precision(precision)
            found = single(fake.requires_grad_())
            assert found.dtype == torch.float32
            assert abs(found.item() - exact.item()) < of_value * mean_kernel + rounding
            error = (torch.autograd.grad(found, fake)[0] - exact_gradient).norm() / exact_gradient.norm()
            assert error < of_gradient


def test_far_from_the_origin_single_precision_keeps_its_digits() -> None:
    far = [client + 1000 for client in CLIENTS]
    for kernel in (PolynomialKernel(), RBFKernel()):
        double, single = (MMD2Loss(kernel, dtype=d).set_references(far) for d in (torch.float64, torch.float32))
        torch.testing.assert_close(single(BATCH + 1000).double(), double(BATCH + 1000), rtol=1e-5, atol=0)
        exact = gradient_of(double, BATCH + 1000)
        assert (gradient_of(single, BATCH + 1000) - exact).norm() < 1e-5 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_autocast_changes_nothing(dtype: torch.dtype) -> None:
    loss = MMD2Loss(dtype=dtype).set_references(CLIENTS)
    value, gradient = loss(BATCH), gradient_of(loss, BATCH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(BATCH), value)
        assert torch.equal(gradient_of(loss, BATCH), gradient)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_features_of_any_dtype_have_the_value_of_their_numbers_and_a_gradient_of_their_dtype(
    dtype: torch.dtype,
) -> None:
    loss, low = MMD2Loss().set_references(CLIENTS), BATCH.to(dtype)
    assert torch.equal(loss(low), loss(low.double()))
    gradient = gradient_of(loss, low)
    assert gradient.dtype == dtype
    assert torch.equal(gradient, gradient_of(loss, low.double()).to(dtype))


def test_a_small_gradient_is_scaled_before_it_is_rounded_to_half_precision() -> None:
    loss = MMD2Loss(RBFKernel(1.0)).set_references([draw(20, 1) + 4])
    features = BATCH.half().requires_grad_()
    (loss(features) * 2.0**40).backward()
    exact = gradient_of(loss, features.detach().double()) * 2.0**40
    assert features.grad is not None
    torch.testing.assert_close(features.grad, exact.half())


def test_a_parents_precision_does_not_become_the_losss() -> None:
    loss = MMD2Loss().set_references(CLIENTS)
    value = loss(BATCH)
    parent = nn.ModuleDict({"loss": loss, "layer": nn.Linear(2, 2)}).half()
    assert next(parent["layer"].parameters()).dtype == torch.float16
    assert torch.equal(loss(BATCH), value)
    assert torch.equal(parent.to(torch.float32)["loss"](BATCH), value)


def test_references_are_not_saved_but_copied_with_the_loss() -> None:
    loss = MMD2Loss().set_references(CLIENTS)
    assert loss.state_dict() == {}
    twin = copy.deepcopy(loss)
    twin.load_state_dict(loss.state_dict())
    assert torch.equal(twin(BATCH), loss(BATCH))
    twin.set_references(CLIENTS[:1])
    assert loss(BATCH).item() == pytest.approx(scored(PolynomialKernel(), "u", "all", "examples"), rel=1e-12)
    assert twin(BATCH).item() == pytest.approx(MMD2Loss().set_references([CLIENTS[0]])(BATCH).item(), rel=1e-12)


def test_the_value_is_an_ordinary_scalar_of_a_graph() -> None:
    loss = MMD2Loss().set_references(CLIENTS)
    layer = nn.Linear(6, 6, dtype=torch.float64)
    value = loss(layer(BATCH))
    value *= 5
    value.backward()
    assert layer.weight.grad is not None
    once = layer.weight.grad.clone()
    layer.zero_grad()
    loss(layer(BATCH)).backward()
    torch.testing.assert_close(once, 5 * layer.weight.grad)


def test_without_a_graph_no_gradient_is_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = MMD2Loss().set_references(CLIENTS)
    value = loss(BATCH.clone().requires_grad_()).detach()
    monkeypatch.setattr(module.ClosedForm, "apply", lambda *_: pytest.fail("a gradient nobody asked for"))
    assert loss(BATCH).grad_fn is None
    with torch.no_grad():
        assert torch.equal(loss(BATCH.clone().requires_grad_()), value)


def test_a_second_derivative_is_refused() -> None:
    loss = MMD2Loss().set_references(CLIENTS)
    features = BATCH.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="create_graph"):
        torch.autograd.grad(loss(features), features, create_graph=True)


def test_clients_of_one_image_do_without_the_constant_or_under_v() -> None:
    clients = [*CLIENTS, draw(1, 9)]
    with pytest.raises(ValueError, match="estimator"):
        MMD2Loss().set_references(clients)
    without = MMD2Loss(constant=False).set_references(clients)
    torch.testing.assert_close(
        gradient_of(without, BATCH), gradient_of(MMD2Loss().set_references([torch.cat(clients)]), BATCH)
    )
    loss = MMD2Loss(estimator="v", aggregate="avg").set_references(clients)
    expected = KernelReference.from_features(clients, estimator="v").score(BATCH[:1], errors=False).values["avg"]
    assert loss(BATCH[:1]).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kernel", [PolynomialKernel(), RBFKernel(1.5)], ids=repr)
def test_an_expansion_of_points_with_shares_of_either_sign_stands_in_for_references(kernel: Kernel) -> None:
    points, shares = draw(5, 8), torch.tensor([0.5, -2.0, 1.0, 0.1, 3.0], dtype=torch.float64)
    loss = MMD2Loss(kernel).set_expansion(points, shares, within=4.0)
    features = BATCH.clone().requires_grad_()
    matrix = plain_kernel(kernel, features, features)
    within = (matrix.sum() - matrix.diagonal().sum()) / (9 * 8)
    expected = 4.0 + within - 2 * (plain_kernel(kernel, features, points).mean(0) * shares).sum()
    assert loss(BATCH).item() == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(gradient_of(loss, BATCH), torch.autograd.grad(expected, features)[0])
    even = MMD2Loss(kernel, constant=False).set_expansion(points, torch.full((5,), 0.2, dtype=torch.float64))
    same = MMD2Loss(kernel, constant=False).set_references([points])
    torch.testing.assert_close(even(BATCH), same(BATCH), rtol=1e-12, atol=1e-13)
    with pytest.raises(ValueError, match="points"):
        loss.set_expansion(points, shares[:2])


def test_unusable_input_is_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match="Gaussian"):
        MMD2Loss().set_references([CLIENTS[0], summarize(CLIENTS[1])])
    with pytest.raises(ValueError, match="at least one client"):
        MMD2Loss().set_references([])
    with pytest.raises(ValueError, match="features"):
        MMD2Loss().set_references([CLIENTS[0], draw(4, 1, dim=3)])
    with pytest.raises(ValueError, match="NaN"):
        MMD2Loss().set_references([CLIENTS[0], draw(4, 1).index_fill(0, torch.tensor([2]), torch.nan)])
    with pytest.raises(ValueError, match="2 clients"):
        MMD2Loss().set_references(CLIENTS[:2], [0.2, 0.3, 0.5])
    with pytest.raises(ValueError, match="'u' or 'v'"):
        MMD2Loss(estimator="unbiased")
    with pytest.raises(ValueError, match="references"):
        MMD2Loss()(BATCH)
    loss = MMD2Loss().set_references(CLIENTS)
    with pytest.raises(ValueError, match="estimator"):
        loss(BATCH[:1])
    with pytest.raises(ValueError, match="NaN"):
        loss(BATCH.index_fill(0, torch.tensor([2]), torch.inf))
    with pytest.raises(ValueError, match="floating"):
        loss(BATCH[:, :5])


def test_a_refused_set_leaves_the_references_as_they_were() -> None:
    loss = MMD2Loss().set_references(CLIENTS)
    value = loss(BATCH)
    for clients, weights in (([CLIENTS[0], draw(1, 2)], "examples"), (CLIENTS, [1.0])):
        with pytest.raises(ValueError, match="client"):
            loss.set_references(clients, weights)
    assert torch.equal(loss(BATCH), value)
