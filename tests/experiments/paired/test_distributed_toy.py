"""The Gaussian toy trained on what clients send."""

import pytest
import torch

from fedgen.experiments.paired.distributed_fid_loss import (
    OPTIMA,
    ToySettings,
    frechet_objective,
    kernel_objective,
    sent,
    train_toy,
)
from fedgen.losses import FastFIDLoss, QueueMoments
from fedgen.scores.theory import toy_frechet, toy_kernel
from fedgen.statistics import MessageError

POINTS = [torch.randn(n, 2, generator=torch.Generator().manual_seed(n), dtype=torch.float64) + n / 50 for n in (40, 60)]
BATCH = torch.randn(16, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def gradient(objective, batch):
    batch = batch.clone().requires_grad_()
    return torch.autograd.grad(objective(batch), batch)[0]


def test_optima_are_those_of_the_closed_forms():
    variances = torch.linspace(0.5, 3, 251, dtype=torch.float64)
    for score, formula in (("fid", toy_frechet), ("kid", toy_kernel)):
        for aggregate in ("all", "avg"):
            least = float(variances[formula(variances)[aggregate].argmin()])
            assert least == pytest.approx(OPTIMA[f"{score}_{aggregate}"], abs=1e-9)


@pytest.mark.parametrize("aggregate", ["all", "avg"])
def test_fid_from_messages_is_fid_from_the_points(aggregate):
    from_points = FastFIDLoss(QueueMoments(64), aggregate).set_references(POINTS)
    from_messages = frechet_objective(sent(POINTS), aggregate, queue=64)
    assert float(from_messages(BATCH)) == pytest.approx(float(from_points(BATCH)), rel=1e-10)
    assert torch.allclose(gradient(from_messages, BATCH), gradient(from_points, BATCH), rtol=1e-9, atol=1e-12)


def test_a_message_holds_six_numbers_and_not_the_points():
    short, long = sent([POINTS[0][:20], POINTS[0]])
    assert len(short) == len(long) < 20 * 2 * 8  # count, two sums, three sums of products; and the header
    with pytest.raises(MessageError):
        frechet_objective([short[:-1]], "all", queue=64)


def test_the_mean_of_the_clients_own_kid_has_the_gradient_of_the_pools():
    pooled, own = (gradient(kernel_objective(POINTS, aggregate), BATCH) for aggregate in ("all", "avg"))
    assert torch.allclose(pooled, own, rtol=1e-12, atol=1e-14)


def test_training_leads_to_the_optima():
    settings = ToySettings(points=3000, kernel_points=400, batch=128, queue=1024, steps=200)
    found = train_toy(settings, seed=0)
    ends = {name: end[2] for name, end in found["end"].items()}
    assert ends["fid_all"] == pytest.approx(2, abs=0.2)
    assert ends["fid_avg"] == pytest.approx(1, abs=0.1)
    assert ends["kid_all"] == pytest.approx(2, abs=0.4)  # 600 points of each client
    assert ends["kid_avg"] == pytest.approx(ends["kid_all"], rel=1e-9)
    assert found["kid gradients"] < 1e-12
    assert found["variance"]["fid_all"][0] == pytest.approx(0.25)
    assert len(found["steps"]) == len(found["variance"]["kid_avg"]) == 201
