"""Losses on every device that is there, under autocast, and in a parent of half precision."""

import pytest
import torch

from fedgen.losses import (
    BatchMoments,
    DistributedLoss,
    EMAMoments,
    EmbeddedLoss,
    FastFIDLoss,
    MMD2Loss,
    Nystrom,
    OneMessageLoss,
    QueueMoments,
    Sketches,
)
from tests.devices import DEVICES
from tests.losses.simple import two_numbers

LOSSES = {
    "fid-batch": lambda dtype: FastFIDLoss(BatchMoments(), dtype=dtype),
    "fid-queue": lambda dtype: FastFIDLoss(QueueMoments(50), dtype=dtype),
    "fid-ema": lambda dtype: FastFIDLoss(EMAMoments(0.9), dtype=dtype),
    "fid-refreshed": lambda dtype: FastFIDLoss(QueueMoments(50), refresh_every=2, dtype=dtype),
    "fid-avg": lambda dtype: FastFIDLoss(aggregate="avg", dtype=dtype),
    "mmd2": lambda dtype: MMD2Loss(dtype=dtype),
    "mmd2-asked": lambda dtype: DistributedLoss(MMD2Loss(dtype=dtype)),
    "mmd2-sketched": lambda _: OneMessageLoss(summary=Sketches(20)),
    "mmd2-landmarks": lambda _: with_public(OneMessageLoss(summary=Nystrom(20))),
}


def features(count, seed):
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed)) + 0.1 * seed


def with_public(loss):
    loss.set_public(features(20, 5))
    return loss


def value_and_gradient(name, dtype, device="cpu", inputs=torch.float32, context=None):
    loss = LOSSES[name](dtype).set_references([features(30, 1), features(5, 2)]).to(device)
    loss(features(20, 4).to(device).requires_grad_())
    batch = features(12, 3).to(device, inputs).requires_grad_()
    if context is None:
        value = loss(batch)
    else:
        with context:
            value = loss(batch)
    value.backward()
    return value.detach().cpu().double(), batch.grad.cpu().double()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-5)])
def test_every_device_and_precision_gives_the_same(name, device, dtype, tolerance):
    expected = value_and_gradient(name, torch.float64)
    found = value_and_gradient(name, dtype, device)
    for a, b in zip(found, expected):
        assert (a - b).norm() <= tolerance * b.norm()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("device", DEVICES)
def test_autocast_changes_nothing(name, device):
    expected = value_and_gradient(name, torch.float64, device)
    found = value_and_gradient(name, torch.float64, device, context=torch.autocast(device, dtype=torch.bfloat16))
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("name", LOSSES)
def test_features_of_half_precision_get_a_gradient_of_theirs(name):
    value, gradient = value_and_gradient(name, torch.float64, inputs=torch.bfloat16)
    expected = value_and_gradient(name, torch.float64)
    assert value == pytest.approx(float(expected[0]), rel=0.05)
    assert (gradient - expected[1]).norm() < 0.05 * expected[1].norm()


@pytest.mark.parametrize("name", LOSSES)
def test_a_parent_of_half_precision_does_not_degrade_it(name):
    loss = LOSSES[name](torch.float64).set_references([features(30, 1), features(5, 2)])
    expected = loss(features(12, 3))
    again = LOSSES[name](torch.float64).set_references([features(30, 1), features(5, 2)])
    parent = torch.nn.Sequential(again).half()
    assert torch.equal(parent[0](features(12, 3)), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_a_loss_of_images_follows_its_parent_to_the_device(device):
    images = torch.randint(0, 256, (10, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    loss = EmbeddedLoss(FastFIDLoss(QueueMoments(20)), [two_numbers()], chunk=3, checkpointing=True)
    parent = torch.nn.Sequential(loss.set_references([images])).to(device)
    generated = (torch.rand(6, 1, 8, 8) * 2 - 1).to(device).requires_grad_()
    parent(generated).backward()
    assert generated.grad.device.type == device
    assert generated.grad.abs().max() > 0
