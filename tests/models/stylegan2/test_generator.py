"""The generator against the official implementation, and what it promises beyond it."""

import pytest
import torch

from fedgen.models.networks.network import build, describe
from fedgen.models.stylegan2.discriminator import StyleGAN2Discriminator
from fedgen.models.stylegan2.generator import StyleGAN2Generator
from tests.models.stylegan2.conftest import OUTPUTS, deviation


def small(**options):
    torch.manual_seed(0)
    return StyleGAN2Generator(
        **({"image_size": 16, "channels": 1, "latent_dim": 8, "style_dim": 8, "channel_base": 64} | options)
    )


@pytest.mark.parametrize("name", ["psi1", "psi0.5", "psi0.5_cutoff"])
def test_styles_are_the_official_ones(case, name):
    truncation, cutoff = {"psi1": (1.0, None), "psi0.5": (0.5, None), "psi0.5_cutoff": (0.5, case.cutoff)}[name]
    styles = case.generator().styles(case["in/z"], case.labels, truncation, cutoff)
    assert deviation(styles, case[f"map/ws_{name}"]) <= OUTPUTS


@pytest.mark.parametrize("channels_last", [False, True])
def test_images_are_the_official_ones(case, channels_last):
    network = case.generator(channels_last=channels_last)
    styles = case["map/ws_psi1"]
    mixed = torch.cat([styles[:, : case.cutoff], styles.flip(0)[:, case.cutoff :]], dim=1)
    for name, given, noise in (
        ("img_const_psi1", styles, "const"),
        ("img_const_psi0.5", case["map/ws_psi0.5"], "const"),
        ("img_none_psi1", styles, "none"),
        ("img_const_mixed", mixed, "const"),
    ):
        assert deviation(network.synthesize(given, noise), case[f"G/{name}"]) <= OUTPUTS, name


def test_maps_of_each_resolution_are_the_official_ones(case):
    network, found = case.generator(), {}
    for size in network.synthesis.resolutions:
        block = network.synthesis.get_submodule(f"b{size}")
        block.register_forward_hook(lambda block, given, made, size=size: found.update({size: made}))
    network.synthesize(case["map/ws_psi1"], "const")
    checked = [size for size in found if f"G/block{size}_img" in case.arrays]
    assert checked == [4, 8, 16]
    for size in checked:
        assert deviation(found[size][0][:1], case[f"G/block{size}_x_sample0"]) <= OUTPUTS
        assert deviation(found[size][1], case[f"G/block{size}_img"]) <= OUTPUTS


def test_clamped_images_are_the_official_ones(case):
    images = case.generator(clamp=1.0).synthesize(case["map/ws_psi1"], "const")
    assert deviation(images, case["clamp1/G_img_const_psi1"]) <= OUTPUTS


def test_the_mean_of_styles_moves_in_training_as_the_official_one(case):
    network = case.generator().train()
    network.styles(case["in/z"], case.labels, update_average=False)
    torch.testing.assert_close(network.mapping.w_avg, case.weights["G/mapping.w_avg"], rtol=0, atol=0)
    network.styles(case["in/z"], case.labels)
    assert deviation(network.mapping.w_avg, case["map/w_avg_after_one_train_forward"]) <= OUTPUTS


CONFIGURATIONS = {
    "paper256_uncond": {"image_size": 256, "mapping_layers": 8},
    "auto256_uncond": {"image_size": 256, "mapping_layers": 2},
    "paper256_cond10": {"image_size": 256, "mapping_layers": 8, "num_classes": 10},
    "stylegan2_1024_ffhq": {"image_size": 1024, "mapping_layers": 8, "channel_base": 32768},
    "cifar_cond10": {"image_size": 32, "mapping_layers": 2, "num_classes": 10, "channel_base": 32768},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_names_and_shapes_are_the_official_ones(reference_index, name):
    options = dict(CONFIGURATIONS[name])
    with torch.device("meta"):
        generator = StyleGAN2Generator(**options)
        options.pop("mapping_layers")
        architecture = "orig" if name.startswith("cifar") else "resnet"
        discriminator = StyleGAN2Discriminator(**options, architecture=architecture)
    for network, side in ((generator, "G"), (discriminator, "D")):
        shapes = [[key, list(value.shape)] for key, value in network.state_dict().items()]
        assert shapes == reference_index["shapes"][name][side]
        assert sum(p.numel() for p in network.parameters()) == reference_index["shapes"][name]["params"][side]


def test_the_reference_sets_have_their_keys_in_order(case_a, reference_index):
    for network, side in ((case_a.generator(), "G"), (case_a.discriminator(), "D")):
        assert list(network.state_dict()) == [key for key, _ in reference_index["shapes"]["A"][side]]


def test_float64_agrees_with_float32(case_a):
    images = case_a.generator().double().synthesize(case_a["map/ws_psi1"].double(), "const")
    assert images.dtype == torch.float64
    assert deviation(images.float(), case_a["G/img_const_psi1"]) <= OUTPUTS


def test_bfloat16_resolutions_stay_near(case_a):
    images = case_a.generator(half_resolutions=2, half="bfloat16", clamp=256.0).synthesize(
        case_a["map/ws_psi1"], "const"
    )
    assert images.dtype == torch.float32
    off = deviation(images, case_a["G/img_const_psi1"])
    assert 1e-4 < off < 0.05  # it really ran in half precision, and its rounding is all there is


def test_float16_is_for_gpus(case_a):
    images = case_a.generator(half_resolutions=4, half="float16").synthesize(case_a["map/ws_psi1"], "const")
    assert deviation(images, case_a["G/img_const_psi1"]) <= OUTPUTS


def test_autocast_does_not_reach_inside(case_a):
    network = case_a.generator()
    with torch.autocast("cpu", torch.bfloat16):
        images = network(case_a["in/z"], noise="const")
    torch.testing.assert_close(images, network(case_a["in/z"], noise="const"), rtol=0, atol=0)


def test_noise_given_is_noise_used():
    network = small()
    for layer in (block.conv1 for block in network.synthesis.blocks):
        torch.nn.init.constant_(layer.noise_strength, 0.5)
    styles = network.styles(torch.randn(2, 8))
    constant = torch.cat([layer.noise_const.flatten() for block in network.synthesis.blocks for layer in layers(block)])
    assert network.synthesis.noise_dim == len(constant) == 16 + 2 * 64 + 2 * 256
    torch.testing.assert_close(
        network.synthesize(styles, constant.expand(2, -1)), network.synthesize(styles, "const"), rtol=0, atol=0
    )
    torch.manual_seed(3)
    first = network.synthesize(styles)
    torch.manual_seed(3)
    assert torch.equal(first, network.synthesize(styles))
    assert not torch.equal(first, network.synthesize(styles))


def layers(block):
    return [block.conv1] if block.convolutions == 1 else [block.conv0, block.conv1]


@pytest.mark.parametrize("architecture", ["resnet", "orig"])
def test_other_architectures_make_images(architecture):
    network = small(architecture=architecture)
    assert network(torch.randn(2, 8)).shape == (2, 1, 16, 16)
    rgb = [name for name, _ in network.named_modules() if name.endswith("torgb")]
    assert rgb == ["synthesis.b16.torgb"]


def test_residual_shortcuts_by_hand():
    """At strength zero of the main branch what is left is the shortcut times sqrt(1/2)."""
    network = small(architecture="resnet", image_size=8, use_noise=False)
    block = network.synthesis.b8
    for parameter in (*block.conv1.parameters(), *block.conv0.parameters()):
        torch.nn.init.zeros_(parameter)
    x, styles = torch.randn(1, 16, 4, 4), [torch.randn(1, 8)] * 3
    made, _ = block(x, None, styles, ["none", "none"])
    torch.testing.assert_close(made, block.skip(x) * 0.5**0.5)


def test_conditional_images_follow_labels():
    network = small(num_classes=3).eval()
    latents, labels = torch.randn(2, 8), torch.tensor([0, 2])
    by_label = network(latents, labels, noise="const")
    by_weight = network(latents, torch.tensor([[1.0, 0, 0], [0, 0, 1.0]]), noise="const")
    torch.testing.assert_close(by_label, by_weight, rtol=0, atol=0)
    assert not torch.allclose(by_label, network(latents, torch.tensor([1, 1]), noise="const"))


def test_is_rebuilt_from_its_settings():
    network = small(num_classes=3, taps=(1, 2, 1), half_resolutions=1)
    again = build(describe(network), "generator")
    assert again.settings == network.settings
    again.load_state_dict(network.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 20}, "power of two"),
        ({"image_size": 4}, "at least 8"),
        ({"architecture": "dense"}, "choose 'skip'"),
        ({"activation": "gelu"}, "choose 'lrelu'"),
        ({"channel_base": 8}, "at least the image size 16"),
        ({"half_resolutions": -1}, "must not be negative"),
        ({"latent_dim": 0}, "latent_dim=0"),
    ],
)
def test_refuses_settings_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_refuses_inputs_of_other_shapes():
    network, conditional = small(), small(num_classes=3)
    with pytest.raises(ValueError, match="latents"):
        network(torch.zeros(2, 9))
    with pytest.raises(ValueError, match="unconditional"):
        network(torch.zeros(2, 8), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="labels"):
        conditional(torch.zeros(2, 8))
    with pytest.raises(ValueError, match="int64"):
        conditional(torch.zeros(2, 8), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="weights"):
        conditional(torch.zeros(2, 8), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="styles"):
        network.synthesize(torch.zeros(2, 5, 8))
    with pytest.raises(ValueError, match="noise"):
        network.synthesize(torch.zeros(2, 6, 8), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="choose"):
        network.synthesize(torch.zeros(2, 6, 8), "some")
