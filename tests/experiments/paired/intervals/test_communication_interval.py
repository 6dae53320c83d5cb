"""Quality by communication interval, over runs that were never trained, and one that is."""

import json
from pathlib import Path

import pytest
from torch import nn

from fedgen.embeddings import load_embedding
from fedgen.embeddings.module import ModuleEmbedding
from fedgen.experiments.engine import trainings
from fedgen.experiments.engine.scored_checkpoints import Scorers
from fedgen.experiments.paired.intervals.communication_interval import IntervalChoice, communication_interval, grids_in
from tests.experiments.tiny_runs import untrained, write_recipe

RECIPES = Path(__file__).parents[4] / "recipes"


@pytest.mark.slow
def test_every_interval_and_control_is_scored_and_printed_again_without_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainings.Training, "run", untrained)  # weights at random, and no training
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).requires_grad_(False)
    small = ModuleEmbedding(network, name="small")
    monkeypatch.setattr(IntervalChoice, "embeddings", lambda self: [load_embedding("pixels"), small])
    write_recipe(tmp_path / "recipes", "ddpm_digits.yaml")
    options = {
        "intervals": (2, 4),
        "iterations": 8,
        "checkpoints": 2,
        "seeds": 2,
        "num_images": 40,
        "dealings": 1,
        "recipes": write_recipe(tmp_path / "recipes"),
    }
    communication_interval(tmp_path / "out", **options)
    numbers = json.loads((tmp_path / "out" / "results.json").read_text())["numbers"]
    assert len(numbers["scores"]) == 2 * (2 + 2) * 2 * 2
    assert set(numbers["found"]) == {"pixels", "small"}
    first = next(iter(numbers["scores"].values()))["pixels"]["held-out images"]["clients"]["kid"]
    gap = numbers["found"]["pixels"]["held-out images"]["gap"]
    assert gap["mean"] == pytest.approx(first["avg"] - first["all"], rel=1e-9)
    assert len(grids_in(numbers)) == 8
    printed = " ".join(capsys.readouterr().out.split())
    assert "as expected: KID, pixels, training images: avg - all is one number over all 32 checkpoints" in printed
    assert "DDPM: ddpm_digits.yaml, 16 maps at one resolution, no attention" in printed
    for file in ("communication_interval.png", "samples.png", "ddpm-interval-4.png", "wgan-gp-local-only.png"):
        assert (tmp_path / "out" / file).read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(trainings.Training, "run", None)
    communication_interval(tmp_path / "out", **options)
    assert "quality" in json.loads((tmp_path / "out" / "results.json").read_text())["numbers"]
    monkeypatch.setattr(trainings.Training, "run", lambda training: training.place)
    monkeypatch.setattr(Scorers, "score", None)  # a picture that was lost comes back, and nothing is scored again
    (tmp_path / "out" / "ddpm-centralised.png").unlink()
    communication_interval(tmp_path / "out", **options)
    assert (tmp_path / "out" / "ddpm-centralised.png").exists()


def test_an_embedding_that_is_not_there_is_refused_before_any_training(tmp_path, monkeypatch):
    monkeypatch.setattr(trainings.Training, "run", None)
    with pytest.raises(ValueError, match="unknown embedding 'nothing'"):
        communication_interval(tmp_path / "out", embedding="nothing", recipes=RECIPES)


@pytest.mark.slow
def test_a_quick_experiment_trains_the_recipe_at_an_interval_and_as_its_controls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    communication_interval(tmp_path / "out", kinds=("ddpm",), recipes=RECIPES, quick=True)
    runs = sorted(path.name.split("-")[-1] for path in (tmp_path / "out" / "runs").iterdir() if path.is_dir())
    assert runs == ["centralised", "local_only", "seed0"]
    numbers = json.loads((tmp_path / "out" / "results.json").read_text())["numbers"]
    assert [(one["round"], one["iterations"]) for one in numbers["checkpoints"].values()] == [(1, 4), (2, 8)] * 3
    fids = {name: row["pixels"]["training images"]["clients"]["fid"]["all"] for name, row in numbers["scores"].items()}
    assert len(set(fids.values())) == 6
    solver = {json.dumps(one["sampling"]) for one in numbers["checkpoints"].values()}
    assert solver == {'{"solver": "dpm-solver++", "steps": 20}'}
