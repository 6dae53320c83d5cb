"""A run that is interrupted keeps its last whole round, and goes on from it to the same bits."""

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import OnExceptionCheckpoint

from fedgen.federated import FedAdam, FedAvgStrategy, Scaffold
from tests.federated.modules import Automatic, Manual, TwoOptimizers, make_data, make_trainer, same, weights
from tests.federated.test_plateau import Plateau
from tests.quick import first_quick

pytestmark = pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
SETTINGS = {
    "reset": {},
    "keep": {"optimizer_state": "keep"},
    "average and a server's": {"optimizer_state": "average", "server_optimizer": lambda p: FedAdam(p, lr=0.1)},
    "personal": {"personal": ["*.bias"], "cohort_size": 2},
}


class SGD(Automatic):
    def __init__(self):
        super().__init__("SGD")


class Interrupts(Callback):
    """Raises at a hook's call in a round: in its second client's turn, or where it has no turns."""

    def __init__(self, hook, round, error=ValueError):
        self.round, self.error = round, error
        setattr(self, hook, self.end)

    def end(self, trainer, module, *args):
        clients = [one.client for one in args if hasattr(one, "client")]
        if trainer.current_epoch == self.round and clients in ([], [1]):
            raise self.error("stop")


def fit(module, rounds, folder, *callbacks, ckpt_path=None, **options):
    trainer = make_trainer(
        FedAvgStrategy(4, seed=0, **options), rounds, enable_checkpointing=True, num_sanity_val_steps=0,
        default_root_dir=folder, callbacks=list(callbacks),
    )  # fmt: skip
    trainer.fit(module, make_data(held_out=0.25), ckpt_path=ckpt_path)
    return trainer


def assert_goes_on(kind, folder, callback, ends=ValueError, **options):
    torch.manual_seed(3)
    whole = kind()
    fit(whole, 4, folder / "whole", **options)
    torch.manual_seed(3)
    with (
        pytest.warns(UserWarning, match="last checkpoint available|called without a model"),
        pytest.raises(ends),
    ):
        fit(kind(), 4, folder / "part", OnExceptionCheckpoint(folder), callback, **options)
    path = folder / "on_exception.ckpt"
    resumed = kind()
    trainer = fit(resumed, 4, folder / "part", ckpt_path=path, **options)
    assert trainer.current_epoch == 4
    assert same(weights(whole), weights(resumed))
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize(
    ("kind", "settings"),
    first_quick([(Automatic, "reset"), *((TwoOptimizers, one) for one in SETTINGS), (SGD, "variates")], several=True),
)
def test_an_error_in_a_round_leaves_the_round_before(tmp_path, kind, settings):
    callback = Interrupts("on_train_batch_end", 2)
    options = SETTINGS.get(settings, {"client_algorithm": Scaffold()})
    saved = assert_goes_on(kind, tmp_path, callback, **options)
    assert set(saved["fedavg"]["iterations"].values()) <= {4, 8}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "round"), [(Automatic, 2), (Manual, 0)])
def test_so_does_an_interrupt_in_a_clients_turn(tmp_path, kind, round):
    class Interrupted(kind):
        stops = True

        def training_step(self, batch, batch_idx):
            if self.stops and self.current_epoch == round and self.trainer.fit_loop.batch_idx == 1:
                Interrupted.stops = False
                raise KeyboardInterrupt
            return super().training_step(batch, batch_idx)

    torch.manual_seed(3)
    whole = kind()
    fit(whole, 4, tmp_path / "whole", optimizer_state="keep")
    torch.manual_seed(3)
    with pytest.warns(UserWarning, match="last checkpoint available|called without"), pytest.raises(SystemExit):
        fit(Interrupted(), 4, tmp_path / "part", OnExceptionCheckpoint(tmp_path), optimizer_state="keep")
    resumed = kind()
    fit(resumed, 4, tmp_path / "part", ckpt_path=tmp_path / "on_exception.ckpt", optimizer_state="keep")
    assert same(weights(whole), weights(resumed))


HOOKS = ["on_train_epoch_start", "on_train_epoch_end", "on_validation_batch_end", "on_validation_end", "on_train_end"]


@pytest.mark.slow
@pytest.mark.parametrize("hook", HOOKS)
def test_errors_around_a_round_cost_no_update_of_its_schedulers(tmp_path, hook):
    callback = Interrupts(hook, 4 if hook == "on_train_end" else 2)
    assert_goes_on(Plateau, tmp_path, callback)


def test_who_has_no_such_callback_keeps_no_copies(tmp_path):
    class Counts(Automatic):
        saved = 0

        def on_save_checkpoint(self, checkpoint):
            self.saved += 1

    module = Counts()
    trainer = make_trainer(FedAvgStrategy(2, seed=0), 2)
    trainer.fit(module, make_data())
    assert module.saved == 0
