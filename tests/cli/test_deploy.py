"""`fedgen deploy`: what it writes, and what it refuses."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import yaml

from fedgen.__main__ import main
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.data import Digits, Examples, ImageFolder
from fedgen.flower.app.run_config import RunLabels
from fedgen.flower.app.write_app import export_clients, write_app
from tests.flower.runs import recipe

ROOT = Path(__file__).parent.parent.parent
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"


def changed(folder, change):
    """The quickstart with something changed."""
    recipe = yaml.safe_load(QUICKSTART.read_text())
    change(recipe)
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def test_an_app_has_the_recipe_and_two_sides(tmp_path):
    folder = tmp_path / "My App"
    assert main(["deploy", str(QUICKSTART), str(folder), "--clients", "7"]) == 0
    settings = tomllib.loads((folder / "pyproject.toml").read_text())
    assert settings["project"]["name"] == "my-app"
    config = settings["tool"]["flwr"]["app"]["config"]
    assert (config["clients"], config["classes"], config["label-counts"]) == (7, "", "")
    recipe = yaml.safe_load((folder / "federation" / "recipe.yaml").read_text())
    before = yaml.safe_load(QUICKSTART.read_text())
    assert recipe["trainer"] == before["trainer"]
    assert recipe["model"] == before["model"]
    assert recipe["data"]["class_path"] == "fedgen.flower.LocalDataModule"
    assert recipe["data"]["init_args"]["batch_size"] == 32
    assert recipe["data"]["init_args"]["data"] == {
        "class_path": "fedgen.data.ImageFolder",
        "init_args": {"channels": 1},
    }
    for side in ("client", "server"):
        assert f"app = {side}_app(" in (folder / "federation" / f"{side}.py").read_text()
    readme = (folder / "README.md").read_text()
    assert "--enable-supernode-auth" in readme
    assert "--host 0.0.0.0" in readme  # by itself it listens to its own machine alone
    assert settings["tool"]["flwr"]["app"]["config"]["output"] == "checkpoints/my-app"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["flower-superlink", "flower-supernode"])
def test_flower_knows_every_option_of_the_apps_readme(command, tmp_path):
    assert main(["deploy", str(QUICKSTART), str(tmp_path / "app")]) == 0
    (call,) = re.findall(rf"^    {command} .*\n(?:      .*\n)*", (tmp_path / "app" / "README.md").read_text(), re.M)
    options = re.findall(r" (--[a-z-]+)", call)
    assert len(options) >= 4
    binary = Path(sys.executable).parent / command
    known = subprocess.run([binary, "--help"], capture_output=True, text=True, timeout=120, check=True).stdout
    assert [option for option in options if option not in known] == []


@pytest.mark.slow
def test_exported_clients_are_those_of_the_simulation_bit_for_bit(tmp_path):
    app, clients = tmp_path / "app", tmp_path / "clients"
    assert main(["deploy", str(QUICKSTART), str(app), "--export", str(clients)]) == 0
    settings = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert (settings["clients"], settings["simulation-data"]) == (10, str(clients))
    assert settings["classes"] == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert settings["output"] == str(Path("checkpoints/app").absolute())
    folders = sorted(clients.iterdir())
    assert len(folders) == 10
    digits = Digits().load("train")
    for label, folder in enumerate(folders):
        read = ImageFolder(folder, channels=1).load("train")
        assert read.classes == (str(label),)
        assert torch.equal(read.inputs, digits.inputs[digits.labels == label])


def test_exported_labels_keep_the_numbers_that_the_simulation_has(tmp_path):
    """Folders named 3 and 12 are classes 0 and 1 to clients that are not told all classes in their order."""
    classes = (*map(str, range(12)), "a/b")
    data = Examples(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([3, 3, 12, 11]), "gaps", classes)
    write_app(recipe(1), {"class_path": "fedgen.data.ImageFolder", "init_args": {}}, tmp_path, 2, "", data.classes)
    export_clients(FederatedDataModule(data, IID(2), held_out=0), tmp_path / "clients")
    config = tomllib.loads((tmp_path / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    named = RunLabels.of_run(config).classes
    exported = {path.parent.name for path in (tmp_path / "clients").glob("*/*/*.png")}
    assert exported == {named[label] for label in data.labels.tolist()} == {"3", "a-b", "11"}


def test_a_recipe_that_reads_a_folder_keeps_its_data_without_the_place(tmp_path):
    images = {"root": "/data/all", "size": 8, "channels": 1, "owner_folders": True}
    data = {"class_path": "fedgen.data.ImageFolder", "init_args": images}
    path = changed(tmp_path, lambda recipe: recipe["data"]["init_args"].update(data=data))
    assert main(["deploy", str(path), str(tmp_path / "app")]) == 0
    recipe = yaml.safe_load((tmp_path / "app" / "federation" / "recipe.yaml").read_text())
    assert recipe["data"]["init_args"]["data"]["init_args"] == {"size": 8, "channels": 1}


def test_fine_tuning_is_deployed_with_the_scores_that_clients_answer_for(tmp_path, capsys):
    app = tmp_path / "app"
    assert main(["deploy", str(ROOT / "recipes" / "mmd2_fashion_mnist.yaml"), str(app), "--clients", "12"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "left out, because clients would have to send images or features: recall, coverage" in said
    recipe = yaml.safe_load((app / "federation" / "recipe.yaml").read_text())
    assert recipe["trainer"]["strategy"] == "auto"
    assert recipe["trainer"]["callbacks"][0]["init_args"]["scores"] == ["fid", "kid"]
    assert recipe["data"]["init_args"]["iterations"] == 20
    assert recipe["data"]["init_args"]["data"]["init_args"] == {"channels": 1}


def test_an_evaluation_of_nothing_that_clients_answer_for_is_left_out(tmp_path, capsys):
    path = changed(tmp_path, lambda recipe: recipe["trainer"]["callbacks"][0]["init_args"].update(scores=["recall"]))
    app = tmp_path / "app"
    assert main(["deploy", str(path), str(app), "--data", "ImageFolder"]) == 0
    assert "images or features: recall" in " ".join(capsys.readouterr().out.split())
    assert yaml.safe_load((app / "federation" / "recipe.yaml").read_text())["trainer"]["callbacks"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--clients", "3"], "clients=3 is below the recipe's cohort_size=5: pass --clients 5 or more, or set"),
        (
            ["--clients", "7", "--export", "images"],
            "clients=7, but --export writes the 10 clients of .*omit --clients",
        ),
    ],
)
def test_a_number_of_clients_that_does_not_fit_the_recipe_is_refused(options, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["deploy", str(QUICKSTART), "app", *options]) == 2
    assert re.search(said, capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_the_server_waits_for_a_cohort_at_least(tmp_path):
    assert main(["deploy", str(QUICKSTART), str(tmp_path / "app")]) == 0
    assert "\nclients = 5 " in (tmp_path / "app" / "pyproject.toml").read_text()


REFUSED = {
    "a split": (lambda r: r["data"]["init_args"].update(split={"class_path": "fedgen.clients.ThreeWaySplit"}), "split"),
    "another strategy": (lambda r: r["trainer"].update(strategy="auto"), "FedAvgStrategy"),
    "other data": (lambda r: r.update(data={"class_path": "my.Data"}), "FederatedDataModule"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_recipe_that_cannot_be_deployed_is_refused_before_anything_is_written(name, tmp_path, capsys):
    change, said = REFUSED[name]
    app = tmp_path / "app"
    assert main(["deploy", str(changed(tmp_path, change)), str(app), "--data", "ImageFolder"]) == 2
    assert said in capsys.readouterr().err
    assert not (app / "pyproject.toml").exists()


def test_mistakes_have_one_message_each(tmp_path, capsys):
    app = str(tmp_path / "app")
    assert main(["deploy", str(tmp_path / "none.yaml"), app]) == 2
    assert "none.yaml; give a path" in capsys.readouterr().err
    assert main(["deploy", str(QUICKSTART), app, "--data", "Digits"]) == 2
    assert "Digits reads no folder" in capsys.readouterr().err
    assert main(["deploy", str(QUICKSTART), app, "--data", "Nothing"]) == 2
    assert "the clients' data: module 'fedgen.data' has no 'Nothing'" in capsys.readouterr().err
    assert main(["deploy", str(QUICKSTART), app, "--data", "fedgen.models.WGANGP"]) == 2
    assert "is no class of data sets" in capsys.readouterr().err
    assert main(["deploy", str(QUICKSTART), app]) == 0
    assert main(["deploy", str(QUICKSTART), app]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main(["deploy", str(QUICKSTART), app, "--overwrite"]) == 0


OWN = """
import torch

class Scans(torch.utils.data.Dataset):
    def __init__(self, root: str, partition_id: int, noise: float = 0.0): ...

def make_scans(noise: float) -> Scans: ...
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A folder with a module and a package of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("own_scans.py").write_text(OWN)
    Path("own_networks/deep").mkdir(parents=True)
    for file in ("__init__.py", "deep/__init__.py"):
        Path("own_networks", file).write_text("Critic = 3\n")
    yield tmp_path
    sys.modules.pop("own_scans", None)


def test_data_of_ones_own_are_kept_without_what_nodes_say_and_modules_go_along(own, capsys):
    def change(recipe):
        data = {"class_path": "own_scans.Scans", "init_args": {"root": "/all", "partition_id": 0, "noise": 0.1}}
        recipe["data"]["init_args"].update(data=data, num_workers=2, collate_fn="own_networks.deep.collate", owners="x")
        recipe["data"]["init_args"]["evaluation_data"] = {**data, "init_args": {"root": "/all", "noise": 0.0}}

    assert main(["deploy", str(changed(own, change)), "app"]) == 0
    said = "included for the server and all clients: own_scans.py, own_networks/__init__.py, own_networks/deep/"
    assert said in " ".join(capsys.readouterr().out.split())
    assert Path("app/own_scans.py").read_text() == OWN
    assert Path("app/own_networks/deep/__init__.py").exists()
    assert yaml.safe_load(Path("app/federation/recipe.yaml").read_text())["data"]["init_args"] == {
        "data": {"class_path": "own_scans.Scans", "init_args": {"noise": 0.1}},
        "evaluation_data": {"class_path": "own_scans.Scans", "init_args": {"noise": 0.0}},
        "collate_fn": "own_networks.deep.collate",
        "num_workers": 2,
        "batch_size": 32,
    }
    output = tomllib.loads(Path("app/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]["output"]
    assert Path(output).is_absolute()  # simulated nodes tell it by their number


def test_classes_may_be_named_alone_and_other_data_leave_the_recipe_s_reading_out(own):
    def change(recipe):
        recipe["data"]["init_args"].update(data="own_scans.make_scans", labels="kind", num_workers=2)
        recipe["trainer"]["strategy"] = "fedgen.federated.FedAvgStrategy"
        recipe["trainer"]["callbacks"] = "fedgen.callbacks.FederatedEvaluation"

    path = changed(own, change)
    assert main(["deploy", str(path), "app", "--settings", '{"noise": 0.3}']) == 0
    found = yaml.safe_load(Path("app/federation/recipe.yaml").read_text())
    assert found["data"]["init_args"]["data"] == {"class_path": "own_scans.make_scans", "init_args": {"noise": 0.3}}
    assert found["data"]["init_args"]["labels"] == "kind"
    assert found["trainer"]["callbacks"] == [{"class_path": "fedgen.callbacks.FederatedEvaluation"}]
    assert main(["deploy", str(path), "app", "--data", "ImageFolder", "--overwrite"]) == 0
    found = yaml.safe_load(Path("app/federation/recipe.yaml").read_text())["data"]["init_args"]
    assert found["data"]["class_path"] == "fedgen.data.ImageFolder"
    assert "labels" not in found
    assert found["num_workers"] == 2
