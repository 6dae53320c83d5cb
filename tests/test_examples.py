"""The two files that a person reads first run as they are, only shorter."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
from torchvision.utils import save_image

import fedgen
from fedgen.__main__ import main
from tests.terminals import shown_on_terminal, written_lines

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


def test_each_is_at_most_60_lines():
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == {"fedavg.py", "score_folders.py"}
    assert all(len(path.read_text().splitlines()) <= 60 for path in EXAMPLES.glob("*.py"))


@pytest.mark.filterwarnings("ignore:.*no last checkpoint available")  # of a first start
@pytest.mark.slow
def test_fedavg_trains_and_selects(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = (EXAMPLES / "fedavg.py").read_text()
    quiet = 'accelerator="cpu", logger=False'
    shorter = code.replace("ROUNDS = 60", "ROUNDS = 2").replace("(20, ", "(1, ").replace('accelerator="cpu"', quiet)
    exec(compile(shorter, "fedavg.py", "exec"), {"__name__": "__main__"})
    assert "fid_all is best at round" in capsys.readouterr().out
    assert (tmp_path / "checkpoints" / "example" / "report.html").exists()
    before = (scores := tmp_path / "checkpoints" / "example" / "scores.jsonl").read_bytes()
    exec(compile(shorter.replace("ROUNDS = 2", "ROUNDS = 3"), "fedavg.py", "exec"), {"__name__": "__main__"})
    assert scores.read_bytes().startswith(before)
    assert len(scores.read_bytes()) > len(before)


@pytest.mark.slow
def test_fedavg_shows_one_line_over_all_rounds_on_a_terminal_of_80_columns(tmp_path):
    code = (EXAMPLES / "fedavg.py").read_text().replace("ROUNDS = 60", "ROUNDS = 6").replace("(20, ", "(3, ")
    shown = shown_on_terminal(code.replace("num_images=1000", "num_images=100, page=False"), tmp_path)
    lines = written_lines(shown)
    bars = [line for line in lines if "of 6 rounds" in line]
    assert any(line.startswith("0 of 6 rounds") for line in bars)
    assert re.fullmatch(r"6 of 6 rounds done in 0:00:\d\d", bars[-1])
    assert [line for line in bars if len(line) >= 80] == []
    assert "Epoch 0" not in shown  # Lightning's own


@pytest.mark.slow
def test_score_folders_prints_what_fedgen_evaluate_does(tmp_path, monkeypatch, capsys):
    digits = fedgen.Digits().read("train")
    for index in range(90):
        folder = tmp_path / ("samples", "a", "b")[index % 3]
        folder.mkdir(exist_ok=True)
        save_image(digits.inputs[index] / 255, folder / f"{index}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["score_folders.py", "samples", "a", "b"])
    runpy.run_path(str(EXAMPLES / "score_folders.py"), run_name="__main__")
    found = capsys.readouterr().out
    command = ["--generated", "samples", "--clients", "a", "b", "--embedding", "efficientnet-lite0-32"]
    assert main(["evaluate", *command, "--scores", "fid"]) == 0
    records = json.loads((tmp_path / "scores.json").read_text())["records"]
    (exact,) = [record["value"] for record in records if (record["score"], record["aggregate"]) == ("fid", "all")]
    (value,) = [line.split()[1] for line in found.splitlines() if line.startswith("fid_all")]
    assert float(value) == pytest.approx(exact, rel=1e-3)
