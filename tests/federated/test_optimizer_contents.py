"""What an optimizer holds, wherever it holds it: by hand, over a resume, and from files that others wrote."""

import pytest
import torch
from torch import nn

from fedgen.federated import FedAvgStrategy
from fedgen.federated.client_state.local_state import LocalState
from fedgen.federated.client_state.optimizer_state import MeanContents, OptimizerContents
from fedgen.ranks import Ranks
from tests.federated.modules import Automatic, make_data, make_trainer, same, weights
from tests.foreign.optimizers import SAM, CountingSGD
from tests.quick import first_quick


class Counting(torch.optim.Optimizer):
    """w falls by lr / step; the count, and the sum of rates, stand in `param_groups`."""

    def __init__(self, params, lr=1.0):
        super().__init__(params, {"lr": lr, "total": 0.0})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            group["total"] += group["lr"]
            for w in group["params"]:
                w -= group["lr"] / group["step"]
        return loss


def made(kind=Counting, mode="reset", **options):
    w = torch.zeros(1, requires_grad=True)
    optimizer = kind([w], **options)
    return optimizer, LocalState([optimizer], [], None, mode)


def turn(local, client, steps=1, closure=None, weight=1.0):
    """A turn, and the group that it began with."""
    (optimizer,) = local.optimizers
    local.start_turn(client)
    began = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
    for _ in range(steps):
        optimizer.step(closure)
    local.settle()
    local.end_turn(client, weight)
    return began


def test_what_a_step_changes_in_groups_is_reset_with_the_state():
    optimizer, local = made()
    for _ in range(2):
        local.start_round()
        assert [turn(local, client, steps=2) for client in range(2)] == [{"lr": 1.0, "total": 0.0}] * 2
        local.end_round()
    assert {**optimizer.param_groups[0], "params": None} == {"lr": 1.0, "total": 0.0, "params": None}


def test_under_keep_a_client_goes_on_with_its_counts_and_a_new_one_begins_at_none():
    _, local = made(mode="keep")
    local.start_round()
    turn(local, 0, steps=2)
    local.end_round()
    local.start_round()
    assert turn(local, 1) == {"lr": 1.0, "total": 0.0}
    assert turn(local, 0) == {"lr": 1.0, "total": 2.0, "step": 2}
    local.end_round()
    assert local.clients[0] == [{"/groups/0": {"step": 3, "total": 3.0}}]


def test_under_average_floats_have_their_mean_and_counts_are_the_first_clients():
    """(1 * 2 + 3 * 4) / 4 = 3.5."""
    _, local = made(mode="average")
    local.start_round()
    turn(local, 0, steps=2, weight=1.0)
    turn(local, 1, steps=4, weight=3.0)
    local.end_round()
    local.start_round()
    assert turn(local, 2) == {"lr": 1.0, "total": 3.5, "step": 2}


def test_what_the_module_sets_within_a_step_is_a_hyperparameter_and_goes_on():
    """A closure that lowers the rate, as a warm-up in a training step does."""
    optimizer, local = made()

    def closure():
        optimizer.param_groups[0]["lr"] *= 0.5

    local.start_round()
    assert [turn(local, client, closure=closure)["lr"] for client in range(2)] == [1.0, 1.0]
    local.end_round()
    local.start_round()
    assert turn(local, 0, closure=closure) == {"lr": 0.5, "total": 0.0}


def test_the_momentum_of_a_wrapped_optimizer_is_the_clients():
    """Gradient 1 throughout: momentum 0.5 makes the buffer 1, then 1.5, and 1 again for the next client."""
    w = torch.zeros(1, requires_grad=True)
    optimizer = SAM([w], torch.optim.SGD, lr=0.1, momentum=0.5)
    local = LocalState([optimizer], [], None, "reset")

    def closure():
        optimizer.zero_grad()
        loss = w.sum()
        loss.backward()
        return loss

    buffers = []
    local.start_round()
    for client in range(2):
        turn(local, client, steps=2, closure=closure)
        buffers.append(optimizer.base_optimizer.state[w]["momentum_buffer"].item())
    local.end_round()
    assert buffers == [1.5, 1.5]
    assert not optimizer.base_optimizer.state


def test_nothing_is_watched_once_a_fit_is_over():
    optimizer, local = made()
    assert len(optimizer._optimizer_step_pre_hooks) == len(optimizer._optimizer_step_post_hooks) == 1
    local.release()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


class Holding(Automatic):
    """Trains with an optimizer that counts in its groups, in attributes, or in one that it wraps."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def configure_optimizers(self):
        if self.kind == "wrapped":
            return SAM(self.net.parameters(), torch.optim.Adam, lr=0.05)
        return (CountingSGD if self.kind == "attributes" else Counting)(self.net.parameters(), lr=0.05)


@pytest.mark.parametrize("kind", ["groups", "attributes", "wrapped"])
@pytest.mark.parametrize("mode", first_quick(["reset", "keep", "average"]))
def test_a_resumed_run_goes_on_to_the_same_bits(tmp_path, kind, mode):
    def fit(rounds, path=None):
        torch.manual_seed(0)
        module, strategy = Holding(kind), FedAvgStrategy(3, optimizer_state=mode, cohort_size=2, seed=0)
        trainer = make_trainer(strategy, rounds)
        trainer.fit(module, make_data(), ckpt_path=path)
        trainer.save_checkpoint(tmp_path / f"{rounds}.ckpt")
        return weights(module)

    fit(2)
    assert same(fit(3, tmp_path / "2.ckpt"), fit(3))


class ThreeOfTwo(Ranks):
    """Two processes of two clients and one; each hears what the other said before."""

    def __init__(self, rank, said):
        self.size, self.rank, self._said, self._place = 2, rank, said, 0

    def gather(self, value):
        self._said.setdefault(self._place, {})[self.rank] = value
        found = self._said[self._place]
        self._place += 1
        return [found.get(rank, value) for rank in range(2)]

    def add(self, tensors, device):
        return [sum(parts) for parts in zip(*self.gather(list(tensors)))]


def test_the_mean_over_processes_is_that_of_one():
    """Weights 1, 3 and 2 with floats 2, 4 and 5, one of them a Python float; the count is the first client's."""
    clients = [
        (weight, {0: {"m": torch.tensor([value]), "step": 7 + i}, "/groups/0": {"d": value, "k": i}})
        for i, (weight, value) in enumerate([(1.0, 2.0), (3.0, 4.0), (2.0, 5.0)])
    ]
    whole = MeanContents()
    for weight, contents in clients:
        whole.add(contents, weight)
    said: dict = {}
    w = torch.zeros(1)
    for _ in range(2):  # once to say, once to hear
        parts = []
        for rank, own in enumerate((clients[:2], clients[2:])):
            parts.append(MeanContents())
            for weight, contents in own:
                parts[-1].add(contents, weight)
            parts[-1].merge(ThreeOfTwo(rank, said), w.device, [w], 2 * rank)
    for part in parts:
        assert part.contents[0]["m"].item() == pytest.approx(4.0)  # (2 + 12 + 10) / 6
        assert part.contents["/groups/0"] == {"d": pytest.approx(4.0), "k": 0}
        assert part.contents[0]["step"] == whole.contents[0]["step"] == 7
    assert whole.contents["/groups/0"]["d"] == pytest.approx(4.0)


@pytest.mark.parametrize(
    "contents",
    [
        [],
        {1: {"m": torch.zeros(1)}},
        {-1: {}},
        {"/groups/1": {"k": 1}},
        {"/groups/99999999999": {"k": 1}},
        {"other/state/0": {"m": torch.zeros(1)}},
        {"/secrets/0": {}},
        {"/groups": {}},
        {"": {}},
        {("", "groups", 0): {}},
        {"/groups/0": [1]},
        {"/groups/0": {1: 1}},
        {"/groups/0": {"k": float("nan")}},
        {0: {"m": torch.tensor([float("nan")])}},
    ],
)
def test_contents_that_the_optimizer_cannot_hold_are_refused(contents):
    optimizer, _ = made()
    with pytest.raises(ValueError, match="optimizer"):
        OptimizerContents(optimizer).checked(contents)


def test_a_copy_of_the_weights_in_fresh_state_is_one_of_the_present_weights():
    """Optimizers with slow weights copy them when they are made."""

    class Slow(torch.optim.SGD):
        def __init__(self, params, lr):
            super().__init__(params, lr=lr)
            for p in self.param_groups[0]["params"]:
                self.state[p].update(slow=p.detach().clone(), seen=torch.zeros_like(p))

    layer = nn.Linear(2, 1)
    local = LocalState([Slow(layer.parameters(), lr=0.1)], [], None, "reset")
    local.start_round()
    with torch.no_grad():
        layer.weight += 1
    local.start_turn(0)
    state = local.optimizers[0].state[layer.weight]
    assert torch.equal(state["slow"], layer.weight)
    assert not state["seen"].any()


@pytest.mark.parametrize("mode", ["reset", "keep", "average"])
def test_parameters_that_are_added_between_rounds_have_state_as_the_others(mode):
    """A callback thaws a layer and gives it a group; its momentum is 0.5 * 1 + 1 in a client's second turn."""
    first, second = (torch.zeros(1, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.SGD([first], lr=0.1, momentum=0.5)
    local = LocalState([optimizer], [], None, mode)
    for round in range(3):
        local.start_round()
        local.start_turn(0)
        for parameter in (first, second):
            parameter.grad = torch.ones(1)
        optimizer.step()
        local.end_turn(0, 1.0)
        if round < 2:
            local.end_round()
        if round == 0:
            optimizer.add_param_group({"params": [second], "lr": 0.2})
    went_on = 0.0 if mode == "reset" else 1.0
    assert optimizer.state[second]["momentum_buffer"].item() == 1.0 + 0.5 * went_on
    assert optimizer.state[first]["momentum_buffer"].item() == 1.0 + 0.75 * went_on
