"""A stranger's model, data, embedding and recipe, as docs/deployment-data.md has them: here and on Flower."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from flwr.cli.build import build_fab_from_disk
from flwr.cli.install import install_from_fab

from fedgen.__main__ import main
from fedgen.evaluation import Run, read_records
from fedgen.flower.app.app_sides import run_server
from fedgen.flower.app.apps import app_here, client_app
from fedgen.flower.client.worker import ForwardingApp
from tests.flower.loopback import Loopback, Node
from tests.flower.runs import read

PAGE = (Path(__file__).parents[2] / "docs" / "deployment-data.md").read_text()
SECTION = PAGE[PAGE.index("## Your own classes, in twenty lines") :]
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # of Flower's archives


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the page's two files, shorter, and nothing else of the repository's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    kit, recipe = (re.search(rf"```{kind}\n(.*?)```", SECTION, re.DOTALL)[1] for kind in ("python", "yaml"))
    assert len([line for line in (kit + recipe).splitlines() if line.strip()]) <= 20
    Path("my_kit.py").write_text(kit)
    Path("my_recipe.yaml").write_text(recipe.replace("max_epochs: 20", "max_epochs: 1").replace("500", "60"))
    yield tmp_path
    sys.modules.pop("my_kit", None)


def app_of(here, capsys):
    """The deployed recipe's file."""
    assert main(["deploy", "my_recipe.yaml", "app", "--clients", "3"]) == 0
    assert "included for the server and all clients: my_kit.py" in capsys.readouterr().out
    assert Path("app/my_kit.py").read_text() == Path("my_kit.py").read_text()
    return here / "app" / "federation" / "recipe.yaml"


@pytest.mark.slow
@pytest.mark.usefixtures("blank_curves")
def test_twenty_lines_train_and_score_here_and_on_flower(here, tmp_path_factory, capsys, monkeypatch):
    """There a worker imports what the app took along, from the folder where Flower puts its archive, for own data."""
    quiet = ["--trainer.logger", "false", "--trainer.enable_progress_bar", "false", "--trainer.accelerator", "cpu"]
    assert main(["fit", "--config", "my_recipe.yaml", *quiet]) == 0
    assert {record.embedding for record in Run("checkpoints/my_recipe").records} == {"MyEmbedding"}
    path, home = app_of(here, capsys), tmp_path_factory.mktemp("flower")
    installed = install_from_fab(build_fab_from_disk(path.parent.parent), home, skip_prompt=True)
    monkeypatch.setenv("FLWR_HOME", str(home))
    monkeypatch.setattr(sys, "path", [str(installed), *(place for place in sys.path if place not in ("", str(here)))])
    settings = {"data": {"class_path": "my_kit.MyScans", "init_args": {"num_partitions": 9}}, "num_workers": 1}
    (here / "mine.yaml").write_text(yaml.safe_dump(settings))
    run = {"clients": 3, "output": str(here / "run"), "wait": 0.5}
    nodes = {10 + k: Node(client_app(path), {"partition-id": k, "num-partitions": 3}, run) for k in range(2)}
    own = {"data-config": str(here / "mine.yaml"), "state-path": str(here / "b")}
    nodes[12] = Node(ForwardingApp(installed / "federation" / "recipe.yaml", app_here), own, run)
    begin, begun = subprocess.Popen, []
    monkeypatch.setattr(subprocess, "Popen", lambda *told, **more: begun.append(begin(*told, **more)) or begun[-1])
    run_server(path, Loopback(nodes), run)
    (process,) = begun
    process.kill(), process.wait()
    found = read(here / "run")
    assert found["fedavg"]["left_out"] == []
    assert found["fedavg"]["iterations"] == {0: 5, 1: 5, 2: 5}
    assert {r.name for r in read_records(here / "run" / "scores.jsonl")} >= {"fid_avg", "fid_all", "kid_all"}
