"""Learning-rate schedules over rounds: the published forms by hand, and how they act on clients and server."""

import math
from typing import Any, ClassVar

import pytest
import torch
import yaml
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger

from fedgen.federated import (
    Constant,
    Cooldown,
    ExponentialDecay,
    FedAdam,
    FedAvgStrategy,
    InverseLinear,
    InverseSquareRoot,
    Schedule,
    WarmUp,
)
from fedgen.federated.schedules import factor_in, scaled_rates
from fedgen.federated.server_model import ServerUpdate
from tests.federated.modules import (
    Automatic,
    Manual,
    TwoOptimizers,
    make_data,
    make_trainer,
    same,
    strategy_of,
    weights,
)
from tests.federated.test_lightning import Scheduled
from tests.federated.test_resume import straight_and_resumed
from tests.federated.test_server_steps import Served


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Constant(), {0: 1.0, 7: 1.0}),
        (ExponentialDecay(0.25, rounds=10), {0: 1.0, 5: 0.5, 10: 0.25, 20: 0.0625}),
        (ExponentialDecay(0.2, rounds=600, staircase=True), {0: 1.0, 599: 1.0, 600: 0.2, 1199: 0.2, 1200: 0.04}),
        (InverseLinear(1.0, rounds=10), {0: 1.0, 5: 1 / 1.5, 10: 0.5, 30: 0.25}),
        (InverseLinear(2.0, rounds=10, staircase=True), {9: 1.0, 10: 1 / 3, 19: 1 / 3, 20: 0.2}),
        (InverseSquareRoot(3.0, rounds=10), {0: 1.0, 10: 0.5, 50: 0.25, 5: 1 / math.sqrt(2.5)}),
        (InverseSquareRoot(3.0, rounds=10, staircase=True), {9: 1.0, 10: 0.5, 19: 0.5}),
        (Cooldown(start=10, rounds=4), {0: 1.0, 10: 1.0, 11: 0.75, 12: 0.5, 13: 0.25, 14: 0.0, 99: 0.0}),
        (Cooldown(start=0, rounds=2), {0: 1.0, 1: 0.5, 2: 0.0}),
        (WarmUp(4), {0: 0.25, 1: 0.5, 2: 0.75, 3: 1.0, 4: 1.0, 99: 1.0}),
        (WarmUp(2, ExponentialDecay(0.5, rounds=1)), {0: 0.5, 1: 1.0, 2: 1.0, 3: 0.5, 4: 0.25}),
        (WarmUp(2, InverseLinear(1.0, rounds=1)), {1: 1.0, 2: 1.0, 3: 0.5, 5: 0.25}),
        (WarmUp(2, InverseSquareRoot(3.0, rounds=1)), {1: 1.0, 2: 1.0, 3: 0.5}),
        (WarmUp(0, ExponentialDecay(0.5, rounds=1)), {0: 1.0, 1: 0.5}),
    ],
)
def test_factors_by_hand(schedule, expected):
    assert {t: schedule.factor(t) for t in expected} == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: ExponentialDecay(1.5, rounds=10), r"rate=1.5: the rate would grow"),
        (lambda: ExponentialDecay(0.0, rounds=10), "rate=0.0"),
        (lambda: InverseLinear(-1.0, rounds=10), "rate=-1.0"),
        (lambda: InverseSquareRoot(math.inf, rounds=10), "rate=inf"),
        (lambda: InverseSquareRoot(1.0, rounds=0), "rounds=0: a period"),
        (lambda: WarmUp(-1), "rounds=-1: a warm-up"),
        (lambda: Cooldown(start=-1, rounds=5), "start=-1: a cooldown"),
        (lambda: Cooldown(start=5, rounds=0), "rounds=0: a cooldown"),
    ],
)
def test_settings_out_of_range_are_named(make, word):
    with pytest.raises(ValueError, match=word):
        make()


class Broken(Schedule):
    def __init__(self, value):
        self.value = value

    def factor(self, round):
        return self.value


@pytest.mark.parametrize("value", [-0.5, math.nan, math.inf])
def test_a_factor_that_is_no_factor_is_an_error(value):
    with pytest.raises(ValueError, match=rf"Broken.factor\(3\) is {value}"):
        factor_in(Broken(value), 3)


def test_rates_are_the_same_to_the_bit_after_a_step():
    groups: list[dict[str, Any]] = [{"params": [torch.zeros(1)], "lr": 0.1}, {"params": [torch.ones(1)]}]
    optimizer = torch.optim.SGD(groups, lr=0.3)
    with scaled_rates(optimizer, 1 / 3):
        assert [group["lr"] for group in optimizer.param_groups] == [0.1 * (1 / 3), 0.3 * (1 / 3)]
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.3]


def test_a_rate_in_a_tensor_stays_the_same_tensor():
    """Schedulers fill such rates in place."""
    rate = torch.tensor(0.5)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=rate)
    with scaled_rates(optimizer, 0.5):
        assert optimizer.param_groups[0]["lr"].item() == 0.25
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.5


def test_a_rate_set_within_a_step_is_left_as_set():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.5)
    with scaled_rates(optimizer, 0.5):
        optimizer.param_groups[0]["lr"] = 0.125
    assert optimizer.param_groups[0]["lr"] == 0.125


class Rateless(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None):
        return closure() if closure else None


def test_an_optimizer_without_a_learning_rate_is_refused_before_training():
    class Module(Automatic):
        def configure_optimizers(self):
            return Rateless(self.parameters())

    word = "Rateless has no learning rate `lr`, which WarmUp could multiply"
    with pytest.raises(ValueError, match=word):
        make_trainer(FedAvgStrategy(2, client_schedule=WarmUp(2)), 1).fit(Module(), make_data())
    strategy = FedAvgStrategy(2, server_optimizer=Rateless, server_schedule=WarmUp(2))
    with pytest.raises(ValueError, match=word):
        make_trainer(strategy, 1).fit(Automatic(), make_data())


class Recording:
    """Records the learning rates with which optimizers step."""

    used: ClassVar[list] = []

    def on_before_optimizer_step(self, optimizer):
        self.used.append(optimizer.param_groups[0]["lr"])


def recording(kind):
    return type(f"Recording{kind.__name__}", (Recording, kind), {"used": []})


@pytest.mark.parametrize("kind", [Automatic, Manual])
def test_clients_step_at_their_rate_times_the_rounds_factor(kind):
    """Three clients, two iterations a turn, rounds 0 to 2."""
    module = recording(kind)("SGD")
    trainer = make_trainer(FedAvgStrategy(2, seed=0, client_schedule=ExponentialDecay(0.5, rounds=1)), 3)
    trainer.fit(module, make_data())
    assert module.used == [0.05] * 6 + [0.025] * 6 + [0.0125] * 6
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.05


def test_every_optimizer_of_a_client_follows_the_schedule():
    """Rates 0.02 and 0.1; the second steps at the first of three iterations."""
    module = recording(TwoOptimizers)()
    strategy = FedAvgStrategy(3, seed=0, client_schedule=WarmUp(2))
    make_trainer(strategy, 2).fit(module, make_data((8,)))
    assert module.used == [0.01, 0.05, 0.01, 0.01, 0.02, 0.1, 0.02, 0.02]


def test_the_modules_own_schedules_go_on_beside():
    """0.05, halved every round by the module, and warmed up over two rounds."""
    module = recording(Scheduled)()
    make_trainer(FedAvgStrategy(1, seed=0, client_schedule=WarmUp(2)), 3).fit(module, make_data((8, 8)))
    assert module.used == pytest.approx([0.025] * 2 + [0.025] * 2 + [0.0125] * 2)
    assert module.rates == pytest.approx([0.025] * 2 + [0.025] * 2 + [0.0125] * 2)  # in the step's closure


def test_a_clients_schedule_equals_the_same_one_in_configure_optimizers():
    torch.manual_seed(3)
    ours, theirs = Automatic("SGD"), Scheduled()
    theirs.load_state_dict(ours.state_dict())
    make_trainer(FedAvgStrategy(3, seed=0, client_schedule=ExponentialDecay(0.5, 1)), 3).fit(ours, make_data())
    make_trainer(FedAvgStrategy(3, seed=0), 3).fit(theirs, make_data())
    assert same(weights(ours), weights(theirs))


def test_the_servers_own_steps_do_not_follow_the_clients_schedule():
    ends = []
    for schedule in (None, Constant(), ExponentialDecay(0.1, rounds=1)):
        torch.manual_seed(0)
        module = Served()
        make_trainer(FedAvgStrategy(3, seed=5, client_schedule=schedule), 2).fit(module, make_data())
        ends.append(module)
    assert torch.equal(ends[0].b.weight, ends[2].b.weight)
    assert torch.equal(ends[0].a.weight, ends[1].a.weight)
    assert not torch.equal(ends[0].a.weight, ends[2].a.weight)


COMBINED = (torch.tensor([3.0, 1.0]), torch.tensor([20.0]))


def make_server():
    return {"w": torch.tensor([1.0, 2.0]), "running_mean": torch.tensor([10.0])}


@pytest.mark.parametrize("optimizer", [None, lambda p: torch.optim.SGD(p, lr=1.0)])
def test_a_quarter_of_the_rate_is_a_quarter_of_the_way_with_or_without_an_optimizer(optimizer):
    server = make_server()
    ServerUpdate(server, {"w"}, optimizer).apply(list(server), COMBINED, 0.25)
    assert server["w"].tolist() == [1.5, 1.75]
    assert server["running_mean"].tolist() == [20]  # buffers are replaced, whatever the rate


def test_the_servers_optimizer_keeps_its_rate():
    """FedAdam's first keras step is lr sqrt(0.001) / 0.1 * 0.1 g / (sqrt(0.001) |g| + eps), so it halves with lr."""
    moves = []
    for factor in (1.0, 0.5):
        server = make_server()
        update = ServerUpdate(server, {"w"}, lambda p: FedAdam(p, lr=0.1))
        update.apply(list(server), COMBINED, factor)
        assert update.optimizer is not None
        assert update.optimizer.param_groups[0]["lr"] == 0.1
        moves.append(server["w"] - make_server()["w"])
    torch.testing.assert_close(moves[1], moves[0] / 2)


def test_an_average_finer_than_half_precision_is_not_rounded_before_the_way_to_it():
    """1 + 2^-9 rounds to 1 in bfloat16; 64 times the way from 1 to it is 1 + 2^-3 all the same."""
    server = {"w": torch.ones(1, dtype=torch.bfloat16)}
    ServerUpdate(server, {"w"}, None).apply(["w"], [torch.tensor([1 + 2**-9])], 64.0)
    assert server["w"].item() == 1.125


def test_the_server_warms_up_without_an_optimizer():
    """Round 0 goes half of the way to the average that plain FedAvg takes, round 1 all of it."""
    torch.manual_seed(3)
    start = Automatic("SGD")
    plain, warm = Automatic("SGD"), Automatic("SGD")
    for module, schedule in ((plain, None), (warm, WarmUp(2))):
        module.load_state_dict(start.state_dict())
        make_trainer(FedAvgStrategy(3, seed=0, server_schedule=schedule), 1).fit(module, make_data())
    for name, value in start.named_parameters():
        half = (value + dict(plain.named_parameters())[name]) / 2
        torch.testing.assert_close(dict(warm.named_parameters())[name], half)
    constant = Automatic("SGD")
    constant.load_state_dict(start.state_dict())
    make_trainer(FedAvgStrategy(3, seed=0, server_schedule=Constant()), 1).fit(constant, make_data())
    assert same(weights(constant), weights(plain))


@pytest.mark.slow
@pytest.mark.parametrize("server", [None, lambda p: FedAdam(p, lr=0.1)])
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_resumed_run_goes_on_with_its_schedules_to_the_bit(tmp_path, server):
    options = {
        "server_optimizer": server,
        "client_schedule": WarmUp(3, ExponentialDecay(0.7, rounds=1)),
        "server_schedule": InverseSquareRoot(1.0, rounds=2),
        "optimizer_state": "average",
    }
    (whole, _), (resumed, _) = straight_and_resumed(TwoOptimizers, tmp_path, lambda: options)
    assert same(weights(whole), weights(resumed))


def test_factors_are_logged_and_the_monitor_shows_rates_without_them(tmp_path):
    logger = CSVLogger(tmp_path)
    strategy = FedAvgStrategy(1, seed=0, client_schedule=WarmUp(4), server_schedule=ExponentialDecay(0.5, rounds=1))
    trainer = make_trainer(strategy, 2, logger=logger, callbacks=[LearningRateMonitor("epoch")])
    trainer.fit(Automatic("SGD"), make_data())
    found = {name: float(trainer.callback_metrics[name]) for name in ("client_lr_factor", "server_lr_factor")}
    assert found == {"client_lr_factor": 0.5, "server_lr_factor": 0.5}
    assert float(trainer.callback_metrics["lr-SGD"]) == pytest.approx(0.05)


RECIPE = """
trainer:
  strategy:
    class_path: fedgen.federated.FedAvgStrategy
    init_args:
      client_schedule:
        class_path: fedgen.federated.WarmUp
        init_args:
          rounds: 2
          then: {class_path: fedgen.federated.ExponentialDecay, init_args: {rate: 0.2, rounds: 600, staircase: true}}
      server_schedule: {class_path: fedgen.federated.InverseLinear, init_args: {rate: 1.0, rounds: 100}}
"""


def test_a_recipe_names_schedules_by_class_path():
    strategy = strategy_of(yaml.safe_load(RECIPE)["trainer"])
    assert [strategy.client_schedule.factor(t) for t in (0, 1, 601, 602)] == [0.5, 1.0, 1.0, 0.2]
    assert strategy.server_schedule.factor(100) == 0.5
