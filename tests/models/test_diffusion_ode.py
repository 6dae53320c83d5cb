"""Differential equations: orders of convergence, and the adaptive steps of scipy for each example."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from fedgen.models.diffusion.flow_ode import FlowSampler, integrate_adaptive
from tests.models.gaussian_data import DEVIATION, MEAN, seeded, velocity


def flow(times, states, who):
    return velocity(states, times)


def noise(count=4, dim=3):
    return torch.randn(count, dim, generator=seeded(), dtype=torch.float64)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("solver", "order"), [("euler", 1), ("heun", 2)])
def test_fixed_steps_converge_with_their_order(solver, order, backward):
    ends = noise(), MEAN + DEVIATION * noise()
    start, end = ends[::-1] if backward else ends
    samplers = [FlowSampler(solver, steps) for steps in (40, 80, 160)]
    errors = [float((sampler.solve(flow, start, backward) - end).abs().max()) for sampler in samplers]
    assert errors[0] < 0.1
    for coarse, fine in pairwise(errors):
        assert math.log2(coarse / fine) == pytest.approx(order, abs=0.1)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-8])
def test_adaptive_steps_are_scipys_for_each_example(backward, tolerance):
    """The same calls of the field, example by example, and the same ends."""
    calls = torch.zeros(4, dtype=torch.int64)

    def bent(times, states, who):
        calls[who] += 1
        return torch.sin(9 * times[:, None] * (1 + who[:, None])) * torch.cos(states)

    start = noise()
    found = integrate_adaptive(bent, start, tolerance, tolerance / 10, backward)
    for place, row in enumerate(start):

        def alone(time, state, place=place):
            return np.sin(9 * time * (1 + place)) * np.cos(state)

        span = (1.0, 0.0) if backward else (0.0, 1.0)
        theirs = solve_ivp(alone, span, row.numpy(), "RK45", rtol=tolerance, atol=tolerance / 10)
        assert int(calls[place]) == theirs.nfev
        np.testing.assert_allclose(found[place].numpy(), theirs.y[:, -1], rtol=1e-10)
    assert len(set(calls.tolist())) > 1


def test_the_company_changes_nothing():
    start = noise()
    together = integrate_adaptive(flow, start, 1e-4, 1e-4)
    for place in range(len(start)):
        assert torch.equal(integrate_adaptive(flow, start[place : place + 1], 1e-4, 1e-4)[0], together[place])


def test_its_error_falls_with_the_tolerance():
    exact = MEAN + DEVIATION * noise()
    errors = [float((integrate_adaptive(flow, noise(), t, t) - exact).abs().max()) for t in (1e-3, 1e-6, 1e-9)]
    assert all(error < 20 * bound for error, bound in zip(errors, (1e-3, 1e-6, 1e-9)))
    assert errors[2] < errors[1] < errors[0]


def test_few_entries_of_a_group_count_beside_many():
    """One entry that bends among thousands that stand still: alone in its group it is as exact as by itself."""

    def one_bends(times, states, who):
        return torch.cat([torch.zeros_like(states[:, :-1]), (20 * times.cos() * states[:, -1])[:, None]], dim=1)

    start = torch.ones(1, 5001, dtype=torch.float64)
    alone = integrate_adaptive(one_bends, start[:, -1:], 1e-4, 1e-4)
    grouped = integrate_adaptive(one_bends, start, 1e-4, 1e-4, parts=(5000, 1))
    assert float(grouped[0, -1]) == float(alone[0, 0])
    exact = math.exp(20 * math.sin(1))
    pooled = integrate_adaptive(one_bends, start, 1e-4, 1e-4)
    assert abs(float(grouped[0, -1]) - exact) < 0.2 * abs(float(pooled[0, -1]) - exact)


def test_an_example_that_is_not_finite_is_nan_and_leaves_the_others_alone():
    def broken(times, states, who):
        return torch.where((who == 1)[:, None] & (times > 0.5)[:, None], torch.nan, flow(times, states, who))

    found, whole = (integrate_adaptive(field, noise(), 1e-5, 1e-5) for field in (broken, flow))
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2, 3]], whole[[0, 2, 3]])


def test_tolerances_that_cannot_be_kept_are_refused():
    def jumps(times, states, who):
        return torch.where(states > 1, -1.0, 1.0) * 1e3

    with pytest.raises(ValueError, match="larger"):
        integrate_adaptive(jumps, torch.zeros(1, 1), 1e-12, 1e-12)
