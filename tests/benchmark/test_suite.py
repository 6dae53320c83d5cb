"""Declared suites: their names, budgets and recipes."""

import hashlib
import sys
from dataclasses import replace

import pytest
import torch
import yaml

from fedgen.__main__ import main
from fedgen.benchmark.suite import (
    ALGORITHMS,
    DATA,
    FULL,
    GENERATORS,
    PARTITIONS,
    SMALL,
    SUITES,
    TINY,
    OwnClass,
    find_suite,
)
from fedgen.class_paths import import_by_path
from fedgen.clients import FederatedDataModule
from fedgen.experiments.engine.trainings import fingerprint
from tests.test_recipes import parser_of_recipes

OFFLINE = [cell for suite in (TINY, SMALL) for cell in suite.cells]


@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
def test_a_suite_has_cells_of_known_parts_and_questions_on_them(suite):
    names = [cell.name for cell in suite.cells]
    assert len(set(names)) == len(names) == len({cell.slug for cell in suite.cells})
    assert all({cell.data} <= DATA.keys() and {cell.partition} <= PARTITIONS.keys() for cell in suite.cells)
    assert all({cell.generator} <= GENERATORS.keys() and {cell.algorithm} <= ALGORITHMS.keys() for cell in suite.cells)
    for cells in suite.questions.values():
        assert len(cells) > 1
        assert len({cell.task for cell in cells}) == 1  # others do not compare
    assert len(names) * len(suite.seeds) <= (90 if suite is FULL else 40)
    assert find_suite(suite.name) is suite


def test_cells_of_one_task_and_generator_differ_in_their_algorithm_alone():
    recipes = {cell.algorithm: cell.recipe() for cell in TINY.cells}
    assert recipes["fedavg"] == recipes["local"] == recipes["centralised"]  # flags of `fedgen fit` make the controls
    assert [cell.control for cell in TINY.cells] == [None, "local_only", "centralised"]
    adam = replace(TINY.cells[0], algorithm="fedadam").recipe()
    strategy = adam["trainer"]["strategy"]["init_args"]
    assert strategy.pop("server_optimizer")["class_path"] == "fedgen.federated.FedAdam"
    assert adam == recipes["fedavg"]


def test_an_own_generator_stands_beside_one_cell_of_a_task_and_an_algorithm_beside_all_of_fedavg():
    flow = replace(TINY.cells[0], generator="flow")
    suite = replace(TINY, questions={"": (*TINY.cells, flow, replace(flow, partition="dirichlet"))})
    model, rule = OwnClass("a.Model", "model", ("image_size",)), OwnClass("a.Rule", "client_algorithm")
    assert [(cell.name, cell.beside) for cell in suite.cells_with(model)] == [
        ("digits/by-class/a.Model/fedavg", "digits/by-class/wgan-gp/fedavg"),
        ("digits/dirichlet/a.Model/fedavg", "digits/dirichlet/flow/fedavg"),
    ]
    assert [cell.name for cell in suite.cells_with(rule)] == [
        "digits/by-class/wgan-gp/a.Rule",
        "digits/by-class/flow/a.Rule",
        "digits/dirichlet/flow/a.Rule",
    ]
    recipe = suite.cells_with(model)[0].recipe()
    assert recipe["model"] == {"class_path": "a.Model", "init_args": {"image_size": 8}}
    assert {**recipe, "model": None} == {**TINY.cells[0].recipe(), "model": None}
    strategy = suite.cells_with(rule)[0].recipe()["trainer"]["strategy"]["init_args"]
    assert strategy["client_algorithm"] == {"class_path": "a.Rule"}


def test_suites_without_a_gpu_download_no_embedding():
    assert {name for cell in OFFLINE for name in DATA[cell.data].embeddings} <= {
        "efficientnet-lite0",
        "efficientnet-lite0-32",
        "classifier-mnist5k",
        "pixels",
    }
    assert all(len(data.embeddings) > 1 for data in DATA.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", sorted({cell.task for cell in OFFLINE if cell.data != "fashion"})
)  # which is downloaded
def test_clients_have_as_many_images_to_train_on_as_a_generator_draws(task):
    cell = next(cell for cell in OFFLINE if cell.task == task)
    given = cell.recipe()["data"]["init_args"]
    parts = {name: import_by_path(given[name]["class_path"]) for name in ("data", "partition")}
    made = {name: part(**given[name].get("init_args", {})) for name, part in parts.items()}
    clients = FederatedDataModule(**made, held_out=given["held_out"], seed=given["seed"]).clients
    for part in ("train", "held_out"):  # of whom the floors are, on held-out and on training images
        assert sum(len(getattr(client, part)) for client in clients) >= DATA[cell.data].num_images
    assert min(len(client.held_out) for client in clients) > 10


def test_recipes_of_the_small_suites_stay_what_they_were():
    """Entries of other recipes are refused, and hours of training with them."""
    recipes = [fingerprint(cell.recipe()) for cell in OFFLINE]
    assert hashlib.sha256("".join(recipes).encode()).hexdigest()[:16] == "0c3aa4a96ce0f166"


@pytest.mark.slow
@pytest.mark.parametrize("cell", FULL.cells, ids=[cell.name for cell in FULL.cells])
def test_recipes_of_the_full_suite_fit_the_classes_that_they_name(cell):
    recipe = cell.recipe()
    assert recipe.pop("threads") == 1
    settings = parser_of_recipes().parse_object(recipe)
    assert settings.model.class_path.endswith(recipe["model"]["class_path"].rpartition(".")[2])
    assert settings.trainer.max_epochs == cell.budget.rounds


@pytest.mark.slow
def test_a_recipe_of_the_full_suite_is_what_the_command_takes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedgen"])
    (tmp_path / "cell.yaml").write_text(yaml.safe_dump(FULL.cells[0].recipe()))
    with pytest.raises(SystemExit) as caught:
        main(["fit", "--config", str(tmp_path / "cell.yaml"), "--print_config"])
    assert caught.value.code == 0
    given = FULL.cells[0].recipe()["model"]["class_path"]
    assert yaml.safe_load(capsys.readouterr().out)["model"]["class_path"] == given


def build(part):
    """The object of a recipe's part, with those inside it."""
    given = part.get("init_args", {})
    inside = {name: build(value) for name, value in given.items() if isinstance(value, dict) and "class_path" in value}
    return import_by_path(part["class_path"])(**{**given, **inside})


CELLS = [cell for suite in SUITES.values() for cell in suite.cells]
FAMILIES = {(cell.generator, DATA[cell.data].image_size): cell for cell in CELLS}


@pytest.mark.parametrize("cell", FAMILIES.values(), ids=[f"{name}-{size}" for name, size in FAMILIES])
def test_models_are_made(cell):
    with torch.device("meta"):
        model = build(cell.recipe()["model"])
    assert cell not in FULL.cells or sum(parameter.numel() for parameter in model.parameters()) > 1_000_000
