"""A deployed client's data by class path: anybody's Dataset, functions, tables, published files; recipe and node."""

import copy
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from fedgen.cli.deploy import choose_data
from fedgen.data import Digits
from fedgen.evaluation import read_records
from fedgen.flower.app.app_sides import _client_node, run_server
from fedgen.flower.app.apps import client_app
from fedgen.flower.app.write_app import write_app
from fedgen.flower.client.local_data import NodeData
from fedgen.training.fit import FedgenCLI, train
from tests.data.test_medmnist import write as write_medmnist
from tests.flower.loopback import Loopback, Node
from tests.flower.own_kit import write_scans
from tests.flower.runs import read, recipe, same_weights

KIT = "tests.flower.own_kit"
pytestmark = pytest.mark.usefixtures("elsewhere")
SIZES = {"a": 12, "b": 25, "c": 16}
SCORES = {"every_n_rounds": 1, "num_images": 60, "embeddings": ["pixels"], "scores": ["fid"]}


def made(name, **arguments):
    return {"class_path": f"{KIT}.{name}", **({"init_args": arguments} if arguments else {})}


def of_own_data(data, rounds=2, evaluation=None, model=None, **reading):
    """A recipe of somebody's own data."""
    found = recipe(rounds, evaluation, model)
    found["data"]["init_args"] |= {"data": data, **reading}
    return found


def deployed(settings, folder, configs, run=(), number=None):
    """The last checkpoint of a recipe's app over a loopback, each client a node with its own config."""
    recipe_file = folder / "recipe.yaml"
    recipe_file.write_text(yaml.safe_dump(settings))
    data = choose_data(recipe_file, settings, None, None)
    write_app(settings, data, folder / "app", len(configs), "")
    path = folder / "app" / "federation" / "recipe.yaml"
    output = {"clients": number or len(configs), "output": str(folder / "run"), "wait": 0.5, **dict(run)}
    nodes = {10 + place: Node(client_app(path), config, output) for place, config in enumerate(configs)}
    run_server(path, Loopback(nodes), output)
    return read(folder / "run")


def write(path, settings):
    path.write_text(yaml.safe_dump(settings))
    return str(path)


@pytest.mark.slow
def test_an_own_dataset_with_augmentation_is_the_simulation_s_read_by_workers_or_not(tmp_path):
    scans = write_scans(tmp_path / "clients", SIZES)
    reading = {
        "collate_fn": f"{KIT}.to_pair",
        "evaluation_data": made("Scans", root=str(scans)),
    }
    settings = of_own_data(made("Scans", root=str(scans), noise=0.1), 1, SCORES, **reading)
    simulated = copy.deepcopy(settings)
    simulated["data"]["init_args"]["partition"] = {"class_path": "fedgen.clients.partitions.Natural"}
    simulated["trainer"]["default_root_dir"] = str(tmp_path / "simulated")
    train(FedgenCLI(args=simulated))
    nodes = [{"data-path": str(scans / name), "state-path": str(tmp_path / f"state-{name}")} for name in "abc"]
    for workers, name in enumerate("bc"):
        nodes[1 + workers]["data-config"] = write(tmp_path / f"{name}.yaml", {"num_workers": workers})
    found = deployed(settings, tmp_path, nodes)
    same_weights(read(tmp_path / "simulated"), found)
    ours, theirs = (
        {(r.split, r.name): r.value for r in read_records(tmp_path / name / "scores.jsonl") if r.is_model}
        for name in ("run", "simulated")
    )
    assert ours["train", "fid_all"] == pytest.approx(theirs["train", "fid_all"], rel=1e-4)
    assert ours["train", "fid_avg"] == pytest.approx(theirs["train", "fid_avg"], rel=1e-4)


@pytest.mark.slow
def test_tables_published_files_functions_and_folders_take_part_in_one_federation(tmp_path):
    """A round ends at the mean of everybody's images: of 3 rows of a table, 8 published images and 4 of a function."""
    datasets = pytest.importorskip("datasets")
    from tests.data.tables import table

    save = tmp_path / "table"
    picture = [datasets.Image().encode_example(np.full((28, 28), level, np.uint8)) for level in (10, 20, 30)]
    table(picture, (2, 0, 1)).save_to_disk(save)
    arrays = write_medmnist(tmp_path / "published" / "organamnist.npz", channels=1)
    (tmp_path / "levels.txt").write_text("99 40 50 60 70")
    own = {"class_path": "fedgen.data.HuggingFace", "init_args": {"channels": 1, "in_memory": False}}
    settings = of_own_data(own, 1, model=made("Mean", side=28), batch_size=64, held_out=0.0)
    settings["trainer"]["strategy"]["init_args"]["communication_interval"] = 1
    medical = {"class_path": "fedgen.data.MedMNIST", "init_args": {"name": "organamnist"}}
    given = [
        {"data": medical},
        {"data": made("make_slices", root=str(tmp_path), skip=1), "labels": f"{KIT}.parity", "num_workers": 0},
    ]
    files = [write(tmp_path / f"{name}.yaml", one) for name, one in zip("bc", given)]
    nodes = [
        {"data-path": str(save), "name": "a"},
        {"data-config": files[0], "data-path": str(tmp_path / "published" / "organamnist.npz"), "name": "b"},
        {"data-config": files[1]},
    ]
    for place, node in enumerate(nodes):
        node["state-path"] = str(tmp_path / f"state {place}")
    found = deployed(settings, tmp_path, nodes)
    levels = [arrays["train_images"][k].astype(float) for k in range(8)]
    levels += [np.full((28, 28), level) for level in (10, 20, 30, 40, 50, 60, 70)]
    wanted = torch.from_numpy(np.mean(levels, 0)).float() / 127.5 - 1
    torch.testing.assert_close(found["state_dict"]["level"][0], wanted, rtol=0, atol=1e-5)
    clients = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert [(one["name"], one["examples"]) for one in clients] == [("a", 3), ("b", 8), ("c", 4)]
    assert [one["classes"] for one in clients] == [["cat", "dog", "fox"], list("0123"), ["even", "odd"]]


@pytest.mark.slow
def test_data_without_images_are_trained_on(tmp_path):
    for name, text in {"a": "one three", "b": "seven eleven thirteen"}.items():
        (tmp_path / name).write_text(text)
    settings = of_own_data(made("Words"), 1, model=made("Length"), batch_size=8, held_out=0.0)
    settings["trainer"]["strategy"]["init_args"]["communication_interval"] = 1
    nodes = [{"data-path": str(tmp_path / name), "state-path": str(tmp_path / f"state {name}")} for name in "ab"]
    found = deployed(settings, tmp_path, nodes)
    assert float(found["state_dict"]["length"]) == pytest.approx((3 + 5 + 5 + 6 + 8) / 5)


@pytest.mark.slow
def test_simulated_nodes_take_their_part_by_number_and_need_no_config(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    settings = of_own_data(made("Slice", size=8), 1, model=made("Mean"), batch_size=64, held_out=0.0)
    settings["trainer"]["strategy"]["init_args"]["communication_interval"] = 1
    nodes = [{"partition-id": number, "num-partitions": 3} for number in range(3)]
    found = deployed(settings, tmp_path, nodes)
    wanted = (Digits().load("train").inputs[:30].float() / 127.5 - 1).mean(0)
    torch.testing.assert_close(found["state_dict"]["level"], wanted, rtol=0, atol=1e-5)
    assert sorted(path.name for path in (tmp_path / "home" / ".fedgen").iterdir()) == [f"client-{k}" for k in range(3)]


# ------------------------------------------------------------------ who says what


@pytest.mark.slow
def test_a_run_s_config_names_no_data(tmp_path):
    """Whoever starts a run sets that config; a node's class of data is on its own disk, or in the app's recipe."""
    (tmp_path / "own").mkdir()
    settings = of_own_data(made("Scans", root="/elsewhere"))
    write_app(settings, choose_data(tmp_path / "r.yaml", settings, None, None), tmp_path / "app", 1, "")
    path = tmp_path / "app" / "federation" / "recipe.yaml"
    foreign = write(tmp_path / "foreign.yaml", {"data": made("Words", path="/etc/passwd")})
    run = {"clients": 1, "data-config": foreign, "data-path": "/etc", "partition-id": 0, "data": made("Words")}
    with pytest.raises(ValueError, match="config"):
        run_server(path, Loopback({}), run)
    station = _client_node(path, context({"data-path": str(tmp_path / "own")}, run))
    assert station._settings["data"]["init_args"]["data"] == made("Scans", root=str(tmp_path / "own"))
    with pytest.raises(ValueError, match="data"):
        _client_node(path, context({}, run))
    simulation = {**run, "simulation-data": str(tmp_path)}
    with pytest.raises(ValueError, match="data"):
        _client_node(path, context({}, simulation))


def context(node, run):
    return SimpleNamespace(run_id=0, node_id=10, node_config=node, run_config={"output": "run", **run})


def test_a_node_s_settings_go_before_the_recipe_s(tmp_path):
    own = {"data": made("Scans", noise=0.1), "num_workers": 1, "labels": "kinds", "batch_size": 8}
    file = write(tmp_path / "mine.yaml", {"data": {"init_args": {"noise": 0.3}}, "num_workers": 4})
    node = NodeData.of_node({"data-path": str(tmp_path), "data-config": file})
    wanted = {**own, "data": made("Scans", noise=0.3, root=str(tmp_path)), "num_workers": 4}
    assert node.fill(own) == wanted
    file = write(tmp_path / "mine.yaml", {"data": made("Words", path="words.txt"), "images_of": "my.images"})
    node = NodeData.of_node({"data-config": file})
    wanted = {"data": made("Words", path="words.txt"), "num_workers": 1, "images_of": "my.images", "batch_size": 8}
    assert node.fill(own) == wanted  # the recipe's labels are those of its own class
    assert (node.name, node.state) == ("mine", tmp_path / ".mine-fedgen")


FAULTS = {
    "another setting": ({"data": made("Words"), "workers": 3}, "has 'workers'; did you mean 'num_workers'"),
    "a name": ({"data": "Words"}, "data='Words'; give a class_path"),
    "a list": (["Words"], "holds no settings of data"),
    "no place": ({"data": made("Words")}, "Words needs path; start it with --node-config 'data-path="),
    "no number": ({"data": made("Slice")}, "own_kit.Slice needs partition_id; give partition-id in its config"),
    "no class": (
        {"data": made("Wods")},
        "the clients' data: module 'tests.flower.own_kit' has no 'Wods'; did you mean",
    ),
    "no type": ({"data": made("parity")}, "does not say what it returns: write def parity(...) -> torch"),
    "a model": ({"data": made("Mean")}, "Mean' is no class of data sets"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_node_cannot_say_is_named(tmp_path, name):
    file, says = FAULTS[name]
    config = write(tmp_path / "mine.yaml", file)
    with pytest.raises(ValueError, match=re.escape(says)):
        NodeData.of_node({"data-config": config, "num-partitions": 2}).fill({"data": made("Scans", root="r")})


def test_a_place_that_nobody_reads_is_named(tmp_path):
    file = write(tmp_path / "mine.yaml", {"data": made("Slice", partition_id=0, num_partitions=2)})
    with pytest.raises(ValueError, match="config"):
        NodeData.of_node({"data-path": str(tmp_path), "data-config": file}).fill({})


def test_missing_places_and_listed_labels_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="exist"):
        NodeData.of_node({"data-path": str(tmp_path / "gone")})
    with pytest.raises(FileNotFoundError, match="config"):
        NodeData.of_node({"data-config": str(tmp_path / "gone.yaml")})
    settings = of_own_data(made("Scans"), labels=[0, 1])
    with pytest.raises(ValueError, match="labels"):
        write_app(settings, made("Scans"), tmp_path / "app", 1, "")
