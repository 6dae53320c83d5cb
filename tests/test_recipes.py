"""Every recipe parses and makes its model; those that need more than this machine may have run on stand-ins."""

import sys
from functools import cache, partialmethod
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from fedgen.__main__ import main
from fedgen.clients import ThreeWaySplit
from fedgen.data import CIFAR10
from fedgen.evaluation import Evaluator, Run
from fedgen.evaluation.runs.rebuild import rebuild
from fedgen.experiments.participation.participation_gap import PartitionChoice
from tests.data.published import write_cifar10, write_femnist
from tests.quick import first_quick

RECIPES = Path(__file__).parent.parent / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))
pytestmark = pytest.mark.usefixtures("blank_curves")


@pytest.fixture(scope="module")
def inception(inception_weights):
    return str(inception_weights)


def read(name):
    recipe = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    recipe.pop("threads", None)
    return recipe


def take_weights(settings, path):
    """Gives every loss under the standard Inception weights that need no download."""
    for loss in settings.get("generator_losses") or ():
        options = loss.get("init_args", {})
        if options.get("embeddings") == ["inception-v3-compat"]:
            options["embeddings"] = [{"name": "inception-v3-compat", "weights": path}]


@cache
def parser_of_recipes():
    """As the command line checks them: keys and types of trainer, strategy, callbacks, model and data."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Trainer, "trainer", fail_untyped=False)
    for key, kind in (("model", LightningModule), ("data", LightningDataModule)):
        parser.add_subclass_arguments(kind, key, required=True, fail_untyped=False)
    return parser


def generators_given():
    """Recipes whose model goes on from no checkpoint."""
    given = {name: read(name)["model"]["init_args"] for name in NAMES}
    return [n for n, own in given.items() if not any(isinstance(own.get(k), str) for k in ("generator", "autoencoder"))]


NOT_MADE = sorted(set(NAMES) - {*NAMES[::4], *generators_given()})


@pytest.mark.parametrize("name", [*NAMES[::4], *(pytest.param(name, marks=pytest.mark.slow) for name in NOT_MADE)])
def test_every_recipe_fits_the_classes_it_names(name):
    """Those of which the next test makes the model are parsed there."""
    recipe = read(name)
    settings = parser_of_recipes().parse_object(recipe)
    assert settings.trainer.max_epochs == recipe["trainer"]["max_epochs"]


@pytest.mark.parametrize("name", first_quick(generators_given()))
def test_every_recipes_model_is_made_and_fits_its_data(name, inception):
    """All but those that go on from a checkpoint, which is not there yet."""
    parser, recipe = parser_of_recipes(), read(name)
    take_weights(recipe["model"]["init_args"], inception)
    settings = parser.parse_object(recipe)
    assert settings.pop("trainer").max_epochs == recipe["trainer"]["max_epochs"]
    made = parser.instantiate(settings)
    assert sum(parameter.numel() for parameter in made.model.parameters()) > 0
    generator = getattr(made.model, "generator", None)
    size = getattr(made.data.data, "size", None) or getattr(made.data.data, "pad_to", None)
    if generator is not None and size is not None:
        assert generator.settings["image_size"] == size


def test_published_lengths_are_those_of_the_paper():
    steps = {"sngan_cifar10": 301_070, "dcgan_celeba": 100_264, "sagan_imagenet128": 100_001}
    for name, expected in steps.items():
        for recipe in (read(name), read(f"{name}_fid")):
            assert recipe["trainer"]["max_epochs"] * recipe["data"]["init_args"]["iterations"] == expected


@pytest.mark.parametrize("name", ["sngan_cifar10", "dcgan_celeba", "sagan_imagenet128"])
def test_a_fid_recipe_differs_by_its_loss_alone(name):
    plain, other = read(name), read(f"{name}_fid")
    (loss,) = other["model"]["init_args"].pop("generator_losses")
    assert plain == other
    strength = loss["init_args"]["weight"]["init_args"].get("strength", 1.0)
    assert strength == (0.5 if name == "sagan_imagenet128" else 1.0)


# ---------------------------------------------------------- Yuan et al. 2022, on small files in the published forms


def deal(name, root, arm, **partition):
    """Clients of an arm of `fedgen reproduce participation-gap` with a recipe on files in a folder; all arms' names."""
    settings = read(name)
    own = settings["data"]["init_args"]
    own["data"].setdefault("init_args", {})["root"] = str(root)
    own["partition"].setdefault("init_args", {}).update(partition)
    path = root / f"{name}.yaml"
    path.write_text(yaml.safe_dump(settings))
    choice = PartitionChoice(recipe=path, embedding="inception-v3-compat")
    (chosen,) = (one for one in choice.arms if one.name == arm)
    return choice.federation(chosen), [one.name for one in choice.arms]


@pytest.fixture
def writers(tmp_path):
    """A folder of 20 writers of two examples of each digit, and a letter."""
    digits = [*range(10)] * 2
    own = {f"f{writer:04}": [*((10 * writer + digit, digit) for digit in digits), (0, 10)] for writer in range(20)}
    write_femnist(tmp_path / "femnist" / "train", own)
    return tmp_path


@pytest.mark.slow
def test_femnist_is_dealt_to_its_writers_as_published_and_to_semantic_clients(writers):
    data, arms = deal("ddpm_femnist", writers, "natural")
    assert arms == ["natural", "semantic", "Dirichlet", "random"]
    assert (len(data.clients), len(data.unparticipating), len(data.everyone)) == (2, 4, 20)
    assert {client.name for client in data.everyone} == {f"f{writer:04}" for writer in range(20)}
    assert {(len(client.train), len(client.held_out)) for client in data.everyone} == {(16, 4)}
    assert len(data.examples.classes) == 10
    assert data.image_shape == (1, 32, 32)
    roles = data.split.assign(3400, seed=0)
    assert (len(roles.participating), len(roles.unparticipating)) == (272, 680)  # their appendix C
    data, _ = deal("ddpm_femnist", writers, "semantic")
    assert (len(data.clients), len(data.unparticipating)) == (2, 4)
    assert sorted(np.concatenate(data.dealt)) == [*range(400)]


@pytest.mark.slow
def test_cifar10_is_dealt_to_semantic_clients_as_published(tmp_path):
    own = read("ddpm_cifar10_semantic")["data"]["init_args"]
    assert own["partition"]["class_path"] == "fedgen.clients.partitions.Semantic.paper"
    roles = ThreeWaySplit(**own["split"]["init_args"]).assign(own["partition"]["init_args"]["num_clients"], seed=0)
    assert (len(roles.participating), len(roles.unparticipating)) == (240, 60)  # their appendix C
    write_cifar10(tmp_path / "cifar-10-batches-py", count=20, labels=[*range(10)] * 2)
    small = {"num_clients": 5, "embedding": "pixels", "cache": str(tmp_path / "features")}
    data, arms = deal("ddpm_cifar10_semantic", tmp_path, "semantic", **small)
    assert arms == ["semantic", "Dirichlet", "random"]
    assert (data.partition.clustering.em, data.partition.center_per_label) == ("always", False)
    assert (len(data.clients), len(data.unparticipating)) == (4, 1)
    assert sorted(np.concatenate(data.dealt)) == [*range(100)]


@pytest.fixture
def ten_at_once(monkeypatch):
    """Evaluations draw 500 images at once, however few they score."""
    monkeypatch.setattr(Evaluator, "__init__", partialmethod(Evaluator.__init__, chunk=10))


TINY = [
    "dcgan_digits",
    "sagan_digits",
    "sngan_digits",
    "wgan_gp_digits_private_critic",
    "wgan_gp_digits_server_generator",
]


@pytest.mark.slow
@pytest.mark.usefixtures("ten_at_once")
@pytest.mark.parametrize("name", TINY)
def test_recipes_for_digits_train_and_score_for_a_round(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedgen"])
    evaluation = {
        "class_path": "fedgen.callbacks.FederatedEvaluation",
        "init_args": {"embeddings": ["pixels"], "num_images": 10, "page": False},
    }
    Path("smaller.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": [evaluation]}}))
    arguments = ["fit", "--config", str(RECIPES / f"{name}.yaml"), "--config", "smaller.yaml"]
    threads = torch.get_num_threads()
    assert main([*arguments, "--trainer.max_epochs", "1"]) == 0
    torch.set_num_threads(threads)
    records = [record for record in Run(f"checkpoints/{name}").records if record.round == 0]
    assert {record.num_clients for record in records} == {10}


@pytest.mark.slow
@pytest.mark.usefixtures("ten_at_once")
def test_an_autoencoder_and_a_flow_in_its_latents_train_and_are_scored_from_their_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedgen"])
    evaluation = {"embeddings": ["pixels"], "num_images": 10, "every_n_rounds": 2, "page": False}
    callbacks = [{"class_path": "fedgen.callbacks.FederatedEvaluation", "init_args": evaluation}]
    Path("smaller.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": callbacks}}))
    threads = torch.get_num_threads()
    for name, options in {"vae_digits": [], "latent_flow_digits": ["--model.init_args.sampler.steps", "2"]}.items():
        arguments = ["fit", "--config", str(RECIPES / f"{name}.yaml"), "--config", "smaller.yaml", *options]
        arguments += ["--trainer.max_epochs", "2", "--trainer.strategy.init_args.communication_interval", "1"]
        assert main(arguments) == 0
        assert {record.num_clients for record in Run(f"checkpoints/{name}").records if record.is_model} == {10}
    model, _ = rebuild("checkpoints/latent_flow_digits")
    vae, _ = rebuild("checkpoints/vae_digits")
    trained = torch.load("checkpoints/vae_digits/last.ckpt", weights_only=True)["state_dict"]
    own = {f"network.{name}": value for name, value in model.latent_space.autoencoder.state_dict().items()}
    assert all(torch.equal(value, trained[name]) for name, value in own.items())
    assert own.keys() == {name for name in vae.state_dict() if name.startswith("network.")}
    assert main(["evaluate", "checkpoints/latent_flow_digits", "pixels", "--num_images", "9"]) == 0
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("ten_at_once")
def test_the_papers_protocol_trains_and_scores_on_a_tiny_cifar10(tmp_path, monkeypatch, inception):
    """The ResNet pair at full size, the standard Inception network with random weights, an iteration of two clients."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedgen"])
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10(folder, count=1)  # Inception takes its time
    write_cifar10(folder, files=CIFAR10.train_files[:2], count=10, labels=list(range(10)))
    evaluation = {
        "class_path": "fedgen.callbacks.FederatedEvaluation",
        "init_args": {
            "embeddings": [{"name": "inception-v3-compat", "weights": inception}],
            "num_images": 4,
            "grid": 0,
            "page": False,
        },
    }
    Path("smaller.yaml").write_text(yaml.safe_dump({"trainer": {"callbacks": [evaluation]}}))
    arguments = ["fit", "--config", str(RECIPES / "wgan_gp_cifar10.yaml"), "--config", "smaller.yaml"]
    arguments += ["--trainer.accelerator", "cpu", "--trainer.max_epochs", "1", "--data.init_args.batch_size", "2"]
    arguments += ["--trainer.strategy.init_args.communication_interval", "1", "--model.init_args.n_critic", "1"]
    arguments += ["--trainer.strategy.init_args.cohort_size", "2", "--data.init_args.held_out", "0.0"]
    assert main([*arguments, "--data.init_args.data.init_args.root", str(tmp_path)]) == 0
    records = [record for record in Run("checkpoints/wgan_gp_cifar10").records if record.round == 0]
    assert {record.embedding for record in records} == {"inception-v3-compat"}
    assert {record.num_clients for record in records} == {10}
