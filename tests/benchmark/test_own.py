"""Classes of one's own, by their paths: the page's example, and what cannot be entered."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from fedgen.__main__ import main
from fedgen.benchmark.entry import read_entry
from fedgen.benchmark.own import find_own
from fedgen.benchmark.suite import OwnClass
from fedgen.benchmark.suites import TINY
from tests.benchmark.few_images import few_images  # noqa: F401 - of all tests here

PAGE = Path(__file__).parents[2] / "docs" / "benchmark.md"


@pytest.fixture
def kit(tmp_path, monkeypatch):
    """The page's code as the module `my_kit` of the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "my_kit.py").write_text(code)
    yield importlib.import_module("my_kit")
    del sys.modules["my_kit"]


def test_the_pages_classes_go_where_they_belong(kit):
    model, rule = find_own("my_kit.PixelNormals"), find_own("my_kit.ClippedSteps")
    assert model == OwnClass("my_kit.PixelNormals", "model", ("image_size", "channels"))
    assert rule == OwnClass("my_kit.ClippedSteps", "client_algorithm")
    (cell,) = TINY.cells_with(model)
    assert cell.recipe()["model"]["init_args"] == {"image_size": 8, "channels": 1}
    assert [cell.name for cell in TINY.cells_with(rule)] == ["digits/by-class/wgan-gp/my_kit.ClippedSteps"]


@pytest.mark.parametrize(
    ("path", "slot"),
    [
        ("fedgen.federated.Median", "aggregator"),
        ("fedgen.federated.compression.QSGD", "compression"),
        ("torch.optim.Adagrad", "server_optimizer"),
    ],
)
def test_parts_of_an_algorithm_are_told_by_their_kind(path, slot):
    assert find_own(path) == OwnClass(path, slot)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("torch.nn.Linear", "give a class .* of LightningModule, ClientAlgorithm, Aggregator, Compressor, Optimizer"),
        ("fedgen.models.WGANGP", "needs generator, critic, which no cell gives: give generator a default"),
        ("fedgen.federated.FedProxx", "did you mean 'FedProx'"),
        ("MyModel", "is no class path"),
    ],
)
def test_what_cannot_be_entered_is_refused(path, said):
    with pytest.raises(ValueError, match=said):
        find_own(path)


@pytest.mark.slow
def test_the_pages_generator_is_trained_scored_and_ranked_by_its_two_commands(kit, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PYTHONPATH", f"{Path(PAGE).parents[1]}:{tmp_path}")
    assert main(["benchmark", "run", "tiny", "--entry", "my_kit.PixelNormals"]) == 0
    folder = Path("checkpoints/benchmark-tiny")
    entry = read_entry(folder / "entries" / "digits-by-class-my_kit.PixelNormals-fedavg.json")
    assert entry.parts == ("my_kit.PixelNormals", "fedavg")
    assert [run["seed"] for run in entry.form["runs"]] == [0, 1]
    # two tensors of 64 numbers in float32, and Adam's two moments of each with its step, of 5 clients in 30 rounds
    costs = entry.form["runs"][0]["costs"]
    assert costs["turns"] == 150
    assert costs["message_bytes"] == 3 * 2 * 64 * 4 + 2 * 4
    assert entry.claims["sent_bytes"] == 150 * costs["message_bytes"]
    assert entry.claims["number"] > 1
    assert main(["benchmark", "table", str(folder)]) == 0
    assert "my_kit.PixelNormals" in capsys.readouterr().out
    assert "my_kit.PixelNormals" in (folder / "leaderboard.html").read_text()
