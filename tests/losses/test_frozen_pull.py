import pytest
import torch
from torch import Tensor

from fedgen.losses import fastfid
from fedgen.losses.fastfid import Factors, FastFIDLoss
from fedgen.losses.moments import EMAMoments, QueueMoments
from tests.losses.frechet_cases import draw, value_and_gradient
from tests.quick import first_quick

DIM = 32
REAL = [draw(400, 1, dim=DIM), draw(20, 2, 1.5, 0.2, dim=DIM)]


def pair(queue: int, every: int, aggregate: str = "all", dtype: torch.dtype = torch.float64) -> list[FastFIDLoss]:
    """A loss that takes the eigendecomposition at each step, and one that does not."""
    return [
        FastFIDLoss(QueueMoments(queue), aggregate, refresh_every=k, dtype=dtype).set_references(REAL)
        for k in (1, every)
    ]


def steps(losses: list[FastFIDLoss], seeds: range, scale: float = 0.7) -> list[list[tuple[float, Tensor]]]:
    batches = [draw(8, 1000 + seed, scale, 0.1, dim=DIM) for seed in seeds]
    return [[value_and_gradient(loss, batch) for batch in batches] for loss in losses]


def distances(exact: tuple[float, Tensor], frozen: tuple[float, Tensor]) -> tuple[float, float]:
    """Relative difference of values, and one minus the cosine of gradients."""
    cosine = torch.cosine_similarity(exact[1].flatten(), frozen[1].flatten(), dim=0)
    return abs(frozen[0] / exact[0] - 1), 1 - float(cosine)


@pytest.mark.parametrize("aggregate", ["all", "avg", "own"])
@pytest.mark.parametrize("dtype", first_quick([torch.float64, torch.float32]))
def test_the_steps_that_take_the_factors_are_exact_and_those_between_are_close(
    aggregate: str, dtype: torch.dtype
) -> None:
    losses = pair(320, 8, aggregate, dtype)
    for loss in losses:
        loss.start_turn(1)
    exact, frozen = steps(losses, range(80))
    small = 1e-6 if dtype == torch.float32 else 1e-12
    found = []
    for step in range(48, 80):  # the queue is full since the 40th
        value, direction = distances(exact[step], frozen[step])
        if value < small:
            assert direction < max(small, 1e-12)
            found.append(step)
        else:
            assert value < 0.01
            assert direction < 0.04
    assert len(found) == 4
    assert found == list(range(found[0], 80, 8))


@pytest.mark.slow
def test_without_easing_new_images_would_be_pulled_too_hard(monkeypatch: pytest.MonkeyPatch) -> None:
    def mean_error() -> float:
        losses = pair(320, 8)
        exact, frozen = steps(losses, range(80), scale=1.0)
        return sum(value - other for (value, _), (other, _) in zip(frozen[48:], exact[48:])) / 32 / exact[-1][0]

    assert abs(mean_error()) < 0.005
    monkeypatch.setattr(fastfid, "_leverages", lambda factors, count: torch.zeros_like(factors.values))
    assert mean_error() < -0.03


def test_leverages_by_hand() -> None:
    values = torch.tensor([[3.0, 3.0, 0.0], [1.0, 3.0, 0.0]]).double()
    inverses = torch.where(values > 0, 1 / values, 0)
    factors = Factors(values.sum(1), torch.eye(3).expand(2, 3, 3), values, inverses)
    found = fastfid._leverages(factors, 10.0)
    assert found[0, :2].tolist() == pytest.approx([2 / 20] * 2)  # of equal values: rank / 2n
    assert found[1, :2].tolist() == pytest.approx([(1 / 2 + 3 / 4) / 10, (1 / 4 + 1 / 2) / 10])


def test_few_images_and_growing_queues_take_the_factors_often() -> None:
    losses = pair(320, 1000)
    exact, frozen = steps(losses, range(12))
    same = [step for step in range(12) if frozen[step][0] == pytest.approx(exact[step][0], rel=1e-12)]
    assert same == [0, 1, 2, 3, 4, 6, 8, 11]  # not before 40 > D images are there; then at 1.25 times as many or more


@pytest.mark.slow
def test_other_references_or_clients_take_the_factors_anew() -> None:
    exact, frozen = losses = pair(320, 1000, "own")
    steps(losses, range(60))
    for client in (0, 1, None):
        for loss in losses:
            loss.start_turn(client)
        (expected, gradient), (value, other) = (part[0] for part in steps(losses, range(60, 61)))
        assert value == pytest.approx(expected, rel=1e-12)
        torch.testing.assert_close(other, gradient, rtol=1e-9, atol=1e-12)
    for loss in losses:
        loss.set_references([draw(100, 5, dim=DIM)])
    (expected, _), (value, _) = (part[0] for part in steps(losses, range(61, 62)))
    assert value == pytest.approx(expected, rel=1e-12)
    assert exact.frozen is None
    assert frozen.frozen is not None


@pytest.mark.slow
def test_an_average_is_close_too() -> None:
    losses = [FastFIDLoss(EMAMoments(0.98), refresh_every=k).set_references(REAL) for k in (1, 8)]
    exact, frozen = steps(losses, range(150))
    errors = [distances(a, b) for a, b in zip(exact[100:], frozen[100:])]
    assert max(value for value, _ in errors) < 0.005
    assert max(direction for _, direction in errors) < 0.01
    assert sum(value < 1e-12 for value, _ in errors) in (6, 7)


def test_evaluation_is_exact_and_leaves_no_trace() -> None:
    losses = pair(320, 8)
    steps(losses, range(57))
    before = {name: value.clone() for name, value in losses[1].state_dict().items()}
    for loss in losses:
        loss.eval()
    (expected, gradient), (value, other) = (part[0] for part in steps(losses, range(57, 58)))
    assert value == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(other, gradient)
    assert all(torch.equal(value, before[name]) for name, value in losses[1].state_dict().items())
