"""What Lightning offers works under the strategy and means rounds."""

import copy
from typing import ClassVar

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.federated import ClientAlgorithm, FedAvgStrategy
from tests.federated.modules import Automatic, Manual, TwoOptimizers, make_data, make_trainer, same, weights


class Validated(Automatic):
    """Logs its training loss at every step and validates."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", super().training_step(batch, batch_idx))

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])


class Spy(L.Callback):
    """Records what a callback sees."""

    def __init__(self):
        self.turns, self.rounds, self.models = [], [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.turns.append((trainer.current_epoch, batch_idx, len(batch[0])))

    def on_train_epoch_end(self, trainer, pl_module):
        self.rounds.append(trainer.current_epoch)
        self.models.append(weights(pl_module))


def test_hooks_count_turns_and_epochs_count_rounds():
    spy = Spy()
    trainer = make_trainer(FedAvgStrategy(2, seed=0), 2, callbacks=[spy])
    trainer.fit(Automatic(), make_data((12, 20, 3)))
    assert spy.turns == [(0, 0, 4), (0, 1, 4), (0, 2, 3), (1, 0, 4), (1, 1, 4), (1, 2, 3)]
    assert spy.rounds == [0, 1]
    assert trainer.num_training_batches == 3


def test_step_losses_are_weighted_as_the_clients_are():
    """The mean over clients, by their numbers of examples, of the mean over each one's iterations."""

    class Recorded(Validated):
        losses: ClassVar[list] = []

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.losses.append(float(loss.detach()))
            return loss

    module = Recorded("SGD")
    trainer = make_trainer(FedAvgStrategy(3, seed=0), 1)
    data = make_data(held_out=0.25)
    trainer.fit(module, data)
    turns = [sum(module.losses[start : start + 3]) / 3 for start in (0, 3, 6)]
    sizes = [len(client.train) for client in data.clients]
    mean = sum(loss * size for loss, size in zip(turns, sizes)) / sum(sizes)
    assert float(trainer.callback_metrics["loss_epoch"]) == pytest.approx(mean, rel=1e-6)


def test_validation_sees_the_servers_model_and_checkpoints_follow_it(tmp_path):
    class Seen(Validated):
        seen: ClassVar[list] = []

        def on_validation_start(self):
            self.seen.append(weights(self))

    spy, module = Spy(), Seen()
    checkpoint = ModelCheckpoint(tmp_path, monitor="val_loss", save_top_k=2, filename="{epoch}")
    trainer = make_trainer(
        FedAvgStrategy(2, seed=0), 3, callbacks=[spy, checkpoint], enable_checkpointing=True, num_sanity_val_steps=0
    )
    trainer.fit(module, make_data(held_out=0.25))
    assert len(module.seen) == len(spy.models) == 3
    assert all(same(a, b) for a, b in zip(module.seen, spy.models))
    assert len(list(tmp_path.glob("*.ckpt"))) == 2
    best = torch.load(checkpoint.best_model_path, weights_only=True)
    assert same(best["state_dict"], spy.models[best["epoch"]])


def test_validate_test_and_predict_run_on_the_held_out_examples():
    data = make_data(held_out=0.25)
    trainer = make_trainer(FedAvgStrategy(2, seed=0), 1)
    module = Validated()
    assert "val_loss" in trainer.validate(module, data, verbose=False)[0]
    assert "val_loss" in trainer.test(module, data, verbose=False)[0]
    assert sum(len(batch) for batch in trainer.predict(module, data)) == len(data.pooled("held_out")) == 10


def test_early_stopping_stops_at_a_round():
    stopping = EarlyStopping("loss_epoch", patience=1, min_delta=100.0, check_on_train_epoch_end=True)
    trainer = make_trainer(FedAvgStrategy(2, seed=0), 9, callbacks=[stopping])
    trainer.fit(Validated(), make_data(held_out=0.25))
    assert trainer.current_epoch == 2


class Scheduled(Automatic):
    interval, frequency = "epoch", 1

    rates: ClassVar[list] = []

    def __init__(self):
        super().__init__("SGD")
        self.rates.clear()

    def training_step(self, batch, batch_idx):
        self.rates.append(round(self.optimizers().param_groups[0]["lr"], 6))
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return [optimizer], [{"scheduler": schedule, "interval": self.interval, "frequency": self.frequency}]


def test_learning_rate_schedules_count_rounds():
    module = Scheduled()
    make_trainer(FedAvgStrategy(2, seed=0), 3).fit(module, make_data())
    assert module.rates == [0.05] * 6 + [0.025] * 6 + [0.0125] * 6


def test_a_step_schedule_moves_with_each_clients_iterations():
    """Every second of four iterations of a turn, alike for both clients, and on in the next round."""
    module = Scheduled()
    module.interval, module.frequency = "step", 2
    trainer = make_trainer(FedAvgStrategy(4, seed=0), 2)
    trainer.fit(module, make_data((8, 8)))
    assert module.rates == [0.05, 0.05, 0.025, 0.025] * 2 + [0.0125, 0.0125, 0.00625, 0.00625] * 2
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.05 / 16)


class ManuallyScheduled(Manual):
    """Steps its schedule after every iteration, as a warm-up does."""

    rates: ClassVar[list] = []

    def __init__(self):
        super().__init__("SGD")
        self.rates.clear()

    def training_step(self, batch, batch_idx):
        self.rates.append(self.optimizers().param_groups[0]["lr"])
        super().training_step(batch, batch_idx)
        self.lr_schedulers().step()

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


def test_a_schedule_stepped_by_the_module_counts_one_clients_iterations():
    module = ManuallyScheduled()
    make_trainer(FedAvgStrategy(2, seed=0), 2).fit(module, make_data())
    assert module.rates == pytest.approx([0.05, 0.025] * 3 + [0.0125, 0.00625] * 3)


class StopIn(L.Callback):
    """Stops training after the second turn of a round, as a timer might."""

    def __init__(self, round):
        self.round = round

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if (trainer.current_epoch, batch_idx) == (self.round, 1):
            trainer.should_stop = True


@pytest.mark.filterwarnings("ignore:a round was cut short")
def test_a_round_cut_short_is_dropped():
    torch.manual_seed(3)
    module = Automatic()
    reference = copy.deepcopy(module)
    trainer = make_trainer(FedAvgStrategy(4, seed=0), 5, callbacks=[StopIn(2)])
    trainer.fit(module, make_data())
    make_trainer(FedAvgStrategy(4, seed=0), 2).fit(reference, make_data())
    assert same(weights(module), weights(reference))
    assert trainer.global_step == 8


@pytest.mark.parametrize(("max_steps", "rounds"), [(8, 2), (9, 3), (12, 3)])
def test_max_steps_counts_one_clients_steps_and_whole_rounds(max_steps, rounds):
    """Four iterations a turn: the round in which the count is reached is the last."""
    trainer = make_trainer(FedAvgStrategy(4, seed=0), 9, max_steps=max_steps)
    trainer.fit(Automatic(), make_data())
    assert trainer.current_epoch == rounds
    assert trainer.global_step == 4 * rounds


def test_an_interrupt_in_a_turn_restores_the_servers_model_and_keeps_the_last_checkpoint(tmp_path):
    class Interrupted(Automatic):
        def training_step(self, batch, batch_idx):
            if batch_idx == 2 and self.current_epoch == 1:
                raise KeyboardInterrupt
            return super().training_step(batch, batch_idx)

    torch.manual_seed(3)
    module = Interrupted()
    checkpoint = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1, save_on_exception=True)
    trainer = make_trainer(FedAvgStrategy(4, seed=0), 3, callbacks=[checkpoint], enable_checkpointing=True)
    with pytest.raises(SystemExit):
        trainer.fit(module, make_data())
    saved = torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)
    assert same(weights(module), saved["state_dict"])
    assert [path.name for path in tmp_path.glob("*")] == ["epoch=0.ckpt"]


@pytest.mark.parametrize("save_last", [True, False])
def test_a_round_cut_short_costs_no_checkpoint_of_a_whole_one(tmp_path, save_last):
    """ModelCheckpoint removes the checkpoint before the one it believes to have written."""
    checkpoint = ModelCheckpoint(tmp_path, filename="{epoch}", save_last=save_last)
    trainer = make_trainer(FedAvgStrategy(4, seed=0), 3, callbacks=[StopIn(2), checkpoint], enable_checkpointing=True)
    with pytest.warns(UserWarning, match="short"):
        trainer.fit(Automatic(), make_data())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["epoch=1.ckpt", *(["last.ckpt"] if save_last else [])]
    assert checkpoint.best_model_path == str(tmp_path / "epoch=1.ckpt")


def test_a_checkpoint_asked_for_within_a_round_is_not_written_and_says_so(tmp_path):
    class Saving(Automatic):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.trainer.save_checkpoint(tmp_path / "within.ckpt")

    with pytest.warns(UserWarning, match="checkpoints"):
        make_trainer(FedAvgStrategy(2, seed=0), 1).fit(Saving(), make_data())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"val_check_interval": 0.5}, "val_check_interval=0.5"),
        ({"callbacks": [StochasticWeightAveraging(0.1)]}, "StochasticWeightAveraging would average clients' models"),
        ({"callbacks": [EMAWeightAveraging()]}, "EMAWeightAveraging would average clients' models"),
        ({"callbacks": [EMAWeightAveraging(update_every_n_steps=7, update_starting_at_step=50)]}, "would average"),
        ({"callbacks": [ModelCheckpoint(every_n_train_steps=5)], "enable_checkpointing": True}, "every_n_train_steps"),
    ],
)
def test_trainer_settings_that_would_cut_rounds_are_refused(options, word, tmp_path):
    with pytest.raises(MisconfigurationException, match=word):
        make_trainer(FedAvgStrategy(2), 1, default_root_dir=tmp_path, **options).fit(Automatic(), make_data())


def test_batches_that_are_no_turns_are_refused():
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 3), torch.zeros(8)))
    with pytest.raises(MisconfigurationException, match="FederatedDataModule"):
        make_trainer(FedAvgStrategy(2), 1).fit(Automatic(), loader)


def test_gradient_clipping_applies_to_every_local_step():
    norms = []

    class Clipped(Automatic):
        def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
            super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)
            norms.append(torch.cat([p.grad.flatten() for p in self.parameters()]).norm().item())

    trainer = make_trainer(FedAvgStrategy(3, seed=0), 1, gradient_clip_val=0.01)
    trainer.fit(Clipped("SGD"), make_data())
    assert len(norms) == 9
    assert max(norms) <= 0.01 + 1e-6


def test_an_overridden_optimizer_step_is_called_at_every_local_iteration_and_changes_nothing_by_itself():
    class Hooked(Automatic):
        calls: ClassVar[list] = []

        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            self.calls.append(batch_idx)
            super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    torch.manual_seed(3)
    plain = Automatic()
    hooked = Hooked()
    hooked.load_state_dict(plain.state_dict())
    for module in (plain, hooked):
        make_trainer(FedAvgStrategy(3, seed=0), 2).fit(module, make_data())
    assert same(weights(plain), weights(hooked))
    assert len(hooked.calls) == 2 * 3 * 3


def test_an_optimizer_step_hook_may_leave_steps_out():
    """It steps in the second and fourth of four iterations alone."""

    class Skipping(Automatic):
        taken: ClassVar[list] = []

        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            if batch_idx % 2:
                optimizer.step(closure=optimizer_closure)
                self.taken.append(batch_idx)
            else:
                optimizer_closure()

    module = Skipping()
    before = weights(module)
    make_trainer(FedAvgStrategy(4, seed=0), 1).fit(module, make_data())
    assert module.taken == [1, 3] * 3
    assert not same(before, weights(module))


def test_a_weight_average_updated_at_epoch_ends_averages_the_servers_models():
    """Decay 0.5 over the models of rounds 1 and 2 (the first update copies): (a + b) / 2."""
    spy, module = Spy(), Automatic()
    average = EMAWeightAveraging(decay=0.5, update_every_n_steps=0, update_starting_at_epoch=0)
    make_trainer(FedAvgStrategy(2, seed=0), 2, callbacks=[spy, average]).fit(module, make_data())
    name = "net.0.weight"
    torch.testing.assert_close(module.state_dict()[name], (spy.models[0][name] + spy.models[1][name]) / 2)


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_train_batch_end"])
def test_values_logged_around_batches_are_weighted_as_the_clients_are(hook):
    """Each client's mean over its two iterations, 0 and 1, is a half."""

    class Logging(Automatic):
        pass

    setattr(Logging, hook, lambda self, *args: self.log("turn", float(args[-1]), on_epoch=True))
    trainer = make_trainer(FedAvgStrategy(2, seed=0), 1)
    trainer.fit(Logging(), make_data((12, 20, 2)))
    assert float(trainer.callback_metrics["turn_epoch"]) == pytest.approx(0.5)


class Proximal(ClientAlgorithm):
    """FedProx (Li et al. 2020, Eq. 2), as a user would plug it in."""

    def __init__(self, mu):
        self.mu, self.turns = mu, []

    def start_turn(self, client, model, server):
        self.pairs = [(model[name], server[name]) for name in model if model[name].requires_grad]

    def before_step(self, optimizer):
        for parameter, anchor in self.pairs:
            parameter.grad.add_(parameter.detach() - anchor, alpha=self.mu)

    def end_turn(self, client, model, iterations):
        self.turns.append((client, iterations))


@pytest.mark.parametrize("kind", [Automatic, Manual])
def test_a_client_algorithm_hooks_before_each_local_step(kind):
    """A strong proximal term keeps clients near the server's model."""
    moved = {}
    for mu in (0.0, 10.0):
        torch.manual_seed(3)
        module, algorithm = kind("SGD"), Proximal(mu)
        start = weights(module)
        make_trainer(FedAvgStrategy(5, client_algorithm=algorithm, seed=0), 1).fit(module, make_data())
        moved[mu] = float((module.net[0].weight.detach() - start["net.0.weight"]).norm())
        assert algorithm.turns == [(0, 5), (1, 5), (2, 5)]
    assert moved[10.0] < 0.8 * moved[0.0]


def test_other_strategies_train_on_the_pooled_shuffled_data():
    class Counted(Automatic):
        sizes: ClassVar[list] = []

        def training_step(self, batch, batch_idx):
            self.sizes.append(len(batch[0]))
            return super().training_step(batch, batch_idx)

    module = Counted()
    make_trainer("auto", 2).fit(module, make_data())
    assert module.sizes == [4] * 20
    module.sizes.clear()
    make_trainer("auto", 2).fit(module, make_data(iterations=3))
    assert module.sizes == [4] * 6


def test_loggers_record_rounds(tmp_path):
    trainer = make_trainer(FedAvgStrategy(2, seed=0), 2, logger=CSVLogger(tmp_path))
    trainer.fit(Validated(), make_data(held_out=0.25))
    rows = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text()
    assert "loss_epoch" in rows
    assert "val_loss" in rows


def test_two_optimizers_log_and_train_under_bf16():
    module = TwoOptimizers()
    make_trainer(FedAvgStrategy(2, seed=0), 1, precision="bf16-mixed").fit(module, make_data())
    assert all(bool(torch.isfinite(p).all()) for p in module.parameters())


def test_fitting_on_with_the_same_trainer_equals_fitting_at_once():
    torch.manual_seed(3)
    module = Automatic()
    at_once = copy.deepcopy(module)
    trainer = make_trainer(FedAvgStrategy(2, seed=0), 2)
    trainer.fit(module, make_data())
    trainer.fit_loop.max_epochs = 4
    trainer.fit(module, make_data())
    make_trainer(FedAvgStrategy(2, seed=0), 4).fit(at_once, make_data())
    assert same(weights(module), weights(at_once))


def test_fitting_on_keeps_the_clients_own_models():
    """Local training of 2 and 2 more rounds is training of 4; another module has other clients."""
    options = {"personal": ["*"], "seed": 0}
    torch.manual_seed(3)
    module = Manual("SGD")
    at_once, other = copy.deepcopy(module), copy.deepcopy(module)
    trainer, reference = (make_trainer(FedAvgStrategy(2, **options), rounds) for rounds in (2, 4))
    reference.fit(at_once, make_data())
    trainer.fit(module, make_data())
    trainer.fit_loop.max_epochs = 4
    trainer.fit(module, make_data())
    with trainer.strategy.client_model(1), reference.strategy.client_model(1):
        assert same(weights(module), weights(at_once))
        own = weights(module)
    trainer.fit_loop.max_epochs = 5
    trainer.fit(other, make_data())
    with trainer.strategy.client_model(1):
        assert not same(weights(other), own)
        assert trainer.strategy.left_out == []
