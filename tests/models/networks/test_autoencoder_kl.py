"""The autoencoder of latent diffusion beside diffusers' own."""

import pytest
import torch
from diffusers import AutoencoderKL as Theirs

from fedgen.models.networks import AutoencoderKL
from fedgen.models.networks.network import build, describe


def make(**options):
    torch.manual_seed(0)
    return AutoencoderKL(
        **({"image_size": 8, "channels": 1, "latent_channels": 2, "widths": [4, 8], "layers": 1} | options)
    )


def settings(body):
    return {name: value for name, value in body.config.items() if not name.startswith("_")}


def test_its_defaults_are_stable_diffusions_network():
    """But for the scaling, which belongs to its weights."""
    stable = {"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "latent_channels": 4}
    stable |= {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    with torch.device("meta"):
        ours, theirs = AutoencoderKL(), Theirs(**stable, sample_size=256, scaling_factor=1.0)
    assert settings(ours.body) == settings(theirs)
    assert (ours.image_shape, ours.latent_shape, ours.factor) == ((3, 256, 256), (4, 32, 32), 8)


def test_it_encodes_and_decodes_as_diffusers_does():
    network, images = make(), torch.rand(3, 1, 8, 8) * 2 - 1
    theirs = Theirs.from_config(network.body.config)
    theirs.load_state_dict(network.body.state_dict())
    posterior = theirs.encode(images).latent_dist
    assert torch.equal(network.encode(images).mode(), posterior.mean)
    assert torch.equal(network.encode(images).kl(), posterior.kl())
    assert torch.equal(network(images), theirs.decode(posterior.mean).sample)
    assert posterior.mean.shape[1:] == network.latent_shape


def test_groups_of_its_normalisation_have_four_maps_or_more():
    assert make(widths=[16, 32]).body.config.norm_num_groups == 4
    assert make(widths=[4, 8]).body.config.norm_num_groups == 1


def test_it_is_made_again_of_its_description_and_of_a_config_of_diffusers():
    network = make(attention=False)
    again = build(describe(network), "network")
    again.load_state_dict(network.state_dict())
    around = AutoencoderKL.around({**network.body.config, "scaling_factor": 0.5, "shift_factor": 0.1})
    around.load_state_dict(network.state_dict())
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(again(images), network(images))
    assert torch.equal(around(images), network(images))
    assert (network.scaling, network.shift, around.scaling, around.shift) == (1.0, 0.0, 0.5, 0.1)
    assert build(describe(around), "network").scaling == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 7}, r"image_size=7 does not halve for the widths \[4, 8\]; pad the data"),
        ({"widths": []}, "image_size=8 does not halve for the widths"),
        ({"options": {"latents_mean": [0.0, 0.1]}}, "normalises latents channel by channel"),
    ],
)
def test_what_it_cannot_be_is_told(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
