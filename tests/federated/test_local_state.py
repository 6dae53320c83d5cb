"""What a client's optimizers, schedulers and scaler start a turn with."""

import copy

import pytest
import torch

from fedgen.federated import FedAvgStrategy
from fedgen.federated.client_state.local_state import LocalState
from tests.federated.modules import Automatic, make_data, make_trainer


class Scaler:
    """As much of a grad scaler as is asked of it."""

    def __init__(self):
        self.scale = 8.0

    def state_dict(self):
        return {"scale": self.scale}

    def load_state_dict(self, state):
        self.scale = state["scale"]


def make(mode, scaler=None, rate=0.1):
    """One parameter under SGD with momentum 0.5, whose buffer after a step with gradient g is 0.5 v + g."""
    w = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=rate, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    return w, LocalState([optimizer], [scheduler], scaler, mode)


def step(w, local, g):
    w.grad = torch.tensor([g])
    local.optimizers[0].step()


def momentum(w, local):
    state = local.optimizers[0].state
    return state[w]["momentum_buffer"].item() if w in state else None


def turn(w, local, client, g, weight=1.0):
    """A turn of one step; returns the momentum it started with."""
    local.start_turn(client)
    before = momentum(w, local)
    step(w, local, g)
    local.end_turn(client, weight)
    return before


def play_round(w, local, turns):
    local.start_round()
    found = [turn(w, local, *each) for each in turns]
    local.end_round()
    return found


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
def test_a_turn_that_moves_the_settings_says_so(rate):
    """Of optimizers and schedulers; the scaler's are its own affair."""
    w, local = make("reset", Scaler(), rate)
    assert not local.moved
    local.start_round()
    turn(w, local, 0, 1.0)
    assert not local.moved
    local.start_turn(1)
    local.scaler.scale = 4.0
    local.end_turn(1, 1.0)
    assert not local.moved
    local.start_turn(2)
    local.optimizers[0].param_groups[0]["lr"] = rate * 2
    local.end_turn(2, 1.0)
    assert local.moved
    local.start_turn(3)
    step(w, local, 1.0)
    local.schedulers[0].step()
    local.end_turn(3, 1.0)
    assert local.moved


def test_reset_starts_every_turn_without_state():
    w, local = make("reset")
    assert play_round(w, local, [(0, 4.0), (1, 2.0)]) == [None, None]
    assert play_round(w, local, [(0, 4.0), (1, 2.0)]) == [None, None]
    assert momentum(w, local) is None
    assert local.state_dict() == {"clients": {}}


def test_keep_gives_a_client_back_what_it_had():
    w, local = make("keep")
    assert play_round(w, local, [(0, 4.0), (1, 2.0)]) == [None, None]
    assert play_round(w, local, [(0, 0.0), (2, 1.0)]) == [4.0, None]
    assert play_round(w, local, [(0, 0.0), (1, 0.0)]) == [2.0, 2.0]
    assert momentum(w, local) is None
    assert local.num_bytes(0) == 4
    assert local.num_bytes(9) == 0


def test_average_starts_every_turn_from_the_last_rounds_weighted_mean():
    """(3 * 4 + 1 * 8) / 4 = 5; then 0.5 * 5 + 1 = 3.5 and 0.5 * 5 + 3 = 5.5 average to 4.5."""
    w, local = make("average")
    assert play_round(w, local, [(0, 4.0, 3.0), (1, 8.0, 1.0)]) == [None, None]
    assert momentum(w, local) == 5.0
    assert play_round(w, local, [(5, 1.0), (6, 3.0)]) == [5.0, 5.0]
    assert momentum(w, local) == 4.5


def test_average_weighs_a_parameter_by_the_clients_that_stepped_it():
    """A critic's optimizer may not step at all in some client's turn."""
    w, local = make("average")
    local.start_round()
    local.start_turn(0)
    local.end_turn(0, 100.0)
    turn(w, local, 1, 4.0, 3.0)
    turn(w, local, 2, 8.0, 1.0)
    local.end_round()
    assert momentum(w, local) == 5.0


def test_a_number_that_is_a_tensor_of_some_clients_alone_stays_the_first_ones():
    """The step length of L-BFGS: of a search that failed a plain number, else a tensor."""
    w, local = make("average")
    for first, second in ((0.5, torch.tensor(2.0)), (torch.tensor(0.5), 2.0)):
        local.start_round()
        for client, length in enumerate((first, second)):
            local.start_turn(client)
            local.optimizers[0].state[w]["t"] = length
            local.end_turn(client, 1.0)
        local.end_round()
        assert local.optimizers[0].state[w]["t"] == 0.5


def test_adams_step_count_is_averaged_with_its_moments():
    w = torch.zeros(1, requires_grad=True)
    local = LocalState([torch.optim.Adam([w])], [], None, "average")
    for _ in range(2):
        local.start_round()
        for client in range(2):
            local.start_turn(client)
            step(w, local, 1.0)
            local.end_turn(client, 1.0)
        local.end_round()
    assert local.optimizers[0].state[w]["step"].item() == 2.0


@pytest.mark.parametrize("mode", ["keep", "average"])
def test_a_turn_that_fails_leaves_the_state_of_before_it(mode):
    """NaN in a kept momentum would leave the client out for good."""
    w, local = make(mode)
    play_round(w, local, [(0, 4.0)])
    local.start_round()
    local.start_turn(0)
    step(w, local, float("nan"))
    turn(w, local, 1, 4.0)
    local.end_round()
    local.start_round()
    local.start_turn(0)
    assert momentum(w, local) == (4.0 if mode == "keep" else 6.0)


def test_learning_rates_and_schedules_start_every_turn_as_the_round_began():
    w, local = make("reset")
    (optimizer,), (scheduler,) = local.optimizers, local.schedulers
    rates = []
    for _ in range(2):
        local.start_round()
        for client in range(3):
            local.start_turn(client)
            for _ in range(2):
                rates.append(optimizer.param_groups[0]["lr"])
                step(w, local, 1.0)
                scheduler.step()
            local.end_turn(client, 1.0)
        local.end_round()
    assert rates == pytest.approx([0.1, 0.05] * 3 + [0.025, 0.0125] * 3)
    assert scheduler.last_epoch == 4


def test_a_learning_rate_in_a_tensor_is_restored_too():
    """Schedulers fill such rates in place."""
    w, local = make("reset", rate=torch.tensor(0.1))
    local.start_round()
    for client in range(2):
        local.start_turn(client)
        assert local.optimizers[0].param_groups[0]["lr"].item() == pytest.approx(0.1)
        step(w, local, 1.0)
        local.schedulers[0].step()
        local.end_turn(client, 1.0)
    local.end_round()
    assert local.optimizers[0].param_groups[0]["lr"].item() == pytest.approx(0.05)


def test_settings_after_a_round_are_those_of_its_last_completed_turn():
    w, local = make("reset")
    group = local.optimizers[0].param_groups[0]
    local.start_round()
    turn(w, local, 0, 1.0)
    group["momentum"] = 0.7
    local.end_turn(0, 1.0)
    local.start_turn(1)
    group["momentum"] = 0.1  # this turn fails
    local.end_round()
    assert group["momentum"] == 0.7


def test_the_grad_scaler_starts_every_turn_as_the_round_began():
    scaler = Scaler()
    _, local = make("reset", scaler)
    local.start_round()
    for client in range(2):
        local.start_turn(client)
        assert scaler.scale == 8.0
        scaler.scale *= 2
        local.end_turn(client, 1.0)
    local.end_round()
    assert scaler.scale == 16.0
    local.start_round()
    local.start_turn(0)
    assert scaler.scale == 16.0


def test_a_step_that_failed_after_unscaling_does_not_fail_the_next_client():
    scaler = torch.amp.GradScaler("cpu")
    w, local = make("reset", scaler)
    local.start_round()
    for client in range(2):
        local.start_turn(client)
        scaler.scale(w.sum()).backward()
        scaler.unscale_(local.optimizers[0])  # raises if it was called since the last update
        assert w.grad.item() == 1.0
        w.grad = None


@pytest.mark.parametrize("mode", ["reset", "average"])
def test_a_dropped_round_restores_states_rates_schedules_and_scaler(mode):
    scaler = Scaler()
    w, local = make(mode, scaler)
    play_round(w, local, [(0, 4.0)])
    local.start_round()
    turn(w, local, 0, 100.0)
    local.start_turn(1)
    step(w, local, 100.0)
    local.schedulers[0].step()
    scaler.scale = 1.0
    local.end_round(dropped=True)
    assert momentum(w, local) == (None if mode == "reset" else 4.0)
    assert local.optimizers[0].param_groups[0]["lr"] == 0.1
    assert local.schedulers[0].last_epoch == 0
    assert scaler.scale == 8.0


def test_kept_states_come_back_from_a_state_dict():
    w, local = make("keep")
    play_round(w, local, [(3, 4.0), (7, 2.0)])
    saved = copy.deepcopy(local.state_dict())
    assert saved["clients"][3] == [{0: {"momentum_buffer": torch.tensor([4.0])}}]
    fresh, other = make("keep")
    other.load_state_dict(saved)
    assert momentum(fresh, other) is None
    assert play_round(fresh, other, [(3, 0.0), (7, 0.0), (1, 0.0)]) == [4.0, 2.0, None]


class Diverging(Automatic):
    """The second client's loss is NaN in round 1."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * float("nan") if self.current_epoch == 1 and self.client == 1 else loss

    def on_turn_start(self, turn):
        self.client = turn.client


@pytest.mark.filterwarnings("ignore:client .* is left out")
def test_a_client_that_diverged_once_comes_back_under_keep():
    """Its Adam moments are those of before the turn that failed, not NaN."""
    strategy = FedAvgStrategy(3, optimizer_state="keep", seed=0)
    make_trainer(strategy, 4).fit(Diverging(), make_data())
    assert [(e["round"], e["client"]) for e in strategy.left_out] == [(1, 1)]


def test_a_failed_turn_leaves_a_kept_history_of_gradients_alone():
    """L-BFGS keeps its history in lists and appends to them."""
    w = torch.full((1,), 2.0, requires_grad=True)
    optimizer = torch.optim.LBFGS([w], lr=0.1, max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = (w**4).sum()
        loss.backward()
        return loss

    local = LocalState([optimizer], [], None, "keep")
    local.start_round()
    local.start_turn(0)
    for _ in range(2):
        optimizer.step(closure)
    local.end_turn(0, 1.0)
    before = copy.deepcopy(local.clients[0][0][0]["old_dirs"])
    local.start_turn(0)
    for _ in range(2):
        optimizer.step(closure)
    assert len(optimizer.state[w]["old_dirs"]) > len(before) > 0
    assert local.clients[0][0][0]["old_dirs"] == before
