"""Hooks that nobody overrides are left out of a turn's steps; what comes out is what comes out with them."""

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from fedgen.federated import FedAvgStrategy
from fedgen.federated.local_training import CALLBACK_HOOKS, MODULE_HOOKS, TRANSFER_HOOKS
from tests.federated.modules import Automatic, make_data, make_trainer, same, weights

CLIENTS, INTERVAL, ROUNDS = 3, 2, 2


class Logged(Automatic):
    """Logs its loss at every iteration."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_epoch=True)
        return loss


class Quiet(L.Callback):
    """Overrides a hook and does nothing, so that Lightning goes its whole way."""

    def on_after_backward(self, trainer, pl_module):
        """Nothing to do."""


def counting(kind, hook, calls):
    """A kind of object whose hook counts its calls."""

    def counted(self, *args, **kwargs):
        calls.append(hook)
        return getattr(super(made, self), hook)(*args, **kwargs)

    made = type(f"Counting{kind.__name__}", (kind,), {hook: counted})
    return made


def fit(module, folder, callbacks=(), strategy=FedAvgStrategy, data=None, **options):
    torch.manual_seed(0)
    given = {"callbacks": list(callbacks), "logger": CSVLogger(folder), **options}
    trainer = make_trainer(strategy(INTERVAL, seed=0), ROUNDS, **given)
    trainer.fit(module, data or make_data())
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "LBFGS"])
def test_weights_logs_and_counts_are_those_of_lightnings_own_way(optimizer, tmp_path):
    found = []
    for callbacks in ((), (Quiet(),)):
        torch.manual_seed(1)
        module = Logged(optimizer)
        trainer = fit(module, tmp_path / str(len(callbacks)), callbacks)
        progress = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.state_dict()
        found.append((weights(module), trainer.callback_metrics["loss_epoch"], trainer.global_step, progress))
        assert trainer.strategy._loop.no_hooks == (not callbacks)
    (quick, loss, steps, progress), (slow, slow_loss, slow_steps, slow_progress) = found
    assert same(quick, slow)
    assert torch.equal(loss, slow_loss)
    assert steps == slow_steps == INTERVAL * ROUNDS
    assert progress == slow_progress


@pytest.mark.parametrize("hook", MODULE_HOOKS)
def test_a_modules_hook_is_called_at_every_iteration(hook, tmp_path):
    calls = []
    fit(counting(Automatic, hook, calls)(), tmp_path)
    assert len(calls) == CLIENTS * INTERVAL * ROUNDS


@pytest.mark.parametrize("hook", CALLBACK_HOOKS)
def test_a_callbacks_hook_is_called_at_every_iteration(hook, tmp_path):
    calls = []
    fit(Automatic(), tmp_path, [counting(L.Callback, hook, calls)()])
    assert len(calls) == CLIENTS * INTERVAL * ROUNDS


@pytest.mark.parametrize("hook", ["backward", "pre_backward", "post_training_step"])
def test_a_strategys_hook_is_called_at_every_iteration(hook, tmp_path):
    calls = []
    fit(Automatic(), tmp_path, strategy=counting(FedAvgStrategy, hook, calls))
    assert len(calls) == CLIENTS * INTERVAL * ROUNDS


@pytest.mark.filterwarnings("ignore:You have overridden")
@pytest.mark.parametrize("hook", TRANSFER_HOOKS)
@pytest.mark.parametrize("owner", ["module", "data"])
def test_a_hook_of_a_batchs_move_sees_every_batch(hook, owner, tmp_path):
    calls, module, data = [], Automatic(), make_data()
    if owner == "module":
        module = counting(Automatic, hook, calls)()
    else:
        data.__class__ = counting(type(data), hook, calls)
    fit(module, tmp_path, data=data)
    assert len([call for call in calls if call]) >= CLIENTS * INTERVAL * ROUNDS


@pytest.mark.parametrize("options", [{"gradient_clip_val": 1e-9}, {"precision": "bf16-mixed"}, {"profiler": "simple"}])
def test_settings_of_the_trainer_that_act_on_steps_are_obeyed(options, tmp_path):
    trainer = fit(Automatic(), tmp_path, **options)
    assert not trainer.strategy._loop.no_hooks
    assert trainer.global_step == INTERVAL * ROUNDS
    assert trainer.callback_metrics["total_steps"] == CLIENTS * INTERVAL * ROUNDS


def test_a_clipped_step_hardly_moves(tmp_path):
    torch.manual_seed(1)
    module = Automatic("SGD")
    before = module.net[0].weight.detach().clone()
    fit(module, tmp_path, gradient_clip_val=1e-9)
    assert (module.net[0].weight - before).abs().max() < 1e-6


@pytest.mark.filterwarnings("ignore:.*`training_step` returned.*None")
def test_a_step_without_a_loss_is_skipped(tmp_path):
    class Picky(Automatic):
        def training_step(self, batch, batch_idx):
            return None if batch_idx % 2 else super().training_step(batch, batch_idx)

    found = []
    for callbacks in ((), (Quiet(),)):
        torch.manual_seed(1)
        module = Picky("SGD")
        fit(module, tmp_path / str(len(found)), callbacks)
        found.append(weights(module))
    assert same(*found)
