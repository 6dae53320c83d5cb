"""Checkpoints of whole rounds: their names, their bytes, and resuming from them."""

import os

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LambdaCallback

from fedgen.callbacks import RoundCheckpoint
from fedgen.evaluation import Evaluator, Run, evaluate_run, load_weights, read_records
from tests.callbacks.modules import Points, evaluation, fit
from tests.federated.modules import make_data, make_trainer, same, weights


def names(folder):
    return sorted(p.name for p in folder.glob("*.ckpt"))


@pytest.mark.slow
def test_evaluated_rounds_and_the_last_are_kept(tmp_path):
    fit(tmp_path, 5)
    assert names(tmp_path) == ["last.ckpt", "round=00001.ckpt", "round=00003.ckpt", "round=00004.ckpt"]
    assert not list(tmp_path.glob(".*"))
    records = read_records(tmp_path / "scores.jsonl")
    assert {r.checkpoint for r in records if r.round == 3} == {"round=00003.ckpt"}


def test_the_last_checkpoint_and_that_of_its_round_are_one_file(tmp_path):
    fit(tmp_path, 4)
    assert os.path.samefile(tmp_path / "last.ckpt", tmp_path / "round=00003.ckpt")
    assert not os.path.samefile(tmp_path / "last.ckpt", tmp_path / "round=00001.ckpt")


def test_without_links_the_checkpoint_is_copied(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    fit(tmp_path, 2)
    assert (tmp_path / "last.ckpt").read_bytes() == (tmp_path / "round=00001.ckpt").read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_without_an_evaluation_every_nth_round_and_the_last_are_kept(tmp_path):
    fit(tmp_path, 5, [RoundCheckpoint(every_n_rounds=2)])
    assert names(tmp_path) == ["last.ckpt", "round=00001.ckpt", "round=00003.ckpt", "round=00004.ckpt"]


@pytest.mark.slow
def test_checkpoints_load_without_unpickling_and_hold_their_round(tmp_path):
    module = Points()
    fit(tmp_path, 4, module=module)
    saved = torch.load(tmp_path / "round=00001.ckpt", weights_only=True)
    assert saved["epoch"] == 1
    fresh = Points()
    load_weights(fresh, tmp_path / "last.ckpt")
    assert same(weights(module), weights(fresh))


@pytest.mark.slow
def test_training_goes_on_from_the_last_checkpoint_to_the_same_bits(tmp_path):
    whole, resumed = Points(), Points()
    fit(tmp_path / "whole", 5, module=whole)
    fit(tmp_path / "part", 3)
    trainer = fit(tmp_path / "part", 5, module=resumed, ckpt_path="last")
    assert trainer.current_epoch == 5
    assert same(weights(whole), weights(resumed))


def test_a_first_run_may_ask_for_the_last_checkpoint(tmp_path):
    with pytest.warns(UserWarning, match="checkpoint"):
        fit(tmp_path, 1, ckpt_path="last")


def test_a_finished_run_does_nothing(tmp_path):
    fit(tmp_path, 2)
    before = (tmp_path / "scores.jsonl").read_bytes(), (tmp_path / "last.ckpt").stat().st_mtime_ns
    fit(tmp_path, 2, ckpt_path="last")
    assert before == ((tmp_path / "scores.jsonl").read_bytes(), (tmp_path / "last.ckpt").stat().st_mtime_ns)


def rounds_saved(monkeypatch):
    """The rounds of which `last.ckpt` is made, as they come."""
    rounds, plain = [], Trainer.save_checkpoint

    def note(trainer, *args, **kwargs):
        rounds.append(trainer.current_epoch)
        plain(trainer, *args, **kwargs)

    monkeypatch.setattr(Trainer, "save_checkpoint", note)
    return rounds


@pytest.mark.parametrize(("share", "expected"), [(1e-9, [0, 3, 5]), (1, [0, 1, 2, 3, 4, 5])])
def test_rounds_that_end_too_soon_after_a_save_are_not_saved_but_the_kept_and_the_last(
    share, expected, tmp_path, monkeypatch
):
    rounds = rounds_saved(monkeypatch)
    fit(tmp_path, 6, [RoundCheckpoint(every_n_rounds=4, saving_share=share)])
    assert rounds == expected
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["epoch"] == 5


def test_the_last_round_is_saved_however_training_ends(tmp_path, monkeypatch):
    def stops(trainer, *args):
        trainer.should_stop = trainer.current_epoch == 2

    rounds, seldom = rounds_saved(monkeypatch), [RoundCheckpoint(every_n_rounds=100, saving_share=1e-9)]
    fit(tmp_path / "early", 6, [LambdaCallback(on_train_epoch_end=stops), *seldom])
    fit(tmp_path / "steps", -1, [RoundCheckpoint(every_n_rounds=100, saving_share=1e-9)], max_steps=8)
    assert rounds == [0, 2, 0, 3]


@pytest.mark.slow
def test_a_run_that_dies_trains_rounds_that_were_not_saved_again_to_the_same_bits(tmp_path):
    def dies(trainer, *args):
        if trainer.current_epoch == 4:
            raise RuntimeError("the machine is gone")

    whole, resumed = Points(), Points()
    fit(tmp_path / "whole", 6, module=whole)
    callbacks = [evaluation(), RoundCheckpoint(saving_share=1e-9), LambdaCallback(on_train_epoch_start=dies)]
    with pytest.raises(RuntimeError, match="gone"):
        fit(tmp_path / "part", 6, callbacks)
    saved = torch.load(tmp_path / "part" / "last.ckpt", weights_only=True)
    assert saved["epoch"] == 3  # which was evaluated
    (tmp_path / "part" / "last.ckpt").write_bytes((tmp_path / "part" / "round=00001.ckpt").read_bytes())
    fit(tmp_path / "part", 6, module=resumed, ckpt_path="last")
    assert same(weights(whole), weights(resumed))
    assert (tmp_path / "whole" / "scores.jsonl").read_bytes() == (tmp_path / "part" / "scores.jsonl").read_bytes()


def test_it_works_under_ordinary_training(tmp_path):
    callbacks = [RoundCheckpoint(tmp_path / "kept", every_n_rounds=2)]
    trainer = make_trainer("auto", 3, callbacks=callbacks, enable_checkpointing=True, default_root_dir=tmp_path)
    trainer.fit(Points(), make_data())
    assert names(tmp_path / "kept") == ["last.ckpt", "round=00001.ckpt", "round=00002.ckpt"]


def test_a_folder_that_cannot_be_written_is_found_before_training(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(PermissionError, match="write"):
        fit(tmp_path, 1, [RoundCheckpoint(tmp_path / "file" / "run")])
    with pytest.raises(ValueError, match="every_n_rounds"):
        RoundCheckpoint(every_n_rounds=0)
    with pytest.raises(ValueError, match="saving_share"):
        RoundCheckpoint(saving_share=0)


@pytest.mark.slow
def test_a_run_scored_again_gives_the_same_records_and_another_embedding_adds_columns(tmp_path):
    fit(tmp_path, 4)
    before = read_records(tmp_path / "scores.jsonl")
    judge = Evaluator(make_data(held_out=0.25), ["identity"], num_images=40, seed=0)
    evaluate_run(tmp_path, Points(), judge)
    assert sorted(r.identity for r in before if r.round) == sorted(r.identity for r in Run(tmp_path).records if r.round)
    assert {r.identity: r.value for r in before} == pytest.approx({r.identity: r.value for r in Run(tmp_path).records})
    with pytest.raises(FileNotFoundError, match="checkpoint"):
        evaluate_run(tmp_path, Points(), judge, rounds=[2])


def test_a_local_only_run_scored_again_is_the_mixture_again(tmp_path):
    fit(tmp_path, 2, strategy={"personal": ["*"], "optimizer_state": "keep"})
    before = {r.identity: r.value for r in read_records(tmp_path / "scores.jsonl")}
    judge = Evaluator(make_data(held_out=0.25), ["identity"], num_images=40, seed=0)
    again = evaluate_run(tmp_path, Points(), judge)
    assert {r.note.split("; ")[0] for r in again} == {"mixture of local models"}
    assert {r.identity: r.value for r in again} == pytest.approx({r.identity: before[r.identity] for r in again})


def test_it_saves_after_the_other_callbacks_whatever_the_order(tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    best = ModelCheckpoint(tmp_path / "best", monitor="kid_avg", filename="{epoch}")
    fit(tmp_path, 2, [RoundCheckpoint(), best, evaluation()])
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"]
    states = [state for key, state in saved.items() if key.startswith("ModelCheckpoint")]
    assert states[0]["best_model_path"].endswith("epoch=1.ckpt")
