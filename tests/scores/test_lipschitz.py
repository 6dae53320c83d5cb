import copy
from functools import cache

import pytest
import torch

from fedgen.scores.wasserstein.wasserstein import GroupSort, LipschitzNetwork

NETWORKS = [("groupsort", False), ("relu", False), ("relu", True)]


def trained(kind, last, dim):
    """A network after steps in random directions, as far from its first weights as training might bring it."""
    return copy.deepcopy(trained_once(kind, last, dim))


@cache
def trained_once(kind, last, dim, steps=40):
    random = torch.Generator().manual_seed(3)
    network = LipschitzNetwork(dim, kind, 32, 3, last, random)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    for _ in range(steps):
        points = torch.randn(64, dim, generator=random)
        optimizer.zero_grad()
        (network(points) @ torch.randn(64, generator=random)).backward()
        optimizer.step()
        network.project()
    return network


@torch.no_grad()
def lipschitz_bound(network):
    """The product of the layers' largest singular values: no two points are stretched by more."""
    norms = [torch.linalg.matrix_norm(linear.weight.double(), 2) for linear in network.linears]
    return float(torch.stack(norms).prod())


def norm_by_power_iteration(weight):
    """By 2**11 steps, whose matrix is squared eleven times."""
    steps = weight.T @ weight
    for _ in range(11):
        steps = steps @ steps
        steps /= steps.norm()
    vector = steps @ torch.randn(weight.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return float((weight @ vector).norm() / vector.norm())


def test_two_neighbours_are_sorted():
    rows = torch.tensor([[3.0, 1.0, -2.0, 5.0], [0.0, 0.0, 7.0, 6.0]])
    assert GroupSort()(rows).tolist() == [[1.0, 3.0, -2.0, 5.0], [0.0, 0.0, 6.0, 7.0]]


@pytest.mark.parametrize("dim", [1, 5, 100])
@pytest.mark.parametrize(("kind", "last"), NETWORKS)
def test_no_layer_stretches_by_power_iteration(kind, last, dim):
    network = trained(kind, last, dim)
    norms = [norm_by_power_iteration(layer.weight.detach().double()) for layer in network.linears]
    assert norms == pytest.approx([1.0, 1.0, 1.0], abs=1e-6)
    assert lipschitz_bound(network) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("dim", [1, 5, 100])
@pytest.mark.parametrize(("kind", "last"), NETWORKS)
def test_no_two_points_are_further_apart_after_than_before(kind, last, dim):
    network = trained(kind, last, dim).double()
    random = torch.Generator().manual_seed(1)
    points = torch.randn(2000, dim, dtype=torch.float64, generator=random) * 3
    near = points + torch.randn(2000, dim, dtype=torch.float64, generator=random) * 1e-3
    far = points[torch.randperm(2000, generator=random)]
    for others in (near, far):
        rise = (network(points) - network(others)).abs()
        assert (rise <= (points - others).norm(dim=1) * (1 + 1e-6)).all()


@pytest.mark.parametrize("dim", [1, 5, 100])
def test_groupsort_layers_are_orthonormal_and_keep_the_gradients_norm(dim):
    network = trained("groupsort", False, dim).double()
    for layer in network.linears:
        weight = layer.weight.detach()
        small = weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight
        torch.testing.assert_close(small, torch.eye(len(small), dtype=torch.float64), atol=1e-5, rtol=0)
    points = torch.randn(50, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    network(points).sum().backward()
    norms = points.grad.norm(dim=1)
    assert (norms <= 1 + 1e-6).all()
    assert norms.max() > 0.3


def test_the_last_activation_starts_alive_and_gives_no_negative_value():
    random = torch.Generator().manual_seed(0)
    points = torch.randn(500, 8, generator=random)
    network = LipschitzNetwork(8, "relu", 32, 3, True, random)
    assert (network(points) > 0).all()
    assert (network(points * 100) >= 0).all()


def test_the_same_generator_gives_the_same_network():
    networks = [LipschitzNetwork(4, generator=torch.Generator().manual_seed(7)) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(networks[0].parameters(), networks[1].parameters()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "elu"}, "one of groupsort, relu, got 'elu'"),
        ({"hidden": 7}, "an even width"),
        ({"blocks": 0}, "at least 1 block"),
        ({"last_activation": True}, "last_activation needs kind='relu'"),
    ],
)
def test_unusable_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LipschitzNetwork(4, **options)
