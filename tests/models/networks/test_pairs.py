import pytest
import torch

from fedgen.models.networks import (
    DCGANCritic,
    DCGANGenerator,
    ResNetCritic,
    ResNetGenerator,
    SAGANCritic,
    SAGANGenerator,
    SmallCritic,
    SmallGenerator,
    SNGANCritic,
    SNGANGenerator,
)
from fedgen.models.networks.pair_layers import count_doublings

PAIRS = [
    (SmallGenerator, SmallCritic),
    (DCGANGenerator, DCGANCritic),
    (ResNetGenerator, ResNetCritic),
    (SNGANGenerator, SNGANCritic),
    (SAGANGenerator, SAGANCritic),
]


def attention(network_class, size):
    """SAGAN's networks attend at the side that the size comes from."""
    return {"attention_size": size >> count_doublings(size)} if network_class in (SAGANGenerator, SAGANCritic) else {}


@pytest.mark.parametrize(("generator_class", "critic_class"), PAIRS)
@pytest.mark.parametrize(("size", "channels"), [(8, 1), (16, 1), (20, 3), (28, 1), (32, 3), (64, 3)])
def test_generators_make_images_that_critics_score(generator_class, critic_class, size, channels):
    extra = attention(generator_class, size)
    generator = generator_class(image_size=size, channels=channels, latent_dim=5, width=4, **extra)
    critic = critic_class(image_size=size, channels=channels, width=4, **extra)
    images = generator(torch.randn(3, 5))
    assert images.shape == (3, channels, size, size)
    assert images.abs().max() <= 1
    assert critic(images).shape == (3,)
    assert critic(images[:1]).shape == (1,)


@pytest.mark.parametrize(("generator_class", "critic_class"), PAIRS)
def test_critics_score_each_image_by_itself(generator_class, critic_class):
    critic = critic_class(image_size=16, channels=1, width=4, **attention(critic_class, 16)).eval()
    images = torch.randn(4, 1, 16, 16)
    assert torch.allclose(critic(images)[:2], critic(images[:2]), atol=1e-5)


def test_small_pair_makes_8x8_images_by_default():
    assert SmallGenerator()(torch.randn(2, 32)).shape == (2, 1, 8, 8)
    assert SmallCritic()(torch.zeros(2, 1, 8, 8)).shape == (2,)


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


def test_resnet_pair_has_the_papers_size():
    # counted by hand from the released model's layers: 128 maps, latent 128, 3x3 convolutions with biases
    up = 2 * (9 * 128 * 128 + 128) + (128 * 128 + 128) + 2 * 256
    plain = 2 * (9 * 128 * 128 + 128)
    first = (27 * 128 + 128) + (9 * 128 * 128 + 128) + (3 * 128 + 128)
    assert count(ResNetGenerator()) == (128 * 2048 + 2048) + 3 * up + 256 + (9 * 128 * 3 + 3) == 1_204_483
    assert count(ResNetCritic()) == first + (plain + 128 * 128 + 128) + 2 * plain + 129 == 1_053_825


@pytest.mark.parametrize(
    ("size", "doublings"), [(8, 1), (12, 1), (16, 2), (20, 2), (28, 2), (32, 3), (36, 2), (48, 3), (64, 4)]
)
def test_sizes_are_reached_from_a_base_of_4_to_15(size, doublings):
    assert count_doublings(size) == doublings


@pytest.mark.parametrize("size", [4, 15, 30])
@pytest.mark.parametrize("network_class", [DCGANGenerator, DCGANCritic, ResNetGenerator, ResNetCritic])
def test_other_sizes_are_refused(network_class, size):
    with pytest.raises(ValueError, match=f"multiple of 4 from 8 .*got {size}"):
        network_class(image_size=size)


def test_sngan_pair_has_the_papers_size():
    # Table 4: 256 maps in the generator, 128 in the critic, whose layers are those of WGAN-GP's
    up = 2 * (9 * 256 * 256 + 256) + (256 * 256 + 256) + 2 * 512
    assert count(SNGANGenerator()) == (128 * 4096 + 4096) + 3 * up + 512 + (9 * 256 * 3 + 3) == 4_276_739
    assert count(SNGANCritic()) == count(ResNetCritic()) == 1_053_825


def test_a_sngan_critic_sums_its_maps_where_the_resnet_takes_their_mean():
    torch.manual_seed(0)
    resnet, sngan = ResNetCritic(16, 1, 4), SNGANCritic(16, 1, 4).eval()
    for name, mine in resnet.blocks.named_modules():
        if isinstance(mine, torch.nn.Conv2d):
            theirs = sngan.blocks.get_submodule(name)
            mine.weight.data, mine.bias.data = theirs.weight.detach().clone(), theirs.bias.detach().clone()
    resnet.score.weight.data, resnet.score.bias.data = sngan.head.score.weight.detach(), torch.zeros(1)
    images = torch.randn(3, 1, 16, 16)
    assert torch.allclose(sngan(images), 64 * resnet(images), rtol=1e-4)


@pytest.mark.slow
def test_sagan_pair_has_the_papers_size_and_shapes():
    """1024 to 64 maps, attention over 256 and 128 maps of 32x32: 81.5 million parameters in all."""
    generator, critic = SAGANGenerator(num_classes=1000), SAGANCritic(num_classes=1000)
    assert [block.conv1.out_channels for block in generator.blocks] == [1024, 512, 256, 128, 64]
    assert (generator.attention.gamma.item(), generator.attention.query.out_channels) == (0.0, 32)
    assert critic.blocks[2].query.out_channels == 16
    assert round((count(generator) + count(critic)) / 1e6, 1) == 81.5
    labels = torch.tensor([999])
    with torch.no_grad():
        images = generator(torch.randn(1, 128), labels)
        assert images.shape == (1, 3, 128, 128)
        assert critic(images, labels).shape == (1,)


@pytest.mark.parametrize("network_class", [SAGANGenerator, SAGANCritic])
def test_attention_at_a_side_that_no_maps_have_is_refused(network_class):
    with pytest.raises(
        ValueError, match=r"attention_size=32: the (generator|critic) has maps of side .*4.*; choose one"
    ):
        network_class(image_size=16)


@pytest.mark.parametrize("network_class", [DCGANGenerator, DCGANCritic])
def test_dcgan_starts_as_published_if_asked(network_class):
    torch.manual_seed(0)
    network = network_class(
        64, 3, width=16, initial_std=0.02, **({} if network_class is DCGANGenerator else {"batch_norm": True})
    )
    layers = [layer for layer in network.modules() if isinstance(layer, (torch.nn.Conv2d, torch.nn.ConvTranspose2d))]
    large = max(layers, key=lambda layer: layer.weight.numel()).weight
    assert large.mean().item() == pytest.approx(0.0, abs=2e-3)
    assert large.std().item() == pytest.approx(0.02, rel=0.05)
    norms = [layer for layer in network.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    gains = torch.cat([norm.weight for norm in norms])
    assert gains.mean().item() == pytest.approx(1.0, abs=0.01)
    assert gains.std().item() == pytest.approx(0.02, rel=0.3)
    assert all(layer.bias is None or not layer.bias.any() for layer in [*layers, *norms])


def test_a_dcgan_critic_has_batch_norm_behind_every_convolution_but_the_first():
    kinds = [type(layer).__name__ for layer in DCGANCritic(32, 1, 4, batch_norm=True).body]
    assert kinds[:2] == ["Conv2d", "LeakyReLU"]
    assert kinds[2:8] == ["Conv2d", "BatchNorm2d", "LeakyReLU"] * 2
    assert not any(isinstance(layer, torch.nn.BatchNorm2d) for layer in DCGANCritic(32, 1, 4).modules())
