"""Lightning's words within a turn: steps, batches, accumulation, schedules and logged values as for one client."""

import copy
from typing import ClassVar

import lightning as L
import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

from fedgen.federated import FedAvgStrategy
from fedgen.federated.trainer_patches import TurnClock, patch_trainer, unpatch_trainer
from fedgen.seeds import seed_all
from tests.federated.modules import Automatic, Manual, Quadratic, make_data, make_quadratics, make_trainer, weights
from tests.federated.test_strategy import make_turn

# ---- the clock itself ----


def make_clock(interval=5, rounds=3, **options):
    return TurnClock(make_trainer(FedAvgStrategy(interval), rounds, **options), interval)


def take(clock, steps):
    clock.set_steps(clock.steps + steps)


def test_every_turn_starts_with_the_servers_count_and_the_round_ends_with_the_largest():
    clock = make_clock()
    clock.set_steps(10)
    clock.start_round()
    for steps, completed in ((3, True), (9, False), (5, True)):
        clock.start_turn()
        assert clock.steps == 10
        take(clock, steps)
        clock.end_turn(completed)
    assert clock.steps == 10
    assert clock.turn_steps == 5
    clock.end_round()
    assert (clock.steps, clock.total_steps) == (15, 8)


def test_a_dropped_round_counts_nothing():
    clock = make_clock()
    clock.start_round()
    take(clock, 4)
    clock.end_turn(True)
    clock.end_round(dropped=True)
    assert (clock.steps, clock.total_steps) == (0, 0)


def test_ranks_tell_each_other_the_largest_count_and_the_sum():
    clocks = [make_clock(), make_clock()]
    for clock, turns in zip(clocks, ([3, 4], [6])):
        clock.start_round()
        for steps in turns:
            clock.start_turn()
            take(clock, steps)
            clock.end_turn(True)
    told = [clock.local_summary() for clock in clocks]
    for clock in clocks:
        clock.merge_summaries(told)
        clock.end_round()
        assert (clock.steps, clock.total_steps) == (6, 13)


def test_of_counts_told_by_others_the_median_is_the_rounds_and_bounds_the_sum():
    clock = make_clock()
    clock.start_round()
    clock.take_steps([4, 10**9, 3])
    clock.end_round()
    assert (clock.steps, clock.total_steps) == (4, 4 + 4 + 3)
    clock.start_round()
    clock.take_steps([])
    clock.end_round()
    assert (clock.steps, clock.total_steps) == (4, 11)


def test_accumulation_ends_with_its_number_or_with_the_turn():
    """Five iterations by twos: steps after the second, fourth and fifth."""
    clock = make_clock(accumulate_grad_batches=2)
    clock.start_round()
    assert clock.trainer.accumulate_grad_batches == 1  # a turn is one batch there
    found = []
    for clock.iteration in range(5):
        found.append((clock.accumulates, clock.is_last_iteration))
    accumulates, last = zip(*found)
    assert accumulates == (True, False, True, False, False)
    assert last == (False, False, False, False, True)
    with clock.within():
        assert clock.trainer.accumulate_grad_batches == 2
    clock.end_round()
    assert clock.trainer.accumulate_grad_batches == 2


def test_a_trainers_words_are_a_turns_within_it_and_its_class_is_given_back():
    clock = make_clock(interval=5, rounds=3)
    trainer = clock.trainer
    patch_trainer(trainer, clock)
    assert isinstance(trainer, Trainer)
    assert type(trainer).__name__ == "Trainer"
    before = trainer.num_training_batches
    with clock.within():
        clock.iteration = 3
        assert (trainer.num_training_batches, trainer.is_last_batch) == (5, False)
        clock.iteration = 4
        assert trainer.is_last_batch
    assert trainer.num_training_batches == before
    unpatch_trainer(trainer)
    assert type(trainer) is Trainer
    assert not hasattr(trainer, "turn_clock")


@pytest.mark.parametrize(
    ("interval", "rounds", "options", "expected"),
    [
        (5, 3, {}, 15),
        (5, 3, {"accumulate_grad_batches": 2}, 9),  # three steps a turn
        (5, 3, {"max_steps": 7}, 7),
        (5, 3, {"max_steps": 99}, 15),
        (5, -1, {"max_steps": 7}, 7),
        (5, -1, {}, float("inf")),
    ],
)
def test_estimated_stepping_batches_are_one_clients_over_all_rounds(interval, rounds, options, expected):
    clock = make_clock(interval, rounds, **options)
    patch_trainer(clock.trainer, clock)
    assert clock.trainer.estimated_stepping_batches == expected
    clock.start_round()
    assert clock.trainer.estimated_stepping_batches == expected


def test_checkpoints_hold_the_total():
    clock, again = make_clock(), make_clock()
    clock.total_steps = 12
    again.load_state_dict(clock.state_dict())
    assert again.total_steps == 12


# ---- in a run ----


class Telling(Automatic):
    """Notes what the trainer says at each iteration."""

    said: ClassVar[list] = []

    def training_step(self, batch, batch_idx):
        trainer = self.trainer
        self.said.append((batch_idx, trainer.global_step, trainer.is_last_batch, trainer.num_training_batches))
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self):
        self.said.append(self.trainer.estimated_stepping_batches)
        return super().configure_optimizers()


def test_a_step_is_told_of_its_clients_own_batches_and_steps():
    Telling.said.clear()
    trainer = make_trainer(FedAvgStrategy(3, seed=0), 2)
    trainer.fit(Telling(), make_data((8, 8)))
    turn = [(0, False), (1, False), (2, True)]
    rounds = [(i, start + i, last, 3) for start in (0, 0, 3, 3) for i, last in turn]
    assert Telling.said == [6, *rounds]
    assert type(trainer) is Trainer


def plain_accumulation(module, data, rounds, interval, numbers):
    """FedAvg of one client whose optimizer steps at every `numbers[round]`-th iteration, and at a turn's last."""
    server, steps = copy.deepcopy(module), 0
    for round in range(rounds):
        seed_all(0, "turn", round, 0)
        (optimizer,), number = [server.configure_optimizers()], numbers[round]
        for i, batch in enumerate(make_turn(data, 0, round).batches(interval)):
            if i % number == 0:
                optimizer.zero_grad()
            (nn.functional.cross_entropy(server.net(batch[0]), batch[1]) / number).backward()
            if (i + 1) % number == 0 or i + 1 == interval:
                optimizer.step()
                steps += 1
    return server, steps


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize(
    ("options", "numbers"),
    [({"accumulate_grad_batches": 2}, [2, 2, 2]), ({"schedule": {0: 1, 1: 3, 2: 2}}, [1, 3, 2])],
)
def test_accumulated_gradients_equal_a_plain_loop(options, numbers, optimizer):
    """One client, so that the average is its model; five iterations by twos are steps of 2, 2 and 1."""
    torch.manual_seed(3)
    module, data = Automatic(optimizer), make_data((8,))
    expected, steps = plain_accumulation(module, data, 3, 5, numbers)
    options = dict(options)
    if schedule := options.pop("schedule", None):
        options["callbacks"] = [GradientAccumulationScheduler(schedule)]
    trainer = make_trainer(FedAvgStrategy(5, seed=0), 3, **options)
    trainer.fit(module, data)
    for name, value in weights(expected).items():
        torch.testing.assert_close(weights(module)[name], value, rtol=1e-6, atol=1e-7)
    assert trainer.global_step == steps
    assert trainer.accumulate_grad_batches == numbers[-1]


class Scheduled(Automatic):
    """Notes its learning rate at each iteration; the rate halves at every `frequency`-th."""

    rates: ClassVar[list] = []

    def __init__(self, frequency, interval="step"):
        super().__init__("SGD")
        self.frequency, self.interval = frequency, interval
        self.rates.clear()

    def training_step(self, batch, batch_idx):
        self.rates.append(self.optimizers().param_groups[0]["lr"] / 0.05)
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return [optimizer], [{"scheduler": schedule, "interval": self.interval, "frequency": self.frequency}]


@pytest.mark.parametrize(
    ("frequency", "expected"),
    [
        (1, [1, 1 / 2, 1 / 4, 1 / 8] * 2 + [1 / 16, 1 / 32, 1 / 64, 1 / 128] * 2),
        (2, [1, 1, 1 / 2, 1 / 2] * 2 + [1 / 4, 1 / 4, 1 / 8, 1 / 8] * 2),
        (3, [1, 1, 1, 1 / 2] * 2 + [1 / 2, 1 / 2, 1 / 2, 1 / 4] * 2),  # as in Lightning's epochs, of its batches
        (5, [1] * 16),
    ],
)
def test_step_schedules_move_with_iterations_at_their_frequency(frequency, expected):
    module = Scheduled(frequency)
    trainer = make_trainer(FedAvgStrategy(4, seed=0), 2)
    trainer.fit(module, make_data((8, 8)))
    assert module.rates == pytest.approx(expected)
    assert trainer.strategy.lr_scheduler_configs[0].frequency == frequency  # as it was


def test_epoch_schedules_move_with_rounds_at_their_frequency():
    module = Scheduled(2, "epoch")
    make_trainer(FedAvgStrategy(1, seed=0), 4).fit(module, make_data((8, 8)))
    assert module.rates == pytest.approx([1] * 4 + [1 / 2] * 4)


def test_a_schedule_by_steps_that_follows_a_value_is_refused():
    class Following(Automatic):
        def configure_optimizers(self):
            optimizer = super().configure_optimizers()
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
            return [optimizer], [{"scheduler": schedule, "interval": "step", "monitor": "loss"}]

    said = r"ReduceLROnPlateau with interval='step' .*'epoch', which counts rounds"
    with pytest.raises(MisconfigurationException, match=said):
        make_trainer(FedAvgStrategy(2), 1).fit(Following(), make_data())


# ---- hooks around batches ----


class Hooked(Automatic):
    """Notes its hooks' calls; ends the turn of a client before its third iteration, if told to."""

    calls: ClassVar[list] = []
    ends = False

    def on_train_batch_start(self, batch, batch_idx):
        self.calls.append(("start", batch_idx, len(batch[0])))
        return -1 if self.ends and batch_idx == 2 else None

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.calls.append(("end", batch_idx, sorted(outputs)))


class ManualHooked(Hooked, Manual):
    """The same, stepping by hand."""


@pytest.mark.parametrize("kind", [Hooked, ManualHooked])
def test_a_modules_hooks_run_at_every_iteration_with_the_real_batch(kind):
    Hooked.calls.clear()
    module = kind()
    trainer = make_trainer(FedAvgStrategy(2, seed=0), 1)
    trainer.fit(module, make_data((8, 3)))
    outputs = ["loss"] if kind is Hooked else []
    sizes = [4, 4, 3, 3]
    expected = [call for i, size in enumerate(sizes) for call in (("start", i % 2, size), ("end", i % 2, outputs))]
    assert module.calls == expected
    assert "on_train_batch_start" not in vars(module)  # Lightning finds the hooks again
    assert "on_train_batch_end" not in vars(module)


def test_a_hook_may_end_a_turn():
    Hooked.calls.clear()
    module = Hooked()
    module.ends = True
    trainer = make_trainer(FedAvgStrategy(4, seed=0), 1)
    trainer.fit(module, make_data((8, 8)))
    assert [call[1] for call in module.calls if call[0] == "end"] == [0, 1] * 2
    assert trainer.global_step == 2


class Watching(L.Callback):
    """Notes the batches of its hooks."""

    def __init__(self):
        self.calls = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.calls.append(("start", batch_idx, batch[0].clone()))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.calls.append(("end", batch_idx, batch[0].clone()))


def test_callbacks_hooks_run_once_a_turn_with_its_first_and_last_batch():
    watching, data = Watching(), make_data((8, 8))
    torch.manual_seed(3)
    module, alone = Automatic(), Automatic()
    alone.load_state_dict(module.state_dict())
    make_trainer(FedAvgStrategy(3, seed=0), 1, callbacks=[watching]).fit(module, data)
    expected = []
    for client in (0, 1):
        batches = list(make_turn(data, client, 0).batches(3))
        expected += [("start", client, batches[0][0]), ("end", client, batches[-1][0])]
    assert [call[:2] for call in watching.calls] == [call[:2] for call in expected]
    assert all(torch.equal(a[2], b[2]) for a, b in zip(watching.calls, expected))
    make_trainer(FedAvgStrategy(3, seed=0), 1).fit(alone, data)  # who looks changes nothing
    assert all(torch.equal(a, b) for a, b in zip(weights(module).values(), weights(alone).values()))
    assert "on_train_batch_start" not in vars(watching)


# ---- logged values ----


class Logging(Quadratic):
    """Logs each iteration's number plus ten times its client's, in several ways."""

    fails: ClassVar[tuple] = ()

    def on_turn_start(self, turn):
        self.client = turn.client

    def training_step(self, batch, batch_idx):
        value = 10.0 * self.client + batch_idx
        self.log("mean", value, on_step=True, on_epoch=True)
        for kind in ("sum", "max", "min"):
            self.log(kind, value, on_epoch=True, on_step=False, reduce_fx=kind)
        if self.client in self.fails and batch_idx == 1:
            raise RuntimeError("no such luck")
        return super().training_step(batch, batch_idx)


def logged(fails=(), **options):
    """The values of a round of two iterations of clients of 2, 6 and 8 examples."""
    module = type("Logging", (Logging,), {"fails": fails})()
    trainer = make_trainer(FedAvgStrategy(2, seed=0, **options), 1)
    trainer.fit(module, make_quadratics([(1.0, 0.0)] * 3, (2, 6, 8)))
    names = ("mean_epoch", "sum", "max", "min")
    return [float(trainer.callback_metrics[name]) for name in names]


@pytest.mark.parametrize(("kind", "mean"), [("examples", (2 * 0.5 + 6 * 10.5 + 8 * 20.5) / 16), ("uniform", 10.5)])
def test_means_are_weighted_as_clients_are(kind, mean):
    assert logged(client_weights=kind) == pytest.approx([mean, 0 + 1 + 10 + 11 + 20 + 21, 21, 0])


@pytest.mark.filterwarnings("ignore:client .* is left out")
@pytest.mark.parametrize(
    ("fails", "expected"),
    [
        ((1,), [(2 * 0.5 + 8 * 20.5) / 10, 0 + 1 + 20 + 21, 21, 0]),
        ((2,), [(2 * 0.5 + 6 * 10.5) / 8, 0 + 1 + 10 + 11, 11, 0]),
        ((0,), [(6 * 10.5 + 8 * 20.5) / 14, 10 + 11 + 20 + 21, 21, 10]),
    ],
)
def test_what_a_turn_that_is_left_out_has_logged_is_dropped(fails, expected):
    assert logged(fails) == pytest.approx(expected)


# ---- what the round before has logged ----


class Reads(Automatic):
    """Logs its client's number in turns and validation, and notes what a turn sees of what was logged before."""

    own_turn_state = ("seen",)

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_turn_start(self, turn):
        self.client = float(turn.client)

    def training_step(self, batch, batch_idx):
        known = self.trainer.callback_metrics
        self.seen.append({name: round(float(value), 5) for name, value in known.items() if name != "total_steps"})
        known["changed"] = torch.ones(())
        self.log("client", self.client, on_step=False, on_epoch=True)
        self.log("both", self.client, on_step=True, on_epoch=True)
        self.log("step", self.client, on_step=True, on_epoch=False)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.log("val", float(self.trainer.current_epoch))

    def on_train_epoch_end(self):
        self.whole = dict(self.trainer.callback_metrics)
        self.log("end", 7.0)


def test_a_turn_sees_what_the_last_whole_round_logged():
    module = Reads()
    trainer = make_trainer(FedAvgStrategy(2, seed=0), 3)
    trainer.fit(module, make_data((12, 20, 8), held_out=0.25))
    mean = (9 * 0 + 15 * 1 + 6 * 2) / 30
    assert module.seen[:6] == [{}] * 6
    assert module.seen[6:12] == [{"client": 0.9, "both": 0.9, "both_epoch": 0.9, "val": 0.0, "end": 7.0}] * 6
    assert module.seen[12:] == [module.seen[6] | {"val": 1.0}] * 6
    assert mean == 0.9
    assert float(module.whole["step"]) == 2.0
    assert "changed" not in trainer.callback_metrics
