"""The same small federation simulated and deployed."""

import copy
from contextlib import chdir

import torch
import yaml

from fedgen.data import Digits
from fedgen.evaluation import read_records
from fedgen.flower.app.app_sides import run_server
from fedgen.flower.app.apps import client_app
from fedgen.flower.app.write_app import write_app
from fedgen.flower.client.client_node import ClientNode
from fedgen.flower.client.local_data import NodeData
from fedgen.images import save_png
from fedgen.training.fit import FedgenCLI, train
from tests.flower.loopback import Loopback, Node

SIZES = {"a": 12, "b": 25, "c": 16, "d": 20}
HIDDEN = {"secure-aggregation": True, "update-range": 0.5}
NOISE = {"statistics-epsilon": 8.0, "statistics-delta": 1e-3, "statistics-radius": 6.0}
IMAGES = {"class_path": "fedgen.data.ImageFolder", "init_args": {"channels": 1}}


def write_images(folder, sizes=SIZES):
    """A folder of digits for each client, by class; c lacks a class."""
    digits, start = Digits().load("train"), 0
    for name, count in sizes.items():
        for position in range(start, start + count):
            label = digits.classes[int(digits.labels[position])]
            if (name, label) != ("c", "3"):
                place = folder / name / label
                place.mkdir(parents=True, exist_ok=True)
                save_png(place / f"{position:04d}.png", digits.inputs[position])
        start += count
    return folder


def small_gan(**options):
    """A small GAN as a recipe's model."""
    network = "fedgen.models.networks.Small"
    own = {
        "generator": {"class_path": f"{network}Generator", "init_args": {"width": 4}},
        "critic": {"class_path": f"{network}Critic", "init_args": {"width": 4}},
        "n_critic": 2,
        "ema_decay": 0.9,
        **options,
    }
    return {"class_path": "fedgen.models.WGANGP", "init_args": own}


def recipe(rounds=3, evaluation=None, model=None, **strategy):
    """A recipe of a small GAN, or of another model, without pictures; `simulate` and `deploy` put in the data."""
    shown = {"report": False, "page": False, "grid": 0, **(evaluation or {})}
    callbacks = [{"class_path": "fedgen.callbacks.FederatedEvaluation", "init_args": shown}] if evaluation else []
    settings = {"communication_interval": 3, **strategy}
    return {
        "seed_everything": 3,
        "trainer": {
            "accelerator": "cpu",
            "max_epochs": rounds,
            "logger": False,
            "callbacks": callbacks,
            "strategy": {"class_path": "fedgen.federated.FedAvgStrategy", "init_args": settings},
        },
        "model": model or small_gan(),
        "data": {"class_path": "fedgen.clients.FederatedDataModule", "init_args": {"batch_size": 8}},
    }


def of_owners(settings, images):
    """The recipe's simulation on the clients' folders."""
    found = copy.deepcopy(settings)
    folders = {**IMAGES["init_args"], "root": str(images), "owner_folders": True}
    found["data"]["init_args"] |= {
        "data": {"class_path": "fedgen.data.ImageFolder", "init_args": folders},
        "partition": {"class_path": "fedgen.clients.partitions.Natural"},
    }
    return found


def simulate(settings, images, output):
    """Trains in one process; the last checkpoint."""
    found = of_owners(settings, images)
    found["trainer"]["default_root_dir"] = str(output)
    train(FedgenCLI(args=found))
    return read(output)


def app_of(settings, folder, clients):
    """The app of a recipe; the deployed recipe's file."""
    folder.mkdir(parents=True, exist_ok=True)
    with chdir(folder):  # of modules here that a recipe names, it would take whole packages along: all tests
        write_app(settings, IMAGES, folder, clients, "")
    return folder / "federation" / "recipe.yaml"


def node_of(kind, settings, images, output, name, *args, config=(), **options):
    """A client's node in a run that `deploy` starts.

    Args:
        kind: a class of nodes; what it takes beside app, own config and run's config follows.
        settings: the recipe.
        images: folder of all clients' images.
        output: of the run.
        name: the client's.
        config: of the run.
    """
    path, run = app_of_run(settings, images, output, config)
    return kind(client_app(path), own_config(images, output, name), run, *args, **options)


def own_config(images, output, name):
    """The config of a client's node."""
    return {"data-path": str(images / name), "state-path": str(output.parent / f"{output.name}-{name}")}


def app_of_run(settings, images, output, config):
    """The deployed recipe's file, and the run's config."""
    clients = len(names_of(images))
    path = app_of(settings, output.parent / f"{output.name}-app", clients)
    return path, {"clients": clients, "output": str(output), "wait": 1.0, **dict(config)}


def names_of(images):
    """The clients whose images lie in a folder."""
    return sorted(path.name for path in images.iterdir() if path.is_dir() and not path.name.startswith("."))


def deploy(settings, images, output, nodes=None, config=()):
    """Trains over a loopback, each client a node, from 10 on; the last checkpoint, and the grid."""
    path, run = app_of_run(settings, images, output, config)
    made = nodes or {}
    for number, name in enumerate(names_of(images), 10):
        made.setdefault(number, Node(client_app(path), own_config(images, output, name), run))
    grid = Loopback(made)
    run_server(path, grid, run)
    return read(output), grid


def go_back(settings, images, output):
    """Deploys a recipe, and has the run's server go on from the first round; the last one's checkpoint."""
    keeping = {"class_path": "fedgen.callbacks.RoundCheckpoint", "init_args": {"every_n_rounds": 1}}
    settings["trainer"]["callbacks"].append(keeping)
    last, _ = deploy(settings, images, output)
    first = (output / "round=00000.ckpt").read_bytes()
    for path in output.glob("*.ckpt"):
        path.unlink()
    (output / "last.ckpt").write_bytes(first)
    return last


def learn_types(settings, images, folder):
    """Has this process look at a recipe's classes, which its forks would each do for themselves, and take a second."""
    path = app_of(settings, folder / "types-app", len(names_of(images)))
    assert ClientNode(path, NodeData(images / "a"), folder / "types").hello().examples == SIZES["a"]


def read(folder):
    return torch.load(folder / "last.ckpt", weights_only=True)


def scores_of(folder):
    """The values of a run's models by split and name."""
    return {(r.split, r.name): r.value for r in read_records(folder / "scores.jsonl") if r.is_model}


def same_weights(one, other, atol=2e-6, interval=None):
    """Whether two checkpoints hold the same model, to rounding.

    Args:
        one: checkpoint.
        other: checkpoint, of masked clients where an interval is given: BatchNorm's counts then grow by it each round.
        atol: the deviation allowed.
        interval: the communication interval.
    """
    assert one["state_dict"].keys() == other["state_dict"].keys()
    for name, tensor in one["state_dict"].items():
        found = other["state_dict"][name]
        if interval is not None and name.endswith("num_batches_tracked"):
            assert int(found) % interval == 0
            assert int(found) > 0 or "_ema" in name
        else:
            torch.testing.assert_close(found, tensor, rtol=0, atol=atol)


def settings_of(path):
    return yaml.safe_load(path.read_text())
