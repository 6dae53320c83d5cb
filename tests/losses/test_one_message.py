"""Form (c): clients send sums once; errors against asking at every step, sizes by hand, and what is refused."""

import copy
from itertools import pairwise

import pytest
import torch

from fedgen.losses import (
    DistributedLoss,
    EmbeddedLoss,
    FastFIDLoss,
    MMD2Loss,
    Nystrom,
    OneMessageLoss,
    PooledMoments,
    QueueMoments,
    Sketches,
)
from fedgen.losses.one_message import approximation_errors
from fedgen.scores import PolynomialKernel, RBFKernel
from tests.losses.simple import two_numbers
from tests.losses.test_mmd2 import BATCH, CLIENTS, WEIGHTS, draw, gradient_of

POOL = torch.cat(CLIENTS)


def one_message(summary, public=None, loss=None, clients=CLIENTS, weights="examples", **options):
    made = OneMessageLoss(loss, summary, **options)
    if public is not None:
        made.set_public(public)
    return made.set_references(clients, weights)


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@pytest.mark.parametrize("kernel", [PolynomialKernel(), RBFKernel(1.5)], ids=repr)
@pytest.mark.parametrize("estimator", ["u", "v"])
def test_with_the_clients_own_images_as_landmarks_nothing_is_lost(kernel, estimator, weights):
    loss = MMD2Loss(kernel, estimator)
    exact = DistributedLoss(loss).set_references([c.float() for c in CLIENTS], weights)
    found = one_message(Nystrom(60), POOL, loss, [c.float() for c in CLIENTS], weights)
    assert found(BATCH).item() == pytest.approx(exact(BATCH).item(), rel=1e-5, abs=1e-7)
    gradient = gradient_of(exact, BATCH)
    assert (gradient_of(found, BATCH) - gradient).norm() < 1e-5 * gradient.norm()


@pytest.mark.parametrize("summary", [Nystrom(30), Sketches(50)], ids=str)
@pytest.mark.parametrize("estimator", ["u", "v"])
def test_the_gradient_passes_gradcheck(summary, estimator):
    loss = one_message(summary, draw(40, 7), MMD2Loss(estimator=estimator))
    assert torch.autograd.gradcheck(loss, BATCH.clone().requires_grad_())


@pytest.mark.slow
def test_sketches_are_unbiased_and_exact_in_all_but_the_third_order():
    """In few dimensions, over many sketches; the mean over seeds comes as near as its standard error."""
    exact = DistributedLoss().set_references(CLIENTS)(BATCH).item()
    found = torch.tensor([one_message(Sketches(100, seed), loss=MMD2Loss())(BATCH).item() for seed in range(100)])
    error = found.std().item() / len(found) ** 0.5
    assert abs(found.mean().item() - exact) < 3 * error
    assert error < 0.05 * abs(exact)
    linear = [client * 1e-3 for client in CLIENTS]  # third orders vanish
    small = one_message(Sketches(2), clients=linear)
    exact = DistributedLoss().set_references(linear)
    torch.testing.assert_close(gradient_of(small, BATCH * 1e-3), gradient_of(exact, BATCH * 1e-3), rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_sketches_take_every_kind_of_weights(weights):
    exact = DistributedLoss().set_references(CLIENTS, weights)
    found = one_message(Sketches(200_000), POOL, weights=weights)
    gradient = gradient_of(exact, BATCH)
    assert (gradient_of(found, BATCH) - gradient).norm() < 0.05 * gradient.norm()
    assert found(BATCH).item() == pytest.approx(exact(BATCH).item(), rel=0.05)


def features(count, seed, dim=32):
    """Features with a falling spectrum, as networks have them."""
    return draw(count, seed, dim=dim) * torch.logspace(0.3, -1, dim, dtype=torch.float64) + 0.3


def test_errors_against_asking_fall_with_size_and_messages_grow():
    clients = [features(200, 1), features(100, 2) + 0.2, features(150, 3) - 0.1]
    batch, public = features(64, 4) * 1.2, features(2000, 5)
    summaries = [Nystrom(8), Nystrom(64), Nystrom(512), Sketches(100), Sketches(10_000)]
    rows = approximation_errors(summaries, clients, batch, public)
    nystrom, sketches = rows[:3], rows[3:]
    for group in (nystrom, sketches):
        for smaller, larger in pairwise(group):
            assert larger["gradient"] < smaller["gradient"] / 2
            assert larger["up"] > smaller["up"]
            assert larger["cosine"] > smaller["cosine"]
    assert nystrom[2]["value"] < nystrom[1]["value"] / 2 < nystrom[0]["value"] / 4
    assert nystrom[2]["gradient"] < 0.05
    assert sketches[1]["gradient"] < 0.01


@pytest.mark.parametrize("summary", [Nystrom(50), Sketches(500)], ids=str)
def test_numbers_sent_in_single_precision(summary):
    exact = gradient_of(DistributedLoss().set_references(CLIENTS), BATCH)
    double, single = (one_message(summary, draw(60, 7), precision=p) for p in (torch.float64, torch.float32))
    assert single.traffic.up < 0.8 * double.traffic.up
    error, more = ((gradient_of(loss, BATCH) - exact).norm() / exact.norm() for loss in (double, single))
    assert more < error + 0.05


def test_fid_to_the_pool_is_exact_and_remembers_batches():
    found, pool = (
        one_message(None, loss=FastFIDLoss(QueueMoments(30))),
        FastFIDLoss(QueueMoments(30)).set_references([POOL]),
    )
    assert found.score == "fid"
    for batch in (BATCH, BATCH * 1.1):
        difference = gradient_of(found, batch) - gradient_of(pool, batch)
        assert difference.abs().max() < 1e-9
        assert found(batch).item() == pytest.approx(pool(batch).item(), rel=1e-9)
    twin = OneMessageLoss(FastFIDLoss(QueueMoments(30)))
    twin.load_state_dict(found.state_dict())  # before its references are known
    twin.set_references(CLIENTS)
    assert twin.eval()(BATCH).item() == pytest.approx(found.eval()(BATCH).item(), rel=1e-12)


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_fid_to_the_pool_by_any_weights_is_that_of_the_clients_features(weights):
    found = OneMessageLoss(FastFIDLoss()).set_references(CLIENTS, weights)
    pool = FastFIDLoss().set_references(CLIENTS, weights)
    assert found(BATCH).item() == pytest.approx(pool(BATCH).item(), rel=1e-9)
    assert (gradient_of(found, BATCH) - gradient_of(pool, BATCH)).abs().max() < 1e-9


def test_what_is_sent_by_default():
    assert OneMessageLoss().summary == Sketches()
    assert OneMessageLoss(MMD2Loss(RBFKernel())).summary == Nystrom()
    assert OneMessageLoss(FastFIDLoss()).summary == PooledMoments()


def test_what_does_not_do_is_refused():
    with pytest.raises(ValueError, match="Nystrom"):
        OneMessageLoss(MMD2Loss(RBFKernel())).set_references(CLIENTS)
    with pytest.raises(ValueError, match="public"):
        one_message(Nystrom(10), BATCH)
    with pytest.raises(ValueError, match="features"):
        one_message(Nystrom(2), draw(9, 1, dim=3))
    with pytest.raises(ValueError, match="PooledMoments"):
        one_message(PooledMoments())
    with pytest.raises(ValueError, match="PooledMoments"):
        one_message(None, loss=FastFIDLoss(aggregate="avg"))
    with pytest.raises(ValueError, match="FastFIDLoss"):
        one_message(Sketches(), loss=FastFIDLoss())
    with pytest.raises(ValueError, match="KID"):
        one_message(Sketches(), loss=MMD2Loss(RBFKernel()))
    with pytest.raises(ValueError, match="empty"):
        one_message(Sketches(), clients=[CLIENTS[0], CLIENTS[1][:0]])
    with pytest.raises(ValueError, match="statistic"):
        one_message(Sketches(), clients=[CLIENTS[0], CLIENTS[1][:1]])


def test_a_loss_given_is_left_as_it_is_and_nothing_is_saved():
    given = MMD2Loss(aggregate="own", dtype=torch.float32)
    loss = one_message(Nystrom(20), draw(30, 7), given)
    assert given.dim is None
    assert given.aggregate == "own"
    assert loss(BATCH).dtype == torch.float64
    assert loss.state_dict() == {}
    assert torch.equal(copy.deepcopy(loss)(BATCH), loss(BATCH))
    loss.start_turn(2)
    before = loss(BATCH)
    assert torch.equal(loss.set_references(CLIENTS)(BATCH), before)


def test_with_embeddings_public_images_are_embedded_by_each():
    draws = torch.Generator().manual_seed(0)
    images = [torch.randint(0, 256, (n, 1, 8, 8), dtype=torch.uint8, generator=draws) for n in (6, 4, 30)]
    loss = EmbeddedLoss(OneMessageLoss(summary=Nystrom(30)), [two_numbers("a"), two_numbers("b")], weight=5.0)
    loss.set_public(images[2]).set_references(images[:2])
    pool = EmbeddedLoss(MMD2Loss(aggregate="avg"), [two_numbers("a"), two_numbers("b")], weight=5.0)
    pool.set_references(images[:2])
    fake = (torch.rand(8, 1, 8, 8, generator=draws) * 2 - 1).requires_grad_()
    found, expected = (torch.autograd.grad(each(fake), fake)[0] for each in (loss, pool))
    assert (found - expected).norm() < 1e-3 * expected.norm()
    EmbeddedLoss(MMD2Loss(), [two_numbers()]).set_public(images[2])  # has no use for them
