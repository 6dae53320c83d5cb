"""The discriminator, its penalties and the generator's against the official implementation."""

import pytest
import torch
from torch.nn import functional as F

from fedgen.models.networks.network import build, describe
from fedgen.models.stylegan2.discriminator import StyleGAN2Discriminator
from fedgen.models.stylegan2.training_steps import path_lengths, r1_penalty
from tests.models.stylegan2.conftest import OUTPUTS, deviation

GRADIENT_NORMS = 1e-3


def small(**options):
    torch.manual_seed(0)
    return StyleGAN2Discriminator(**({"image_size": 16, "channels": 1, "channel_base": 64} | options))


def layouts(case, of_larger):
    """Whether channels come last: both on the small set, one on the larger."""
    return [False, True] if case.labels is None else [of_larger]


def test_logits_are_the_official_ones(case):
    for channels_last in layouts(case, False):
        network = case.discriminator(channels_last=channels_last)
        for name in ("const_psi1", "const_psi0.5", "none_psi1"):
            assert deviation(network(case[f"G/img_{name}"], case.labels), case[f"D/logits_{name}"]) <= OUTPUTS, name
        assert deviation(network(case["in/real"], case.labels), case["D/logits_real"]) <= OUTPUTS


def test_groups_of_the_minibatch_are_strided(case):
    images = torch.cat([case["G/img_const_psi1"], case["G/img_const_psi0.5"]])
    labels = None if case.labels is None else torch.cat([case.labels, case.labels])
    assert deviation(case.discriminator()(images, labels), case["D/logits_batch8"]) <= OUTPUTS


def test_clamped_logits_are_the_official_ones(case):
    logits = case.discriminator(clamp=1.0)(case["G/img_const_psi1"], case.labels)
    assert deviation(logits, case["clamp1/D_logits_const_psi1"]) <= OUTPUTS


def test_the_label_is_mapped_as_officially(case):
    if case.labels is None:
        assert case.discriminator().mapping is None
        return
    assert deviation(case.discriminator().mapping(None, case.labels), case["D/cmap"]) <= OUTPUTS


def test_r1_is_the_official_penalty(case):
    images = case["G/img_const_psi1"].clone().requires_grad_()
    penalty = r1_penalty(case.discriminator()(images, case.labels), images)
    assert deviation(penalty, case["D/r1_penalty_const_psi1"]) <= GRADIENT_NORMS
    assert deviation(penalty.mean() * 10 / 2, case["D/r1_loss_gamma10"]) <= GRADIENT_NORMS


def norms(network):
    """Of each parameter's gradient; 0 where none arrived, as a penalty on slopes has none in the last bias."""
    return {name: 0.0 if p.grad is None else float(p.grad.norm()) for name, p in network.named_parameters()}


def assert_gradients(network, expected, of_noise=GRADIENT_NORMS):
    """Every parameter's gradient has the official norm; the noise's strengths within a tolerance of their own."""
    found = norms(network)
    assert found.keys() == expected.keys()
    largest = max(norm for norm, _ in expected.values())
    for name, (norm, _) in expected.items():
        off = of_noise if name.endswith("noise_strength") else GRADIENT_NORMS
        assert found[name] == pytest.approx(norm, rel=off, abs=1e-7 * largest), name


@pytest.mark.slow
def test_main_phases_have_the_official_losses_and_gradients(case):
    for channels_last in layouts(case, False):
        generator = case.generator(channels_last=channels_last).train()
        discriminator = case.discriminator(channels_last=channels_last).train()
        expected = case.settings["param_grads"]
        fake = generator.synthesize(generator.styles(case["in/z"], case.labels), "const")
        logits = discriminator(fake, case.labels)
        loss = F.softplus(-logits)
        assert deviation(loss, case["loss/Gmain/G_loss"]) <= OUTPUTS
        loss.mean().backward()
        assert_gradients(generator, expected["Gmain"])
        kept = generator.get_parameter("synthesis.b8.conv0.weight").grad[:4]
        assert deviation(kept, case["loss/Gmain/grad_synthesis.b8.conv0.weight"]) <= GRADIENT_NORMS

        discriminator.zero_grad()
        on_fake = discriminator(fake.detach(), case.labels)
        on_real = discriminator(case["in/real"], case.labels)
        loss = F.softplus(on_fake) + F.softplus(-on_real)
        assert deviation(loss, case["loss/Dmain/D_loss"]) <= OUTPUTS
        loss.mean().backward()
        assert_gradients(discriminator, expected["Dmain"])
        kept = discriminator.get_parameter("b8.conv0.weight").grad[:4]
        assert deviation(kept, case["loss/Dmain/grad_b8.conv0.weight"]) <= GRADIENT_NORMS


@pytest.mark.slow
def test_r1_differentiates_once_more_as_officially(case):
    for channels_last in layouts(case, True):
        network = case.discriminator(channels_last=channels_last).train()
        real = case["in/real"].clone().requires_grad_()
        penalty = r1_penalty(network(real, case.labels), real)
        assert deviation(penalty, case["loss/Dreg/r1_penalty"]) <= GRADIENT_NORMS
        (penalty.mean() * 10 / 2).backward()
        assert_gradients(network, case.settings["param_grads"]["Dreg"])
        kept = network.get_parameter("b8.conv0.weight").grad[:4]
        assert deviation(kept, case["loss/Dreg/grad_b8.conv0.weight"]) <= GRADIENT_NORMS


@pytest.mark.slow
def test_path_lengths_differentiate_once_more_as_officially(case):
    for channels_last in layouts(case, True):
        # sums over maps that nearly cancel: 0.5 % off in float32 where torch 2.15 adds NCHW maps, 1e-5 in float64
        bounds = {torch.float64: GRADIENT_NORMS} | ({torch.float32: 1e-2} if case.labels is None else {})
        for dtype, of_noise in bounds.items():
            network = case.generator(channels_last=channels_last).train().to(dtype)
            half = len(case["in/z"]) // 2
            labels = None if case.labels is None else case.labels[:half].to(dtype)
            styles = network.styles(case["in/z"][:half].to(dtype), labels)
            lengths = path_lengths(network.synthesize(styles, "const"), styles, case["in/pl_noise"].to(dtype))
            mean = torch.tensor(0.25, dtype=dtype).lerp(lengths.mean(), 0.01)
            penalty = (lengths - mean).square()
            assert deviation(mean, case["loss/Greg/pl_mean_after"]) <= OUTPUTS
            assert deviation(penalty, case["loss/Greg/pl_penalty"]) <= GRADIENT_NORMS
            (2 * penalty).mean().backward()
            assert_gradients(network, case.settings["param_grads"]["Greg"], of_noise)
            kept = network.get_parameter("synthesis.b8.conv0.weight").grad[:4]
            assert deviation(kept, case["loss/Greg/grad_synthesis.b8.conv0.weight"]) <= GRADIENT_NORMS


def test_slopes_of_a_plane_are_its_weights():
    images = torch.randn(3, 1, 2, 2, requires_grad=True)
    plane = torch.tensor([1.0, -2.0, 2.0, 0.0])
    torch.testing.assert_close(r1_penalty(images.flatten(1) @ plane, images), torch.full((3,), 9.0))


def test_path_length_of_a_linear_map_by_hand():
    """Images 3 w1 + 4 w2 of four pixels, y = (1, 1, 1, 1): slopes 4 * 3 / 2 and 4 * 4 / 2, root mean square."""
    styles = torch.ones(1, 2, 1, requires_grad=True)
    images = (styles[:, 0] * 3 + styles[:, 1] * 4)[:, :, None, None].expand(-1, 1, 1, 4)
    lengths = path_lengths(images, styles, torch.ones(1, 1, 1, 4))
    torch.testing.assert_close(lengths, torch.tensor([((6.0**2 + 8.0**2) / 2) ** 0.5]))


def test_frozen_layers_are_counted_from_the_image():
    network = small(frozen_layers=5)
    trained = {name for name, _ in network.named_parameters()}
    frozen = ["b16.fromrgb", "b16.conv0", "b16.conv1", "b16.skip", "b8.conv0"]
    assert all(f"{name}.weight" not in trained for name in frozen)
    assert {"b8.conv1.weight", "b8.skip.weight", "b4.conv.weight"} <= trained
    assert set(network.state_dict()) == set(small().state_dict())


def test_bfloat16_resolutions_stay_near(case_a):
    logits = case_a.discriminator(half_resolutions=2, half="bfloat16")(case_a["in/real"])
    assert logits.dtype == torch.float32
    assert 1e-5 < deviation(logits, case_a["D/logits_real"]) < 0.2


def test_original_architecture_has_no_shortcuts():
    network = small(architecture="orig", num_classes=3)
    assert not [name for name in network.state_dict() if ".skip." in name]
    assert network(torch.zeros(4, 1, 16, 16), torch.zeros(4, dtype=torch.int64)).shape == (4,)


def test_is_rebuilt_from_its_settings():
    network = small(num_classes=3, group_size=None, frozen_layers=2)
    again = build(describe(network), "critic")
    assert again.settings == network.settings
    again.load_state_dict(network.state_dict())


def test_refuses_what_cannot_be():
    with pytest.raises(ValueError, match="choose"):
        small(architecture="skip")
    with pytest.raises(ValueError, match="power"):
        small(image_size=48)
    with pytest.raises(ValueError, match="built"):
        small()(torch.zeros(4, 3, 16, 16))
    with pytest.raises(ValueError, match="divide"):
        small()(torch.zeros(6, 1, 16, 16))
    with pytest.raises(ValueError, match="labels"):
        small(num_classes=3)(torch.zeros(4, 1, 16, 16))
