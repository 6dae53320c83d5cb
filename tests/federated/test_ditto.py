"""Ditto by hand, where it converges, and against the same thing written as a plain loop."""

import copy
import logging
import math

import lightning as L
import pytest
import torch
import yaml
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.utils.data import Dataset

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.federated import Ditto, FedAvgStrategy, FedProx, PrivateMean
from fedgen.federated.client_state.memory import ClientMemory
from fedgen.federated.federation_state import check_packed
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
from tests.federated.test_prox import plain_step
from tests.federated.test_resume import straight_and_resumed, train
from tests.federated.test_strategy import Failing, make_turn
from tests.quick import first_quick

KINDS = [Automatic, Manual, TwoOptimizers]


def fit(module, data, rounds, rule=None, interval=3, callbacks=(), **options):
    strategy = FedAvgStrategy(interval, seed=0, client_algorithm=rule, **options)
    make_trainer(strategy, rounds, callbacks=list(callbacks)).fit(module, data)
    return strategy


def own_w(rule):
    return [own["w"].item() for _, own in sorted(rule.clients.items())]


def test_two_rounds_of_two_clients_by_hand():
    """From w = 1, lr 0.1, lam 2, two steps a turn; the pull is 0 at the first step, as v begins at w.

    Client (1, 0): 1 - 0.1 * 1 = 0.9, then 0.9 - 0.1 (0.9 - 2 * 0.1) = 0.83; its turn ends at 0.81.
    Client (3, 4): 1 - 0.1 * 3 (1 - 4) = 1.9, then 1.9 - 0.1 (3 * -2.1 + 2 * 0.9) = 2.35; its turn ends at 2.53.
    So w = 1.67, and the second round goes on from 0.83 and 2.35.
    """
    rule, module = Ditto(lam=2.0), Quadratic()
    fit(module, make_quadratics(), 1, rule, interval=2)
    assert module.w.item() == pytest.approx(1.67, rel=1e-12)
    assert own_w(rule) == pytest.approx([0.83, 2.35], rel=1e-12)
    again = Ditto(lam=2.0)
    fit(Quadratic(), make_quadratics(), 2, again, interval=2)
    # 0.83 - 0.1 (0.83 - 2 * 0.84) = 0.915 and 2.35 - 0.1 (3 * -1.65 + 2 * 0.68) = 2.709, and one step more
    first = 0.915 - 0.1 * (0.915 - 2 * (1.67 - 0.915))
    second = 2.709 - 0.1 * (3 * (2.709 - 4) + 2 * (2.709 - 1.67))
    assert own_w(again) == pytest.approx([first, second], rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("lam", [0.0, 1.0, 9.0])
def test_own_models_end_between_the_clients_optimum_and_the_server(lam):
    """After many steps at a / 2 (v - b)^2 + lam / 2 (v - w)^2's minimum, (a b + lam w) / (a + lam), with w = 1."""
    rule = Ditto(lam)
    fit(Quadratic(), make_quadratics(), 1, rule, interval=220)
    assert own_w(rule) == pytest.approx([lam / (1 + lam), (12 + lam) / (3 + lam)], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", first_quick(["reset", "keep", "average"]))
def test_the_servers_model_is_fedavgs_to_the_bit(kind, mode):
    torch.manual_seed(3)
    start = kind()
    plain, watched = copy.deepcopy(start), copy.deepcopy(start)
    options = {"cohort_size": 2, "optimizer_state": mode}
    one = fit(plain, make_data(), 3, **options)
    other = fit(watched, make_data(), 3, Ditto(0.5), **options)
    assert same(weights(plain), weights(watched))
    assert one.round.memory.iterations == other.round.memory.iterations
    assert one.clock.total_steps == other.clock.total_steps
    assert plain.trainer.global_step == watched.trainer.global_step


class Servers(L.Callback):
    """Copies the server's weights at every round's end."""

    def __init__(self):
        self.weights = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.weights.append(weights(pl_module))


def plain_ditto(module, data, rounds, interval, lam, cohorts):
    """Own models of clients as anybody would write it, beside a server that FedAvg moves."""
    own, server, servers = {}, copy.deepcopy(module), Servers()
    fit(copy.deepcopy(module), data, rounds - 1, interval=interval, cohort_size=2, callbacks=[servers])
    for round in range(rounds):
        for client in cohorts(round):
            local = copy.deepcopy(server).train()
            local.load_state_dict(own.get(client, server.state_dict()))
            optimizers = local.configure_optimizers()
            optimizers = list(optimizers) if isinstance(optimizers, tuple) else [optimizers]
            seed_all(0, "turn", round, client)
            for index, batch in enumerate(make_turn(data, client, round).batches(interval)):
                plain_step(local, server, optimizers, batch, index, lam)
            own[client] = weights(local)
        if round < rounds - 1:
            server.load_state_dict(servers.weights[round])
    return own


@pytest.mark.parametrize("kind", KINDS)
def test_equals_a_plain_loop_to_the_bit(kind):
    torch.manual_seed(3)
    module, data, rule = kind(), make_data(), Ditto(0.7)
    drawn = FedAvgStrategy(4, cohort_size=2, seed=0)
    expected = plain_ditto(copy.deepcopy(module), data, 4, 4, 0.7, lambda round: drawn.sample_cohort(3, round))
    fit(module, data, 4, rule, interval=4, cohort_size=2)
    assert rule.clients.keys() == expected.keys() == {0, 1, 2}
    assert all(same(rule.clients[client], own) for client, own in expected.items())


@pytest.mark.parametrize("mode", ["keep", "average"])
def test_optimizers_of_own_models_begin_empty_whatever_those_of_turns_do(mode):
    """One client, so that the server's model of round 1 is the same in all modes but for what round 1 makes of it."""
    rules = []
    for how in ("reset", mode):
        torch.manual_seed(3)
        rules.append(Ditto(0.0))
        fit(Automatic(), make_data((8,)), 3, rules[-1], optimizer_state=how)
    assert same(rules[0].clients[0], rules[1].clients[0])


def test_personal_tensors_have_a_value_of_their_own_in_the_own_model():
    """As the whole model is: the turn's personal tensors go on without those of v."""
    torch.manual_seed(3)
    module, rule = TwoOptimizers(), Ditto(0.5)
    plain = copy.deepcopy(module)
    with_own = fit(module, make_data(), 3, rule, personal=["b.*"])
    without = fit(plain, make_data(), 3, personal=["b.*"])
    for client in range(3):
        assert same(with_own.round.memory.personal[client], without.round.memory.personal[client])
        assert not torch.equal(rule.clients[client]["b.weight"], without.round.memory.personal[client]["b.weight"])
    assert same(weights(module), weights(plain))


@pytest.mark.filterwarnings("ignore:client .* is left out")
@pytest.mark.parametrize("how", ["raise", "nan"])
def test_a_client_left_out_keeps_its_own_model(how):
    """Client 1 fails in round 1, and takes part again in round 2."""
    states = []

    class Rounds(L.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            states.append(copy.deepcopy(rule.clients))

    rule = Ditto(0.1)
    fit(Failing(how), make_data(), 3, rule, callbacks=[Rounds()])
    first, second, third = states
    assert same(first[1], second[1])
    assert not same(second[1], third[1])
    assert not same(first[0], second[0])


class FailsInItsTurn(Automatic):
    """Client 1 fails in round 1 once its own model has been trained."""

    own_turn_state = ("starts", "key")

    def __init__(self, starts):
        super().__init__()
        self.starts = starts

    def on_turn_start(self, turn):
        self.key = (turn.round, turn.client)
        self.starts.append(self.key)

    def training_step(self, batch, batch_idx):
        if self.key == (1, 1) and self.starts.count(self.key) == 2:
            raise RuntimeError("no such luck")
        return super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:client .* is left out")
def test_an_own_model_of_a_turn_that_fails_after_it_is_dropped():
    rules = [Ditto(0.1), Ditto(0.1)]
    for rule, rounds in zip(rules, (1, 2)):
        torch.manual_seed(3)
        fit(FailsInItsTurn([]), make_data(), rounds, rule)
    assert same(rules[0].clients[1], rules[1].clients[1])
    assert not same(rules[0].clients[0], rules[1].clients[0])


@pytest.mark.filterwarnings("ignore:a round was cut short")
def test_a_round_cut_short_changes_no_own_model():
    cut, whole = Ditto(0.1), Ditto(0.1)
    for rule, rounds, callbacks in ((cut, 3, [StopIn(2)]), (whole, 2, [])):
        torch.manual_seed(3)
        fit(Automatic(), make_data(), rounds, rule, interval=4, callbacks=callbacks)
    assert all(same(cut.clients[client], whole.clients[client]) for client in range(3))


@pytest.mark.parametrize("kind", first_quick(KINDS))
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_resumed_run_ends_with_the_same_models_to_the_bit(tmp_path, kind):
    found = straight_and_resumed(kind, tmp_path, lambda: {"cohort_size": 2, "client_algorithm": Ditto(0.3)})
    (whole, _), (resumed, _) = found
    assert same(weights(whole), weights(resumed))
    straight, again = (trainer.strategy.client_algorithm.clients for _, trainer in found)
    assert straight.keys() == again.keys()
    assert all(same(straight[client], again[client]) for client in straight)


@pytest.mark.parametrize(
    ("before", "after", "word"),
    [
        (None, Ditto(), "no models of Ditto's clients"),
        (Ditto(), FedProx(0.1), r"\(clients, scores_own\), and FedProx keeps nothing"),
    ],
)
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_another_algorithm_on_resume_is_an_error(tmp_path, before, after, word):
    train(Automatic(), tmp_path, 1, client_algorithm=before)
    with pytest.raises(MisconfigurationException, match=word):
        train(Automatic(), tmp_path, 2, tmp_path / "epoch=0.ckpt", client_algorithm=after)


def test_another_models_clients_are_forgotten_and_the_same_models_go_on():
    rule = Ditto(0.1)
    module = Automatic()
    trainer = make_trainer(FedAvgStrategy(2, seed=0, client_algorithm=rule), 1)
    trainer.fit(module, make_data())
    before = copy.deepcopy(rule.clients)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, make_data())
    assert all(not same(before[client], rule.clients[client]) for client in range(3))
    trainer.fit_loop.max_epochs = 3
    trainer.fit(TwoOptimizers(), make_data())
    assert sorted(rule.clients[0]) == ["a.bias", "a.weight", "b.bias", "b.weight"]


class Points(Dataset):
    """Points with labels, which are read one by one and get noise."""

    def __len__(self):
        return 24

    def __getitem__(self, position):
        draws = torch.Generator().manual_seed(position)
        return torch.randn(3, generator=draws) + 0.1 * torch.randn(3), position % 2


@pytest.mark.slow
def test_batches_that_are_read_are_the_same_twice_whatever_the_number_of_workers():
    """The own model's are read while those of the next turn are read ahead; the server's model is as without Ditto."""
    found = []
    for rule, workers in ((None, 0), (Ditto(0.3), 0), (Ditto(0.3), 1)):
        data = FederatedDataModule(
            Points(), IID(3), batch_size=4, held_out=0.0, seed=0, num_workers=workers, labels=lambda place: place % 2
        )
        torch.manual_seed(3)
        module = Automatic()
        fit(module, data, 2, rule)
        found.append((weights(module), rule and rule.clients))
    assert same(found[0][0], found[1][0])
    assert same(found[1][0], found[2][0])
    assert all(same(found[1][1][client], found[2][1][client]) for client in range(3))


class Logged(Automatic):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss


@pytest.mark.slow
def test_what_is_logged_is_of_the_turns():
    values = []
    for rule in (None, Ditto(5.0)):
        torch.manual_seed(3)
        module = Logged()
        fit(module, make_data(), 3, rule)
        values.append(float(module.trainer.callback_metrics["loss"]))
    assert values[0] == values[1]


def test_a_client_sees_its_own_model_between_rounds():
    torch.manual_seed(3)
    module, rule = Automatic(), Ditto(0.1)
    strategy = fit(module, make_data(), 2, rule)
    server = weights(module)
    with strategy.client_model(1):
        assert same(weights(module), {**server, **rule.clients[1]})
        assert not same(weights(module), server)
    assert same(weights(module), server)
    assert strategy.personal_tensors.keys() == {0, 1, 2}
    other = fit(Automatic(), make_data(), 1, Ditto(0.1, scored="server"))
    assert other.personal_tensors == {}


def test_where_nothing_travels_there_is_nothing_to_be_pulled_to():
    """As `fedgen fit --local_only` has it."""
    torch.manual_seed(3)
    rule = Ditto(0.1)
    strategy = fit(Automatic(), make_data(), 2, rule, personal=["*"])
    assert rule.clients == {}
    assert len(strategy.personal_tensors) == 3


def test_what_it_holds_is_said(caplog):
    with caplog.at_level(logging.INFO):
        fit(Quadratic(), make_quadratics(), 1, Ditto(0.1))
    messages = [record.message for record in caplog.records]
    assert "Ditto holds a model of 8 B and more for each of 2 clients" in messages
    assert "each client sends 8 B a round and receives 8 B" in messages


def test_beside_noise_it_is_refused():
    with pytest.raises(MisconfigurationException, match="Ditto"):
        fit(Automatic(), make_data(), 1, Ditto(0.1), aggregator=PrivateMean(1.0, 1.0), client_weights="uniform")


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        ([torch.zeros(1)], "clients' own models are not by client and name"),
        ({0: torch.zeros(1)}, "clients' own models are not by client and name"),
        ({0: {"w": torch.zeros(2)}}, "client 0 has w of another shape or kind than the model"),
        ({0: {"w": torch.full((1,), math.nan)}}, "it holds NaN, infinity"),
    ],
)
def test_a_damaged_checkpoint_is_told_before_its_models_are_used(clients, said):
    parts = {"local": {"clients": {}}, "server_optimizer": None}
    packed = {"version": 2, **ClientMemory().state_dict(), **parts}
    check_packed(
        {**packed, "algorithm": {"clients": {0: {"w": torch.ones(1)}}, "scores_own": True}}, {"w": torch.ones(1)}
    )
    with pytest.raises(ValueError, match=said):
        check_packed({**packed, "algorithm": {"clients": clients, "scores_own": True}}, {"w": torch.ones(1)})


@pytest.mark.parametrize("lam", [-0.1, math.inf, math.nan])
def test_values_out_of_range_are_named(lam):
    with pytest.raises(ValueError, match=f"lam={lam}: the strength"):
        Ditto(lam)
    with pytest.raises(ValueError, match="personal"):
        Ditto(0.1, scored="both")


def test_a_recipe_names_it_by_class_path():
    recipe = """
    strategy:
      class_path: fedgen.federated.FedAvgStrategy
      init_args:
        client_algorithm: {class_path: fedgen.federated.Ditto, init_args: {lam: 1, scored: server}}
    """
    rule = strategy_of(yaml.safe_load(recipe)).client_algorithm
    assert (rule.lam, rule.scored) == (1.0, "server")
