"""Conditional models in a deployment: labels are positions among the run's classes, drawn as the server is told."""

import shutil

import pytest
import torch
import yaml

from fedgen.__main__ import main
from fedgen.flower.app.app_sides import run_server
from fedgen.flower.app.apps import client_app
from fedgen.flower.app.run_config import RunLabels
from fedgen.flower.server.client_registry import ClientRegistry
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.flower.wire.messages import Hello
from fedgen.training.fit import FedgenCLI, train
from tests.cli.test_deploy import ROOT
from tests.flower.connected import connection_to
from tests.flower.loopback import Loopback, Node
from tests.flower.runs import deploy, read, recipe, same_weights, simulate, write_images
from tests.flower.scripted import Scripted

COUNTS = "label_frequencies.counts"
UNET = {"image_size": 8, "channels": 1, "widths": [8], "layers": 1, "attention": [], "num_classes": 10}
DDPM = {
    "class_path": "fedgen.models.DDPM",
    "init_args": {"network": {"class_path": "fedgen.models.networks.UNet", "init_args": UNET}},
}
NETWORK = {"image_size": 8, "channels": 1, "width": 4, "attention_size": 4, "num_classes": 10}
GAN = {  # its server draws labels to train by
    "class_path": "fedgen.models.GAN",
    "init_args": {
        "generator": {"class_path": "fedgen.models.networks.SAGANGenerator", "init_args": {"latent_dim": 3, **NETWORK}},
        "critic": {"class_path": "fedgen.models.networks.SAGANCritic", "init_args": NETWORK},
        "loss": {"class_path": "fedgen.models.Hinge"},
        "n_critic": 3,
        "generator_trained_by": "server",
    },
}
ALIKE = "labels are drawn as if all 10 classes were equally frequent.* give label-counts in the run's config"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("clients"), {"a": 12, "b": 25})


def hello(name, *classes):
    return Hello(name, 20, (1, 8, 8), classes)


@pytest.mark.slow
@pytest.mark.parametrize("model", [GAN, DDPM], ids=["gan", "ddpm"])
def test_it_is_the_simulations_model_with_the_frequencies_that_the_server_is_told(model, images, tmp_path):
    settings = recipe(1, model=model)
    simulated = simulate(settings, images, tmp_path / "simulated")
    counts = ", ".join(map(str, simulated["state_dict"][COUNTS].tolist()))
    deployed, _ = deploy(settings, images, tmp_path / "deployed", config={"label-counts": counts})
    assert deployed["fedavg"]["left_out"] == []
    same_weights(simulated, deployed)


@pytest.mark.slow
@pytest.mark.usefixtures("by_flowers_simulation")
@pytest.mark.filterwarnings("ignore:client .* ended its turn with other settings of its optimizers")  # its warmup's
def test_the_recipe_of_conditional_digits_is_deployed_and_a_warning_says_that_classes_are_alike(tmp_path):
    """A round of `fedgen deploy recipes/ddpm_digits_conditional.yaml`, whose clients have a class each."""
    found = yaml.safe_load((ROOT / "recipes" / "ddpm_digits_conditional.yaml").read_text())
    found["trainer"] |= {"max_epochs": 1, "callbacks": [], "logger": False}
    found["trainer"]["strategy"]["init_args"]["cohort_size"] = 2
    found["seed_everything"] = 3
    path, app, exported = tmp_path / "recipe.yaml", tmp_path / "app", tmp_path / "clients"
    path.write_text(yaml.safe_dump(found))
    assert main(["deploy", str(path), str(app), "--export", str(exported)]) == 0
    run = {"clients": 10, "output": str(tmp_path / "run"), "wait": 1.0, "simulation-data": str(exported)}
    deployed = app / "federation" / "recipe.yaml"
    nodes = {k: Node(client_app(deployed), {"partition-id": k, "num-partitions": 10}, run) for k in range(10)}
    with pytest.warns(UserWarning, match=ALIKE):
        run_server(deployed, Loopback(nodes), run)
    found["trainer"]["default_root_dir"] = str(tmp_path / "simulated")
    train(FedgenCLI(args=found))
    one, other = read(tmp_path / "simulated"), read(tmp_path / "run")
    assert one["state_dict"].pop(COUNTS).sum() > 1000
    assert other["state_dict"].pop(COUNTS).tolist() == [1] * 10
    same_weights(one, other)


@pytest.mark.slow
@pytest.mark.filterwarnings(f"ignore:{ALIKE}")
def test_a_run_that_goes_on_with_other_classes_is_refused(tmp_path):
    images, digits = write_images(tmp_path / "clients", {"a": 40}), list("0123456789")
    for classes in ("", ",".join(digits)):  # the same ones
        deploy(recipe(1 + bool(classes), model=DDPM), images, tmp_path / "run", config={"classes": classes})
    turned = {"classes": ",".join(digits[::-1])}
    with pytest.raises(ValueError, match="classes"):
        deploy(recipe(3, model=DDPM), images, tmp_path / "run", config=turned)


@pytest.mark.slow
def test_a_client_without_labels_is_named(images, tmp_path):
    copied = shutil.copytree(images, tmp_path / "clients")
    for picture in list((copied / "b").glob("*/*.png")):
        picture.rename(copied / "b" / picture.name)
    for folder in [one for one in (copied / "b").iterdir() if one.is_dir()]:
        folder.rmdir()
    with pytest.raises(ValueError, match="conditional"):
        deploy(recipe(1, model=DDPM), copied, tmp_path / "run")


# ---- the run's config ----


def enrolled(labels, *clients):
    return RemoteClients(_connection=connection_to(*clients, labels=labels))


def test_one_clients_class_moves_everybodys_labels_unless_the_run_names_the_classes():
    clients = hello("a", "cat", "dog"), hello("b", "000", "dog")
    assert enrolled(RunLabels(), *clients).classes == ("000", "cat", "dog")
    assert enrolled(RunLabels.of_run({"classes": "dog, cat"}), clients[0]).classes == ("dog", "cat")


def test_a_client_with_another_class_than_the_run_names_does_not_take_part(tmp_path):
    grid = Loopback({10: Scripted("a", hello("a", "cat")), 11: Scripted("b", hello("b", "000", "dog"))})
    found = ClientRegistry(grid, labels=RunLabels.of_run({"classes": "cat, dog"}))
    said = "node 11 cannot take part: client 'b' has the class '000', and classes in the run's config names cat, dog"
    with pytest.warns(UserWarning, match=said):
        found.wait_for_clients(tmp_path, 1, 1.0)
    assert [one.name for one in found.clients] == ["a"]


def test_a_class_whose_name_has_a_comma_cannot_be_named():
    with pytest.raises(ValueError, match="names"):
        RunLabels.of_run({"classes": "cat, dog"}).check(hello("a", "cat, dog"))


def test_labels_are_drawn_as_often_as_the_run_says():
    labels = RunLabels.of_run({"classes": "dog, cat", "label-counts": "3, 0"})
    found = enrolled(labels, hello("a", "cat"), hello("b", "dog")).label_counts()
    assert found.dtype == torch.int64
    assert found.tolist() == [3, 0]


REFUSED = {
    "twice": ({"classes": "cat,dog,cat"}, "names 'cat' twice"),
    "words": ({"label-counts": "many"}, 'label-counts="many" in the run\'s config: give whole numbers'),
    "negative": ({"label-counts": "-1, 2"}, "give whole numbers that are not all 0"),
    "nothing": ({"label-counts": "0, 0"}, "give whole numbers that are not all 0"),
    "too few": ({"classes": "cat,dog", "label-counts": "1"}, "gives 1 numbers for 2 classes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_config_that_cannot_be_is_refused(name):
    config, said = REFUSED[name]
    with pytest.raises(ValueError, match=said):
        RunLabels.of_run(config)


def test_counts_of_other_classes_than_clients_have_are_refused():
    with pytest.raises(ValueError, match="classes"):
        enrolled(RunLabels(counts=(1, 2, 3)), hello("a", "cat", "dog")).label_counts()
