"""A run that dies loses nothing that a checkpoint held."""

import os
import signal
import time
from functools import partial
from typing import ClassVar

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.federated import FedAdam, FedAvgStrategy
from tests.federated.modules import Automatic, Manual, TwoOptimizers, make_data, make_trainer, same, weights
from tests.launched import Imported, end
from tests.quick import first_quick

pytestmark = pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")


def train(module, folder, rounds, ckpt_path=None, **options):
    strategy = FedAvgStrategy(**{"communication_interval": 4, "seed": 0, **options})
    checkpoint = ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
    trainer = make_trainer(strategy, rounds, enable_checkpointing=True, callbacks=[checkpoint])
    trainer.fit(module, make_data(), ckpt_path=ckpt_path)
    return trainer


def straight_and_resumed(make, folder, options_of):
    """(Module, trainer) of four rounds in one fit, and of another module that goes on from the second's checkpoint.

    Args:
        make: gives the module.
        folder: holds the checkpoints of all rounds.
        options_of: gives the strategy's options, for each of both.
    """
    found = []
    torch.manual_seed(3)
    for start in (None, folder / "epoch=1.ckpt"):
        module = make()
        found.append((module, train(module, folder, 4, start, **options_of())))
    return found


@pytest.mark.parametrize("mode", ["reset", "keep", "average"])
@pytest.mark.parametrize("kind", first_quick([Automatic, Manual, TwoOptimizers]))
def test_resuming_ends_with_the_same_weights_to_the_bit(tmp_path, kind, mode):
    options = {"optimizer_state": mode, "cohort_size": 2, "server_optimizer": lambda p: FedAdam(p, lr=0.1)}
    (whole, _), (resumed, trainer) = straight_and_resumed(kind, tmp_path, lambda: options)
    assert trainer.current_epoch == 4
    assert same(weights(whole), weights(resumed))


class Rounds(Callback):
    """Which rounds begin, are validated and end."""

    def __init__(self):
        self.begun, self.validated, self.ended = [], [], []

    def on_train_epoch_start(self, trainer, pl_module):
        self.begun.append(trainer.current_epoch)

    def on_validation_end(self, trainer, pl_module):
        self.validated.append(trainer.current_epoch)

    def on_train_epoch_end(self, trainer, pl_module):
        self.ended.append(trainer.current_epoch)


class Scheduled(Automatic):
    """With a learning rate that falls each round, and a validation."""

    def validation_step(self, batch, batch_idx):
        self.log("loss", super().training_step(batch, batch_idx))

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint that ended before the epoch")
@pytest.mark.parametrize("at_validations", [False, True])
@pytest.mark.parametrize("limits", [{"max_epochs": 4}, {"max_steps": 16}, {"max_epochs": 4, "max_steps": 99}], ids=str)
def test_a_resumed_run_has_no_round_twice_and_none_too_few(tmp_path, limits, at_validations):
    """Under max_steps Lightning takes a checkpoint of an epoch's end for one of its middle: it would end it again."""

    def fit(module, begin=None):
        rounds = Rounds()
        options = {"filename": "{epoch}", "save_top_k": -1, "save_on_train_epoch_end": not at_validations}
        trainer = make_trainer(
            FedAvgStrategy(4, seed=0),
            limits.get("max_epochs"),
            max_steps=limits.get("max_steps", -1),
            enable_checkpointing=True,
            callbacks=[rounds, ModelCheckpoint(tmp_path, **options)],
            num_sanity_val_steps=0,
        )
        trainer.fit(module, make_data(held_out=0.3), ckpt_path=begin)
        return trainer, rounds

    torch.manual_seed(3)
    whole = Scheduled()
    trainer, rounds = fit(whole)
    counts = trainer.current_epoch, trainer.global_step, vars(trainer.fit_loop.epoch_progress.total)
    assert counts[:2] == (4, 16)
    assert rounds.begun == rounds.validated == rounds.ended == [0, 1, 2, 3]
    for last in (0, 2):
        module = Scheduled()
        trainer, rounds = fit(module, tmp_path / f"epoch={last}.ckpt")
        assert same(weights(module), weights(whole))
        assert (trainer.current_epoch, trainer.global_step, vars(trainer.fit_loop.epoch_progress.total)) == counts
        left = [*range(last + 1, 4)]
        assert rounds.begun == left
        assert rounds.validated == left
        assert rounds.ended == ([last, *left] if at_validations else left)


def test_personal_tensors_survive_a_resume(tmp_path):
    (whole, a), (resumed, b) = straight_and_resumed(TwoOptimizers, tmp_path, lambda: {"personal": ["b.*"]})
    for client in range(3):
        with a.strategy.client_model(client), b.strategy.client_model(client):
            assert same(weights(whole), weights(resumed))


def test_checkpoints_load_without_unpickling_objects(tmp_path):
    train(Automatic(), tmp_path, 1, optimizer_state="keep", server_optimizer=lambda p: FedAdam(p))
    saved = torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)
    assert saved["fedavg"]["version"] == 2
    assert saved["fedavg"]["iterations"] == {0: 4, 1: 4, 2: 4}
    Automatic().load_state_dict(saved["state_dict"])


def test_another_server_optimizer_on_resume_is_an_error(tmp_path):
    train(Automatic(), tmp_path, 1)
    with pytest.raises(MisconfigurationException, match="optimizer"):
        train(Automatic(), tmp_path, 2, tmp_path / "epoch=0.ckpt", server_optimizer=lambda p: FedAdam(p))


@pytest.mark.parametrize("personal", [[], ["a.*"], ["*"]])
def test_other_personal_tensors_on_resume_are_an_error(tmp_path, personal):
    train(TwoOptimizers(), tmp_path, 1, personal=["b.*"])
    with pytest.raises(MisconfigurationException, match="personal"):
        train(TwoOptimizers(), tmp_path, 2, tmp_path / "epoch=0.ckpt", personal=personal)


class Planned(Automatic):
    """With a schedule as long as the run."""

    def __init__(self, schedule, **lengths):
        super().__init__("SGD")
        self.schedule, self.lengths = schedule, lengths

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": self.schedule(optimizer, **self.lengths), "interval": "step"}]


def test_a_schedule_that_ends_with_the_shorter_run_is_told_before_training_and_not_behind_its_last_step(tmp_path):
    schedule = partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1)
    train(Planned(schedule, total_steps=9), tmp_path, 2)
    again = Planned(schedule, total_steps=17)
    with pytest.raises(MisconfigurationException, match="total_steps"):
        train(again, tmp_path, 4, tmp_path / "epoch=1.ckpt")
    train(Planned(schedule, total_steps=9), tmp_path, 2, tmp_path / "epoch=0.ckpt")


def test_a_schedule_that_goes_on_with_its_old_length_says_so(tmp_path):
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR
    train(Planned(schedule, T_max=8), tmp_path, 2)
    with pytest.warns(UserWarning, match="T_max"):
        train(Planned(schedule, T_max=16), tmp_path, 4, tmp_path / "epoch=1.ckpt")


def test_a_checkpoint_of_another_model_is_named_as_such(tmp_path):
    train(Automatic(), tmp_path, 1)
    with pytest.raises(MisconfigurationException, match="missing"):
        train(TwoOptimizers(), tmp_path, 2, tmp_path / "epoch=0.ckpt")


def test_a_checkpoint_of_ordinary_training_can_start_a_federation(tmp_path):
    module = Automatic()
    trainer = make_trainer("auto", 1, enable_checkpointing=True, callbacks=[ModelCheckpoint(tmp_path, "plain")])
    trainer.fit(module, make_data())
    train(Automatic(), tmp_path, 2, tmp_path / "plain.ckpt")


def before_version_02(path):
    """Makes a checkpoint what it was before `global_step` was one client's count: the steps of all clients."""
    saved = torch.load(path, weights_only=True)
    state = saved["fedavg"]
    loops = saved["loops"]["fit_loop"]["epoch_loop.automatic_optimization.optim_progress"]
    loops["optimizer"]["step"]["total"] = {"ready": 24, "completed": 24}
    saved["global_step"] = 24
    state["version"] = 1
    del state["clock"], state["outside"]
    torch.save(saved, path)


def test_a_checkpoint_of_before_one_clients_count_goes_on_with_the_old_batch_idx(tmp_path):
    """Two rounds of three clients' four steps: 24 in all, 8 of one client."""
    whole = Automatic()
    train(whole, tmp_path, 3, batch_idx="client")
    path = tmp_path / "epoch=1.ckpt"
    before_version_02(path)
    resumed = Automatic()
    trainer = train(resumed, tmp_path, 3, path, batch_idx="client")
    assert trainer.global_step == 3 * 4
    assert trainer.callback_metrics["total_steps"] == 3 * 3 * 4
    assert same(weights(whole), weights(resumed))


def test_a_checkpoint_of_before_one_clients_count_is_refused_where_counts_may_be_used(tmp_path):
    train(Automatic(), tmp_path, 2)
    before_version_02(tmp_path / "epoch=1.ckpt")
    with pytest.raises(MisconfigurationException, match="batch_idx"):
        train(Automatic(), tmp_path, 3, tmp_path / "epoch=1.ckpt")


def test_what_clients_keep_beside_tensors_survives_a_resume(tmp_path):
    class Kept(Automatic):
        seen: ClassVar[list] = []

        def __init__(self):
            super().__init__()
            self.own, self.steps = 0.0, 0

        def training_step(self, batch, batch_idx):
            self.own, self.steps = self.own + 1.0, self.steps + 1
            self.seen.append((self.own, self.steps))
            return super().training_step(batch, batch_idx)

    options = {"rules": {"own": "personal"}, "cohort_size": 2}
    straight_and_resumed(Kept, tmp_path, lambda: options)
    whole, resumed = Kept.seen[: 4 * 2 * 4], Kept.seen[4 * 2 * 4 :]  # rounds, clients, iterations
    assert resumed == whole[2 * 2 * 4 :]
    assert max(steps for _, steps in whole) == 4 * 4


@pytest.mark.slow
def test_kill_9_at_any_moment_and_resume_equals_an_undisturbed_run(tmp_path):
    """Killed three times, at moments spread over start, training and checkpoint writing."""
    script = Imported("tests.federated.slow_fit")
    undisturbed = script.start(tmp_path / "whole")
    for delay in (0.4, 0.8, 0.6):
        process = script.start(tmp_path / "killed")
        process.until("^go$")
        time.sleep(delay)
        os.kill(process.number(), signal.SIGKILL)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
    end(script.start(tmp_path / "killed"))
    end(undisturbed)
    assert same(torch.load(tmp_path / "whole" / "weights.pt"), torch.load(tmp_path / "killed" / "weights.pt"))
