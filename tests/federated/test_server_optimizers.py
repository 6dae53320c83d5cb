"""Server optimizers against the published formulas, computed by hand for the first two steps."""

import io
import math

import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.federated import ExponentialDecay, FedAdagrad, FedAdam, FedAvgM, FedAvgStrategy, FedYogi
from fedgen.federated.server_model import ServerUpdate
from tests.federated.modules import Quadratic, make_quadratics, make_trainer

GRADIENTS = (2.0, -0.5)
# beta2, eps, initial v, bias correction
ADAM = {"keras": (0.999, 1e-4, 0.0, True), "reddi": (0.99, 1e-3, 1e-6, False)}
YOGI = {"keras": (0.999, 1e-3, 1.0, True), "reddi": (0.99, 1e-3, 1e-6, False)}


def steps(make, gradients=GRADIENTS, start=1.0):
    """The scalar parameter after each step."""
    w = torch.tensor([start], dtype=torch.float64, requires_grad=True)
    optimizer, path = make([w]), []
    for g in gradients:
        w.grad = torch.tensor([g], dtype=torch.float64)
        optimizer.step()
        path.append(w.item())
    return path


def by_formula(second_moment, eps, v, correct, beta2, lr=0.1, beta1=0.9):
    """w -= lr' m / (sqrt(v) + eps), step by step with plain numbers."""
    w, m, path = 1.0, 0.0, []
    for t, g in enumerate(GRADIENTS, 1):
        m = beta1 * m + (1 - beta1) * g
        v = second_moment(v, g)
        rate = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t) if correct else lr
        w -= rate * m / (math.sqrt(v) + eps)
        path.append(w)
    return path


@pytest.mark.parametrize("convention", ["keras", "reddi"])
def test_adams_first_two_steps(convention):
    beta2, eps, v0, correct = ADAM[convention]
    expected = by_formula(lambda v, g: beta2 * v + (1 - beta2) * g * g, eps, v0, correct, beta2)
    assert steps(lambda p: FedAdam(p, lr=0.1, convention=convention)) == pytest.approx(expected, rel=1e-12)


def test_keras_adams_first_step_in_numbers():
    """m = 0.2, v = 0.004, rate = 0.1 sqrt(0.001) / 0.1 = 0.0316228: 0.0063246 / 0.0633456 = 0.0998421."""
    assert steps(lambda p: FedAdam(p, lr=0.1))[0] == pytest.approx(1 - 0.0998421, abs=1e-7)


def test_reddi_adams_first_step_in_numbers():
    """m = 0.2, v = 0.99e-6 + 0.04: 0.1 * 0.2 / (0.2000025 + 0.001) = 0.0995012, uncorrected."""
    path = steps(lambda p: FedAdam(p, lr=0.1, convention="reddi"))
    assert path[0] == pytest.approx(1 - 0.0995012, abs=1e-7)


@pytest.mark.parametrize("convention", ["keras", "reddi"])
def test_yogis_first_two_steps(convention):
    beta2, eps, v0, correct = YOGI[convention]
    expected = by_formula(lambda v, g: v + (1 - beta2) * math.copysign(1, g * g - v) * g * g, eps, v0, correct, beta2)
    assert steps(lambda p: FedYogi(p, lr=0.1, convention=convention)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("gradient", "moment"), [(2.0, 1.004), (0.5, 0.99975), (1.0, 1.0), (0.0, 1.0)])
def test_yogi_moves_v_up_or_down_by_the_sign_of_the_squared_gradient_minus_v(gradient, moment):
    """From v = 1: by 0.001 * 4 up, by 0.001 * 0.25 down, not at all where they are equal."""
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = FedYogi([w])
    w.grad = torch.tensor([gradient], dtype=torch.float64)
    optimizer.step()
    assert optimizer.state[w]["v"].item() == pytest.approx(moment, rel=1e-12)


def test_yogis_large_initial_moment_makes_a_slow_start():
    first = [1 - steps(lambda p, kind=kind: kind(p, lr=0.1), (1e-2,))[0] for kind in (FedYogi, FedAdam)]
    assert first[0] < 0.1 * first[1]


@pytest.mark.parametrize(("convention", "v0", "eps"), [("keras", 0.1, 1e-7), ("reddi", 1e-6, 1e-3)])
def test_adagrads_first_two_steps(convention, v0, eps):
    first = 1 - 0.1 * 2 / (math.sqrt(v0 + 4) + eps)
    second = first + 0.1 * 0.5 / (math.sqrt(v0 + 4.25) + eps)
    path = steps(lambda p: FedAdagrad(p, lr=0.1, convention=convention))
    assert path == pytest.approx([first, second], rel=1e-12)


def in_the_strategy(server, w, rounds, factor):
    """A federation of one client with gradient w and rate 0.1, one step a round: the pseudo-gradient is 0.1 w.

    Args:
        server: (second moment, eps, its start, bias correction, beta1, beta2).
        w: the server's parameter before.
        rounds: how many.
        factor: of the learning rate 0.1, by round.
    """
    second_moment, eps, v, correct, beta1, beta2 = server
    m = 0.0
    for t in range(rounds):
        g = 0.1 * w
        m = beta1 * m + (1 - beta1) * g
        v = second_moment(v, g)
        rate = 0.1 * factor(t)
        if correct:
            rate *= math.sqrt(1 - beta2 ** (t + 1)) / (1 - beta1 ** (t + 1))
        w -= rate * m / (math.sqrt(v) + eps)
    return w


def forms(kind, convention):
    """An optimizer's published form, as `in_the_strategy` has it."""
    if kind is FedAdagrad:
        v0, eps = {"keras": (0.1, 1e-7), "reddi": (1e-6, 1e-3)}[convention]
        return lambda v, g: v + g * g, eps, v0, False, 0.0, 1.0
    beta2, eps, v0, correct = (ADAM if kind is FedAdam else YOGI)[convention]
    moments = {
        FedAdam: lambda v, g: beta2 * v + (1 - beta2) * g * g,
        FedYogi: lambda v, g: v + (1 - beta2) * math.copysign(1, g * g - v) * g * g,
    }
    return moments[kind], eps, v0, correct, 0.9, beta2


@pytest.mark.parametrize("schedule", [None, ExponentialDecay(0.5, rounds=2)])
@pytest.mark.parametrize("convention", ["keras", "reddi"])
@pytest.mark.parametrize("kind", [FedAdam, FedYogi, FedAdagrad])
def test_conventions_over_the_rounds_of_a_federation(kind, convention, schedule):
    module = Quadratic()
    strategy = FedAvgStrategy(
        1, seed=0, server_optimizer=lambda p: kind(p, lr=0.1, convention=convention), server_schedule=schedule
    )
    make_trainer(strategy, 5).fit(module, make_quadratics(((1.0, 0.0),), (2,)))
    factor = schedule.factor if schedule else lambda t: 1.0
    expected = in_the_strategy(forms(kind, convention), 1.0, 5, factor)
    assert module.w.item() == pytest.approx(expected, rel=1e-12)


def test_the_servers_momentum_over_the_rounds_of_a_federation():
    """g = 0.1, v = 0.1, w = 0.95; then g = 0.095, v = 0.09 + 0.095 = 0.185, w = 0.95 - 0.5 * 0.185 = 0.8575."""
    module = Quadratic()
    strategy = FedAvgStrategy(1, seed=0, server_optimizer=lambda p: FedAvgM(p, lr=0.5))
    make_trainer(strategy, 2).fit(module, make_quadratics(((1.0, 0.0),), (2,)))
    assert module.w.item() == pytest.approx(0.8575, rel=1e-12)


def test_momentum_is_that_of_sgd_with_the_rate_outside():
    """v = 2, then 0.9 * 2 - 0.5 = 1.3."""
    path = steps(lambda p: FedAvgM(p, lr=0.1))
    assert path == pytest.approx([1 - 0.2, 1 - 0.2 - 0.13])
    assert path == steps(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))


def test_torchs_adam_is_another_algorithm():
    """Keras adds eps to the uncorrected root: at g = 1e-3 torch's first step is 0.909 / 0.240 = 3.8 times as long."""
    ours = 1 - steps(lambda p: FedAdam(p, lr=0.1, eps=1e-4), (1e-3,))[0]
    theirs = 1 - steps(lambda p: torch.optim.Adam(p, lr=0.1, eps=1e-4), (1e-3,))[0]
    assert theirs / ours == pytest.approx(3.78, abs=0.01)


def test_given_values_replace_the_conventions():
    optimizer = FedAdam([torch.zeros(1)], beta1=0.5, beta2=0.8, eps=0.1, initial=2.0)
    group = optimizer.param_groups[0]
    assert [group[k] for k in ("beta1", "beta2", "eps", "initial")] == [0.5, 0.8, 0.1, 2.0]


@pytest.mark.parametrize("kind", [FedAdam, FedYogi, FedAdagrad, FedAvgM])
def test_the_state_survives_a_checkpoint_without_pickled_objects(kind):
    def make():
        w = torch.tensor([1.0, -2.0], requires_grad=True)
        return w, kind([w], lr=0.1)

    def step(w, optimizer, g):
        w.grad = torch.tensor(g)
        optimizer.step()

    w, optimizer = make()
    step(w, optimizer, [0.3, 2.0])
    step(w, optimizer, [-0.1, 0.4])
    file = io.BytesIO()
    torch.save({"w": w.detach(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again, resumed = make()
    with torch.no_grad():
        again.copy_(saved["w"])
    resumed.load_state_dict(saved["optimizer"])
    step(w, optimizer, [0.7, -0.2])
    step(again, resumed, [0.7, -0.2])
    assert torch.equal(w, again)


def test_parameters_without_a_gradient_are_passed_over():
    w, rest = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    optimizer = FedAdam([w, rest])
    w.grad = torch.ones(1)
    optimizer.step()
    assert rest.item() == 1
    assert rest not in optimizer.state


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"convention": "torch"}, "convention='torch'"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"beta1": 1.0}, "beta1=1.0"),
        ({"beta2": 1.5}, "beta2=1.5"),
        ({"eps": -1e-3}, "eps=-0.001"),
    ],
)
def test_settings_out_of_range_are_named(options, word):
    with pytest.raises(ValueError, match=word):
        FedYogi([torch.zeros(1)], **options)


def make_server():
    return {"w": torch.tensor([1.0, 2.0]), "running_mean": torch.tensor([10.0])}


COMBINED = (torch.tensor([3.0, 1.0]), torch.tensor([20.0]))


def test_without_an_optimizer_the_average_becomes_the_server():
    server = make_server()
    update = ServerUpdate(server, {"w"}, None)
    update.apply(list(server), COMBINED)
    assert update.optimizer is None
    assert server["w"].tolist() == [3, 1]
    assert server["running_mean"].tolist() == [20]


def test_sgd_with_rate_one_gives_the_average_and_half_the_rate_half_the_way():
    for rate, expected in ((1.0, [3.0, 1.0]), (0.5, [2.0, 1.5])):
        server = make_server()
        ServerUpdate(server, {"w"}, lambda p, rate=rate: torch.optim.SGD(p, lr=rate)).apply(list(server), COMBINED)
        assert server["w"].tolist() == expected
        assert server["running_mean"].tolist() == [20]  # buffers are replaced, whatever the rate


def test_the_servers_tensors_are_updated_in_place():
    server = make_server()
    pointers = [t.data_ptr() for t in server.values()]
    ServerUpdate(server, {"w"}, FedAdam).apply(list(server), COMBINED)
    assert [t.data_ptr() for t in server.values()] == pointers


def test_the_pseudo_gradient_is_the_server_minus_the_average():
    """First FedAvgM step with rate 1: the average itself; second, from g = 0: on by 0.9 of the first."""
    server = make_server()
    update = ServerUpdate(server, {"w"}, FedAvgM)
    update.apply(list(server), COMBINED)
    assert server["w"].tolist() == [3, 1]
    update.apply(list(server), (torch.tensor([3.0, 1.0]), COMBINED[1]))
    torch.testing.assert_close(server["w"], torch.tensor([3 + 0.9 * 2, 1 - 0.9]))


def test_an_average_finer_than_half_precision_is_not_rounded_before_the_difference():
    """1 + 2^-12 rounds to 1 in float16; the pseudo-gradient is -2^-12 all the same."""
    server = {"w": torch.ones(1, dtype=torch.float16)}
    update = ServerUpdate(server, {"w"}, lambda p: torch.optim.SGD(p, lr=64.0))
    update.apply(["w"], [torch.tensor([1 + 2**-12])])
    assert server["w"].item() == 1 + 2**-6


def test_without_parameters_no_optimizer_is_made():
    assert ServerUpdate({"b": torch.zeros(1)}, set(), FedAdam).optimizer is None


def test_complex_parameters_are_pairs_of_real_ones():
    """Real and imaginary parts move as two real parameters would."""
    combined = torch.tensor([3.0 - 5.0j])
    server, pair = {"w": torch.tensor([1.0 + 2.0j])}, {"w": torch.tensor([[1.0, 2.0]])}
    for tensors, value in ((server, combined), (pair, torch.view_as_real(combined))):
        ServerUpdate(tensors, {"w"}, FedAdam).apply(["w"], [value])
    assert torch.view_as_real(server["w"]).tolist() == pair["w"].tolist() != [[1.0, 2.0]]


@pytest.mark.parametrize("other", [FedYogi, FedAvgM, None])
def test_the_state_of_another_optimizer_is_refused_by_name(other):
    update, now = ServerUpdate(make_server(), {"w"}, FedAdam), ServerUpdate(make_server(), {"w"}, other)
    name = other.__name__ if other else "None"
    with pytest.raises(MisconfigurationException, match=rf"\(FedAdam there, {name} here\)"):
        now.load_state_dict(update.state_dict())
    with pytest.raises(MisconfigurationException, match=rf"\({name} there, FedAdam here\)"):
        update.load_state_dict(now.state_dict())
