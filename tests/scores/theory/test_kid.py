import pytest
import torch

from fedgen.scores import KernelReference, RBFKernel, mmd2


def draw(count: int, seed: int, shift: float) -> torch.Tensor:
    return torch.randn(count, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + shift


CLIENTS = [draw(count, seed, shift) for seed, (count, shift) in enumerate([(37, 0.0), (90, 1.0), (160, -0.5)])]
GENERATED = [draw(70, 10 + seed, seed / 4) * (1 + seed / 5) for seed in range(5)]


def to_pool(reference: KernelReference) -> float:
    """The mean distance of the clients to their pool, by the weights."""
    clients = reference.features.split(reference.counts)
    distances = [reference.score(client, errors=False).values["all"] for client in clients]
    return sum(float(weight) * distance for weight, distance in zip(reference.weights, distances))


@pytest.mark.parametrize("kernel", [None, RBFKernel()])
@pytest.mark.parametrize("estimator", ["u", "v"])
def test_avg_is_all_plus_one_constant_for_every_generator(kernel, estimator) -> None:
    reference = KernelReference.from_features(CLIENTS, kernel, estimator)
    for made in GENERATED:
        found = reference.score(made, errors=False).values
        counts = [len(client) for client in CLIENTS]
        by_hand = [mmd2(client, made, kernel, estimator) for client in CLIENTS]
        avg = sum(n * value for n, value in zip(counts, by_hand)) / sum(counts)
        pooled = mmd2(torch.cat(CLIENTS), made, kernel, estimator)
        assert found["avg"] == pytest.approx(avg, rel=1e-12)
        assert found["all"] == pytest.approx(pooled, rel=1e-9, abs=1e-12)
        assert reference.gap == pytest.approx(avg - pooled, rel=1e-9)
        assert abs(found["avg"] - found["all"] - reference.gap) < 1e-12 * max(1, found["avg"])


@pytest.mark.parametrize("weights", ["examples", "uniform", [0.5, 0.2, 0.3]])
def test_the_constant_of_v_statistics_is_the_clients_distance_to_the_pool(weights) -> None:
    reference = KernelReference.from_features(CLIENTS, estimator="v", weights=weights)
    assert to_pool(reference) == pytest.approx(reference.gap, rel=1e-12)


def test_the_constant_of_u_statistics_is_not() -> None:
    unbiased, biased = (KernelReference.from_features(CLIENTS, estimator=estimator) for estimator in "uv")
    assert abs(to_pool(unbiased) / unbiased.gap - 1) > 0.005
    assert abs(unbiased.gap / biased.gap - 1) > 0.001


def test_to_pool_by_hand() -> None:
    found = to_pool(KernelReference.from_features(CLIENTS))
    pooled, total = torch.cat(CLIENTS), sum(len(client) for client in CLIENTS)
    assert found == pytest.approx(sum(len(client) / total * mmd2(pooled, client) for client in CLIENTS))
