"""From pickles of the official shape to networks of ours that make the official images."""

import re

import pytest
import torch
from torch import nn

from fedgen.__main__ import main
from fedgen.models.stylegan2 import StyleGAN2, StyleGAN2Discriminator, StyleGAN2Generator
from fedgen.models.stylegan2.network_file import (
    NetworkFile,
    read_official_networks,
    settings_of_official,
)
from fedgen.models.stylegan2.stylegan2 import read_trained_networks
from tests.models.stylegan2 import pickle_builder
from tests.models.stylegan2.conftest import OUTPUTS, deviation
from tests.models.stylegan2.pickle_builder import Discriminator, EasyDict, Generator, Layer, write_official
from tests.trainers import quiet_trainer


def official(kind, state, settings):
    """A network that pickles itself as the official ones do, with a state's tensors under its names."""
    root = kind(**settings)
    for key, value in state.items():
        owner, *path = root, *key.split(".")
        for part in path[:-1]:
            if part not in owner._modules:
                owner.add_module(part, Layer())
            owner = owner._modules[part]
        if path[-1] in ("resample_filter", "noise_const", "w_avg"):
            owner.register_buffer(path[-1], value)
        else:
            owner.register_parameter(path[-1], nn.Parameter(value, requires_grad=False))
    return root


def official_settings(sides):
    """The official arguments of a reference set, dictionaries as the official code keeps them."""
    return tuple(
        {key: EasyDict(value) if isinstance(value, dict) else value for key, value in sides[name].items()}
        for name in ("G_init", "D_init")
    )


def write_pickle(path, case, by_hand=False, **changes):
    g, d = official_settings(case.settings)
    sides = {s: {k[2:]: v for k, v in case.weights.items() if k.startswith(s)} for s in ("G/", "D/")}
    networks = {
        "training_set_kwargs": {"path": "/home/somebody/images.zip", "resolution": 32},
        "G": official(Generator, sides["G/"], g),
        "D": official(Discriminator, sides["D/"], d),
        "G_ema": official(Generator, sides["G/"], g),
        "augment_pipe": None,
    }
    path.write_bytes(write_official(networks | changes, 3, by_hand=by_hand))


@pytest.mark.slow
def test_converted_networks_make_the_official_images(tmp_path, case):
    path = tmp_path / "ffhq.pkl"
    for by_hand in (False, True) if case.labels is None else (False,):  # the small set in both forms of a pickle
        write_pickle(path, case, by_hand)
        found = read_official_networks(path)
        styles = found.generator_ema.styles(case["in/z"], case.labels)
        assert deviation(found.generator_ema.synthesize(styles, "const"), case["G/img_const_psi1"]) <= OUTPUTS
        assert deviation(found.critic(case["in/real"], case.labels), case["D/logits_real"]) <= OUTPUTS
        assert found.record == {"source": "ffhq.pkl", "augment_p": None, "training_set": {"resolution": 32}}


GIVEN = r"(b\d+|conv0|skip)\.resample_filter", r"(b\d+|conv1|skip)\.resample_filter"  # up in G, down in D
"""The buffers of G and D that the official code makes of the filter it is given; others are of [1, 3, 3, 1]."""


def with_filter(weights, side, pattern, taps):
    """A side's state with another filter, as the official code would have made it."""
    kernel = torch.outer(torch.tensor(taps), torch.tensor(taps)).float()
    state = {key[2:]: value for key, value in weights.items() if key.startswith(side)}
    chosen = [key for key in state if re.search(rf"(^|\.){pattern}$", key)]
    return state | dict.fromkeys(chosen, kernel / kernel.sum()), chosen


@pytest.mark.slow
@pytest.mark.parametrize("taps", [[1, 1], [1, 2, 1], [1, 5, 10, 10, 5, 1]], ids=str)
def test_filters_of_any_length_are_converted(tmp_path, case_a, taps):
    g, d = official_settings(case_a.settings)
    g["synthesis_kwargs"] = EasyDict(g["synthesis_kwargs"], resample_filter=taps)
    d["block_kwargs"] = EasyDict(d.get("block_kwargs", {}), resample_filter=taps)
    (state_g, in_g), (state_d, in_d) = (
        with_filter(case_a.weights, side, pattern, taps) for side, pattern in zip(("G/", "D/"), GIVEN)
    )
    assert (len(in_g), len(in_d)) == (7, 9)  # three blocks above 4 x 4: conv0 and four blocks; conv1, skip and blocks
    path, written = tmp_path / "a.pkl", tmp_path / "a.safetensors"
    write_pickle(path, case_a, G_ema=official(Generator, state_g, g), D=official(Discriminator, state_d, d))
    read_official_networks(path).write(written)
    for found in (read_official_networks(path), NetworkFile.read(written)):
        assert found.generator_ema.settings["taps"] == found.critic.settings["taps"] == taps
        for network, state in ((found.generator_ema, state_g), (found.critic, state_d)):
            own = network.state_dict()
            assert own.keys() == state.keys()
            assert all(torch.equal(own[key], value) for key, value in state.items())
        images = found.generator_ema.synthesize(found.generator_ema.styles(case_a["in/z"]), "const")
        assert deviation(images, case_a["G/img_const_psi1"]) > 1e-3  # another filter, other images
        assert found.critic(case_a["in/real"]).isfinite().all()


@pytest.mark.slow
def test_the_command_writes_a_file_that_trains(tmp_path, case_a, capsys):
    source, target = tmp_path / "ffhq.pkl", tmp_path / "ffhq.safetensors"
    write_pickle(source, case_a)
    assert main(["convert", str(source), str(target)]) == 0
    assert "generator_ema: 263,531 parameters, 32 x 32, 1 channels" in capsys.readouterr().out
    model = StyleGAN2.from_file(target)
    assert model.sample(2).shape == (2, 1, 32, 32)
    assert main(["convert", str(source), str(target)]) == 2
    assert "exists; choose another name, or replace it with --overwrite" in capsys.readouterr().err


def test_the_command_refuses_in_one_line(tmp_path, capsys):
    assert main(["convert", str(tmp_path / "no.pkl"), str(tmp_path / "a.safetensors")]) == 2
    assert "no network pickle" in capsys.readouterr().err
    (tmp_path / "bad.pkl").write_bytes(b"\x80\x03cos\nsystem\n(Vtrue\ntR.")
    assert main(["convert", str(tmp_path / "bad.pkl"), str(tmp_path / "a.safetensors")]) == 2
    assert "os.system" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "bad.pkl"), str(tmp_path / "a.pkl")]) == 2
    assert "must end in .safetensors, e.g. a.safetensors" in capsys.readouterr().err
    assert not (tmp_path / "a.safetensors").exists()


@pytest.mark.slow
def test_a_runs_checkpoint_becomes_a_file(tmp_path, capsys):
    shared = {"image_size": 8, "channels": 1, "channel_base": 32}
    module = StyleGAN2(
        StyleGAN2Generator(**shared, latent_dim=4, style_dim=4), StyleGAN2Discriminator(**shared), r1_gamma=3.0
    )
    module.clock.images += 1500
    trainer = quiet_trainer(limit_train_batches=0, default_root_dir=tmp_path)
    trainer.strategy.connect(module)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    assert main(["convert", str(tmp_path / "last.ckpt"), str(tmp_path / "a.safetensors"), "--half"]) == 0
    again = ["convert", str(tmp_path / "last.ckpt"), str(tmp_path / "a.safetensors"), "--overwrite", "--half", "true"]
    assert main(again) == 0
    assert "a.safetensors" in capsys.readouterr().out.replace("\n", "")
    file = NetworkFile.read(tmp_path / "a.safetensors")
    assert file.record == {"source": "last.ckpt", "rounds": 1, "kimg": 1.5}
    read = StyleGAN2.from_file(tmp_path / "a.safetensors")
    assert read.r1_gamma == 3.0
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(read.get_parameter(name), parameter, rtol=1e-3, atol=1e-4)


def test_refuses_checkpoints_of_other_models(tmp_path):
    torch.save({"state_dict": {}, "hyper_parameters": {"generator": {"class_path": "x.Y"}}}, tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match="StyleGAN2"):
        read_trained_networks(tmp_path / "a.ckpt")
    with pytest.raises(FileNotFoundError, match="checkpoint"):
        read_trained_networks(tmp_path / "b.ckpt")


FROM_TENSORFLOW = {
    "c_dim": 0,
    "img_resolution": 32,
    "img_channels": 1,
    "architecture": "resnet",
    "channel_base": 1024,
    "channel_max": 64,
    "num_fp16_res": 0,
    "conv_clamp": None,
    "cmap_dim": None,
    "block_kwargs": {"activation": "lrelu", "resample_filter": [1, 3, 3, 1], "freeze_layers": 0},
    "mapping_kwargs": {
        "num_layers": 0,
        "embed_features": None,
        "layer_features": None,
        "activation": "lrelu",
        "lr_multiplier": 0.1,
    },
    "epilogue_kwargs": {"mbstd_group_size": None, "mbstd_num_channels": 1, "activation": "lrelu"},
}


def test_all_arguments_of_converted_discriminators_are_honoured():
    settings = settings_of_official(FROM_TENSORFLOW, "Discriminator")
    network = StyleGAN2Discriminator(**settings)
    assert network.settings["group_size"] is None
    assert network.settings["mapping_layers"] == 0
    assert network.settings["mapping_lr"] == 0.1
    conditional = StyleGAN2Discriminator(**settings_of_official(FROM_TENSORFLOW | {"c_dim": 3}, "Discriminator"))
    logits = conditional(torch.zeros(2, 1, 32, 32), torch.tensor([0, 2]))
    assert logits.shape == (2,)


def test_official_defaults_stand_where_arguments_are_missing():
    official = {"z_dim": 4, "c_dim": 0, "w_dim": 4, "img_resolution": 8, "img_channels": 1}
    settings = settings_of_official(official, "Generator")
    assert settings["channel_base"] == 32768
    assert settings["mapping_layers"] == 8
    assert settings["num_classes"] is None
    assert StyleGAN2Generator(**settings).settings["taps"] == [1, 3, 3, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fancy": 1}, "an argument fancy=1, which StyleGAN2 does not have"),
        ({"block_kwargs": {"fp8": True}}, "Discriminator's block_kwargs has an argument fp8=True"),
        ({"block_kwargs": None}, "block_kwargs=None where arguments belong"),
        ({"epilogue_kwargs": {"activation": "relu"}}, "activation='relu', and 'lrelu' elsewhere"),
    ],
)
def test_refuses_arguments_that_ours_do_not_have(changes, message):
    with pytest.raises(ValueError, match=message):
        settings_of_official(FROM_TENSORFLOW | changes, "Discriminator")


def test_refuses_arguments_that_are_missing():
    with pytest.raises(ValueError, match="img_resolution"):
        settings_of_official({"c_dim": 0}, "Generator")


def test_refuses_networks_of_other_code(tmp_path, case_a):
    path = tmp_path / "a.pkl"
    write_pickle(path, case_a, G=pickle_builder.AugmentPipe())
    with pytest.raises(ValueError, match="AugmentPipe"):
        read_official_networks(path)
    g, _ = official_settings(case_a.settings)
    state = {k[2:]: v for k, v in case_a.weights.items() if k.startswith("G/")}
    del state["synthesis.b8.conv0.bias"]
    write_pickle(path, case_a, G=official(Generator, state, g))
    with pytest.raises(ValueError, match="conv0"):
        read_official_networks(path)
