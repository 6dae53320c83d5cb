"""A Python script started again: it goes on where it is told to, and never replaces what is there."""

import os
import re
import signal
import time

import pytest
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint

from fedgen import select
from fedgen.callbacks import RoundCheckpoint
from fedgen.evaluation import checkpoint_name, list_checkpoints, read_records
from fedgen.evaluation.names import LAST
from tests.callbacks.modules import Points, evaluation, fit
from tests.federated.modules import make_data
from tests.launched import Imported


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_scores_that_going_back_removes_are_told(tmp_path, caplog):
    """`ckpt_path` of an earlier round removed the later rounds' without a word."""
    fit(tmp_path, 6)
    with caplog.at_level("INFO"):
        fit(tmp_path, 4, ckpt_path=tmp_path / checkpoint_name(1))
    assert "scores of rounds 3, 5 are removed: training resumes from round 2" in caplog.text


@pytest.mark.slow
def test_a_trainer_fits_on_and_another_folder_begins_anew(tmp_path):
    trainer = fit(tmp_path / "one", 2)
    trainer.fit_loop.max_epochs = 4
    trainer.fit(Points(), make_data(held_out=0.25))
    assert rounds_in(tmp_path / "one") == [1, 3]
    fit(tmp_path / "two", 2)
    assert rounds_in(tmp_path / "two") == [1]


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_script_that_ctrl_c_stops_goes_on_and_one_that_does_not_say_so_is_refused(tmp_path):
    script = Imported("tests.callbacks.restarted")

    def start(*arguments):
        started = script.start(tmp_path, *arguments)
        said, _ = started.communicate(timeout=300)
        return started.returncode, said

    first = script.start(tmp_path, "last", 100_000)
    end = time.monotonic() + 120
    while not (tmp_path / "mine" / checkpoint_name(3)).exists() and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(first.number(), signal.SIGINT)
    first.communicate(timeout=60)
    scored = (tmp_path / "mine" / "scores.jsonl").read_bytes()
    status, said = start("None", 100_000)
    assert status == 1
    assert re.search("^FileExistsError: mine holds a run", said, re.MULTILINE)
    assert (tmp_path / "mine" / "scores.jsonl").read_bytes() == scored
    rounds = str(max(rounds_in(tmp_path / "mine")) + 5)
    for _ in range(2):  # the second finds it finished
        status, said = start("last", rounds)
        assert status == 0, said
        assert f"rounds {rounds} best" in said
        assert (tmp_path / "mine" / "scores.jsonl").read_bytes().startswith(scored)
