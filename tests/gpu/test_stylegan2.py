"""StyleGAN2's operations, networks and penalties on a GPU beside the CPU's float64."""

import pytest
import torch

from fedgen.models.stylegan2.generator import StyleGAN2Generator
from fedgen.models.stylegan2.operations import (
    activation_gain,
    downsample2d,
    make_filter,
    modulated_conv2d,
    rectify,
    upfirdn2d,
    upsample2d,
)
from fedgen.models.stylegan2.training_steps import r1_penalty
from tests.devices import DEVICES, GPU
from tests.models.stylegan2.conftest import Case, deviation

TAPS = [1, 3, 3, 1]
OPERATIONS = {
    "upfirdn2d": lambda x, w, s, taps: upfirdn2d(x, taps, up=2, down=1, padding=[2, 1, 2, 1]),
    "upsample2d": lambda x, w, s, taps: upsample2d(x, taps),
    "downsample2d": lambda x, w, s, taps: downsample2d(x, taps),
    "modulated": lambda x, w, s, taps: modulated_conv2d(x, w, s),
    "modulated, up": lambda x, w, s, taps: modulated_conv2d(x, w, s, up=2, taps=taps),
    "activation": lambda x, w, s, taps: rectify(x + s[0][:, None, None], "lrelu") * activation_gain("lrelu"),
}


def derivatives(name, device, dtype):
    """The value, its gradients, and those of the gradients' square, on the CPU in float64."""
    draws = torch.Generator().manual_seed(0)
    shapes = (2, 4, 8, 8), (6, 4, 3, 3), (2, 4)
    given = [torch.randn(shape, generator=draws, dtype=torch.float64) for shape in shapes]
    x, w, s = (value.to(device, dtype).requires_grad_() for value in given)
    taps = make_filter(TAPS).to(device, dtype)
    value = OPERATIONS[name](x, w, s, taps)
    inputs = [x, w, s]
    first = torch.autograd.grad(value.square().sum(), inputs, create_graph=True, allow_unused=True)
    used = [gradient for gradient in first if gradient is not None]
    second = torch.autograd.grad(sum(g.square().sum() for g in used), inputs, allow_unused=True)
    return [found.detach().cpu().double() for found in (value, *used, *second) if found is not None]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_and_two_orders_of_derivatives(name, device):
    expected, found = derivatives(name, "cpu", torch.float64), derivatives(name, device, torch.float32)
    assert len(found) == len(expected) >= 3
    for ours, theirs in zip(found, expected):
        assert deviation(ours, theirs) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_images_logits_and_penalties_are_the_official_ones(channels_last, device):
    case = Case("A")
    generator = case.generator(channels_last=channels_last).to(device)
    critic = case.discriminator(channels_last=channels_last).to(device)
    images = generator.synthesize(case["map/ws_psi1"].to(device), "const")
    assert deviation(images.cpu(), case["G/img_const_psi1"]) <= 1e-4
    real = images.detach().requires_grad_()
    penalty = r1_penalty(critic(real), real).mean()
    penalty.backward()
    cpu = case["G/img_const_psi1"].clone().requires_grad_()
    reference = case.discriminator()
    expected = r1_penalty(reference(cpu), cpu).mean()
    expected.backward()
    assert penalty.item() == pytest.approx(expected.item(), rel=1e-3)
    for ours, theirs in zip(critic.parameters(), reference.parameters(), strict=True):
        if theirs.grad is not None and theirs.grad.abs().max() > 0:
            assert deviation(ours.grad.cpu(), theirs.grad) <= 1e-2


@pytest.mark.parametrize("device", [GPU])
def test_float16_runs_there_and_stays_near(device):
    case = Case("A")
    network = case.generator(half_resolutions=2, half="float16", clamp=256.0).to(device)
    images = network.synthesize(case["map/ws_psi1"].to(device), "const")
    assert images.dtype == torch.float32
    assert 1e-5 < deviation(images.cpu(), case["G/img_const_psi1"]) < 0.02


@pytest.mark.parametrize("device", ["meta", *DEVICES])
def test_networks_of_256_pixels_compute_their_shapes(device):
    with torch.device(device):
        network = StyleGAN2Generator(256, channel_max=32)
        images = network(torch.randn(1, network.latent_dim))
    assert images.shape == (1, 3, 256, 256)
    assert images.device.type == device
