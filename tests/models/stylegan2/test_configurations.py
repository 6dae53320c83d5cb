"""Every option set that the official command was asked for gives our networks and module the same settings."""

import json
from pathlib import Path

import pytest
import torch

from fedgen.models.stylegan2.configurations import configuration
from fedgen.models.stylegan2.training_steps import ema_decay, ema_decay_over

REFERENCE = json.loads((Path(__file__).parent / "reference" / "train_config.json").read_text())
NAMES = {"cfg": "name", "gpus": "gpus", "freezed": "freezed", "augpipe": "pipe"}


def ours(resolution, options):
    """Our configuration for official options."""
    given = {NAMES.get(key, key): value for key, value in options.items() if key not in ("resume", "mirror")}
    return configuration(resolution=resolution, resume="resume" in options, **given)


@pytest.mark.parametrize("row", REFERENCE["rows"], ids=[row["desc"] for row in REFERENCE["rows"]])
def test_is_the_official_configuration(row):
    options, expected = row["options"], row["result"]
    found = ours(row["resolution"], options)
    with torch.device("meta"):
        model = found.build(row["resolution"], mirror=options.get("mirror", False))
    generator, critic = model.generator.settings, model.critic.settings
    assert (found.batch, found.kimg) == (expected["batch_size"], expected["total_kimg"])
    assert (model.micro_batch or found.batch) == expected["batch_gpu"]
    assert (model.ema_kimg, model.ema_rampup) == (expected["ema_kimg"], expected["ema_rampup"])
    assert generator["mapping_layers"] == expected["mapping_layers"]
    for settings in (generator, critic):
        assert settings["channel_base"] == expected["channel_base"]
        assert settings["channel_max"] == expected["channel_max"]
        assert settings["half_resolutions"] == expected["num_fp16_res"]
        assert settings["clamp"] == expected["conv_clamp"]
    assert critic["group_size"] == expected["mbstd_group_size"]
    assert critic["architecture"] == expected["D_architecture"]
    assert critic["frozen_layers"] == expected["freeze_layers"]
    loss = {"pl_weight": 2, "style_mixing_prob": 0.9} | expected["loss"]
    assert model.r1_gamma == pytest.approx(loss["r1_gamma"], rel=1e-12)
    assert (model.path_weight, model.style_mixing) == (loss["pl_weight"], loss["style_mixing_prob"])
    assert model.flips == options.get("mirror", False)
    assert_augmentation(model.augment, expected)
    for optimizer, name in zip(model.configure_optimizers(), ("G_opt_lazy4", "D_opt_lazy16")):
        group = optimizer.param_groups[0]
        assert group["lr"] == pytest.approx(expected[name]["lr"], rel=1e-12)
        assert group["betas"] == pytest.approx(expected[name]["betas"], rel=1e-12)
        assert group["eps"] == expected[name]["eps"]


def assert_augmentation(augment, expected):
    if expected["augment"] is None:
        assert augment is None
        return
    assert {k: v for k, v in augment.augment.settings.items() if k in expected["augment"]} == expected["augment"]
    assert augment.target == expected["ada_target"]
    assert augment.kimg == expected["ada_kimg"]
    assert augment.settings["p"] == expected["augment_p"]


@pytest.mark.parametrize("row", REFERENCE["ema_beta"])
def test_the_average_decays_as_officially(row):
    ours = ema_decay(row["batch"], row["cur_nimg"], row["ema_kimg"], row["rampup"])
    assert ours == pytest.approx(row["beta"], rel=1e-12)


def test_a_round_decays_as_its_iterations():
    by_hand = 1.0
    for done in (640, 672, 704, 736):
        by_hand *= ema_decay(32, done, 10, 0.05)
    assert ema_decay_over(640, 768, 4, 10, 0.05) == pytest.approx(by_hand, rel=1e-12)
    assert ema_decay_over(0, 64, 2, 10, 0.05) == 0.0  # the first iteration forgets the initial weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "paper128"}, "no configuration is called 'paper128'"),
        ({"gpus": 3, "batch": 32}, "cannot share a batch of 32 images evenly"),
        ({"gpus": 3, "batch": 2}, "cannot share"),
        ({"aug": "fixed"}, "give p with aug='fixed'"),
        ({"p": 0.3}, "only then"),
        ({"target": 0.7, "aug": "noaug"}, "needs aug='ada'"),
        ({"pipe": "bgx"}, "no augmentation is called 'bgx'"),
    ],
)
def test_refuses_options_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        configuration(**options).build(32)
