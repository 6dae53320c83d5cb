"""`fedgen audit RUN`: the command attacks a run's last checkpoint."""

import json

import pytest
from torchvision.io import decode_image, read_file

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


@pytest.mark.slow
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
        ([*GIVEN, "--rounds", "5,1,7"], "no checkpoint of rounds [5, 7]"),
        ([*GIVEN, "--rounds", "-1"], "--rounds '-1': give comma-separated rounds"),
        ([*GIVEN, "--signal", "critic"], "Placed has no signal 'critic'"),
        ([*GIVEN, "--device", "nowhere"], "device 'nowhere' cannot be used here"),
        ([*GIVEN, "--draws", "0"], "draws=0: give at least 1"),
    ],
)
def test_what_cannot_be_attacked_is_one_line(run, capsys, options, told):
    assert main(["audit", str(run), *options]) == 2
    assert told in capsys.readouterr().err
    assert not (run / "membership.json").exists()


@pytest.mark.slow
def test_the_nearest_images_are_drawn_where_they_are_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    folder, scored = tmp_path / "run", "--trainer.callbacks.init_args"
    settings = {"every_n_rounds": "2", "num_images": "30", "embeddings": "[pixels]", "report": "false"}
    short = [text for key, value in settings.items() for text in (f"{scored}.{key}", value)]
    fitting = ["fit", "quickstart", "--trainer.max_epochs", "2", "--trainer.default_root_dir", str(folder), *short]
    assert main(fitting) == 0
    options = ["--pairs", "12", "--nearest", "--embedding", "pixels", "--num_images", "40"]
    capsys.readouterr()
    assert main(["audit", str(folder), *options, "--cache", str(tmp_path / "features")]) == 0
    shown = words(capsys)
    assert "by the critic's value" in shown
    assert f"written: {folder / 'nearest.png'}" in shown
    picture = decode_image(read_file(str(folder / "nearest.png")))
    assert picture.shape == (1, 4 * (18 + 34), 12 * 34)
    assert list((tmp_path / "features").iterdir())
