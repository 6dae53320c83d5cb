"""`fedgen audit RUN`: the command attacks a run's last checkpoint."""

import json

import pytest

from fedgen.__main__ import main
from fedgen.callbacks import RoundCheckpoint
from tests.evaluation.places import Placed, federation, fit

GIVEN = ["--model", "tests.evaluation.places:Placed", "--data", "tests.evaluation.places:federation"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    fit(tmp_path / "run", Placed(), federation(), [RoundCheckpoint()])
    return tmp_path / "run"


def words(capsys):
    return " ".join(capsys.readouterr().out.split())


def test_a_table_is_printed_and_the_numbers_are_kept(run, capsys):
    capsys.readouterr()
    assert main(["audit", str(run), *GIVEN]) == 0
    shown = words(capsys)
    assert "round 1: membership inference by the model's own loss, the mean of 4 draws" in shown
    assert "owner 0" in shown
    assert f"written: {run / 'membership.json'}" in shown
    (audit,) = json.loads((run / "membership.json").read_text())["audits"]
    row = audit["clients"][0]["auc"]
    assert f"{row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}]" in shown
    assert main(["audit", str(run), "--signal", "distance", "--num_images", "50", *GIVEN]) == 0
    assert "distance to the nearest of 50 generated images in identity" in words(capsys)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "is of a run trained in Python, which keeps no recipe"),
        ([*GIVEN, "--rounds", "5"], "no checkpoint of rounds [5]"),
        ([*GIVEN, "--signal", "critic"], "Placed has no signal 'critic'"),
        ([*GIVEN, "--device", "nowhere"], "device 'nowhere' cannot be used here"),
        ([*GIVEN, "--draws", "0"], "draws=0: give at least 1"),
    ],
)
def test_what_cannot_be_attacked_is_one_line(run, capsys, options, told):
    assert main(["audit", str(run), *options]) == 2
    assert told in capsys.readouterr().err
    assert not (run / "membership.json").exists()
