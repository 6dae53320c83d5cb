"""A frozen autoencoder: where it comes from, what latents are, and what is refused."""

import pytest
import torch
from diffusers import AutoencoderKL as Theirs
from diffusers import AutoencoderTiny, UNet2DModel
from torch import nn

from fedgen.models import VAE, LatentSpace
from fedgen.models.autoencoders import made_space, read_autoencoder
from fedgen.models.networks import AutoencoderKL
from fedgen.models.networks.network import describe


class Halved(nn.Module):
    """Latents are half of images, without a posterior."""

    def encode(self, images):
        return images / 2

    def decode(self, latents):
        return latents * 2


def make_theirs(**options):
    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    sizes = {"in_channels": 1, "out_channels": 1, "block_out_channels": (4, 4), "norm_num_groups": 2, "sample_size": 8}
    return (
        Theirs(**(blocks | sizes | {"latent_channels": 2, "shift_factor": 0.1} | options)).eval().requires_grad_(False)
    )


def make_vae():
    torch.manual_seed(0)
    model = VAE(AutoencoderKL(image_size=8, channels=1, latent_channels=2, widths=[4, 4], layers=1))
    model.moments.mean.fill_(0.5)
    model.moments.square.fill_(4.25)
    return model


def images_of(count):
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1


@pytest.mark.parametrize("below", ["", "vae"])
def test_latents_of_a_folder_are_those_of_a_plain_call_of_diffusers(tmp_path, below):
    """With the pipelines' arithmetic of scaling and shift."""
    theirs, images = make_theirs(), images_of(3)
    theirs.save_pretrained(tmp_path / below)
    space = LatentSpace(str(tmp_path))
    with torch.no_grad():
        torch.manual_seed(1)
        drawn = (theirs.encode(images).latent_dist.sample() - 0.1) * 0.18215
        torch.manual_seed(1)
        assert torch.equal(space.encode(images), drawn)
        mode = (theirs.encode(images).latent_dist.mode() - 0.1) * 0.18215
        assert torch.equal(space.encode(images, draw=False), mode)
        assert torch.equal(LatentSpace(str(tmp_path), posterior="mode").encode(images), mode)
        decoded = theirs.decode(mode / 0.18215 + 0.1).sample.clamp(-1, 1)
        assert torch.equal(space.decode(mode), decoded)
    assert torch.equal(LatentSpace(theirs).encode(images, draw=False), mode)


def test_images_are_decoded_in_chunks():
    space = LatentSpace(make_theirs(), chunk=2)
    latents = space.encode(images_of(5), draw=False)
    whole, sizes = LatentSpace(make_theirs()).decode(latents), []
    decode = space.autoencoder.decode
    space.autoencoder.decode = lambda part: sizes.append(len(part)) or decode(part)
    assert torch.allclose(space.decode(latents), whole, atol=1e-5)
    assert sizes == [2, 2, 1]


@pytest.mark.slow
def test_a_vae_brings_the_moments_of_its_latents(tmp_path, fit):
    model, images = make_vae(), images_of(2)
    fit(model, batches=1)
    model.moments.mean.fill_(0.5)
    model.moments.square.fill_(4.25)
    model.trainer.save_checkpoint(tmp_path / "vae.ckpt")
    model.save_pretrained(tmp_path / "folder")
    network = model.eval().network.requires_grad_(False)  # sums of a network that trains are rounded otherwise
    expected = (network.encode(images).mode() - 0.5) * 0.5
    for given in (model, str(tmp_path / "vae.ckpt"), str(tmp_path / "folder")):
        space = LatentSpace(given)
        assert (space.shift, space.scaling) == (0.5, 0.5)
        assert torch.equal(space.encode(images, draw=False), expected)
    assert LatentSpace(model, scaling=3.0, shift=0.0).settings["scaling"] == 3.0


def test_it_is_frozen_and_a_copy():
    model = make_vae().train()
    space = LatentSpace(model)
    assert not any(parameter.requires_grad for parameter in space.parameters())
    assert not any(part.training for part in space.train().modules())
    assert all(parameter.requires_grad for parameter in model.network.parameters())
    assert model.network.training
    assert not space.encode(images_of(1).requires_grad_()).requires_grad


def test_it_keeps_full_precision_and_leaves_autocast():
    space, images = LatentSpace(make_theirs()), images_of(2)
    expected = space.encode(images, draw=False)
    space.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(space.encode(images, draw=False), expected)
        assert space.decode(expected).dtype == torch.float32


def test_any_module_that_encodes_and_decodes_will_do():
    space, images = LatentSpace(Halved(), scaling=4.0, shift=0.25), images_of(2)
    assert torch.equal(space.encode(images), (images / 2 - 0.25) * 4)
    assert torch.allclose(space.decode(space.encode(images)), images, atol=1e-6)
    assert space.image_shape_of((1, 8, 8)) == (1, 8, 8)


def test_autoencoders_of_diffusers_without_a_posterior_will_do():
    torch.manual_seed(0)
    sizes = {"encoder_block_out_channels": (4, 4), "decoder_block_out_channels": (4, 4), "latent_channels": 2}
    blocks = {"num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1), "upsampling_scaling_factor": 2}
    tiny = AutoencoderTiny(in_channels=1, out_channels=1, **sizes, **blocks).eval()
    space, images = LatentSpace(tiny), images_of(2)
    with torch.no_grad():
        assert torch.equal(space.encode(images), tiny.encode(images).latents)
    assert space.image_shape_of((2, 4, 4)) == (1, 8, 8)


def test_it_is_made_again_of_its_description():
    space = LatentSpace(make_vae(), posterior="mode", chunk=3)
    again = made_space(describe(space))
    again.load_state_dict(space.state_dict())
    assert (again.settings, again.fingerprint()) == (space.settings, space.fingerprint())
    assert torch.equal(again.encode(images_of(2)), space.encode(images_of(2)))
    assert made_space(space) is space


def test_its_fingerprint_tells_weights_and_scaling():
    space = LatentSpace(make_theirs())
    first = space.fingerprint()
    assert LatentSpace(make_theirs()).fingerprint() == first
    assert LatentSpace(make_theirs(), scaling=2.0).fingerprint() != first
    state = {name: value + 1 for name, value in space.state_dict().items()}
    nn.ModuleDict({"space": space}).load_state_dict({f"space.{name}": value for name, value in state.items()})
    assert space.fingerprint() != first


def test_image_shapes_follow_from_latents():
    space = LatentSpace(make_theirs())
    assert space.image_shape_of((2, 4, 4)) == (1, 8, 8)
    assert space.image_shape_of((2, 3, 5)) == (1, 6, 10)
    with pytest.raises(ValueError, match="autoencoder"):
        space.image_shape_of((3, 4, 4))


class Cropped(Halved):
    def decode(self, latents):
        return latents[..., :2]


def test_an_autoencoder_whose_images_have_other_latents_is_told():
    with pytest.raises(ValueError, match="image_size"):
        LatentSpace(Cropped()).image_shape_of((1, 8, 8))


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (Halved(), {"posterior": "mean"}, "posterior='mean': choose 'sample' or 'mode'"),
        (Halved(), {"chunk": 0}, "chunk=0: decode at least one image at once"),
        (Halved(), {"scaling": 0.0}, r"scaling=0\.0: latents are multiplied by a positive number"),
        (nn.Flatten(), {}, "autoencoder=Flatten: give a folder of diffusers' AutoencoderKL, a VAE or its checkpoint"),
        ({"class_path": "my.Autoencoder"}, {}, "autoencoder is a my.Autoencoder, which fedgen cannot rebuild"),
    ],
)
def test_what_cannot_be_is_told(given, options, message):
    with pytest.raises(ValueError, match=message):
        LatentSpace(given, **options)


def test_pickles_other_models_and_missing_folders_are_refused(tmp_path):
    make_theirs().save_pretrained(tmp_path / "pickled", safe_serialization=False)
    with pytest.raises(ValueError, match="from_pretrained"):
        read_autoencoder(tmp_path / "pickled")
    sizes = {"block_out_channels": (4, 4), "norm_num_groups": 2, "attention_head_dim": 4}
    blocks = {"down_block_types": ("DownBlock2D",) * 2, "up_block_types": ("UpBlock2D",) * 2}
    UNet2DModel(8, 1, 1, **sizes, **blocks).save_pretrained(tmp_path / "unet")
    with pytest.raises(ValueError, match="AutoencoderKL"):
        read_autoencoder(tmp_path / "unet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="autoencoder"):
        read_autoencoder(tmp_path / "empty")
    with pytest.raises(FileNotFoundError, match="autoencoder"):
        LatentSpace("nowhere")
    with pytest.raises(FileNotFoundError, match="checkpoint"):
        LatentSpace("nowhere.ckpt")


def test_a_folder_with_a_weight_missing_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    make_theirs().save_pretrained(tmp_path)
    path = tmp_path / "diffusion_pytorch_model.safetensors"
    state = load_file(path)
    state.pop("quant_conv.weight")
    save_file(state, path)
    with pytest.raises(ValueError, match="quant_conv"):
        read_autoencoder(tmp_path)
