"""The command line, as a newcomer and as somebody who makes mistakes would use it."""

import copy
import errno
import io
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedgen.__main__ import main
from fedgen.evaluation import Run, read_records
from fedgen.io.files import require_writable
from fedgen.models import WGANGP
from fedgen.recipe.recipe_files import PARTS, WRITTEN
from fedgen.training.fit import LOCK, apply_control, only_run
from tests.launched import fork_ranks, said_in_fork

ROOT = Path(__file__).parent.parent.parent
RUN = Path("checkpoints/tiny")
pytestmark = pytest.mark.usefixtures("blank_curves")

RECIPE = {
    "trainer": {
        "max_epochs": 2,
        "accelerator": "cpu",
        "strategy": {
            "class_path": "fedgen.federated.FedAvgStrategy",
            "init_args": {"communication_interval": 2, "cohort_size": 5},
        },
        "callbacks": [
            {
                "class_path": "fedgen.callbacks.FederatedEvaluation",
                "init_args": {
                    "every_n_rounds": 1,
                    "num_images": 40,
                    "embeddings": ["pixels"],
                    "grid": 9,
                    "page": False,  # which takes as long as the training
                },
            }
        ],
    },
    "model": {
        "class_path": "fedgen.models.WGANGP",
        "init_args": {
            "generator": {"class_path": "fedgen.models.networks.SmallGenerator", "init_args": {"width": 8}},
            "critic": {"class_path": "fedgen.models.networks.SmallCritic", "init_args": {"width": 8}},
            "ema_decay": 0.9,
        },
    },
    "data": {
        "class_path": "fedgen.clients.FederatedDataModule",
        "init_args": {
            "data": {"class_path": "fedgen.data.Digits"},
            "partition": {"class_path": "fedgen.clients.partitions.ByClass"},
        },
    },
}


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe of seconds, in a folder that the test works in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedgen"])
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of the recipe's finished run."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["fedgen"])
        assert fit("tiny.yaml") == 0
    return folder / RUN


@pytest.fixture
def run(recipe, trained):
    """A copy of the finished run where the recipe's own would be: its last checkpoint is a link to the last round's."""
    shutil.copytree(trained, RUN)
    (RUN / "last.ckpt").unlink()
    os.link(RUN / "round=00001.ckpt", RUN / "last.ckpt")
    return RUN


def fit(recipe, *arguments):
    return main(["fit", "--config", str(recipe), *arguments])


def test_help_comes_without_loading_torch():
    code = "import sys; from fedgen.__main__ import main; main(['--help']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "fit" in done.stdout
    assert done.stdout.endswith("False\n")


def test_an_unknown_command_is_named(capsys):
    assert main(["train"]) == 2
    assert "no command 'train'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_leaves_checkpoints_scores_grids_logs_and_a_figure_and_has_no_place_for_another_recipe(recipe, capsys):
    change(recipe, [judge(grid=9)])
    assert fit(recipe) == 0
    folder = Path("checkpoints/tiny")
    names = {path.name for path in folder.iterdir()}
    assert {"last.ckpt", "scores.jsonl", "recipe.yaml", "partition.npz", "curves.png", "samples", "logs"} <= names
    assert {"round=00000.ckpt", "round=00001.ckpt", "report.html", "real.png"} <= names
    assert len(list((folder / "samples").glob("*.png"))) == 2
    assert list((folder / "logs").glob("events.*"))
    shown = capsys.readouterr().out
    assert "fid_avg" in shown
    assert "floor" in shown
    assert "Selected by each column" in shown
    assert "report: checkpoints/tiny/report.html\n" in shown
    torch.load(folder / "last.ckpt", weights_only=True)
    logs = EventAccumulator(str(folder / "logs")).Reload()
    tags = set(logs.Tags()["scalars"])
    assert {"fid/avg", "fid/all", "fid/avg_floor", "fid/all_floor", "fid/clients/p50"} <= tags  # a group a score
    assert "hp_metric" not in tags  # one number for ever, as Lightning's logger sends by default
    assert logs.Tags()["images"] == ["samples"]
    first, last = (np.asarray(Image.open(io.BytesIO(one.encoded_image_string))) for one in logs.Images("samples"))
    half = len(first) // 2  # generated images, and below them real ones, which stay
    assert not np.array_equal(first[:half], last[:half])
    assert np.array_equal(first[-half // 2 :], last[-half // 2 :])
    assert len(np.unique(last[-half // 2 :])) > 2
    assert fit(recipe, "--model.init_args.lr", "0.01") == 2
    message = capsys.readouterr().err
    assert "another recipe" in message
    assert "model.init_args.lr: 0.0002 there, 0.01 now" in message


@pytest.mark.slow
def test_a_recipe_brings_its_controls_scores_along_and_changed_settings_have_none(recipe):
    recipe.with_name("tiny.centralised.jsonl").write_text("")
    change(recipe, [judge(page=False, report=False)], max_epochs=1)
    assert fit(recipe) == 0
    assert [path.name for path in Path("checkpoints/tiny/controls").iterdir()] == ["centralised.jsonl"]
    assert fit(recipe, "--trainer.max_epochs", "1", "--trainer.default_root_dir", "other") == 0
    assert not Path("other/controls").exists()


@pytest.mark.slow
def test_the_end_names_commands_that_train_the_controls_of_this_very_run(recipe, run, capsys):
    assert fit(recipe) == 0
    assert "fedgen fit tiny --local_only" in capsys.readouterr().out
    assert fit(recipe, "--trainer.max_epochs", "1", "--trainer.default_root_dir", "other") == 0
    assert "fedgen fit other/recipe.yaml --local_only" in capsys.readouterr().out
    assert main(["fit", "other/recipe.yaml", "--local_only"]) == 0
    records = read_records(Path("other-local_only/scores.jsonl"))
    assert {r.note for r in records if r.is_model and r.score == "kid"} == {"mixture of local models"}
    out = capsys.readouterr().out
    assert "Last checkpoints by kid_all: local only" in " ".join(out.split())


@pytest.mark.slow
def test_a_finished_run_says_so_and_more_rounds_go_on(recipe, run, capsys):
    before = (Path("checkpoints/tiny") / "scores.jsonl").read_bytes()
    assert fit(recipe) == 0
    assert "is finished: 2 rounds" in capsys.readouterr().out
    assert (Path("checkpoints/tiny") / "scores.jsonl").read_bytes() == before
    assert fit(recipe, "--trainer.max_epochs", "3") == 0
    assert "Resuming checkpoints/tiny after round 1 (2 done)." in capsys.readouterr().out
    assert {record.round for record in Run("checkpoints/tiny").records} >= {0, 1, 2}


@pytest.mark.slow
def test_explain_prints_what_becomes_of_state_after_the_first_round_and_training_goes_on(recipe, capsys):
    asked = ["--explain", "--trainer.callbacks", "null", "--trainer.logger", "false"]
    assert fit(recipe, *asked) == 0
    shown, folder = capsys.readouterr().out, Path("checkpoints/tiny")
    assert shown.count("What becomes of the module's state in clients' turns:\n  trained, averaged: ") == 1
    kept = (folder / "state.txt").read_text()
    assert kept in shown
    assert "in all)" not in kept
    assert "generator.body.4.weight" in kept
    assert torch.load(folder / "last.ckpt", weights_only=True)["epoch"] == 1
    assert "explain" not in (folder / "recipe.yaml").read_text()
    assert fit(recipe, *asked) == 0
    assert kept in capsys.readouterr().out  # of the finished run


@pytest.mark.slow
def test_explain_is_refused_where_there_are_no_turns(recipe, capsys):
    assert fit(recipe, "--explain", "--centralised") == 2
    assert "--explain shows what FedAvgStrategy does with a module's state" in capsys.readouterr().err


@pytest.mark.slow
def test_only_the_settings_of_a_list_that_differ_are_named(recipe, run, capsys):
    other = copy.deepcopy(RECIPE)
    other["trainer"]["callbacks"][0]["init_args"]["num_images"] = 50
    stopping = {"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": {"monitor": "fid_all"}}
    other["trainer"]["callbacks"].append(stopping)
    recipe.write_text(yaml.safe_dump(other))
    capsys.readouterr()
    assert fit(recipe) == 2
    _, *lines, _hint = capsys.readouterr().err.strip().split("\n")
    assert lines == [
        "  trainer.callbacks.EarlyStopping.class_path: nothing there,"
        " 'lightning.pytorch.callbacks.early_stopping.EarlyStopping' now",
        "  trainer.callbacks.FederatedEvaluation.init_args.num_images: 40 there, 50 now",
    ]


AUGMENTED = """\
from typing import Callable

from torch.utils.data import Dataset

import fedgen

class Augmented(Dataset):
    def __init__(self, transform: Callable):
        digits = fedgen.Digits().read("train").subset(range(200))
        self.images, self.targets, self.transform = digits.inputs, digits.labels, transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.transform(self.images[i].float() / 127.5 - 1), self.targets[i]
"""


@pytest.mark.slow
def test_a_transform_by_its_class_path_is_kept_and_the_folder_can_be_scored_and_looked_at(
    recipe, tmp_path, monkeypatch, capsys
):
    (tmp_path / "own_data.py").write_text(AUGMENTED)
    monkeypatch.syspath_prepend(tmp_path)
    other = copy.deepcopy(RECIPE)
    affine = {"class_path": "torchvision.transforms.v2.RandomAffine", "init_args": {"degrees": 5}}
    other["data"]["init_args"]["data"] = {"class_path": "own_data.Augmented", "init_args": {"transform": affine}}
    recipe.write_text(yaml.safe_dump(other))
    change(recipe, max_epochs=1)
    assert fit(recipe) == 0
    kept = yaml.safe_load(Path("checkpoints/tiny/recipe.yaml").read_text())
    assert kept["data"]["init_args"]["data"]["init_args"]["transform"]["init_args"]["degrees"] == 5
    assert main(["evaluate", "checkpoints/tiny", "pixels", "--num_images", "20"]) == 0
    assert main(["clients", "checkpoints/tiny", "--embedding", "pixels", "--controls", "1"]) == 0
    with pytest.warns(UserWarning, match="not those of 20 images"):
        assert fit(recipe) == 0
    assert "checkpoints/tiny is finished" in capsys.readouterr().out
    monkeypatch.delitem(sys.modules, "own_data")


MISTAKES = {  # and what each leaves behind: a recipe, then floors of real images
    "before the data": ["--data.init_args.partition", "SavedPartition", "--data.init_args.partition.path", "nowhere"],
    "before the first round": ["--trainer.strategy.init_args.cohort_size", "50"],
    "in the first round": ["--model.init_args.lr", "1e30"],
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:client .* is left out of round 0")
def test_a_recipe_can_be_mended_in_its_folder_if_nothing_came_of_it(recipe, capsys, trained):
    """And by another one with a mistake."""
    *earlier, in_round = MISTAKES.values()
    for mistake, said in zip(earlier, ("nowhere", "cohort_size=50"), strict=True):
        assert fit(recipe, *mistake) == 2
        assert said in capsys.readouterr().err
        assert Path("checkpoints/tiny/recipe.yaml").exists()
    assert not Path("checkpoints/tiny/scores.jsonl").exists()
    with pytest.raises(RuntimeError, match="left"):
        fit(recipe, *in_round)
    assert Path("checkpoints/tiny/scores.jsonl").exists()
    assert fit(recipe) == 0
    assert Path("checkpoints/tiny/scores.jsonl").read_bytes() == (trained / "scores.jsonl").read_bytes()
    for mistake in MISTAKES.values():
        assert fit(recipe, *mistake) == 2
        assert "another recipe" in capsys.readouterr().err


@pytest.mark.slow
def test_scores_without_checkpoints_and_runs_without_them_are_results_too(recipe, run, capsys):
    for path in Path("checkpoints/tiny").glob("*.ckpt"):
        path.unlink()
    assert fit(recipe, "--model.init_args.lr", "0.01") == 2
    options = ["--trainer.enable_checkpointing", "false", "--trainer.callbacks", "[]"]
    options += ["--trainer.default_root_dir", "bare"]
    assert fit(recipe, *options) == 0
    assert fit(recipe, *options, "--model.init_args.lr", "0.01") == 2
    assert capsys.readouterr().err.count("another recipe") == 2


@pytest.mark.slow
def test_two_runs_at_once_in_one_folder_are_refused_and_what_kills_left_is_removed(recipe, capsys):
    quiet = ["--trainer.callbacks.report", "false"]
    with only_run(require_writable("checkpoints/tiny")):
        assert fit(recipe, *quiet) == 2
    error = capsys.readouterr().err
    assert "another run is active in checkpoints/tiny" in error
    assert "choose another --trainer.default_root_dir" in error
    assert not Path("checkpoints/tiny/recipe.yaml").exists()
    assert fit(recipe, *quiet) == 0
    assert not list(Path("checkpoints/tiny").glob(".*"))
    for name in ("recipe.yaml", "report.html", "curves.png", "samples/round=00001.png"):  # of kills
        path = Path("checkpoints/tiny", name)
        path.with_name(f".{path.name}.abcd1234.tmp").touch()
    assert fit(recipe, *quiet, "--trainer.max_epochs", "3") == 0
    assert not list(Path("checkpoints/tiny").rglob(".*"))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # the fork only takes a lock
def test_a_killed_run_leaves_no_lock(tmp_path):
    if (child := os.fork()) == 0:
        with only_run(tmp_path):
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert (tmp_path / LOCK).exists()
    with only_run(tmp_path), pytest.raises(BlockingIOError), only_run(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


@pytest.mark.slow
def test_a_run_on_two_processes_goes_on_with_one(recipe, run, tmp_path, capsys):
    kept = Path("checkpoints/tiny/recipe.yaml")  # as two processes have it
    settings = yaml.safe_load(kept.read_text())
    settings["trainer"] |= {"devices": 2, "num_nodes": 1}
    settings["trainer"]["strategy"]["init_args"]["process_group_backend"] = "gloo"
    kept.write_text(yaml.safe_dump(settings, sort_keys=False))
    assert fit(recipe, "--trainer.max_epochs", "3") == 0
    assert "Resuming checkpoints/tiny after round 1 (2 done)." in capsys.readouterr().out


@pytest.mark.slow
def test_a_class_under_another_of_its_names_is_the_same_recipe(recipe, run, capsys):
    kept = Path("checkpoints/tiny/recipe.yaml")
    settings = kept.read_text()
    assert "class_path: fedgen.models.WGANGP" in settings
    kept.write_text(settings.replace("class_path: fedgen.models.WGANGP", "class_path: fedgen.WGANGP"))
    assert fit(recipe) == 0
    assert "is finished: 2 rounds" in capsys.readouterr().out


@pytest.mark.slow
def test_an_argument_that_a_class_has_got_since_makes_no_other_recipe_unless_it_is_used(recipe, run, capsys):
    kept = Path("checkpoints/tiny/recipe.yaml")
    settings = yaml.safe_load(kept.read_text())
    for name in ("betas", "ema_warmup"):
        del settings["model"]["init_args"][name]
    kept.write_text(yaml.safe_dump(settings))
    assert fit(recipe) == 0
    assert "is finished: 2 rounds" in capsys.readouterr().out
    assert fit(recipe, "--model.init_args.ema_warmup", "true") == 2
    assert "model.init_args.ema_warmup: False there, True now" in capsys.readouterr().err


@pytest.mark.slow
def test_going_on_from_a_last_checkpoint_that_is_not_there_is_an_error(recipe, capsys):
    assert fit(recipe, "--ckpt_path", "last") == 2
    assert "nothing to resume" in capsys.readouterr().err


@pytest.mark.slow
def test_threads_are_set_and_are_no_part_of_the_recipe(recipe, run, monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    assert fit(recipe) == 0
    assert fit(recipe, "--threads", "1") == 0  # finished, not another recipe
    assert asked == [1]
    assert fit(recipe, "--threads", "0") == 2


@pytest.mark.slow
def test_a_control_is_one_flag_and_has_its_own_folder(recipe):
    """So is the other one, which the test of commands for controls trains."""
    assert fit(recipe, "--centralised") == 0
    records = Run("checkpoints/tiny-centralised").records
    assert {record.round for record in records if record.generator == "model"} == {0, 1}
    assert not Path("checkpoints/tiny").exists()
    notes = {record.note for record in records if record.generator == "model" and record.score == "kid"}
    assert notes == {""}


def test_both_controls_at_once_are_refused(recipe, capsys):
    assert fit(recipe, "--local_only", "--centralised") == 2
    assert "give one of them" in capsys.readouterr().err


def test_a_schedule_over_rounds_that_pooled_training_does_not_have_is_said():
    init = Namespace(communication_interval=5, client_schedule=object(), server_schedule=None)
    config = Namespace(
        local_only=False,
        centralised=True,
        trainer=Namespace(strategy=Namespace(class_path="a.FedAvgStrategy", init_args=init), default_root_dir="run"),
        data=Namespace(class_path="a.FederatedDataModule", init_args=Namespace(iterations=None)),
    )
    with pytest.warns(UserWarning, match="client_schedule"):
        apply_control(config)
    assert (config.trainer.strategy, config.data.init_args.iterations) == ("auto", 5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("name", ["gpu", "cuda"])
def test_an_accelerator_that_is_not_there_is_refused_with_what_is(name, recipe, capsys):
    assert main(["fit", "--config", str(recipe), "--trainer.accelerator", name]) == 2
    told = capsys.readouterr().err
    assert f"accelerator '{name}' is not available here, only cpu: pass --trainer.accelerator cpu" in told
    assert len(told.splitlines()) <= 3


def test_a_key_that_does_not_exist_is_refused_by_name(recipe, capsys):
    recipe.write_text(recipe.read_text().replace("n_critic", "n_critics").replace("ema_decay", "ema_decays"))
    with pytest.raises(SystemExit) as caught:
        fit(recipe)
    assert caught.value.code == 2
    assert "ema_decays" in capsys.readouterr().err


def test_a_recipe_that_does_not_exist_is_named(recipe, capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--config", "nowhere.yaml"])
    assert "nowhere.yaml" in capsys.readouterr().err


@pytest.mark.slow
def test_a_missing_data_set_names_the_folder_and_the_remedy(recipe, capsys):
    options = ["--data.init_args.data", "fedgen.data.ImageFolder", "--data.init_args.data.root", "no/such/folder"]
    assert fit(recipe, *options) == 2
    assert "no/such/folder" in capsys.readouterr().err


@pytest.mark.slow
def test_an_unwritable_folder_is_an_error_before_training(recipe, capsys):
    Path("file").write_text("")
    assert fit(recipe, "--trainer.default_root_dir", "file/run") == 2
    assert "cannot write in file/run" in capsys.readouterr().err


@pytest.mark.slow
def test_images_of_another_size_are_an_error_before_training(recipe, capsys):
    option = "--model.init_args.generator.init_args.image_size"
    assert fit(recipe, option, "16", option.replace("generator", "critic"), "16") == 2
    assert "[1, 16, 16]" in capsys.readouterr().err


@pytest.mark.slow
def test_a_checkpoint_of_another_model_is_an_error(recipe, run, capsys):
    path = "checkpoints/tiny/last.ckpt"
    options = ["--trainer.default_root_dir", "other", "--model.init_args.critic.init_args.width", "9"]
    assert fit(recipe, *options, "--ckpt_path", path, "--trainer.max_epochs", "3") == 2
    assert "another model" in capsys.readouterr().err


@pytest.mark.slow
def test_evaluate_adds_an_embedding_and_select_ranks_by_it(recipe, run, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedgen"])
    assert main(["evaluate", "checkpoints/tiny", "classifier-mnist5k", "--num_images", "20"]) == 0
    columns = {record.embedding for record in Run("checkpoints/tiny").records}
    assert columns == {"pixels", "classifier-mnist5k"}
    capsys.readouterr()
    assert main(["select", "checkpoints/tiny", "--by", "classifier-mnist5k/kid_all"]) == 0
    out = capsys.readouterr().out
    assert " pairs of checkpoints " in " ".join(out.split())  # the terminal's width breaks lines
    assert Path(out.splitlines()[-1]).exists()
    assert main(["select", "checkpoints/tiny", "--by", "fid"]) == 2
    assert "no column 'fid'" in capsys.readouterr().err
    assert main(["select", "nowhere"]) == 2


@pytest.mark.slow
def test_other_scores_join_the_run_and_are_ranked_their_own_way(recipe, run, capsys, clip_weights, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")  # too narrow for one table
    options = ["--scores", "[{name: precision, k: 3}, coverage]", "--aggregates", "power--1", "--num_images", "30"]
    assert main(["evaluate", "checkpoints/tiny", "pixels", *options, "--client_weights", "uniform"]) == 0
    assert {(r.score, r.weights) for r in Run("checkpoints/tiny").records if not r.is_floor and r.higher_is_better} == {
        ("precision", "uniform"),
        ("coverage", "uniform"),
    }
    out = " ".join(capsys.readouterr().out.split())
    assert "lower is better; ± standard error" in out  # fid and kid, in a table of their own
    assert "higher is better" in out
    assert main(["select", "checkpoints/tiny", "--by", "precision_power--1", "--against", "fid_all"]) == 0
    out = capsys.readouterr().out
    assert "by precision_power--1, higher is better" in " ".join(out.split())
    assert "tau" in out
    ranked = [float(line.split("│")[3]) for line in out.splitlines() if ".ckpt │" in line]
    assert ranked == sorted(ranked, reverse=True)
    assert Path(out.splitlines()[-1]).exists()
    assert (
        main(["evaluate", "checkpoints/tiny", "--preset", "cmmd", "--weights", str(clip_weights), "--num_images", "9"])
        == 0
    )
    assert "cmmd_all" in capsys.readouterr().out
    assert main(["select", "checkpoints/tiny", "--by", "cmmd_all"]) == 0
    assert main(["select", "checkpoints/tiny", "--by", "fid_all", "--against", "fid_best"]) == 2
    assert "no column 'fid_best'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give an embedding, or a --preset"),
        (["--preset", "cmmd", "--scores", "fid"], "preset cmmd has its own score"),
        (["pixels", "--preset", "cmmd", "--weights", "x"], "is for one embedding, got 2: pixels, clip-vit-l-14-336px"),
        (["--preset", "cmd"], "unknown preset 'cmd'"),
        (["pixels", "--device", "cuda:99"], "device 'cuda:99' cannot be used here"),
    ],
)
def test_mistakes_in_scoring_a_run_are_one_message(recipe, capsys, arguments, message):
    assert main(["evaluate", "checkpoints/tiny", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_scores_again_under_the_same_embedding_are_the_same_scores(recipe, run):
    """What training scored in memory equals what its checkpoints score when loaded."""
    first = {(r.round, r.name, r.split, r.generator): r.value for r in Run("checkpoints/tiny").records}
    assert main(["evaluate", "checkpoints/tiny", "pixels", "--num_images", "40"]) == 0
    again = {(r.round, r.name, r.split, r.generator): r.value for r in Run("checkpoints/tiny").records}
    assert again.keys() == first.keys()
    assert all(again[key] == pytest.approx(first[key], rel=1e-9, abs=1e-9) for key in first)


def change(recipe, callbacks=(), **trainer):
    """The recipe with other callbacks or trainer settings."""
    settings = yaml.safe_load(recipe.read_text())
    settings["trainer"] |= {**({"callbacks": list(callbacks)} if callbacks else {}), **trainer}
    recipe.write_text(yaml.safe_dump(settings))


def callback(name, **options):
    return {"class_path": name, "init_args": options}


def judge(**options):
    settings = {"every_n_rounds": 1, "num_images": 40, "embeddings": ["pixels"], **options}
    return callback("fedgen.callbacks.FederatedEvaluation", **settings)


@pytest.mark.slow
def test_the_same_folder_by_another_name_holds_the_same_run(recipe, run, capsys, tmp_path):
    assert fit(recipe, "--trainer.default_root_dir", str(tmp_path / "checkpoints" / "tiny")) == 0
    assert "is finished: 2 rounds" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.slow
def test_callbacks_with_folders_of_their_own_are_found_there(recipe, capsys):
    change(recipe, [judge(dirpath="scores", page=False), callback("fedgen.callbacks.RoundCheckpoint", dirpath="kept")])
    assert fit(recipe) == 0
    assert Path("scores/curves.png").exists()
    assert Path("kept/last.ckpt").exists()
    assert fit(recipe) == 0
    assert "is finished: 2 rounds" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_stopped_early_is_finished(recipe, capsys):
    stopping = callback(
        "lightning.pytorch.callbacks.EarlyStopping", monitor="kid_all", patience=1, min_delta=1e9, verbose=False
    )
    change(recipe, [judge(page=False), stopping], max_epochs=20)
    assert fit(recipe) == 0
    assert fit(recipe) == 0
    assert "is finished: 2 rounds" in capsys.readouterr().out


@pytest.mark.slow
def test_a_limit_that_cuts_every_round_is_an_error_in_words(recipe, capsys):
    assert fit(recipe, "--trainer.limit_train_batches", "3", "--trainer.max_epochs", "1") == 2
    assert "limit_train_batches=3: a batch is a client's whole turn" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "value"),
    [("max_epochs", "0"), ("max_steps", "0"), ("limit_train_batches", "0"), ("max_time", "00:00:00:00")],
)
def test_a_run_without_a_round_is_no_success(recipe, capsys, limit, value):
    assert fit(recipe, f"--trainer.{limit}", value) == 2
    error = capsys.readouterr().err
    assert "nothing was scored, because no round was completed; check" in error
    assert f"trainer.{limit}" in error


def shown_by(capsys, *arguments):
    """What a command that ends after printing has printed."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_help_is_a_screen_of_options_and_examples_that_work(capsys):
    assert main(["fit", "--help"]) == 0
    screen = capsys.readouterr().out
    assert main(["fit", "quickstart", "-h"]) == 0
    assert capsys.readouterr().out == screen
    assert screen.count("\n") <= 40
    assert max(map(len, screen.splitlines())) <= 80
    examples = re.findall(r"^  fedgen (fit .*)$", screen.replace("\\\n", ""), re.MULTILINE)
    assert len(examples) == 4
    for example in examples[1:]:
        shown_by(capsys, *shlex.split(example), "--print_config")
    values = {"N": "3", "DIR": "a", "NAME": "cpu", "previous": "previous", "'[fid,": "[fid, kid]"}
    options = re.findall(r"(--[a-z_.]+) ([A-Z]+|previous|'\[fid,)(?= |$)", screen.split("the run:")[1], re.MULTILINE)
    given = [word for option, value in options if value in values for word in (option, values[value])]
    assert len(given) > 20
    found = yaml.safe_load(shown_by(capsys, "fit", "quickstart", *given, "--print_config"))
    assert found["trainer"]["callbacks"][0]["init_args"]["num_images"] == 3
    assert found["trainer"]["strategy"]["init_args"]["cohort_size"] == 3
    assert set(found) == {*PARTS, *WRITTEN}  # which are known before Lightning is


def test_help_all_has_every_option(capsys):
    with pytest.raises(SystemExit):
        main(["fit", "--help-all"])
    shown = capsys.readouterr().out
    assert "--trainer.gradient_clip_val" in shown
    assert len(shown.splitlines()) > 200


@pytest.mark.slow
def test_a_damaged_checkpoint_and_one_that_does_not_exist_are_named(recipe, capsys):
    Path("bad.ckpt").write_bytes(b"garbage")
    assert fit(recipe, "--ckpt_path", "bad.ckpt") == 2
    assert "bad.ckpt is not a file of torch.save" in capsys.readouterr().err
    assert fit(recipe, "--ckpt_path", "none.ckpt") == 2
    assert "no checkpoint none.ckpt" in capsys.readouterr().err
    torch.save({"state_dict": {}}, "weights.ckpt")
    assert fit(recipe, "--ckpt_path", "weights.ckpt") == 2
    assert "weights.ckpt holds a model without training progress" in capsys.readouterr().err


@pytest.mark.slow
def test_images_of_another_size_are_an_error_before_training_without_an_evaluation_too(recipe, capsys):
    change(recipe, [callback("fedgen.callbacks.RoundCheckpoint")])
    option = "--model.init_args.generator.init_args.image_size"
    assert fit(recipe, option, "16", option.replace("generator", "critic"), "16") == 2
    assert "the generator was built for images [1, 16, 16]" in capsys.readouterr().err


@pytest.mark.slow
def test_checkpoints_can_be_switched_off(recipe):
    assert fit(recipe, "--trainer.enable_checkpointing", "false", "--trainer.max_epochs", "1") == 0
    assert not list(Path("checkpoints/tiny").glob("*.ckpt"))


def test_a_model_that_cannot_sample_is_an_error_of_one_line(recipe, capsys):
    options = ["--model", "lightning.pytorch.demos.boring_classes.BoringModel"]
    assert fit(recipe, *options) == 2
    assert "BoringModel has no method sample" in capsys.readouterr().err


def test_a_mistake_is_not_buried_under_all_options(recipe, capsys):
    with pytest.raises(SystemExit):
        fit(recipe, "--model.class_path", "fedgen.models.Nope")
    message = capsys.readouterr().err
    assert "has no 'Nope'" in message
    assert len(message.splitlines()) < 20


@pytest.mark.slow
def test_a_full_disk_says_where_the_run_goes_on(recipe, run, capsys, monkeypatch):

    def full(*args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fedgen.federated.lightning.checkpoints.torch.save", full)
    assert fit(recipe, "--trainer.max_epochs", "3") == 2
    assert "no space left for checkpoints/tiny" in (error := capsys.readouterr().err)
    assert "resumes after round 1 (2 done)" in error
    assert {path.name for path in Path("checkpoints/tiny").glob("*.ckpt")} == {
        "last.ckpt",
        "round=00000.ckpt",
        "round=00001.ckpt",
    }


@pytest.mark.slow
def test_a_run_of_another_machines_devices_can_be_scored_here(recipe, run):
    path = Path("checkpoints/tiny/recipe.yaml")
    path.write_text(
        path.read_text().replace("accelerator: cpu", "accelerator: tpu").replace("devices: 1", "devices: 8")
    )
    assert main(["evaluate", "checkpoints/tiny", "pixels", "--num_images", "20"]) == 0


@pytest.mark.slow
def test_the_command_line_of_the_process_stays_as_it_was(recipe, run, monkeypatch):
    """Lightning starts further processes with it."""
    arguments = ["fedgen", "fit", "--config", str(recipe), "--trainer.max_epochs", "3"]
    monkeypatch.setattr(sys, "argv", list(arguments))
    assert main(arguments[1:]) == 0
    assert main(["evaluate", "checkpoints/tiny", "pixels", "--num_images", "20"]) == 0
    assert sys.argv == arguments


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.yaml"))[::8], ids=lambda path: path.stem)
def test_shipped_recipes_are_what_the_command_takes(path, capsys, monkeypatch):
    """All of them are parsed in tests/test_recipes.py."""
    monkeypatch.setattr(sys, "argv", ["fedgen"])
    with pytest.raises(SystemExit) as caught:
        main(["fit", "--config", str(path), "--print_config"])
    assert caught.value.code == 0
    given = yaml.safe_load(path.read_text())["model"]["class_path"]
    assert yaml.safe_load(capsys.readouterr().out)["model"]["class_path"] == given


def fit_in_forks(recipe, *options, ranks=1, sent=None):
    """`fedgen fit` in as many forks of this process; its status and output.

    Args:
        recipe: for the command.
        options: of the command.
        ranks: its processes.
        sent: a signal that the process gets in the turn of a client of the second round.
    """

    def work():
        warnings.simplefilter("default")  # which pytest made errors
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which jobs in the background ignore
        fork_ranks(ranks, launches=False)
        plain = WGANGP.training_step

        def step(self, batch, batch_idx):
            if sent and self.current_epoch == 1 and batch_idx == 1:
                os.kill(os.getpid(), sent)
            return plain(self, batch, batch_idx)

        WGANGP.training_step = step
        return fit(recipe, *options)

    return said_in_fork(work)


@pytest.mark.slow
def test_ctrl_c_sigterm_and_kill_9_leave_a_run_that_goes_on_to_the_same_end(recipe, trained, capsys):
    """Interrupted, terminated and killed in a round, then left alone: same weights, same score table; whoever waits
    for the command is told that it did not finish. Kills at other moments are in tests/test_kills.py."""
    for sent, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)):
        found, said = fit_in_forks(recipe, sent=sent)
        assert found == status, said[-3000:]
        assert ("the same command resumes after round 0 (1 done)" in said) == (sent != signal.SIGKILL), said[-3000:]
        assert {path.name for path in RUN.glob("*.ckpt")} == {"last.ckpt", "round=00000.ckpt"}
    assert fit(recipe) == 0
    assert "Resuming checkpoints/tiny after round 0 (1 done)." in capsys.readouterr().out
    states = [torch.load(folder / "last.ckpt", weights_only=True)["state_dict"] for folder in (trained, RUN)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert (RUN / "scores.jsonl").read_bytes() == (trained / "scores.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("recipe", "setting", "value", "found"),
    [
        ("ddpm_cifar10", "solver", "ddpm", {"solver": "ddpm", "steps": None, "guidance": 1.0}),
        ("ddpm_digits_conditional", "guidance", "2", {"solver": "dpm-solver++", "steps": None, "guidance": 2.0}),
    ],
)
def test_the_samplers_settings_that_recipes_tell_of_are_options(capsys, recipe, setting, value, found):
    path = ROOT / "recipes" / f"{recipe}.yaml"
    with pytest.raises(SystemExit):
        main(["fit", "--config", str(path), f"--model.init_args.sampler.{setting}", value, "--print_config"])
    assert yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]["sampler"] == found


@pytest.mark.slow
def test_two_processes_train_and_one_of_them_speaks(recipe, trained, tmp_path):
    """As `python -m fedgen` starts them, the second by Lightning."""
    folder = tmp_path / "two"
    command = ["fedgen", "fit", "--config", str(recipe), "--trainer.devices", "2"]

    def work():
        warnings.simplefilter("ignore")  # which pytest made errors
        os.environ.update(OMP_NUM_THREADS="1", COLUMNS="100")
        sys.argv = [*command, "--trainer.default_root_dir", str(folder)]
        del sys.modules["fedgen.__main__"]  # of this process
        runpy.run_module("fedgen", run_name="__main__", alter_sys=True)

    status, said = said_in_fork(work)
    assert status == 0, said[-3000:]
    assert said.count("What next:") == said.count("round 0 (1 done): ") == 1
    one, two = ({(r.round, r.split, r.name): r.value for r in Run(place).records} for place in (trained, folder))
    assert one.keys() == two.keys()
    for key, value in one.items():
        assert two[key] == pytest.approx(value, rel=0.05, abs=1e-3), key  # Adam makes rounding larger
    status, said = fit_in_forks(recipe, "--local_only", "--trainer.devices", "2", ranks=2)
    assert status == 2
    assert "clients that train alone are on 2 processes" in said
