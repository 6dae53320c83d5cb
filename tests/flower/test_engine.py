"""Flower's own simulation runs the app that a deployment runs: the page's command, in actors of Ray."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from fedgen.evaluation import read_records
from tests.flower.engine import ended, superlink
from tests.flower.runs import app_of, read, recipe, same_weights, simulate, write_images

ROOT = Path(__file__).parents[2]
SCORES = {"every_n_rounds": 10, "num_images": 60, "embeddings": ["pixels"], "scores": ["fid"]}
SIZES = {"a": 12, "b": 25, "c": 16}


@pytest.mark.slow
def test_flowers_simulation_trains_and_scores_the_same_model(tmp_path):
    pytest.importorskip("ray", reason='Flower\'s simulation needs pip install "flwr[simulation]"')
    images = write_images(tmp_path / "clients", SIZES)
    settings = recipe(2, SCORES, personal=["critic.*"], optimizer_state="keep")
    app = app_of(settings, tmp_path / "app", len(SIZES)).parent.parent
    told = f'simulation-data="{images}" output="{tmp_path / "run"}"'
    command = ["flwr", "run", str(app), "local", "--stream", "--run-config", told]
    command += ["--federation-config", f"num-supernodes={len(SIZES)}"]
    with superlink(tmp_path) as environment:
        said = ended(command, tmp_path, environment)
    assert (tmp_path / "run" / "last.ckpt").exists(), said
    same_weights(simulate(settings, images, tmp_path / "simulated"), read(tmp_path / "run"))
    found = [
        {(r.split, r.name): r.value for r in read_records(tmp_path / run / "scores.jsonl") if r.generator == "model"}
        for run in ("simulated", "run")
    ]
    assert len(found[0]) == 2 * 3
    assert found[1] == {key: pytest.approx(value, rel=1e-4) for key, value in found[0].items()}


@pytest.mark.slow
def test_the_pages_commands_for_clients_work(tmp_path):
    """As written, but for a round and 50 images in place of 2,400 rounds and 1,000."""
    pytest.importorskip("ray", reason='Flower\'s simulation needs pip install "flwr[simulation]"')
    ((deploys, runs),) = re.findall(
        r"`(fedgen deploy [^`]+)`, then `(flwr run [^`]+)`", (ROOT / "docs" / "quickstart.md").read_text()
    )
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    with superlink(tmp_path) as environment:
        program, *arguments = shlex.split(deploys)
        ended(["python", "-m", program, *arguments], tmp_path, environment)
        path = tmp_path / "app" / "federation" / "recipe.yaml"
        recipe = yaml.safe_load(path.read_text())
        recipe["trainer"]["max_epochs"] = 1
        recipe["trainer"]["callbacks"][0]["init_args"]["num_images"] = 50
        path.write_text(yaml.safe_dump(recipe))
        said = ended(shlex.split(runs), tmp_path, environment)
    found = tmp_path / "checkpoints" / "app"
    assert (found / "last.ckpt").exists(), said
    assert read(found)["fedavg"]["left_out"] == []
    scored = {(r.split, r.name) for r in read_records(found / "scores.jsonl")}
    assert {("train", "fid_all"), ("report", "kid_avg")} <= scored
