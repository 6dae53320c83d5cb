"""ReduceLROnPlateau goes on after a resume as if there had been none, wherever the checkpoint was written."""

import copy
import tempfile
from functools import cache

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.callbacks import RoundCheckpoint
from fedgen.federated import FedAvgStrategy
from tests.federated.modules import Automatic, make_data, make_trainer, same, weights

pytestmark = pytest.mark.filterwarnings(
    "ignore:Be aware that when using `ckpt_path`", "ignore:Checkpoint directory .* exists and is not empty"
)


class Plateau(Automatic):
    """Halves its rate after each round that is not better than half of the best before; the second metric never is."""

    def __init__(self, monitor="val_loss", frequency=1, interval="epoch"):
        super().__init__("SGD")
        self.monitor, self.frequency, self.interval = monitor, frequency, interval
        self.rates = []

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", super().training_step(batch, batch_idx))

    def on_train_epoch_start(self):
        self.rates.append(self.optimizers().param_groups[0]["lr"])

    def on_train_epoch_end(self):
        self.log("own", torch.tensor(float(self.current_epoch)))

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.5)
        options = {"monitor": self.monitor, "frequency": self.frequency, "interval": self.interval}
        return [optimizer], [{"scheduler": schedule, **options}]


class SavesAt(L.Callback):
    """Saves in a hook of the third round, or of the end."""

    def __init__(self, folder, hook):
        self.path = folder / "third.ckpt"
        setattr(self, hook, self.save)

    def save(self, trainer, module, outputs=None, batch=None, batch_idx=0):
        if trainer.current_epoch >= 2 and (batch is None or trainer.is_last_batch):
            trainer.save_checkpoint(self.path)


def fit(module, rounds, callbacks=(), ckpt_path=None):
    options = {"callbacks": list(callbacks), "num_sanity_val_steps": 0}
    kept = any(isinstance(callback, Checkpoint) for callback in callbacks)  # else Lightning adds one of its own
    trainer = make_trainer(FedAvgStrategy(4, seed=0), rounds, enable_checkpointing=kept, **options)
    trainer.fit(module, make_data(held_out=0.25), ckpt_path=ckpt_path)
    return trainer


def scheduler_state(trainer):
    return copy.deepcopy(trainer.lr_scheduler_configs[0].scheduler.state_dict())


@cache
def whole_run(*settings):
    """Rates, weights and the scheduler's state of six rounds."""
    torch.manual_seed(3)
    module = Plateau(*settings)
    with tempfile.TemporaryDirectory() as folder:
        trainer = fit(module, 6, [RoundCheckpoint(folder)])
    return tuple(module.rates), weights(module), scheduler_state(trainer)


def assert_same_end(settings, folder, saver, path, rounds=3):
    """A run of 6 rounds ends as one that is resumed from a checkpoint of the third, in weights and in rates."""
    rates, whole, state = whole_run(*settings)
    torch.manual_seed(3)
    fit(Plateau(*settings), rounds, [saver])
    resumed = Plateau(*settings)
    trainer = fit(resumed, 6, [RoundCheckpoint(folder / "resumed")], path)
    assert rates[0] > rates[-1]
    assert resumed.rates == [*rates[-len(resumed.rates) :]]
    assert scheduler_state(trainer) == state
    assert same(weights(resumed), whole)
    return resumed


@pytest.mark.slow
@pytest.mark.parametrize("monitor", ["val_loss", "train_loss", "train_loss_epoch", "own"])
def test_a_run_resumes_to_the_bit_from_the_end_of_a_round(tmp_path, monitor):
    saver = RoundCheckpoint(tmp_path)
    resumed = assert_same_end([monitor], tmp_path, saver, tmp_path / "last.ckpt")
    assert len(resumed.rates) == 3


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [3, 4])
def test_so_it_does_where_every_second_round_counts(tmp_path, rounds):
    path = tmp_path / "last.ckpt"
    assert_same_end(["own", 2], tmp_path, RoundCheckpoint(tmp_path), path, rounds)


@pytest.mark.slow
@pytest.mark.parametrize("monitor", ["val_loss", "train_loss_epoch"])
def test_a_run_resumes_to_the_bit_from_the_end_of_a_validation(tmp_path, monitor):
    saver = ModelCheckpoint(tmp_path, "{epoch}", save_on_train_epoch_end=False)
    assert_same_end([monitor], tmp_path, saver, tmp_path / "epoch=2.ckpt")


@pytest.mark.slow
@pytest.mark.parametrize("monitor", ["val_loss", "train_loss_epoch", "own"])
@pytest.mark.parametrize("hook", ["on_train_end", "on_train_epoch_start"])
def test_no_update_is_made_twice_where_it_had_been_made(tmp_path, hook, monitor):
    """In the start of a round the updates of those before it have been made; so they have at the end."""
    saver = SavesAt(tmp_path, hook)
    assert_same_end([monitor], tmp_path, saver, saver.path)


@pytest.mark.slow
def test_a_run_resumed_twice_at_one_round_makes_no_update_twice(tmp_path):
    rates, whole, _ = whole_run("own")
    torch.manual_seed(3)
    fit(Plateau("own"), 3, [RoundCheckpoint(tmp_path)])
    again = fit(Plateau("own"), 3, (), tmp_path / "last.ckpt")  # has nothing left to do
    again.save_checkpoint(tmp_path / "again.ckpt")
    resumed = Plateau("own")
    fit(resumed, 6, (), tmp_path / "again.ckpt")
    assert resumed.rates == [*rates[3:]]
    assert same(weights(resumed), whole)


def test_a_value_that_was_not_known_yet_is_named(tmp_path):
    saver = SavesAt(tmp_path, "on_train_batch_end")
    fit(Plateau(), 3, [saver])
    with pytest.warns(UserWarning, match="val_loss"):
        fit(Plateau(), 4, (), saver.path)


def test_a_plateau_over_steps_is_refused_by_name():
    with pytest.raises(MisconfigurationException, match="ReduceLROnPlateau"):
        fit(Plateau(interval="step"), 1)


def test_other_schedulers_on_a_resume_are_named(tmp_path):
    class Other(Plateau):
        def configure_optimizers(self):
            optimizer = Automatic.configure_optimizers(self)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]

    fit(Plateau("own"), 1, [RoundCheckpoint(tmp_path)])
    with pytest.raises(MisconfigurationException, match="ReduceLROnPlateau"):
        fit(Other(), 2, (), tmp_path / "last.ckpt")
