"""`fedgen evaluate RUN` and `fedgen select RUN` on a conditional model with sampling settings."""

import shutil
import sys
from pathlib import Path

import pytest
import yaml

from fedgen.__main__ import main
from fedgen.callbacks import RoundCheckpoint
from fedgen.evaluation import Run, ScoreRecord, append_records
from fedgen.evaluation.runs import run_folder
from fedgen.evaluation.runs.scores_file import read_records
from tests.evaluation.places import Placed, federation, fit

UTILITY = "{name: utility, epochs: 4}"


def test_bare_evaluate_shows_both_forms(capsys):
    with pytest.raises(SystemExit):
        main(["evaluate"])
    told = capsys.readouterr().err
    assert "fedgen evaluate --generated PATH --clients PATH" in told
    assert "fedgen evaluate RUN EMBEDDING" in told
    assert "say what to score: --generated and --clients (or --reference), or a run's folder" in told


def recipe_of(folder, embedding="pixels", **options):
    recipe = {
        "trainer": {
            "max_epochs": 2,
            "accelerator": "cpu",
            "logger": False,
            "strategy": {"class_path": "fedgen.federated.FedAvgStrategy", "init_args": {"communication_interval": 1}},
            "callbacks": [
                {
                    "class_path": "fedgen.callbacks.FederatedEvaluation",
                    "init_args": {
                        "every_n_rounds": 1,
                        "num_images": 50,
                        "embeddings": [embedding],
                        "grid": 4,
                        "page": False,  # which takes as long as the training
                    },
                }
            ],
        },
        "model": {"class_path": "tests.class_digits.ClassDigits", "init_args": options},
        "data": {
            "class_path": "fedgen.clients.FederatedDataModule",
            "init_args": {
                "data": {"class_path": "fedgen.data.Digits"},
                "partition": {"class_path": "fedgen.clients.partitions.IID", "init_args": {"num_clients": 2}},
            },
        },
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return str(path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two rounds."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["fedgen"])
        assert main(["fit", "--config", recipe_of(folder)]) == 0
    return folder / "checkpoints/tiny"


@pytest.fixture
def run(trained, work):
    """That run, in a folder of the test's own."""
    return shutil.copytree(trained, work / "checkpoints/tiny")


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedgen"])
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def words(capsys):
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_utility_needs_no_embedding_and_real_digits_teach_a_classifier(run, capsys):
    scored = ["evaluate", "checkpoints/tiny", "--scores", f"[{UTILITY}]", "--num_images", "1400", "--rounds", "[1]"]
    assert main(scored) == 0
    assert "utility_all" in words(capsys)
    found = {(r.name, r.generator): r.value for r in Run("checkpoints/tiny").records if r.score == "utility"}
    assert found["utility_all", "model"] > 0.85
    assert found["utility_all", "floor"] > 0.85
    assert main(["select", "checkpoints/tiny", "--by", "report/utility_all"]) == 0
    shown = words(capsys)
    assert "by report/utility_all, higher is better" in shown
    assert "report/utility_all: sampled with steps 10" in shown


@pytest.mark.slow
@pytest.mark.parametrize("form", [["--sampling", '{"steps": 2}'], ["--sampling.steps", "2"]])
def test_a_model_is_scored_with_other_sampling_settings(run, capsys, form):
    before = {(r.name, r.split, r.round): r.value for r in Run("checkpoints/tiny").records if not r.is_floor}
    assert main(["evaluate", "checkpoints/tiny", "pixels", "--num_images", "50", *form]) == 0
    assert "sampled with steps 2" in words(capsys)
    usual, others = Run("checkpoints/tiny", "sampled with steps 10"), Run("checkpoints/tiny", "sampled with steps 2")
    assert {(r.name, r.split, r.round): r.value for r in usual.records if not r.is_floor} == before
    models = [r for r in others.records if not r.is_floor]
    assert {r.sampling["steps"] for r in models} == {2}
    assert all(r.value != before[r.name, r.split, r.round] for r in models)


def test_select_reads_a_runs_scores_once(work, capsys, monkeypatch):
    about = {"standard_error": 0.1, "split": "train", "embedding": "pixels", "embedding_fingerprint": "0"}
    about |= {"reference": "digits/train", "num_generated": 100, "num_clients": 2, "seed": 0}
    append_records(work / "scores.jsonl", [ScoreRecord("fid", "all", 3.0 - one, round=one, **about) for one in (0, 1)])
    read = []
    monkeypatch.setattr(run_folder, "read_records", lambda path: read.append(path) or read_records(path))
    assert main(["select", "."]) == 0
    assert "fid_all" in capsys.readouterr().out
    assert read == [Path("scores.jsonl")]


@pytest.mark.slow
def test_settings_that_a_model_does_not_have_are_an_error(run, capsys):
    assert main(["evaluate", "checkpoints/tiny", "pixels", "--sampling", '{"step": 2}']) == 2
    assert "ClassDigits has no sampling setting 'step'; it has: steps (10)" in capsys.readouterr().err


@pytest.mark.slow
def test_an_unconditional_model_is_refused_before_training(work, capsys):
    path = recipe_of(work, num_classes=None)
    settings = yaml.safe_load((work / "tiny.yaml").read_text())
    settings["trainer"]["callbacks"][0]["init_args"]["scores"] = ["fid", "utility"]
    (work / "tiny.yaml").write_text(yaml.safe_dump(settings))
    assert main(["fit", "--config", path]) == 2
    assert "this model is unconditional" in capsys.readouterr().err
    assert not list((work / "checkpoints").rglob("*.ckpt"))


@pytest.mark.slow
@pytest.mark.usefixtures("blank_curves")
def test_scores_that_a_loss_used_are_marked_from_training_to_selection(work, capsys):
    assert main(["fit", "--config", recipe_of(work, optimised_on=["pixels"])]) == 0
    shown = words(capsys)
    assert "fid_all *" in shown
    assert "fid_all (*)" in shown
    given = "[pixels, tests.embeddings.own.MyEmbedding]"
    assert main(["evaluate", "checkpoints/tiny", given, "--num_images", "50"]) == 0
    shown = words(capsys)
    assert "fid_all *" in shown
    assert "avg and all order all pairs of checkpoints alike." in shown
    assert main(["select", "checkpoints/tiny", "--by", "fid_all"]) == 0
    shown = words(capsys)
    assert "fid_all is in embedding pixels, and a training loss used pixels." in shown
    assert "Choose by MyEmbedding/fid_all" in shown
    assert main(["select", "checkpoints/tiny", "--by", "MyEmbedding/fid_all", "--against", "fid_all"]) == 0
    shown = words(capsys)
    assert "a training loss used pixels" not in shown
    assert "MyEmbedding/fid_all / fid_all *" in shown


def three_way_recipe(folder):
    path = Path(recipe_of(folder, num_classes=10))
    recipe = yaml.safe_load(path.read_text())
    data = recipe["data"]["init_args"]
    data["partition"]["init_args"]["num_clients"] = 10
    data |= {
        "held_out": 0.25,
        "split": {"class_path": "fedgen.clients.ThreeWaySplit", "init_args": {"unparticipating": 0.3}},
    }
    scores = {"scores": ["fid", "kid", {"name": "utility", "epochs": 1}], "controls": True, "num_images": 60}
    recipe["trainer"]["callbacks"][0]["init_args"] |= scores
    path.write_text(yaml.safe_dump(recipe))
    return str(path)


@pytest.mark.slow
def test_clients_that_never_train_are_scored_from_training_to_selection(work, capsys):
    assert main(["fit", "--config", three_way_recipe(work)]) == 0
    said, run = words(capsys), work / "checkpoints/tiny"
    assert "fid_all, embedding pixels: 3 clients of each kind" in said
    assert "on unseen clients" in said
    assert "generalisation.png" in said
    assert "pct95" in said
    assert (run / "generalisation.png").stat().st_size > 10_000
    records = Run(run).records
    assert {"part_train", "part_val", "unpart", "gap/out_of_sample", "gap/participation"} == {r.split for r in records}
    assert {"model", "floor", "participants", "memoriser"} == {r.generator for r in records}
    assert {r.split for r in records if r.score == "utility"} == {"part_val", "unpart", "gap/participation"}
    roles = yaml.safe_load((run / "split.json").read_text())
    assert [len(roles[role]) for role in ("participating", "unparticipating", "left_out")] == [7, 3, 0]

    assert main(["evaluate", str(run), "identity-like"]) == 2
    capsys.readouterr()
    before = {(r.round, r.split, r.aggregate): r.value for r in records if r.score == "fid" and r.is_model}
    assert main(["evaluate", str(run), "pixels", "--num_images", "60", "--controls"]) == 0
    assert "memoriser: the images of part_train themselves" in words(capsys)
    again = {(r.round, r.split, r.aggregate): r.value for r in Run(run).records if r.score == "fid" and r.is_model}
    assert again == pytest.approx(before)

    assert main(["evaluate", str(run), "pixels", "--num_images", "60", "--fine_tune", "2"]) == 0
    assert "fine-tuned 2" in words(capsys)
    tuned = {(r.split, r.aggregate) for r in Run(run).records if r.score == "kid" and r.generator == "fine-tuned 2"}
    assert {("part_val", "avg"), ("unpart", "avg"), ("gap/participation", "avg")} <= tuned
    assert ("unpart", "all") not in tuned

    assert main(["select", str(run), "--by", "unpart/fid_all"]) == 0
    assert "round=0000" in words(capsys)

    others = '{"version": 1, "participating": [{"client": 0}], "unparticipating": [], "left_out": []}'
    (run / "split.json").write_text(others)
    assert main(["evaluate", str(run), "pixels", "--num_images", "60"]) == 2
    assert "the split is one of 1 clients, and the partition gives 10" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.slow
@pytest.mark.usefixtures("blank_curves")
def test_an_embedding_of_ones_own_is_a_class_path_in_recipes_and_commands(work, capsys):
    own = "tests.embeddings.own.MyEmbedding"
    recipe = recipe_of(work, embedding={"class_path": own, "init_args": {"width": 5}})
    assert main(["fit", "--config", recipe]) == 0
    assert "embedding MyEmbedding" in words(capsys)
    given = f"[{{class_path: {own}, init_args: {{width: 4}}, name: four}}, pixels]"
    assert main(["evaluate", "checkpoints/tiny", given, "--num_images", "50"]) == 0
    assert main(["evaluate", "checkpoints/tiny", "tests.embeddings.own.Halves", "--num_images", "50"]) == 0
    records = Run("checkpoints/tiny").records
    assert list(dict.fromkeys(r.embedding for r in records)) == ["MyEmbedding", "four", "pixels", "halves of None"]
    assert len({r.embedding_fingerprint for r in records}) == 4
    capsys.readouterr()
    assert main(["evaluate", "checkpoints/tiny", "my_kit.Embedding"]) == 2
    assert "there is no module 'my_kit'" in capsys.readouterr().err


GIVEN = ["--model", "tests.evaluation.places:Placed", "--data", "tests.evaluation.places:federation"]


@pytest.mark.slow
def test_clients_own_models_are_scored_on_each_others_images(work, capsys, monkeypatch):
    fit(work / "run", Placed(), federation(), [RoundCheckpoint()])
    capsys.readouterr()
    assert main(["evaluate", "run", "identity", "--num_images", "40", "--matrix", *GIVEN]) == 0
    shown = words(capsys)
    assert "fid of each client's own model, round 1: 40 images of each" in shown
    assert "the own model is the best one for" in shown
    assert "model of" in shown
    assert "written: run/client_matrix.png, run/client_matrix.json" in shown
    assert (work / "run/client_matrix.png").stat().st_size > 10_000
    assert not (work / "run/scores.jsonl").exists()
    monkeypatch.setenv("COLUMNS", "30")
    assert main(["evaluate", "run", "identity", "--num_images", "40", "--matrix", *GIVEN]) == 0
    narrow = words(capsys)
    assert "model of" not in narrow
    assert "part_train, identity: fid on a client's own images" in narrow
    assert main(["evaluate", "run", "identity", "--matrix", "--rounds", "0,1", *GIVEN]) == 2
    assert "--matrix scores one checkpoint: give --rounds one" in capsys.readouterr().err
    assert main(["evaluate", "run", "identity", "--rounds", "last", *GIVEN]) == 2
    assert "--rounds 'last': give comma-separated rounds, e.g. 39,79" in capsys.readouterr().err
