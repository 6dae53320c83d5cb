"""The page on architecture: its rooms are the folders, its files exist, its code runs as written."""

import copy
import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import torch

import fedgen
from benchmarks.house.rules import LAYERS, MOST_FILES
from fedgen.evaluation import Run
from fedgen.experiments import EXPERIMENTS
from fedgen.experiments.command import reproduce
from tests.trainers import quiet_trainer

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_its_rooms_are_the_folders_in_the_layers_order():
    rooms = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    folders = {path.parent.name for path in (ROOT / "fedgen").glob("*/__init__.py")}
    assert set(rooms) == folders
    assert rooms == [name for layer in LAYERS for name in layer if name in folders]


def test_the_files_and_folders_that_it_names_exist():
    named = re.findall(r"`(fedgen/[\w/]+(?:\.py)?)`", PAGE)
    assert len(named) > 20
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_new_ones_go_into_folders_that_exist():
    places = re.findall(r"^### .*: `([\w/]+)`$", PAGE, re.MULTILINE)
    assert len(places) == 9
    assert [place for place in places if not (ROOT / "fedgen" / place).is_dir()] == []


def test_the_folders_of_new_ones_have_room_for_two_more():
    places = re.findall(r"^### .*: `([\w/]+)`$", PAGE, re.MULTILINE)
    counts = {place: len(list((ROOT / "fedgen" / place).glob("*.py"))) for place in places}
    assert {place: count for place, count in counts.items() if count > MOST_FILES - 2} == {}


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """The page's code as a module, which has trained for ten rounds in a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("kit")
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        quiet = 'accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False'
        code = "".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)).replace('accelerator="cpu"', quiet)
        (folder / "my_kit.py").write_text(code)
        yield importlib.import_module("my_kit")
        del sys.modules["my_kit"]


@pytest.mark.slow
def test_its_classes_train_together_and_their_score_is_recorded(kit):
    model, run = kit.trainer.lightning_module, Run(Path.cwd())
    assert model.mean.abs().max() > 0  # it has moved
    assert {record.name for record in run.records} >= {"fid_all", "mean_shift_avg", "mean_shift_all"}
    assert [client.name for client in kit.data.clients] == [f"client {k}" for k in range(4)]
    assert fedgen.select(run, by="mean_shift_all")[0].round == 9


@pytest.mark.slow
def test_its_loss_pulls_towards_the_clients_mean(kit):
    loss = kit.MeanLoss().set_references([torch.zeros(2, 1), torch.full((2, 1), 4.0)])
    points = torch.tensor([[5.0]], requires_grad=True)
    loss(points).backward()
    assert float(loss(points.detach())) == 9.0
    assert float(points.grad) == 6.0


@pytest.mark.slow
def test_its_aggregator_combines_a_module_whose_turns_change_a_buffer(kit):
    class Seen(kit.MeanImage):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def training_step(self, batch, batch_idx):
            self.seen += 1
            return super().training_step(batch, batch_idx)

    model = Seen()
    strategy = fedgen.FedAvgStrategy(5, aggregator=kit.MidRange())
    data = fedgen.FederatedDataModule(kit.Stripes(), kit.EveryNth(4), batch_size=20)
    quiet_trainer(2, strategy=strategy).fit(model, data)
    assert float(model.seen) == 10  # two rounds of five iterations, of every client
    assert model.mean.abs().max() > 0


@pytest.mark.slow
def test_its_experiment_is_a_command_that_goes_on_where_it_was_stopped(kit, tmp_path, capsys, monkeypatch):
    name, results = "mean-shift-by-noise", tmp_path / "results.json"
    monkeypatch.setitem(EXPERIMENTS, name, ("my_kit:mean_shift_by_noise", "the page's"))
    command = [name, "--seed", "3", "--output", str(tmp_path)]
    assert reproduce(command) == 0
    first, kept = capsys.readouterr().out, json.loads(results.read_text())
    assert "noise 1.0: shift" in first
    assert kept["settings"] == {"seed": 3}
    stopped = copy.deepcopy(kept)
    del stopped["numbers"]["noise"]["1.0"]
    results.write_text(json.dumps(stopped))
    assert reproduce(command) == 0
    assert (capsys.readouterr().out, json.loads(results.read_text())) == (first, kept)
