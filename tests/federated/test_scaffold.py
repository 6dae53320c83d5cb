"""SCAFFOLD by hand, where it converges and FedAvg does not, and against the same thing written as a plain loop."""

import copy
import logging
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

from fedgen.federated import Constant, ExponentialDecay, FedAvgStrategy, FedProx, Scaffold
from fedgen.seeds import seed_all
from tests.federated.modules import (
    Automatic,
    Manual,
    Quadratic,
    TwoOptimizers,
    make_data,
    make_quadratics,
    make_trainer,
    same,
    strategy_of,
    weights,
)
from tests.federated.test_lightning import StopIn
from tests.federated.test_resume import straight_and_resumed, train
from tests.federated.test_strategy import Failing, OneTurn, make_turn
from tests.quick import first_quick

VARIATES: Any = ("gradients", "displacement")


class Rounds(L.Callback):
    """Copies the variates at the end of every round."""

    def __init__(self, scaffold):
        self.scaffold, self.states = scaffold, []

    def on_train_epoch_end(self, trainer, pl_module):
        self.states.append(copy.deepcopy(self.scaffold.state_dict()))


def fit(module, data, rounds, scaffold=None, interval=3, **options):
    """Trains, and gives back the variates after each round."""
    scaffold = scaffold or Scaffold()
    callback = Rounds(scaffold)
    strategy = FedAvgStrategy(interval, seed=0, client_algorithm=scaffold, **options)
    make_trainer(strategy, rounds, callbacks=[callback]).fit(module, data)
    return callback.states


def of_w(variates):
    return variates["w"].item()


@pytest.mark.parametrize("kind", VARIATES)
def test_two_rounds_of_two_clients_by_hand(kind):
    """From w = 1, lr 0.1, two steps a turn; gradients are w and 3 (w - 4).

    Round 0: 1, 0.9, 0.81 with gradients 1, 0.9; and 1, 1.9, 2.53 with -9, -6.3. Variates 0.95, -7.65, mean -3.35.
    Round 1 from 1.67, corrections -4.3 and 4.3: 1.933, 2.1697 with 1.67, 1.933; 1.939, 2.1273 with -6.99, -6.183.
    """
    module = Quadratic()
    first, second = fit(module, make_quadratics(), 2, Scaffold(kind), interval=2)
    assert [of_w(first["clients"][0]), of_w(first["clients"][1])] == pytest.approx([0.95, -7.65])
    assert of_w(first["server"]) == pytest.approx(-3.35)
    assert [of_w(second["clients"][0]), of_w(second["clients"][1])] == pytest.approx([1.8015, -6.5865])
    assert of_w(second["server"]) == pytest.approx(-2.3925)
    assert module.w.item() == pytest.approx(2.1485)


@pytest.mark.slow
@pytest.mark.parametrize("kind", VARIATES)
def test_many_local_steps_of_clients_of_unlike_curvature_still_find_the_minimum(kind):
    """sum p a b / sum p a: 9 / 2.5 for shares 1/4 and 3/4.

    FedAvg instead weighs b by p (1 - (1 - 0.1 a)^10), which is nearer p: 3.270.
    """
    sizes, minimum = (1, 3), 3.6
    module = Quadratic()
    states = fit(module, make_quadratics(sizes=sizes), 25, Scaffold(kind), interval=10)
    assert module.w.item() == pytest.approx(minimum, abs=1e-7)
    assert of_w(states[-1]["server"]) == pytest.approx(0, abs=1e-5)  # the federation's gradient at its minimum
    assert of_w(states[-1]["clients"][0]) == pytest.approx(minimum, rel=1e-5)  # and the first client's
    plain, shares = Quadratic(), [size / sum(sizes) for size in sizes]
    make_trainer(FedAvgStrategy(10, seed=0), 25).fit(plain, make_quadratics(sizes=sizes))
    pulls = [share * (1 - (1 - 0.1 * a) ** 10) for share, a in zip(shares, (1, 3))]
    assert plain.w.item() == pytest.approx(4 * pulls[1] / sum(pulls), rel=1e-6)
    assert abs(plain.w.item() - minimum) > 0.3


@pytest.mark.slow
def test_under_uniform_weights_shares_ignore_the_clients_sizes():
    module = Quadratic()
    fit(module, make_quadratics(sizes=(1, 3)), 25, interval=10, client_weights="uniform")
    assert module.w.item() == pytest.approx(3.0, abs=1e-7)


@pytest.mark.slow
def test_one_client_at_a_time_finds_the_minimum_too():
    """The server's variate is the mean over all clients, those too that are not in the round."""
    module = Quadratic()
    states = fit(module, make_quadratics(), 120, interval=5, cohort_size=1)
    assert module.w.item() == pytest.approx(3.0, abs=1e-4)
    for state in states[:10]:
        variates = [of_w(state["clients"][i]) if i in state["clients"] else 0.0 for i in range(2)]
        assert of_w(state["server"]) == pytest.approx(sum(variates) / 2)


@pytest.mark.slow
def test_adams_steps_are_corrected_too():
    """Adam makes both clients' steps as long as the rate, whatever their gradients.

    So without corrections they cancel wherever the gradients have opposite signs: w hardly leaves 1 (0.013 away).
    """
    ends = []
    for algorithm in (None, Scaffold()):
        module = Quadratic(lambda parameters: torch.optim.Adam(parameters, lr=0.1))
        schedule = ExponentialDecay(0.9, rounds=1)
        strategy = FedAvgStrategy(5, seed=0, client_algorithm=algorithm, client_schedule=schedule)
        make_trainer(strategy, 40).fit(module, make_quadratics())
        ends.append(module.w.item())
    assert ends[0] == pytest.approx(1.0, abs=0.02)
    assert ends[1] == pytest.approx(3.0, abs=0.002)


class SGD(Manual):
    """Without momentum, which displacements need."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


@pytest.mark.parametrize("schedule", [Constant(), ExponentialDecay(0.5, rounds=1)])
def test_displacements_are_the_mean_gradients_under_sgd(schedule):
    torch.manual_seed(3)
    modules, ends = [SGD()], []
    modules.append(copy.deepcopy(modules[0]))
    for module, kind in zip(modules, VARIATES):
        ends.append(fit(module, make_data(), 3, Scaffold(kind), cohort_size=2, client_schedule=schedule)[-1])
    for name, value in modules[0].named_parameters():
        torch.testing.assert_close(dict(modules[1].named_parameters())[name], value, atol=1e-5, rtol=1e-4)
        for client in ends[0]["clients"]:
            pair = [end["clients"][client][name] for end in ends]
            torch.testing.assert_close(pair[0], pair[1], atol=1e-5, rtol=1e-3)


def corrected_steps(local, optimizers, batch, index, correction, totals, counts):
    """One iteration of TwoOptimizers, each optimizer's gradients counted and corrected before its step."""
    for key in ("a", "b") if index % 3 == 0 else ("a",):
        loss = local.losses(batch)
        optimizers[key].zero_grad()
        loss.backward()
        for name, parameter in local.named_parameters():
            if name.startswith(key):
                totals[name] = totals[name] + parameter.grad if name in totals else parameter.grad.clone()
                counts[name] = counts.get(name, 0) + 1
                parameter.grad += correction.get(name, torch.zeros(()))
        optimizers[key].step()


def plain_scaffold(module, data, rounds, interval, cohorts):
    """SCAFFOLD as anybody would write it, with c_i+ the mean gradient of the turn."""
    server = copy.deepcopy(module)
    c: dict[str, Any] = {}
    variates: dict[int, dict[str, Any]] = {}
    sizes = [len(client.train) for client in data.clients]
    counts_of = dict.fromkeys(range(len(sizes)), 0)
    for round in range(rounds):
        mean: dict[str, Any] = {}
        new, total = {}, 0.0
        for client in cohorts(round):
            local, own = copy.deepcopy(server), variates.get(client, {})
            first, second = local.configure_optimizers()
            correction = {name: c[name] - own[name] if name in own else c[name] for name in c}
            totals: dict[str, Any] = {}
            counts: dict[str, int] = {}
            seed_all(0, "turn", round, client)
            for batch in make_turn(data, client, round).batches(interval):
                index = counts_of[client]
                corrected_steps(local, {"a": first, "b": second}, batch, index, correction, totals, counts)
                counts_of[client] += 1
            new[client] = {**own, **{name: totals[name] / counts[name] for name in totals}}
            total += sizes[client]
            for name, value in local.named_parameters():
                now = value.detach().clone()
                mean[name] = torch.lerp(mean[name], now, sizes[client] / total) if name in mean else now
        server.load_state_dict(mean)
        for client, found in new.items():
            for name, value in found.items():
                change = value - variates[client][name] if name in variates.get(client, {}) else value
                c[name] = c.get(name, torch.zeros_like(value)).add(change, alpha=sizes[client] / sum(sizes))
            variates[client] = found
    return server, c, variates


@pytest.mark.parametrize("cohort_size", [None, 2])
def test_equals_a_plain_loop_to_the_bit_with_an_optimizer_for_each_of_two_nets(cohort_size):
    """Adam, and SGD with momentum, which steps at a client's every third iteration: in some turns not at all."""
    torch.manual_seed(3)
    module, data = TwoOptimizers(), make_data()
    strategy = FedAvgStrategy(2, cohort_size=cohort_size, seed=0)
    server, c, variates = plain_scaffold(module, data, 5, 2, lambda round: strategy.sample_cohort(3, round))
    state = fit(module, data, 5, interval=2, cohort_size=cohort_size, batch_idx="client")[-1]
    assert same(weights(module), weights(server))
    assert same(state["server"], c)
    assert all(same(state["clients"][client], variates[client]) for client in variates)


def test_the_first_round_is_fedavgs():
    torch.manual_seed(3)
    modules = [TwoOptimizers()]
    modules.append(copy.deepcopy(modules[0]))
    fit(modules[0], make_data(), 1)
    make_trainer(FedAvgStrategy(3, seed=0), 1).fit(modules[1], make_data())
    assert same(weights(modules[0]), weights(modules[1]))


def test_a_net_that_takes_no_step_in_a_turn_keeps_its_variate():
    """With one iteration a turn the second net steps in round 0 and then in round 3."""
    first, second = fit(TwoOptimizers(), make_data((8, 8)), 2, interval=1, batch_idx="client")
    for client in range(2):
        before, after = first["clients"][client], second["clients"][client]
        assert torch.equal(before["b.weight"], after["b.weight"])
        assert not torch.equal(before["a.weight"], after["a.weight"])
    assert torch.equal(first["server"]["b.weight"], second["server"]["b.weight"])


def weighted_sum(state, name, sizes=(12, 20, 8)):
    return sum(size / sum(sizes) * state["clients"][i][name] for i, size in enumerate(sizes))


@pytest.mark.filterwarnings("ignore:client .* is left out")
@pytest.mark.parametrize("how", ["raise", "nan"])
def test_a_client_left_out_keeps_its_variate(how):
    """Client 1 fails in round 1, and takes part again in round 2."""
    states = fit(Failing(how), make_data(), 3)
    first, second, third = states
    assert same(first["clients"][1], second["clients"][1])
    assert not same(second["clients"][1], third["clients"][1])
    assert not same(first["clients"][0], second["clients"][0])
    for state in states:
        for name, value in state["server"].items():
            assert bool(torch.isfinite(value).all())
            torch.testing.assert_close(value, weighted_sum(state, name), atol=1e-6, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:a round was cut short")
def test_a_round_cut_short_changes_no_variate():
    """The third round of three clients ends after its second turn."""
    cut, whole = Scaffold(), Scaffold()
    for scaffold, rounds, callbacks in ((cut, 3, [StopIn(2)]), (whole, 2, [])):
        torch.manual_seed(3)
        strategy = FedAvgStrategy(4, seed=0, client_algorithm=scaffold)
        make_trainer(strategy, rounds, callbacks=callbacks).fit(Automatic(), make_data())
    assert same(cut.server, whole.server)
    assert all(same(cut.clients[client], whole.clients[client]) for client in range(3))


CASES = [
    (Automatic, "gradients", "reset"),
    (Automatic, "gradients", "keep"),
    (TwoOptimizers, "gradients", "reset"),
    (TwoOptimizers, "gradients", "average"),
    (SGD, "displacement", "reset"),
    (SGD, "displacement", "keep"),
]


@pytest.mark.parametrize(("kind", "variates", "mode"), first_quick(CASES, of=2, several=True))
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_resumed_run_ends_with_the_same_weights_and_variates_to_the_bit(tmp_path, kind, variates, mode):
    def options():
        return {"optimizer_state": mode, "cohort_size": 2, "client_algorithm": Scaffold(variates)}

    found = straight_and_resumed(kind, tmp_path, options)
    (whole, _), (resumed, _) = found
    assert same(weights(whole), weights(resumed))
    straight, again = (trainer.strategy.client_algorithm for _, trainer in found)
    assert same(straight.server, again.server)
    assert all(same(straight.clients[client], again.clients[client]) for client in range(3))


def test_checkpoints_with_variates_load_without_unpickling_objects(tmp_path):
    train(TwoOptimizers(), tmp_path, 1, client_algorithm=Scaffold())
    saved = torch.load(tmp_path / "epoch=0.ckpt", weights_only=True)["fedavg"]["algorithm"]
    assert sorted(saved["server"]) == ["a.bias", "a.weight", "b.bias", "b.weight"]
    assert sorted(saved["clients"]) == [0, 1, 2]


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        (None, Scaffold(), "no control variates of SCAFFOLD"),
        (Scaffold(), None, r"another client algorithm keeps of its clients \(server, clients\)"),
        (Scaffold(), FedProx(0.1), "and FedProx keeps nothing; resume with the same `client_algorithm`"),
    ],
)
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_another_algorithm_on_resume_is_an_error(tmp_path, before, after, word):
    train(Automatic(), tmp_path, 1, client_algorithm=before)
    with pytest.raises(MisconfigurationException, match=word):
        train(Automatic(), tmp_path, 2, tmp_path / "epoch=0.ckpt", client_algorithm=after)


def test_fitting_on_keeps_the_variates_and_another_model_starts_anew():
    torch.manual_seed(3)
    module = Manual("SGD")
    at_once = copy.deepcopy(module)
    scaffold = Scaffold()
    trainer = make_trainer(FedAvgStrategy(2, seed=0, client_algorithm=scaffold), 2)
    trainer.fit(module, make_data())
    trainer.fit_loop.max_epochs = 4
    trainer.fit(module, make_data())
    expected = fit(at_once, make_data(), 4, interval=2)[-1]
    assert same(weights(module), weights(at_once))
    assert same(scaffold.server, expected["server"])
    trainer.fit_loop.max_epochs = 5
    trainer.fit(TwoOptimizers(), make_data())
    for variates in (scaffold.server, *scaffold.clients.values()):
        assert sorted(variates) == ["a.bias", "a.weight", "b.bias", "b.weight"]


def test_what_does_not_travel_has_no_variate():
    module = Automatic()
    module.net[0].requires_grad_(False)
    (state,) = fit(module, make_data(), 1, personal=["net.4.*"])
    assert sorted(state["server"]) == ["net.1.bias", "net.1.weight"]  # of the buffers none
    assert fit(TwoOptimizers(), make_data(), 2, personal=["*"])[-1] == {"server": {}, "clients": {0: {}, 1: {}, 2: {}}}


class Clipped(Automatic):
    """A gradient overflows in round 1 at client 1, and is clipped away."""

    def on_turn_start(self, turn):
        self.client = turn.client

    def on_after_backward(self):
        if (self.current_epoch, self.client) == (1, 1):
            gradient = next(iter(self.parameters())).grad
            assert gradient is not None
            gradient.fill_(torch.inf)

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        for parameter in self.parameters():
            parameter.grad.nan_to_num_(0.0, 0.0, 0.0)


def test_gradients_that_overflow_and_are_clipped_leave_the_variate_as_it_was():
    with pytest.warns(UserWarning, match="gradients"):
        first, second, _ = fit(Clipped("SGD"), make_data(), 3)
    assert same(first["clients"][1], second["clients"][1])
    assert not same(first["clients"][0], second["clients"][0])


def test_variates_of_half_precision_weights_are_in_float32():
    torch.manual_seed(3)
    scaffold = Scaffold()
    strategy = FedAvgStrategy(2, seed=0, client_algorithm=scaffold)
    module = Automatic("SGD")
    make_trainer(strategy, 2, precision="bf16-true").fit(module, make_data())
    assert module.net[0].weight.dtype == torch.bfloat16
    assert {value.dtype for value in scaffold.server.values()} == {torch.float32}


def test_what_it_sends_and_holds_is_said_once(caplog):
    """Ten parameters of four bytes; as many for the variates."""

    class Ten(SGD):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(3, 2))
            self.other = nn.Linear(1, 1)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    with caplog.at_level(logging.INFO):
        fit(Ten(), make_data(), 2)
    messages = [record.message for record in caplog.records]
    assert messages.count("each client sends 80 B a round and receives 80 B") == 1
    assert messages.count("SCAFFOLD holds 40 B of variates for the server and each of 3 clients") == 1


def test_an_unknown_kind_of_variate_is_named():
    kind: Any = "adam"
    with pytest.raises(ValueError, match="displacement"):
        Scaffold(kind)


@pytest.mark.parametrize("kind", ["Adam", "SGD"])
def test_displacements_are_refused_for_adam_and_for_momentum(kind):
    with pytest.raises(MisconfigurationException, match=rf"(?s)an optimizer is {kind} \(.*use variates='gradients'"):
        fit(Automatic(kind), make_data(), 1, Scaffold("displacement"))


def test_data_that_names_no_clients_is_an_error():
    data = make_data()
    data.setup("fit")

    make_trainer(FedAvgStrategy(1, seed=0), 1).fit(Automatic(), OneTurn(data))
    with pytest.raises(MisconfigurationException, match="FederatedDataModule"):
        fit(Automatic(), OneTurn(data), 1)


def test_a_gan_trains_with_a_variate_for_each_of_its_weights():
    from fedgen.clients import FederatedDataModule
    from fedgen.clients.partitions import ByClass
    from fedgen.data import Digits
    from fedgen.models import WGANGP
    from fedgen.models.networks import SmallCritic, SmallGenerator

    model = WGANGP(SmallGenerator(), SmallCritic(), n_critic=2)
    state = fit(model, FederatedDataModule(Digits(), ByClass(), batch_size=8), 2, cohort_size=2)[-1]
    names = {name for name, _ in model.named_parameters() if name.startswith(("generator.", "critic."))}
    assert set(state["server"]) == names
    assert all(bool(torch.isfinite(value).all()) for value in state["server"].values())


def test_a_recipe_names_it_by_class_path():
    recipe = """
    strategy:
      class_path: fedgen.federated.FedAvgStrategy
      init_args:
        client_algorithm: {class_path: fedgen.federated.Scaffold, init_args: {variates: displacement}}
    """
    assert strategy_of(yaml.safe_load(recipe)).client_algorithm.variates == "displacement"
