"""q-FedAvg by hand, against the paper's formulas, and over whole rounds whose losses are known."""

import math

import lightning as L
import pytest
import torch
import yaml
from torch import nn

from fedgen.federated import FedAvgStrategy, Mean, NormClipping, QFedAvg
from tests.federated.modules import (
    Automatic,
    Manual,
    Quadratic,
    make_data,
    make_quadratics,
    make_trainer,
    same,
    strategy_of,
    weights,
)


def combined(rule, server, clients):
    """The result for clients (tensors, loss, weight)."""
    rule.start(server)
    for client, (update, loss, weight) in enumerate(clients):
        rule.on_client_loss(client, loss)
        rule.add(client, update, weight)
    return rule.result()


def drawn(count=3):
    """The server's two tensors, and clients with theirs, a loss and a weight."""
    draws = torch.Generator().manual_seed(4)

    def tensors():
        return [torch.randn(shape, generator=draws, dtype=torch.float64) for shape in ((2, 3), (4,))]

    return tensors(), [(tensors(), 0.3 + 2.5 * client, 1.0 + client) for client in range(count)]


def test_two_clients_by_hand():
    """From w = 1 with L = 1 / 0.5: D = 2 (1 - 0) = 2 and 2 (1 - 2) = -2, losses 1 and 3, q = 2.

    Delta = 1 * 2 and 9 * -2; h = 2 * 1 * 4 + 2 * 1 = 10 and 2 * 3 * 4 + 2 * 9 = 42: w = 1 + 16 / 52.
    """
    ones = [(0.0, 1.0), (2.0, 3.0)]
    clients = [([torch.tensor([value], dtype=torch.float64)], loss, 1.0) for value, loss in ones]
    (found,) = combined(QFedAvg(q=2.0, lr=0.5), [torch.ones(1, dtype=torch.float64)], clients)
    assert found.item() == pytest.approx(1 + 16 / 52, rel=1e-15)


@pytest.mark.parametrize("lr", [0.01, 0.5])
def test_without_q_the_step_is_fedavgs_whatever_the_losses(lr):
    server, clients = drawn()
    equal = [(update, loss, 1.0) for update, loss, _ in clients]
    mean = Mean()
    mean.start(server)
    for client, (update, _, weight) in enumerate(equal):
        mean.add(client, update, weight)
    for found, expected in zip(combined(QFedAvg(q=0.0, lr=lr), server, equal), mean.result()):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("q", [0.5, 1.0, 3.0])
def test_the_step_is_the_papers(q):
    """Algorithm 2 as printed, with weights p_k beside both sums."""
    server, clients = drawn()
    factor, above, below = 1 / 0.2, [torch.zeros_like(tensor) for tensor in server], 0.0
    for update, loss, weight in clients:
        moved = [factor * (old - new) for old, new in zip(server, update)]
        norm = math.sqrt(sum(float((part**2).sum()) for part in moved))
        above = [total + weight * loss**q * part for total, part in zip(above, moved)]
        below += weight * (q * loss ** (q - 1) * norm**2 + factor * loss**q)
    expected = [old - total / below for old, total in zip(server, above)]
    for found, wanted in zip(combined(QFedAvg(q, lr=0.2), server, clients), expected):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


def test_a_loss_of_zero_counts_as_the_least_one():
    server, update = [torch.zeros(1)], [torch.ones(1)]
    zero, least = (combined(QFedAvg(0.5, 0.1), server, [(update, loss, 1.0)])[0].item() for loss in (0.0, 1e-10))
    assert zero == least > 0


@pytest.mark.parametrize(
    ("loss", "q", "said"),
    [
        (-0.5, 1.0, "finite and not negative; it is -0.5"),
        (math.nan, 1.0, "it is nan"),
        (math.inf, 1.0, "it is inf"),
        (1e200, 2.0, r"1e\+200 to the power of 2 is out of range; choose a smaller q"),
        (1e-9, 80.0, "1e-09 to the power of 80 is out of range; choose a smaller q"),
    ],
)
def test_losses_that_it_cannot_take_are_named(loss, q, said):
    with pytest.raises(ValueError, match=said):
        QFedAvg(q, 0.1).on_client_loss(0, loss)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"q": -1.0, "lr": 0.1}, "q=-1.0: the weight of large losses"),
        ({"q": math.inf, "lr": 0.1}, "q=inf"),
        ({"q": 1.0, "lr": 0.0}, "lr=0.0: give the clients' learning rate"),
    ],
)
def test_values_out_of_range_are_named(options, said):
    with pytest.raises(ValueError, match=said):
        QFedAvg(**options)


def test_tensors_that_a_later_turn_changes_first_join_the_round():
    """The first client left the second tensor at the server's 5: as if both had been there from the start."""
    server, weight = [torch.tensor([1.0]), torch.tensor([5.0])], 1.0
    clients = [
        ([torch.tensor([0.0]), torch.tensor([5.0])], 1.0, weight),
        ([torch.tensor([2.0]), torch.tensor([7.0])], 3.0, weight),
    ]
    expected = combined(QFedAvg(1.0, 0.5), server, clients)
    rule = QFedAvg(1.0, 0.5)
    rule.start(server[:1])
    rule.on_client_loss(0, 1.0)
    rule.add(0, clients[0][0][:1], weight)
    rule.grow(server[1:], [1])
    rule.on_client_loss(1, 3.0)
    rule.add(1, clients[1][0], weight)
    assert [tensor.item() for tensor in rule.result()] == [tensor.item() for tensor in expected]


def test_a_round_of_half_precision_is_added_up_in_float32():
    server = [torch.ones(1, dtype=torch.float16)]
    (found,) = combined(QFedAvg(1.0, 0.5), server, [([torch.zeros(1, dtype=torch.float16)], 1.0, 1.0)])
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(1 - 2 / 6)


# ---- whole rounds ----


def fit(module, rule, data=None, rounds=1, interval=1, callbacks=(), **options):
    strategy = FedAvgStrategy(interval, seed=0, aggregator=rule)
    make_trainer(strategy, rounds, callbacks=list(callbacks), **options).fit(module, data or make_quadratics())
    return module, strategy


@pytest.mark.parametrize("interval", [1, 2])
def test_a_round_takes_the_losses_at_the_servers_weights(interval):
    """From w = 1, rate 0.1: clients (1, 0) and (3, 4) have the losses 1 / 2 and 3 / 2 * 9 there, however far they go.

    One step ends at 0.9 and 1.9, two at 0.81 and 2.53; L = 10, q = 1.
    """
    ends = {1: (0.9, 1.9), 2: (0.81, 2.53)}[interval]
    losses, moved = (0.5, 13.5), [10 * (1 - end) for end in ends]
    above = sum(loss * part for loss, part in zip(losses, moved))
    below = sum(part**2 + 10 * loss for loss, part in zip(losses, moved))
    module, strategy = fit(Quadratic(), QFedAvg(1.0, 0.1), interval=interval)
    assert strategy.aggregator.losses == {0: 0.5, 1: 13.5}
    assert module.w.item() == pytest.approx(1 - above / below, rel=1e-12)


def test_losses_are_whole_where_gradients_are_accumulated():
    """Lightning divides each batch's loss by the number of batches of its step."""
    _, strategy = fit(Quadratic(), QFedAvg(1.0, 0.1), interval=4, accumulate_grad_batches=2)
    assert strategy.aggregator.losses == {0: 0.5, 1: 13.5}


class Watching(L.Callback):
    """Has Lightning call its hooks around a step, as it does by itself only where somebody overrides one."""

    def on_before_zero_grad(self, trainer, module, optimizer):
        pass


def test_hooks_around_steps_change_nothing():
    quick, _ = fit(Quadratic(), QFedAvg(1.0, 0.1), rounds=3, interval=2)
    slow, _ = fit(Quadratic(), QFedAvg(1.0, 0.1), rounds=3, interval=2, callbacks=[Watching()])
    assert quick.w.item() == slow.w.item()


class Returning(Manual):
    """Manual optimisation whose step returns what it minimised."""

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return {"loss": loss}


def test_manual_optimisation_tells_its_loss_by_what_the_step_returns():
    found = []
    for kind in (Automatic, Returning):
        torch.manual_seed(3)
        module, strategy = fit(kind("SGD"), QFedAvg(1.0, 0.05), make_data(), rounds=2, interval=3)
        found.append((weights(module), strategy.aggregator.losses))
    assert same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    assert len(set(found[0][1].values())) == 3


@pytest.mark.filterwarnings("ignore:client .* is left out of round 0")
def test_a_step_that_returns_no_loss_is_an_error_with_the_remedy():
    with pytest.raises(RuntimeError, match="QFedAvg"):
        fit(Manual("SGD"), QFedAvg(1.0, 0.05), make_data())


class Shifted(Quadratic):
    """Of client (1, 0) the loss is negative."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) - (batch[0][0, 0] == 1.0) * 5.0


def test_a_client_of_a_negative_loss_is_left_out():
    with pytest.warns(UserWarning, match="left"):
        module, strategy = fit(Shifted(), QFedAvg(0.0, 0.1))
    assert [entry["client"] for entry in strategy.left_out] == [0]
    assert module.w.item() == pytest.approx(1.9)


def losses_after(rule):
    """Both clients' losses a / 2 (w - b)^2 after 100 rounds."""
    w = fit(Quadratic(), rule, rounds=100)[0].w.item()
    return w**2 / 2, 3 / 2 * (w - 4) ** 2


@pytest.mark.slow
def test_losses_end_more_alike():
    """FedAvg ends at w = 3, the mean loss' minimum, with 4.5 and 1.5; q evens them out, the more the larger it is."""
    plain, fair, fairer = (losses_after(QFedAvg(q, 0.1)) for q in (0.0, 1.0, 5.0))
    assert plain == pytest.approx((4.5, 1.5), rel=1e-6)
    gaps = [a - b for a, b in (plain, fair, fairer)]
    assert gaps[0] > gaps[1] + 0.5 > gaps[2] + 1.0 > 1.0
    w = math.sqrt(2 * fair[0])  # where F_0 F_0' + F_1 F_1' = 0
    assert fair[0] * w + fair[1] * 3 * (w - 4) == pytest.approx(0, abs=1e-6)


def test_norms_can_be_bounded_before_it():
    """The second client moved by 0.9 and is shortened to 0.5: D = 1 and -5, h = 1 + 5 and 25 + 135."""
    module, strategy = fit(Quadratic(), NormClipping(0.5, then=QFedAvg(1.0, 0.1)))
    assert strategy.aggregator.clipped == [1]
    assert module.w.item() == pytest.approx(1 - (0.5 - 13.5 * 5) / 166, rel=1e-12)


def test_a_recipe_names_it_by_class_path():
    recipe = """
    strategy:
      class_path: fedgen.federated.FedAvgStrategy
      init_args:
        aggregator: {class_path: fedgen.federated.QFedAvg, init_args: {q: 2, lr: 0.1}}
    """
    rule = strategy_of(yaml.safe_load(recipe)).aggregator
    assert (rule.q, rule.lr) == (2.0, 0.1)
