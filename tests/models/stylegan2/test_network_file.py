"""Files of networks: what goes in comes out, and what does not fit is named."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedgen.io.tensor_files import HASH, read_safetensors
from fedgen.models.stylegan2 import AdaptiveAugment, StyleGAN2, StyleGAN2Discriminator, StyleGAN2Generator
from fedgen.models.stylegan2.network_file import NetworkFile

SHARED = {"image_size": 8, "channels": 1, "channel_base": 32}


def generator(**options):
    torch.manual_seed(1)
    return StyleGAN2Generator(**(SHARED | {"latent_dim": 4, "style_dim": 4, "mapping_layers": 2} | options))


def critic(**options):
    torch.manual_seed(2)
    return StyleGAN2Discriminator(**(SHARED | options))


def model(**options):
    found = StyleGAN2(generator(), critic(), **options)
    torch.nn.init.normal_(found.averaged.mapping.w_avg)
    return found


def equal(one, two):
    found = two.state_dict()
    return all(torch.equal(value, found[key]) for key, value in one.state_dict().items())


def metadata_of(path):
    """What a file says beside its tensors, as one that somebody else made: without the hash of its content."""
    return {key: value for key, value in read_safetensors(path)[1].items() if key != HASH}


def test_a_model_comes_back_with_its_settings(tmp_path):
    written = model(r1_gamma=0.3, truncation=0.7, augment=AdaptiveAugment("bg", p=0.2), betas=(0.0, 0.9))
    path = tmp_path / "a.safetensors"
    written.to_file(path, record={"seed": 3})
    read = StyleGAN2.from_file(path)
    assert equal(read, written)
    assert read.hparams == written.hparams
    assert read.sampling == written.sampling
    assert torch.equal(
        read.sample(3, torch.Generator().manual_seed(0)), written.sample(3, torch.Generator().manual_seed(0))
    )
    assert NetworkFile.read(path).record == {"seed": 3}
    assert StyleGAN2.from_file(path, r1_gamma=5.0).r1_gamma == 5.0
    assert read.training
    assert all(p.requires_grad for p in [*read.generator.parameters(), *read.critic.parameters()])


@pytest.mark.slow
def test_half_the_size_in_float16(tmp_path):
    larger = {"channel_base": 1024}
    written = StyleGAN2(generator(**larger), critic(**larger))
    written.to_file(tmp_path / "whole.safetensors")
    written.to_file(tmp_path / "half.safetensors", half=True)
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("half", "whole")]
    assert sizes[0] < 0.55 * sizes[1]  # names and settings are not halved
    read = StyleGAN2.from_file(tmp_path / "half.safetensors")
    torch.testing.assert_close(dict(read.named_parameters()), dict(written.named_parameters()), rtol=1e-3, atol=1e-4)
    assert next(read.parameters()).dtype == torch.float32


def test_a_recipes_networks_take_the_weights(tmp_path):
    path = tmp_path / "a.safetensors"
    written = model()
    written.to_file(path)
    taken = StyleGAN2(generator(half_resolutions=1), critic(frozen_layers=2), weights=path)
    assert equal(taken.generator, written.generator)
    assert equal(taken.averaged, written.averaged)
    assert equal(taken.critic, written.critic)


@pytest.mark.parametrize(
    ("networks", "message"),
    [
        ({"generator": {"channel_base": 64}}, "its generator .*: channel_base is 32 there and 64 here"),
        (
            {"generator": {"style_dim": 8, "clamp": 1.0}},
            "style_dim is 4 there and 8 here; clamp is None there and 1.0 here",
        ),
        ({"critic": {"architecture": "orig"}}, "its critic .*: architecture is resnet there and orig here"),
    ],
)
def test_says_which_setting_differs(tmp_path, networks, message):
    path = tmp_path / "a.safetensors"
    model().to_file(path)
    makers = {"generator": generator, "critic": critic}
    with pytest.raises(ValueError, match=message):
        StyleGAN2(**{name: makers[name](**options) for name, options in networks.items()}, weights=path)


def test_an_average_alone_samples_and_trains_with_a_critic(tmp_path):
    path = tmp_path / "a.safetensors"
    NetworkFile(generator_ema=generator()).write(path)
    assert NetworkFile.read(path).generator_ema(torch.zeros(1, 4)).shape == (1, 1, 8, 8)
    with pytest.raises(ValueError, match="critic"):
        StyleGAN2.from_file(path)
    whole = StyleGAN2.from_file(path, critic=critic())
    assert equal(whole.generator, whole.averaged)
    assert equal(whole.critic, critic())
    NetworkFile(critic=critic()).write(path)
    with pytest.raises(ValueError, match="generator"):
        StyleGAN2.from_file(path)


def respelled(path, **changes):
    """The file with other metadata."""
    metadata = metadata_of(path) | changes
    save_file(load_file(path), path, {key: value for key, value in metadata.items() if value is not None})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-50]), "not a complete safetensors file"),
        (lambda path: path.write_bytes(b"\x80\x02}."), "not a complete safetensors file"),
        (lambda path: respelled(path, format=None), "not of StyleGAN2 networks"),
        (lambda path: respelled(path, version="9"), "version 9 of fedgen-stylegan2"),
        (lambda path: respelled(path, settings="[]"), "metadata that are no dictionary"),
        (lambda path: respelled(path, settings="{"), "has damaged metadata"),
        (lambda path: respelled(path, settings=json.dumps({"os": {}})), "names other networks"),
        (lambda path: respelled(path, settings=settings_of(path, image_size=12)), "power of two"),
        (lambda path: respelled(path, settings=settings_of(path, channels=3)), r"of shape \[1.* ask for \[3"),
        (lambda path: respelled(path, settings=settings_of(path, mapping_layers=3)), r"lacks 2 tensors, .*mapping.fc2"),
        (
            lambda path: respelled(path, settings=settings_of(path, mapping_layers=1)),
            r"2 tensors too many, .*mapping.fc1",
        ),
        (lambda path: respelled(path, settings=settings_of(path, image_size=2**40)), "is no size, width or number"),
        (lambda path: respelled(path, settings=settings_of(path, colour="red")), "cannot be built from its settings"),
        (lambda path: respelled(path, settings=settings_of(path, taps="wide")), "cannot be built"),
        (lambda path: spoil_tensor(path, float("nan")), "mapping.w_avg that is not finite"),
        (lambda path: save_file(load_file(path) | {"more": torch.zeros(1)}, path, metadata_of(path)), "of which its"),
    ],
)
def test_refuses_files_that_do_not_fit(tmp_path, spoil, message):
    path = tmp_path / "a.safetensors"
    NetworkFile(generator=generator()).write(path)
    spoil(path)
    with pytest.raises(ValueError, match=message) as error:
        NetworkFile.read(path)
    assert str(path) in str(error.value)


def settings_of(path, **changes):
    settings = json.loads(metadata_of(path)["settings"])
    settings["generator"] |= changes
    return json.dumps(settings)


def spoil_tensor(path, value):
    tensors = load_file(path)
    tensors["generator.mapping.w_avg"][0] = value
    save_file(tensors, path, metadata_of(path))


def test_refuses_to_write_what_would_not_be_read(tmp_path):
    network = generator()
    torch.nn.init.constant_(network.mapping.w_avg, 1e6)
    with pytest.raises(ValueError, match="w_avg"):
        NetworkFile(generator=network).write(tmp_path / "a.safetensors", half=True)
    with pytest.raises(ValueError, match="network"):
        NetworkFile().write(tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError, match="safetensors"):
        StyleGAN2.from_file(tmp_path / "b.safetensors")


def test_without_networks_and_weights_there_is_nothing_to_train():
    with pytest.raises(ValueError, match="generator"):
        StyleGAN2(generator())
