"""FastFID of the distance corrected for few images: the value is the score's, the gradient that of differences."""

import pytest
import torch

from fedgen.losses import EMAMoments, FastFIDLoss, QueueMoments
from fedgen.scores import FrechetReference, frechet_distance
from fedgen.statistics import summarize

DIM = 6


def draws(count, seed, scale=1.0):
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


@pytest.mark.parametrize("aggregate", ["all", "avg"])
@pytest.mark.parametrize("sizes", [(9, 20), (40, 400)])
def test_the_value_is_that_of_the_score(aggregate, sizes):
    clients, made = [draws(size, size) for size in sizes], draws(12, 0, 1.5)
    loss = FastFIDLoss(aggregate=aggregate, bias="corrected").set_references(clients)
    score = FrechetReference.from_features(clients, bias="corrected").score(made, errors=False)
    assert float(loss(made)) == pytest.approx(score.values[aggregate], rel=1e-10)
    assert float(loss(made.requires_grad_()).detach()) == pytest.approx(score.values[aggregate], rel=1e-10)
    assert loss.score == "fidc"


def test_the_gradient_is_that_of_differences():
    loss, made = (
        FastFIDLoss(aggregate="avg", bias="corrected").set_references([draws(10, 1), draws(30, 2)]),
        draws(9, 3),
    )
    made.requires_grad_()
    loss(made).backward()
    for place in ((0, 0), (4, 3), (8, 5)):
        moved = []
        for step in (1e-5, -1e-5):
            other = made.detach().clone()
            other[place] += step
            moved.append(float(loss(other)))
        assert float(made.grad[place]) == pytest.approx((moved[0] - moved[1]) / 2e-5, rel=1e-5, abs=1e-9)


def test_a_queue_stands_for_a_larger_batch():
    loss = FastFIDLoss(QueueMoments(20), bias="corrected").set_references([draws(50, 1)])
    first, second = draws(12, 2), draws(8, 3).requires_grad_()
    loss(first.clone().requires_grad_())
    value = loss(second)
    both = summarize(torch.cat([first, second.detach()]))
    expected = frechet_distance(summarize(draws(50, 1)), both, bias="corrected")[0]
    assert float(value.detach()) == pytest.approx(expected, rel=1e-6)  # the queue is of float32
    value.backward()
    assert second.grad.isfinite().all()


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match="ddof"):
        FastFIDLoss(ddof=0, bias="corrected")
    with pytest.raises(ValueError, match="refresh_every"):
        FastFIDLoss(EMAMoments(), refresh_every=4, bias="corrected")
    with pytest.raises(ValueError, match="bias"):
        FastFIDLoss(bias="none")
    with pytest.raises(ValueError, match="the batch has 7 images"):
        FastFIDLoss(bias="corrected").set_references([draws(50, 1)])(draws(7, 2))
