"""The diffusion models' recipes: what they build, and that the paper's trains, saves and draws."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml

from fedgen.__main__ import main
from fedgen.evaluation.runs.rebuild import rebuild
from fedgen.models import DDPM
from tests.data.published import write_cifar10

RECIPES = Path(__file__).parent.parent.parent / "recipes"


def built(name, folder):
    """The model and data of a recipe, as a run folder keeps it."""
    shutil.copy(RECIPES / f"{name}.yaml", folder / "recipe.yaml")
    return rebuild(folder)


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("ddpm_digits", (1, 8, 8), None),
        ("ddpm_digits_conditional", (1, 8, 8), 10),
        ("ddpm_mnist5k", (1, 32, 32), None),
        ("ddpm_fashion_mnist", (1, 32, 32), None),
    ],
)
def test_the_small_recipes_build_small_models_of_their_datas_shape(tmp_path, name, shape, classes):
    model, _ = built(name, tmp_path)
    assert (model.image_shape, model.num_classes) == (shape, classes)
    assert sum(parameter.numel() for parameter in model.network.parameters()) < 300_000
    assert model.sampling["solver"] == "dpm-solver++"


@pytest.mark.slow
def test_the_papers_recipe_is_ho_et_als_and_trains_on_a_tiny_cifar10(tmp_path, monkeypatch):
    """The network at full size, an iteration of one client, an image of the checkpoint in two steps."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedgen"])
    write_cifar10(tmp_path / "cifar-10-batches-py", count=10, labels=list(range(10)))
    Path("smaller.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": []}}))
    arguments = ["fit", "--config", str(RECIPES / "ddpm_cifar10.yaml"), "--config", "smaller.yaml"]
    arguments += ["--trainer.accelerator", "cpu", "--trainer.max_epochs", "1", "--data.init_args.batch_size", "1"]
    arguments += ["--trainer.strategy.init_args.communication_interval", "1", "--data.init_args.held_out", "0.0"]
    arguments += ["--trainer.strategy.init_args.cohort_size", "1"]
    assert main([*arguments, "--data.init_args.data.init_args.root", str(tmp_path)]) == 0
    recipe = yaml.safe_load(Path("checkpoints/ddpm_cifar10/recipe.yaml").read_text())
    assert recipe["trainer"]["gradient_clip_val"] == 1.0
    model = DDPM.load_from_checkpoint("checkpoints/ddpm_cifar10/last.ckpt", weights_only=True)
    assert sum(parameter.numel() for parameter in model.network.parameters()) == 35_746_307
    kept = {
        "lr": 2e-4,
        "warmup": 5000,
        "ema_decay": 0.9999,
        "ema_warmup": False,
        "flips": True,
        "prediction": "epsilon",
    }
    assert {name: model.hparams[name] for name in kept} == kept
    assert model.hparams["schedule"]["kind"] == "linear"
    assert model.network.settings["dropout"] == 0.1
    images = model.sample(1, torch.Generator().manual_seed(0), steps=2)
    assert images.shape == (1, 3, 32, 32)
    assert torch.isfinite(images).all()
