"""A Python script started again: it goes on where it is told to, and never replaces what is there."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint

from fedgen import select
from fedgen.callbacks import RoundCheckpoint
from fedgen.evaluation import checkpoint_name, list_checkpoints, read_records
from fedgen.evaluation.names import LAST
from tests.callbacks.modules import Points, evaluation, fit
from tests.federated.modules import make_data


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rounds_in(folder):
    return sorted({one.round for one in read_records(folder / "scores.jsonl") if one.is_model})


def dies(round):
    def raises(trainer, *_):
        if trainer.current_epoch == round:
            raise RuntimeError("the machine is gone")

    return LambdaCallback(on_train_epoch_start=raises)


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
@pytest.mark.parametrize(
    "kinds", [[evaluation], [RoundCheckpoint], [evaluation, RoundCheckpoint]], ids=["scores", "checkpoints", "both"]
)
def test_a_second_start_is_refused_with_the_ways_out_and_replaces_nothing(tmp_path, kinds):
    fit(tmp_path, 3, [kind() for kind in kinds])
    before = contents(tmp_path)
    with pytest.raises(FileExistsError, match="ckpt_path"):
        fit(tmp_path, 3, [kind() for kind in kinds])
    assert contents(tmp_path) == before


@pytest.mark.filterwarnings("ignore:Checkpoint directory", "ignore:.*no last checkpoint available")
def test_the_way_to_go_on_is_one_that_there_is(tmp_path):
    fit(tmp_path / "kept", 2)
    with pytest.raises(FileExistsError, match="ckpt_path"):
        fit(tmp_path / "kept", 2)
    with pytest.raises(FileExistsError, match="last"):  # Lightning does not look there
        fit(tmp_path / "kept", 2, [evaluation()])
    own = tmp_path / "kept by Lightning"
    fit(own, 2, [evaluation(), ModelCheckpoint(own / "its", save_last=True)])
    with pytest.raises(FileExistsError, match="ckpt_path"):
        fit(own, 2, [evaluation(), ModelCheckpoint(own / "its", save_last=True)])
    fit(tmp_path / "scores", 2, [evaluation()])
    for path in (None, "last"):
        with pytest.raises(FileExistsError, match="last"):
            fit(tmp_path / "scores", 2, [evaluation()], ckpt_path=path)


def test_a_run_that_goes_on_keeps_all_scores_checkpoints_and_pictures(tmp_path):
    with pytest.raises(RuntimeError, match="gone"):
        fit(tmp_path, 6, [evaluation(), RoundCheckpoint(), dies(4)])
    before = contents(tmp_path)
    fit(tmp_path, 6, ckpt_path="last")
    assert rounds_in(tmp_path) == [1, 3, 5]
    after = contents(tmp_path)
    assert after["scores.jsonl"].startswith(before["scores.jsonl"])
    assert after[checkpoint_name(1)] == before[checkpoint_name(1)]
    assert {entry.round for entry in select(tmp_path, "kid_all")} == {1, 3, 5}


def test_scores_that_going_back_removes_are_told(tmp_path, caplog):
    """`ckpt_path` of an earlier round removed the later rounds' without a word."""
    fit(tmp_path, 6)
    with caplog.at_level("INFO"):
        fit(tmp_path, 4, ckpt_path=tmp_path / checkpoint_name(1))
    assert "scores of rounds 3, 5 are removed, as training goes on from round 2" in caplog.text


def test_a_trainer_fits_on_and_another_folder_begins_anew(tmp_path):
    trainer = fit(tmp_path / "one", 2)
    trainer.fit_loop.max_epochs = 4
    trainer.fit(Points(), make_data(held_out=0.25))
    assert rounds_in(tmp_path / "one") == [1, 3]
    fit(tmp_path / "two", 2)
    assert rounds_in(tmp_path / "two") == [1]


def test_a_fast_dev_run_leaves_a_run_s_scores_alone_and_does_not_stand_in_its_way(tmp_path):
    """It dropped all scores of the folder from round 0 on."""
    for _ in range(2):
        fit(tmp_path, 1, [evaluation(), RoundCheckpoint()], fast_dev_run=2)
    assert not list_checkpoints(tmp_path)
    fit(tmp_path, 2)
    before = (tmp_path / "scores.jsonl").read_bytes()
    fit(tmp_path, 1, [evaluation(), RoundCheckpoint()], fast_dev_run=True)
    assert (tmp_path / "scores.jsonl").read_bytes() == before


@pytest.mark.parametrize("left", ["score", "checkpoint"])
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(tmp_path, left):
    """Then a score of round 0 is there alone, or the checkpoint that is written before `last.ckpt`."""
    fit(tmp_path, 1, [evaluation(every_n_rounds=1), RoundCheckpoint()])
    (tmp_path / LAST).unlink()
    if left == "score":
        (tmp_path / checkpoint_name(0)).unlink()
    fit(tmp_path, 2)
    assert rounds_in(tmp_path) == [1]


SCRIPT = """
import sys, torch, lightning as L, fedgen
from tests.callbacks.modules import Points, evaluation
from tests.federated.modules import make_data

trainer = L.Trainer(
    strategy=fedgen.FedAvgStrategy(communication_interval=2), accelerator="cpu", enable_progress_bar=False,
    callbacks=[evaluation(every_n_rounds=2), fedgen.RoundCheckpoint()],
    max_epochs=int(sys.argv[2]), default_root_dir="mine", logger=False,
)
trainer.fit(Points(), make_data(held_out=0.25), ckpt_path=sys.argv[1] if sys.argv[1] != "None" else None)
best = fedgen.select("mine", by="kid_all")[0]
print("rounds", trainer.current_epoch, "best", best.round)
"""


@pytest.mark.slow
def test_a_script_that_ctrl_c_stops_goes_on_and_one_that_does_not_say_so_is_refused(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}}
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # which jobs in the background ignore

    def start(*arguments):
        return subprocess.run([sys.executable, "script.py", *arguments], capture_output=True, text=True, **options)

    first = subprocess.Popen(
        [sys.executable, "script.py", "last", "100000"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, **options
    )
    end = time.monotonic() + 120
    while not (tmp_path / "mine" / checkpoint_name(3)).exists() and time.monotonic() < end:
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    scored = (tmp_path / "mine" / "scores.jsonl").read_bytes()
    refused = start("None", "100000")
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith("FileExistsError: mine holds a run")
    assert (tmp_path / "mine" / "scores.jsonl").read_bytes() == scored
    rounds = str(max(rounds_in(tmp_path / "mine")) + 5)
    for _ in range(2):  # the second finds it finished
        went_on = start("last", rounds)
        assert went_on.returncode == 0, went_on.stderr
        assert f"rounds {rounds} best" in went_on.stdout
        assert (tmp_path / "mine" / "scores.jsonl").read_bytes().startswith(scored)
