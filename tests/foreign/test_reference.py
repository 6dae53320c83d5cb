"""The reference itself, against loops and numbers written by hand."""

import copy
from collections.abc import Callable

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.clients.turn import Turn
from fedgen.seeds import seed_all
from tests.foreign.cases import SIZES, images
from tests.foreign.ema_and_teachers import MeanTeacher, WithLitEma
from tests.foreign.merging import ClientState, attributes, merge, same, transplant
from tests.foreign.optimisation import BoltsVAE
from tests.foreign.reference import fit_by_turns

INTERVAL, ROUNDS = 4, 2
State = dict[str, Tensor]


def made(make: Callable[[], L.LightningModule]) -> L.LightningModule:
    """A module with the weights that both sides start from."""
    torch.manual_seed(1)
    return make()


def mean(states: list[State], name: str) -> Tensor:
    """The clients' mean, weighted by their examples."""
    return sum(size * state[name].double() for size, state in zip(SIZES, states, strict=True)).float() / sum(SIZES)


def rounds_by_hand(server: L.LightningModule, turn: Callable[[L.LightningModule, list, int], None]) -> State:
    """The state after rounds of `turn(module, batches, round)`: floats averaged, integers the largest."""
    data = images()
    for round in range(ROUNDS):
        states = []
        for number, client in enumerate(data.clients):
            module = copy.deepcopy(server)
            batches = Turn(client.data, client.train, data.batch_size, 0, number, client.name, round)
            batches = list(batches.batches(INTERVAL))
            seed_all(0, "turn", round, number)
            turn(module, batches, round)
            states.append(module.state_dict())
        merged = {
            name: mean(states, name) if tensor.is_floating_point() else max(state[name] for state in states)
            for name, tensor in server.state_dict().items()
        }
        server.load_state_dict(merged)
    return server.state_dict()


def sgd(parameters: list[Tensor], momenta: list[Tensor], lr: float, nesterov: bool = False) -> None:
    """One step with momentum 0.9, written out."""
    with torch.no_grad():
        for parameter, momentum in zip(parameters, momenta, strict=True):
            momentum.mul_(0.9).add_(parameter.grad)
            parameter -= lr * (parameter.grad + 0.9 * momentum if nesterov else momentum)
            parameter.grad = None


def close(found: State, expected: State) -> None:
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_lit_ema_by_hand() -> None:
    def turn(module: L.LightningModule, batches: list, round: int) -> None:
        parameters = list(module.model.parameters())
        momenta = [torch.zeros_like(p) for p in parameters]
        shadows = {name.replace(".", ""): p for name, p in module.model.named_parameters()}
        for x, y in batches:
            F.cross_entropy(module.model(x), y).backward()
            sgd(parameters, momenta, 0.1)
            module.model_ema.num_updates += 1
            count = int(module.model_ema.num_updates)
            decay = min(0.9999, (1 + count) / (10 + count))
            for name, parameter in shadows.items():
                shadow = getattr(module.model_ema, name)
                shadow.copy_(decay * shadow + (1 - decay) * parameter.detach())

    expected = rounds_by_hand(made(WithLitEma), turn)
    found = fit_by_turns(lambda: made(WithLitEma), images(), INTERVAL, ROUNDS).state_dict()
    assert int(expected["model_ema.num_updates"]) == INTERVAL * ROUNDS
    close(found, expected)


def test_mean_teacher_by_hand() -> None:
    def turn(module: L.LightningModule, batches: list, round: int) -> None:
        parameters = list(module.model.parameters())
        momenta = [torch.zeros_like(p) for p in parameters]
        phase = 1.0 - (round + 1) / 4
        weight = float(torch.exp(torch.tensor(-5.0 * phase * phase)))
        for number, (x, y) in enumerate(batches):
            step = round * INTERVAL + number + 1  # after the iteration's own step
            logits = module.model(x + 0.05 * torch.randn_like(x))
            with torch.no_grad():
                target = module.ema_model(x + 0.05 * torch.randn_like(x)).softmax(1)
            loss = F.cross_entropy(logits, y) + 3 * weight * F.mse_loss(logits.softmax(1), target)
            loss.backward()
            sgd(parameters, momenta, 0.1, nesterov=True)
            alpha = min(1 - 1 / (step + 1), 0.97)
            for average, parameter in zip(module.ema_model.parameters(), parameters, strict=True):
                average.data = alpha * average.data + (1 - alpha) * parameter.data

    expected = rounds_by_hand(made(MeanTeacher), turn)
    close(fit_by_turns(lambda: made(MeanTeacher), images(), INTERVAL, ROUNDS).state_dict(), expected)


def test_a_module_without_state_by_hand() -> None:
    def turn(module: L.LightningModule, batches: list, round: int) -> None:
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
        for batch in batches:
            optimizer.zero_grad()
            module.step(batch, 0)[0].backward()
            optimizer.step()

    expected = rounds_by_hand(made(BoltsVAE), turn)
    close(fit_by_turns(lambda: made(BoltsVAE), images(), INTERVAL, ROUNDS).state_dict(), expected)


class Shelf:
    """An object that a module holds: a count, a rate and a list."""

    def __init__(self) -> None:
        self.count, self.rate, self.items = 0, 1.0, [torch.zeros(1)]


class Stateful(nn.Module):
    """One of each kind of state."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer("steps", torch.tensor(5))
        self.register_buffer("flag", torch.tensor(False))
        self.register_buffer("queue", torch.zeros(2))
        self.register_buffer("unsaved", torch.zeros(2), persistent=False)
        self.ticks, self.ready, self.rate, self.shelf = 3, False, 0.5, Shelf()


def turned(number: float) -> Stateful:
    """A copy after a turn in which everything became `number` or grew by it."""
    module = Stateful()
    module.weight.data.fill_(number)
    module.queue.fill_(number)
    module.unsaved.fill_(number)
    module.steps += int(number)
    module.flag |= number > 2
    module.ticks += int(number)
    module.ready = number > 2
    module.rate = number
    module.shelf.count, module.shelf.rate, module.shelf.items = int(number), number, [torch.full((1,), number)]
    return module


SHARES = [0.25, 0.75]


def test_floats_are_averaged_counters_and_flags_take_the_largest_and_the_rest_is_reset() -> None:
    server = Stateful()
    merge(server, [turned(4.0), turned(2.0)], SHARES, {})
    assert server.weight.tolist() == server.queue.tolist() == [2.5, 2.5]
    assert (int(server.steps), bool(server.flag), server.ticks, server.ready) == (9, True, 7, True)
    assert server.unsaved.tolist() == [0.0, 0.0]
    assert server.rate == 2.5


def test_an_integer_that_fell_stays_the_servers() -> None:
    server, client = Stateful(), turned(1.0)
    client.steps.fill_(2)
    client.ticks = 1
    merge(server, [client, turned(2.0)], SHARES, {})
    assert (int(server.steps), server.ticks) == (5, 3)


def test_a_count_beside_a_list_that_is_reset_is_reset_with_it() -> None:
    server = Stateful()
    merge(server, [turned(4.0), turned(2.0)], SHARES, {})
    assert (server.shelf.count, server.shelf.rate, server.shelf.items) == (0, 1.0, [torch.zeros(1)])


def test_declared_rules_have_the_last_word() -> None:
    server = Stateful()
    rules = {"queue": "server", "weight": "max", "unsaved": "mean", "rate": "mean", "shelf.items*": "mean"}
    merge(server, [turned(4.0), turned(2.0)], SHARES, rules)
    assert server.queue.tolist() == [0.0, 0.0]
    assert server.weight.tolist() == [4.0, 4.0]
    assert server.unsaved.tolist() == [2.5, 2.5]
    assert server.rate == 2.5
    assert (server.shelf.count, server.shelf.rate) == (4, 2.5)
    assert same(server.shelf.items, [torch.full((1,), 2.5)])


def test_what_is_personal_stays_with_its_client() -> None:
    rules = {"queue": "personal", "shelf.*": "personal"}
    server, client = Stateful(), turned(4.0)
    merge(server, [client, turned(2.0)], SHARES, rules)
    assert server.queue.tolist() == [0.0, 0.0]
    assert server.shelf.count == 0
    module = Stateful()
    transplant(server, module)
    ClientState.take_from(client, rules).put_into(module)
    assert module.queue.tolist() == [4.0, 4.0]
    assert (module.shelf.count, module.shelf.rate, float(module.shelf.items[0])) == (4, 4.0, 4.0)
    assert module.weight.tolist() == [2.5, 2.5]


def test_attributes_are_named_by_dotted_paths() -> None:
    assert set(attributes(Stateful())) == {
        "unsaved", "ticks", "ready", "rate", "shelf", "shelf.count", "shelf.rate", "shelf.items"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other"), [([1], [1, 2]), ({"a": 1}, {"b": 1}), (torch.ones(1), torch.ones(2)), (1, "1")]
)
def test_values_of_different_forms_differ(one: object, other: object) -> None:
    assert not same(one, other)
