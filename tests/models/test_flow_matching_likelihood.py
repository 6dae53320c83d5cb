"""Densities by the flow's ODE against those of normal data, and what their errors cover."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from fedgen.data import Examples
from fedgen.evaluation import evaluate
from fedgen.models import FlowMatching, FlowSampler
from fedgen.models.diffusion.flow_ode import draw_probes, log_density
from tests.models.gaussian_data import DEVIATION, MEAN, ExactVelocity, log_normal, seeded, velocity
from tests.models.test_flow_matching import make_flow


class Mixing(nn.Module):
    """A velocity that bends and mixes its inputs, so that its derivative has entries beside the diagonal."""

    def __init__(self, dim):
        super().__init__()
        self.image_shape = (dim,)
        self.weight = nn.Parameter(torch.randn(dim, dim, generator=seeded(3)) / dim**0.5)

    def forward(self, points, timesteps):
        return torch.tanh(points @ self.weight) * torch.cos(timesteps / 1000)[:, None]


def points(count, dim=2):
    return MEAN + DEVIATION * torch.randn(count, dim, generator=seeded(5))


@pytest.mark.parametrize("sigma_min", [0.0, 0.3])
def test_the_exact_density_is_the_normals(sigma_min):
    model = FlowMatching(ExactVelocity(sigma_min=sigma_min), sigma_min=sigma_min, ema_decay=None)
    found = model.likelihood(points(7))
    exact = log_normal(points(7), (DEVIATION**2 + sigma_min**2) ** 0.5)
    assert found.value.dtype == torch.float64
    assert torch.allclose(found.value, exact, atol=1e-3)
    assert found.error.tolist() == [0.0] * 7
    assert torch.equal(model.log_prob(points(7)), found.value)


@pytest.mark.slow
def test_it_converges_with_the_solvers_order():
    exact = log_normal(points(3)).double()

    def error(solver, steps):
        found = log_density(
            lambda t, x, who: velocity(x, t), points(3).double(), FlowSampler(solver, steps), probes=None
        )
        return float((found.value - exact).abs().max())

    for solver, order in (("euler", 1), ("heun", 2)):
        assert math.log2(error(solver, 100) / error(solver, 200)) == pytest.approx(order, abs=0.15)


@pytest.mark.slow
def test_in_float64_smaller_tolerances_give_smaller_errors_and_below_a_dtypes_rounding_they_are_refused():
    model, given = FlowMatching(ExactVelocity(), ema_decay=None).double(), points(20).double()

    def error(tolerance):
        found = model.likelihood(given, sampler=FlowSampler("dopri5", rtol=tolerance, atol=tolerance)).value
        return float((found - log_normal(given)).abs().max())

    errors = [error(tolerance) for tolerance in (1e-4, 1e-6, 1e-8, 1e-10, 1e-12)]
    assert all(after < before / 5 for before, after in pairwise(errors))
    assert errors[-1] < 1e-11
    with pytest.raises(ValueError, match="float64"):
        error(1e-17)
    with pytest.raises(ValueError, match="float32"):
        model.float().likelihood(given, sampler=FlowSampler("dopri5", rtol=1e-8, atol=1e-8))
    with pytest.raises(ValueError, match="float32"):
        FlowMatching(ExactVelocity(), sampler=FlowSampler("dopri5", rtol=1e-8, atol=1e-8))  # draws in float32
    probed = model.double().likelihood(given, probes=4, sampler=FlowSampler("dopri5", rtol=1e-10, atol=1e-10))
    assert torch.allclose(probed.value, log_normal(given), rtol=0, atol=1e-8)


def test_each_dimension_and_each_label_has_its_density():
    """Images of any shape, and labels that shift the mean."""
    model = FlowMatching(ExactVelocity((1, 2, 3), num_classes=3), ema_decay=None)
    images, labels = points(5, 6).view(5, 1, 2, 3), torch.tensor([0, 1, 2, 1, 0])
    exact = log_normal(images - labels.view(5, 1, 1, 1))
    assert torch.allclose(model.likelihood(images, labels).value, exact, atol=1e-3)
    assert torch.allclose(model.likelihood(images.flatten(1), labels).value, exact, atol=1e-3)
    assert torch.allclose(model.likelihood(images).value, log_normal(images), atol=1e-3)  # of any class


@pytest.mark.slow
def test_the_standard_error_over_probes_covers_the_exact_density():
    dim, count = 6, 40
    model = FlowMatching(Mixing(dim), ema_decay=None)
    exact = model.likelihood(points(count, dim), probes=0)
    found = model.likelihood(points(count, dim), probes=16)
    assert (found.error > 1e-3).all()
    pulls = (found.value - exact.value) / found.error
    assert 0.75 < float(pulls.square().mean().sqrt()) < 1.35  # 1 but for 40 draws of Student's t of 15
    more = model.likelihood(points(count, dim), probes=64)
    assert float(more.error.mean() / found.error.mean()) == pytest.approx(0.5, abs=0.1)


def test_signs_need_no_luck_where_the_derivative_is_diagonal():
    found = FlowMatching(ExactVelocity((40,)), ema_decay=None).likelihood(points(3, 40))  # 8 probes by default
    assert torch.allclose(found.value, log_normal(points(3, 40)), atol=5e-3)
    assert (found.error < 1e-4).all()


def test_probes_are_an_examples_own_whatever_the_batch_and_the_company():
    model = FlowMatching(Mixing(5), ema_decay=None)
    given = points(5, 5)
    found = model.likelihood(given, probes=4)
    for other in (model.likelihood(given, probes=4, batch_size=2),):
        assert torch.allclose(found.value, other.value, atol=1e-5)
    later = model.likelihood(given[3:], probes=4, start=3)
    assert torch.allclose(found.value[3:], later.value, atol=1e-5)
    assert not torch.allclose(found.value, model.likelihood(given, probes=4, seed=1).value, atol=1e-3)
    assert set(draw_probes(2, 3, 4, seed=0).unique().tolist()) == {-1.0, 1.0}


def test_the_density_integrates_to_one():
    """A flow that is no normal's, on a grid of two dimensions."""
    model = FlowMatching(Mixing(2), ema_decay=None)
    axis = torch.linspace(-6, 6, 61)
    grid = torch.cartesian_prod(axis, axis)
    total = float(model.likelihood(grid, sampler=FlowSampler("heun", 20), batch_size=4000).value.exp().sum())
    assert total * 0.2**2 == pytest.approx(1, abs=2e-3)


def test_it_leaves_no_trace_and_holds_no_graph():
    model = make_flow(num_classes=2)
    model.train()
    stream, modes = torch.get_rng_state(), [each.training for each in model.modules()]
    found = model.likelihood(torch.zeros(1, 1, 8, 8), probes=2, sampler=FlowSampler("euler", 2))
    assert not found.value.requires_grad
    assert torch.isfinite(found.value).all()
    assert torch.equal(stream, torch.get_rng_state())
    assert modes == [each.training for each in model.modules()]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_score_ll_is_that_of_a_flow_over_points():
    clients = {"train": [Examples(points(n), torch.zeros(n, dtype=torch.int64), "toy/train", ()) for n in (6, 4)]}
    options = {"embeddings": ["identity"], "scores": ["ll"], "num_images": 20, "seed": 0}
    records = {r.name: r for r in evaluate(FlowMatching(ExactVelocity(), ema_decay=None), clients, **options)}
    exact = torch.cat([log_normal(client.inputs) for client in clients["train"]])
    assert records["ll_all"].value == pytest.approx(float(exact.mean()), abs=1e-3)


def test_bits_of_grey_levels_are_the_normals_in_units_of_a_bin():
    """Of a density that is nearly the same all over a bin, whose mass is then its width times the density."""
    model = FlowMatching(ExactVelocity((1, 1, 2)), ema_decay=None)
    levels = torch.tensor([[150, 200], [255, 240]]).view(2, 1, 1, 2)
    found = model.bits_per_dim(2 * levels / 255 - 1)
    middles = 2 * (levels + 0.5) / 256 - 1
    masses = log_normal(middles.flatten(1)) + 2 * math.log(2 / 256)
    assert torch.allclose(found, -masses / (2 * math.log(2)), atol=0.02)
    few = model.bits_per_dim(torch.tensor([1.0, 1.0]).view(1, 1, 1, 2), bits=1, seed=3)
    assert 0 < float(few) < 2
    assert torch.equal(found, model.bits_per_dim(2 * levels / 255 - 1))
    assert not torch.equal(found, model.bits_per_dim(2 * levels / 255 - 1, seed=1))


def test_what_cannot_be_is_refused():
    model = FlowMatching(ExactVelocity())
    with pytest.raises(ValueError, match="divergence"):
        model.likelihood(points(2), probes=1)
    with pytest.raises(ValueError, match="network"):
        FlowMatching(ExactVelocity((1, 2, 2))).likelihood(torch.zeros(2, 1, 3, 3))
    with pytest.raises(ValueError, match="level"):
        FlowMatching(ExactVelocity((1, 2, 2))).bits_per_dim(torch.zeros(2, 1, 2, 2), bits=0)
