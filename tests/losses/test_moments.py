import copy

import pytest
import torch
from torch import Tensor

from fedgen.losses.fastfid import FastFIDLoss
from fedgen.losses.moments import BatchMoments, EMAMoments, Moments, QueueMoments
from fedgen.scores import frechet_distance
from fedgen.statistics import pool, summarize
from tests.losses.frechet_cases import DIM, draw, value_and_gradient

REAL = draw(60, 1)
CPU = torch.device("cpu")


def prepared(moments: Moments, dim: int = DIM) -> Moments:
    moments.prepare(dim, CPU)
    return moments


def assert_moments(estimate, features: Tensor, tolerance: float = 1e-12) -> None:
    expected = summarize(features)
    torch.testing.assert_close(estimate.mean, expected.mean, rtol=0, atol=tolerance)
    for ddof in (0, 1):
        covariance = expected.covariance(ddof)
        torch.testing.assert_close(estimate.covariance(ddof), covariance, rtol=0, atol=tolerance)
        assert float(estimate.trace(ddof)) == pytest.approx(float(expected.trace(ddof)), rel=1e-11)
        if estimate.second is not None:
            matrix = REAL.T @ REAL
            inner = float((matrix * covariance).sum())
            assert float(estimate.inner(matrix, ddof)) == pytest.approx(inner, rel=1e-11)
    assert estimate.count == expected.count
    assert estimate.magnitude == pytest.approx(float(features.double().square().sum(1).mean().sqrt()))


@pytest.mark.parametrize("size", [9, 20, 25, 40])
@pytest.mark.parametrize("remember", [True, False])
def test_a_queue_has_the_moments_of_its_last_features(size: int, remember: bool) -> None:
    moments = prepared(QueueMoments(size, dtype=torch.float64))
    seen = torch.empty(0, DIM).double()
    for step, images in enumerate((3, 7, 20, 2, 1, 19, 8, 8, 8, 20, 20, 5)):
        images = min(images, size)
        batch = draw(images, step, shift=0.1 * step)
        if not remember:
            assert_moments(moments.estimate(batch, remember=False), torch.cat([seen, batch])[-size:])
        seen = torch.cat([seen, batch])[-size:]
        estimate = moments.estimate(batch, remember=True)
        assert_moments(estimate, seen)
        torch.testing.assert_close(estimate.deviations, batch - seen.mean(0))
        assert estimate.share == images / len(seen)
        assert estimate.rank == min(len(seen) - 1, DIM)
    with pytest.raises(ValueError, match=f"a batch of {size + 1} does not fit into a queue of {size}"):
        moments.estimate(draw(size + 1, 0), remember=True)


def test_a_queues_rounding_does_not_gather() -> None:
    """Far from the origin, and with features that were a million times as large before."""
    moments = prepared(QueueMoments(64, dtype=torch.float64))
    for step in range(1000):
        batch = draw(5, step) * (1e6 if step < 500 else 1) + 1e3
        estimate = moments.estimate(batch, remember=True)
    recent = torch.cat([draw(5, step) + 1e3 for step in range(980, 1000)])[-64:]
    torch.testing.assert_close(estimate.covariance(1), summarize(recent).covariance(1), rtol=0, atol=1e-9)
    torch.testing.assert_close(estimate.mean, recent.mean(0), rtol=0, atol=1e-11)


def test_a_queue_rounds_what_it_remembers_and_nothing_drifts_apart() -> None:
    moments = prepared(QueueMoments(16))
    for step in range(9):
        estimate = moments.estimate(draw(5, step), remember=True)
    recent = torch.cat([draw(5, step) for step in range(9)])[-16:]
    assert_moments(estimate, recent.float().double())
    assert estimate.eps == torch.finfo(torch.float32).eps


def test_an_average_by_hand() -> None:
    moments = prepared(EMAMoments(0.5), 1)
    first = moments.estimate(torch.tensor([[0.0], [2.0]]), remember=True)
    assert (float(first.mean), float(first.covariance(0)), first.count, first.share) == (1, 1, 2, 1)
    # weights 1/3 and 2/3: mean (1 + 2 * 4) / 3 = 3, raw second moment (2 + 2 * 16) / 3 = 34/3, covariance 34/3 - 9
    second = moments.estimate(torch.tensor([[4.0], [4.0]]), remember=True)
    assert float(second.mean) == pytest.approx(3)
    assert float(second.covariance(0)) == pytest.approx(34 / 3 - 9)
    # an image's share is 1/6, 1/6, 1/3, 1/3: one over the sum of squares is 18/5
    assert second.count == pytest.approx(18 / 5)
    assert float(second.covariance(1)) == pytest.approx((34 / 3 - 9) * 18 / 13)
    assert second.share == pytest.approx(2 / 3)
    assert second.kept == pytest.approx(1 / 3)
    assert second.deviations.flatten().tolist() == pytest.approx([1, 1])


def test_an_average_is_the_pool_of_its_batches_by_weight() -> None:
    moments = prepared(EMAMoments(0.7))
    batches = [draw(images, step, 1 + step, step) for step, images in enumerate((4, 9, 2, 30, 5))]
    for step, batch in enumerate(batches):
        weights = [0.7 ** (step - k) for k in range(step + 1)]
        expected = pool([summarize(part) for part in batches[: step + 1]], weights)
        unseen = moments.estimate(batch, remember=False)
        for estimate in (unseen, moments.estimate(batch, remember=True)):
            torch.testing.assert_close(estimate.mean, expected.mean)
            torch.testing.assert_close(estimate.covariance(1), expected.covariance(1))
            assert estimate.count == pytest.approx(expected.count)
            assert estimate.rank == min(sum(map(len, batches[: step + 1])) - 1, DIM)


def test_an_averages_effective_number_of_images_at_last() -> None:
    moments = prepared(EMAMoments(0.9))
    for _ in range(300):
        moments.estimate(draw(8, 0), remember=True)
    assert moments.count(8) == pytest.approx(8 * 1.9 / 0.1)


@pytest.mark.parametrize("moments", [QueueMoments(30, dtype=torch.float64), EMAMoments(0.8)], ids=["queue", "average"])
def test_only_training_with_gradients_is_remembered(moments: Moments) -> None:
    loss = FastFIDLoss(copy.deepcopy(moments)).set_references([REAL])
    for step in range(8):
        value_and_gradient(loss, draw(7, step))
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    batch = draw(7, 99)
    with torch.no_grad():
        watched = float(loss(batch))
    loss.eval()
    evaluated, gradient = value_and_gradient(loss, batch)
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())
    loss.train()
    value, trained = value_and_gradient(loss, batch)
    assert watched == pytest.approx(value, rel=1e-12)
    assert evaluated == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(gradient, trained)
    assert not torch.equal(loss.state_dict()["moments.seen"], before["moments.seen"])
    if isinstance(moments, QueueMoments):
        recent = torch.cat([draw(7, step) for step in range(8)] + [batch])[-30:]
        assert value == pytest.approx(frechet_distance(summarize(REAL), summarize(recent))[0], rel=1e-12)


def losses() -> list[FastFIDLoss]:
    return [
        FastFIDLoss(QueueMoments(30), "all"),
        FastFIDLoss(QueueMoments(30), "own", refresh_every=3),
        FastFIDLoss(EMAMoments(0.8), "avg"),
        FastFIDLoss(EMAMoments(0.8), "all", refresh_every=4),
    ]


NAMES = ["queue", "queue, frozen", "average", "average, frozen"]


def run(loss: FastFIDLoss, client: int, steps: range) -> list[tuple[float, Tensor]]:
    loss.start_turn(client)
    return [value_and_gradient(loss, draw(7, 100 * client + step, 1 + client).float()) for step in steps]


def assert_same(left: list[tuple[float, Tensor]], right: list[tuple[float, Tensor]]) -> None:
    assert [value for value, _ in left] == [value for value, _ in right]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(left, right))


@pytest.mark.parametrize("number", range(4), ids=NAMES)
def test_two_clients_states_swapped_in_place_go_on_as_if_alone(number: int) -> None:
    references = [REAL, draw(40, 2, 2)]
    alone = [losses()[number].set_references(references) for _ in range(2)]
    shared = losses()[number].set_references(references)
    slots = [{k: v.clone() for k, v in shared.state_dict().items()} for _ in range(2)]
    for turn in range(3):
        for client in range(2):
            for name, value in shared.state_dict().items():
                value.copy_(slots[client][name])
            steps = range(5 * turn, 5 * turn + 5)
            assert_same(run(shared, client, steps), run(alone[client], client, steps))
            for name, value in shared.state_dict().items():
                slots[client][name].copy_(value)


@pytest.mark.parametrize("number", range(4), ids=NAMES)
def test_a_checkpoint_resumes_exactly_before_or_after_references_are_set(number: int) -> None:
    references = [REAL, draw(40, 2, 2)]
    loss = losses()[number].set_references(references)
    run(loss, 0, range(11))
    saved = copy.deepcopy(loss.state_dict())
    expected = run(loss, 0, range(11, 20))
    early = losses()[number]
    early.load_state_dict(saved)
    assert_same(run(early.set_references(references), 0, range(11, 20)), expected)
    late = losses()[number].set_references(references)
    late.load_state_dict(saved)
    assert_same(run(late, 0, range(11, 20)), expected)


@pytest.mark.parametrize("number", range(4), ids=NAMES)
def test_a_checkpoint_from_before_the_references_starts_anew(number: int) -> None:
    untouched = losses()[number]
    assert not untouched.state_dict()
    loss = losses()[number].set_references([REAL])
    run(loss, 0, range(3))
    loss.load_state_dict(untouched.state_dict())
    assert_same(run(loss, 0, range(3)), run(losses()[number].set_references([REAL]), 0, range(3)))


def test_checkpoints_of_other_options_are_refused() -> None:
    saved = FastFIDLoss(QueueMoments(30)).set_references([REAL]).state_dict()
    other = FastFIDLoss(QueueMoments(40))
    other.load_state_dict(saved)
    with pytest.raises(ValueError, match="QueueMoments"):
        other.set_references([REAL])
    with pytest.raises(RuntimeError, match="mismatch"):
        FastFIDLoss(QueueMoments(40)).set_references([REAL]).load_state_dict(saved)
    del saved["moments.seen"]
    with pytest.raises(RuntimeError, match="Missing"):
        FastFIDLoss(QueueMoments(30)).set_references([REAL]).load_state_dict(saved)
    with pytest.raises(RuntimeError, match="Unexpected"):
        FastFIDLoss(BatchMoments()).load_state_dict(saved)


def test_copies_do_not_share_what_they_remember() -> None:
    original = FastFIDLoss(QueueMoments(30)).set_references([REAL])
    other = copy.deepcopy(original)
    value_and_gradient(original, draw(7, 1))
    assert int(original.moments.seen) == 7
    assert int(other.moments.seen) == 0


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="size"):
        QueueMoments(1)
    for decay in (0.0, 1.0, -1.0):
        with pytest.raises(ValueError, match="decay"):
            EMAMoments(decay)
