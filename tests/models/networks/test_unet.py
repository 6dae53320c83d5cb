import subprocess
import sys

import pytest
import torch

from fedgen.models.networks import UNet
from fedgen.models.networks.network import build, describe
from tests.losses.live_bytes import LiveBytes


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def residual(maps_in, maps_out, embedding):
    """Parameters of a residual block: two normalised convolutions, the timestep's projection, the shortcut."""
    convolutions = 9 * maps_in * maps_out + maps_out + 9 * maps_out * maps_out + maps_out
    shortcut = maps_in * maps_out + maps_out if maps_in != maps_out else 0
    return 2 * maps_in + 2 * maps_out + convolutions + embedding * maps_out + maps_out + shortcut


def attention(maps):
    return 2 * maps + 4 * (maps * maps + maps)


def resampling(maps):
    return 9 * maps * maps + maps


def test_the_papers_network_has_its_35_746_307_parameters():
    """Counted from Ho et al. 2020, appendix B: four sizes, two blocks each on the way down, three on the way up."""
    widths, embedding = (128, 256, 256, 256), 512
    total = 9 * 3 * 128 + 128 + 128 * embedding + embedding + embedding * embedding + embedding
    down = [128]  # maps of the skip connections, in order
    maps = 128
    for level, width in enumerate(widths):
        for _ in range(2):
            total += residual(maps, width, embedding) + (attention(width) if level == 1 else 0)
            maps = width
            down.append(maps)
        if level < 3:
            total += resampling(maps)
            down.append(maps)
    total += 2 * residual(256, 256, embedding) + attention(256)
    for level, width in reversed(list(enumerate(widths))):
        for _ in range(3):
            total += residual(maps + down.pop(), width, embedding) + (attention(width) if level == 1 else 0)
            maps = width
        total += resampling(maps) if level else 0
    total += 2 * 128 + 9 * 128 * 3 + 3
    with torch.device("meta"):
        network = UNet()
    assert count(network) == total == 35_746_307
    assert network.image_shape == (3, 32, 32)


def test_attention_is_where_it_is_asked_for():
    with torch.device("meta"):
        network = UNet()
    blocks = [type(block).__name__ for block in network.body.down_blocks]
    assert blocks == ["DownBlock2D", "AttnDownBlock2D", "DownBlock2D", "DownBlock2D"]
    assert [type(block).__name__ for block in network.body.up_blocks] == [
        "UpBlock2D",
        "UpBlock2D",
        "AttnUpBlock2D",
        "UpBlock2D",
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"image_size": 8, "channels": 1, "widths": (8, 16), "layers": 1, "attention": ()},
        {"image_size": 28, "channels": 1, "widths": (8, 8, 8), "layers": 1, "attention": (7,)},
        {"image_size": 16, "channels": 3, "widths": (8, 24), "layers": 2, "attention": (8, 16), "num_classes": 3},
        {"image_size": 24, "channels": 3, "widths": (8, 8), "layers": 1, "attention": (4,), "patch": 3},
    ],
)
def test_predictions_have_the_images_shape_and_settings_rebuild_the_network(settings):
    network = UNet(**settings)
    images = torch.randn(2, *network.image_shape)
    labels = (torch.tensor([0, 2]),) if network.num_classes else ()
    assert network(images, torch.tensor([0, 999]), *labels).shape == images.shape
    again = build(describe(network), "network")
    again.load_state_dict(network.state_dict())
    timesteps = torch.tensor([3, 7])
    assert torch.equal(again(images, timesteps, *labels), network(images, timesteps, *labels))


def test_patches_are_channels_of_the_inner_network():
    torch.manual_seed(0)
    network = UNet(8, 1, (8, 8), 1, (), patch=2)
    images, timesteps = torch.randn(2, 1, 8, 8), torch.tensor([1, 2])
    corners = torch.cat([images[:, :, row::2, column::2] for row in (0, 1) for column in (0, 1)], 1)
    inner = network.body(corners, timesteps).sample
    found = network(images, timesteps)
    for place in range(4):
        assert torch.equal(found[:, 0, place // 2 :: 2, place % 2 :: 2], inner[:, place])


def test_batch_norm_stands_in_place_of_all_group_norms():
    torch.manual_seed(0)
    group, batch = (UNet(8, 1, (8, 8), 1, (4,), normalisation=kind) for kind in ("group", "batch"))
    kinds = [type(part).__name__ for part in group.modules()]
    own = [type(part).__name__ for part in batch.modules()]
    assert "GroupNorm" not in own
    assert sum("BatchNorm" in name for name in own) == kinds.count("GroupNorm") > 10
    images, timesteps = torch.randn(4, 1, 8, 8), torch.arange(4)
    together = batch.train()(images, timesteps)
    assert not torch.allclose(together[:2], batch(images[:2], timesteps[:2]))  # by the batch's moments
    assert torch.allclose(batch.eval()(images, timesteps)[:2], batch(images[:2], timesteps[:2]), atol=1e-6)
    assert torch.isfinite(together).all()


def test_without_labels_a_conditional_network_predicts_for_any_class():
    network = UNet(8, 1, (8,), 1, (), num_classes=3)
    images, timesteps = torch.randn(2, 1, 8, 8), torch.tensor([1, 2])
    assert torch.equal(network(images, timesteps), network(images, timesteps, torch.tensor([3, 3])))
    assert not torch.equal(network(images, timesteps), network(images, timesteps, torch.tensor([0, 1])))
    assert not UNet(8, 1, (8,), 1, (), num_classes=3, null_label=False).null_label


@pytest.mark.parametrize("widths", [(8,), (16, 32), (24, 48)])
def test_small_networks_see_the_timestep_and_the_class(widths):
    torch.manual_seed(0)
    network = UNet(8, 1, widths, 1, (), num_classes=2)
    images = torch.randn(1, 1, 8, 8)

    @torch.no_grad()
    def change(timestep, label):
        start = network(images, torch.tensor([0]), torch.tensor([0]))
        return float((network(images, torch.tensor([timestep]), torch.tensor([label])) - start).std() / start.std())

    assert change(900, 0) > 0.01
    assert change(0, 1) > 0.01


def test_computing_activations_twice_gives_the_same_gradients():
    torch.manual_seed(0)
    network = UNet(8, 1, (8, 8), 1, (8,), dropout=0.5)
    images, timesteps = torch.randn(2, 1, 8, 8), torch.tensor([1, 500])
    found = []
    for _ in range(2):
        network.zero_grad()
        torch.manual_seed(1)  # dropout
        network(images, timesteps).square().mean().backward()
        found.append([parameter.grad.clone() for parameter in network.parameters()])
        network.save_memory()
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(*found, strict=True))


@pytest.mark.slow
def test_computing_activations_twice_keeps_fewer_of_them():
    torch.manual_seed(0)
    network = UNet(8, 1, (16,) * 4, 2, ())
    images, timesteps = torch.randn(32, 1, 8, 8), torch.arange(32)
    peaks = []
    for _ in range(2):
        network.zero_grad()
        with LiveBytes() as memory:
            network(images, timesteps).square().mean().backward()
        peaks.append(memory.peak)
        network.save_memory()
    assert peaks[1] < 0.5 * peaks[0]


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="image_size"):
        UNet(28)
    with pytest.raises(ValueError, match="attention"):
        UNet(32, widths=(8, 8), attention=(12, 16))
    with pytest.raises(ValueError, match="image_size"):
        UNet(12, widths=(8, 8, 8), attention=(), patch=2)
    with pytest.raises(ValueError, match="image_size"):
        UNet(32, widths=(8,), attention=(), patch=3)
    with pytest.raises(ValueError, match="normalisation"):
        UNet(8, 1, (8,), 1, (), normalisation="layer")


@pytest.mark.slow
def test_importing_the_models_does_not_import_diffusers():
    script = "import sys, fedgen.models, fedgen.models.networks; print('diffusers' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert result.stdout.strip() == "False", result.stderr
