"""The page on architecture: its rooms are the folders, its files exist, its code runs as written."""

import re
from pathlib import Path

import pytest
import torch

import fedgen
from fedgen.evaluation import Run
from tests.test_layering import LAYERS, MOST_FILES

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
    assert len(places) == 8
    assert [place for place in places if not (ROOT / "fedgen" / place).is_dir()] == []


def test_the_folders_of_new_ones_have_room_for_two_more():
    places = re.findall(r"^### .*: `([\w/]+)`$", PAGE, re.MULTILINE)
    counts = {place: len(list((ROOT / "fedgen" / place).glob("*.py"))) for place in places}
    assert {place: count for place, count in counts.items() if count > MOST_FILES - 2} == {}


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """What the page's code has made: a training of ten rounds, in a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("kit")
        patch.chdir(folder)
        quiet = 'accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False'
        code = "".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)).replace('accelerator="cpu"', quiet)
        names = {"__name__": "my_kit", "folder": folder}
        exec(compile(code, "architecture.md", "exec"), names)
        yield names


@pytest.mark.slow
def test_its_classes_train_together_and_their_score_is_recorded(kit):
    model, run = kit["trainer"].lightning_module, Run(kit["folder"])
    assert model.mean.abs().max() > 0  # it has moved
    assert {record.name for record in run.records} >= {"fid_all", "mean_shift_avg", "mean_shift_all"}
    assert [client.name for client in kit["data"].clients] == [f"client {k}" for k in range(4)]
    assert fedgen.select(run, by="mean_shift_all")[0].round == 9


@pytest.mark.slow
def test_its_loss_pulls_towards_the_clients_mean(kit):
    loss = kit["MeanLoss"]().set_references([torch.zeros(2, 1), torch.full((2, 1), 4.0)])
    points = torch.tensor([[5.0]], requires_grad=True)
    loss(points).backward()
    assert float(loss(points.detach())) == 9.0
    assert float(points.grad) == 6.0


@pytest.mark.slow
def test_its_experiment_keeps_its_numbers(kit, tmp_path, capsys):
    kit["mean_shift_by_noise"](tmp_path)
    first = capsys.readouterr().out
    assert "noise 1.0: shift" in first
    kit["mean_shift_by_noise"](tmp_path)
    assert capsys.readouterr().out == first
