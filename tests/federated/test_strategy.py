"""FedAvgStrategy against federated averaging written as a plain loop, to the bit."""

import copy

import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn

from fedgen.federated import Aggregator, FedAdam, FedAvgStrategy, NormClipping
from fedgen.ranks import Ranks
from fedgen.seeds import seed_all
from tests.federated.modules import Automatic, Manual, TwoOptimizers, make_data, make_trainer, same, weights


def plain_step(module, optimizers, batch, index):
    """One local iteration of the modules above, without Lightning."""
    if isinstance(module, TwoOptimizers):
        chosen = optimizers[:1] if index % 3 else optimizers
        for optimizer in chosen:
            loss = module.losses(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return
    x, y = batch
    loss = nn.functional.cross_entropy(module.net(x), y)
    optimizers[0].zero_grad()
    loss.backward()
    optimizers[0].step()


def plain_fedavg(module, data, rounds, interval, cohorts, mode="reset", uniform=False):
    """FedAvg as anybody would write it: copy the server's model, train, take the weighted running mean."""
    server = copy.deepcopy(module)
    states, mean_states = {}, None
    for round in range(rounds):
        mean, total, sums, sum_weights, counters = None, 0.0, None, {}, {}
        for client in cohorts(round):
            local = copy.deepcopy(server).train()
            optimizers = local.configure_optimizers()
            optimizers = list(optimizers) if isinstance(optimizers, tuple) else [optimizers]
            start = states.get(client) if mode == "keep" else mean_states if mode == "average" else None
            if start is not None:
                for optimizer, state in zip(optimizers, start):
                    optimizer.load_state_dict(copy.deepcopy(state))
            seed_all(data.seed, "turn", round, client)
            turn = make_turn(data, client, round)
            for index, batch in enumerate(turn.batches(interval)):
                plain_step(local, optimizers, batch, index)
            states[client] = [copy.deepcopy(optimizer.state_dict()) for optimizer in optimizers]
            weight = 1.0 if uniform else float(len(data.clients[client].train))
            total += weight
            new = {k: v for k, v in local.state_dict().items() if v.is_floating_point()}
            for k, v in local.state_dict().items():
                if not v.is_floating_point():
                    counters[k] = torch.maximum(v, counters.get(k, v))
            mean = {k: v.clone() for k, v in new.items()} if mean is None else mean
            mean = {k: torch.lerp(mean[k], new[k], weight / total) for k in mean}
            sums = mean_optimizer_state(sums, states[client], weight, sum_weights)
        server.load_state_dict({**server.state_dict(), **mean, **counters})
        mean_states = sums
    return server


def mean_optimizer_state(mean, states, weight, totals):
    mean = copy.deepcopy(states) if mean is None else mean
    for i, state in enumerate(states):
        for parameter, slots in state["state"].items():
            for name, value in slots.items():
                key = (i, parameter, name)
                first = key not in totals
                totals[key] = totals.get(key, 0.0) + weight
                if first or value is None or not torch.is_tensor(value):
                    mean[i]["state"].setdefault(parameter, {})[name] = copy.deepcopy(value)
                else:
                    mean[i]["state"][parameter][name] = torch.lerp(
                        mean[i]["state"][parameter][name], value, weight / totals[key]
                    )
    return mean


def make_turn(data, client, round):
    from fedgen.clients import Turn

    owner = data.clients[client]
    return Turn(owner.data, owner.train, data.batch_size, data.seed, client, owner.name, round)


class OneTurn:
    """A loader of one turn a round, which names no clients."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        turn = make_turn(self.data, 0, 0)
        turn.is_first = turn.is_last = True
        yield turn


def run(module, data, rounds, **options):
    strategy = FedAvgStrategy(**{"seed": data.seed, **options})
    trainer = make_trainer(strategy, rounds)
    trainer.fit(module, data)
    return trainer


CASES = [(kind, mode, None) for kind in (Automatic, Manual, TwoOptimizers) for mode in ("reset", "keep", "average")]
OF_TWO = [(Automatic, "keep", 2), (Manual, "reset", 2), (TwoOptimizers, "average", 2), (TwoOptimizers, "keep", 2)]


@pytest.mark.parametrize(
    ("kind", "mode", "cohort_size"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in OF_TWO)]
)
def test_equals_a_plain_loop_to_the_bit(kind, mode, cohort_size):
    torch.manual_seed(3)
    module, data = kind(), make_data()
    strategy = FedAvgStrategy(4, cohort_size=cohort_size, optimizer_state=mode, seed=0)
    expected = plain_fedavg(module, data, 3, 4, lambda r: strategy.sample_cohort(3, r), mode)
    run(module, data, 3, communication_interval=4, cohort_size=cohort_size, optimizer_state=mode)
    assert same(weights(module), weights(expected))


def test_uniform_weights_ignore_the_clients_sizes():
    torch.manual_seed(3)
    module, data = Automatic("SGD"), make_data()
    expected = plain_fedavg(module, data, 2, 3, lambda r: [0, 1, 2], uniform=True)
    run(module, data, 2, communication_interval=3, client_weights="uniform")
    assert same(weights(module), weights(expected))


def test_the_running_mean_is_the_textbook_average():
    """Two clients of 12 and 4 examples after one round: (12 a + 4 b) / 16."""
    torch.manual_seed(3)
    module, data = Automatic("SGD"), make_data((12, 4))
    start = copy.deepcopy(module)
    locals_ = []
    for client in range(2):
        local = copy.deepcopy(start).train()
        optimizer = local.configure_optimizers()
        seed_all(data.seed, "turn", 0, client)
        for i, batch in enumerate(make_turn(data, client, 0).batches(3)):
            plain_step(local, [optimizer], batch, i)
        locals_.append(local)
    run(module, data, 1, communication_interval=3)
    for name, value in module.named_parameters():
        a, b = (dict(local.named_parameters())[name] for local in locals_)
        torch.testing.assert_close(value, (12 * a + 4 * b) / 16)


def test_counters_take_the_largest_over_clients():
    """Two rounds of three iterations each, whatever the number of clients."""
    module = Automatic()
    run(module, make_data(), 2, communication_interval=3)
    assert int(module.net[1].num_batches_tracked) == 6


def test_sgd_with_rate_one_as_server_optimizer_is_fedavg():
    torch.manual_seed(3)
    a = Automatic("SGD")
    b = copy.deepcopy(a)
    run(a, make_data(), 3, communication_interval=4)
    run(b, make_data(), 3, communication_interval=4, server_optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    for left, right in zip(a.state_dict().values(), b.state_dict().values()):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "expected"), [("round", [0, 1, 2] * 4), ("client", [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5])]
)
def test_batch_idx_counts_a_rounds_iterations_or_a_clients_own(kind, expected):
    seen = []
    run(TwoOptimizers(seen), make_data((4, 4)), 2, communication_interval=3, batch_idx=kind)
    assert seen == expected


def test_global_step_is_one_clients_count_and_the_total_is_logged():
    """Five steps a round of each of three clients; two optimizers take three steps and one."""
    trainer = run(Automatic(), make_data(), 2, communication_interval=5)
    assert trainer.global_step == 2 * 5
    assert trainer.callback_metrics["total_steps"] == 2 * 3 * 5
    trainer = run(TwoOptimizers(), make_data(), 1, communication_interval=3)
    assert trainer.global_step == 3 + 1
    assert trainer.callback_metrics["total_steps"] == 3 * (3 + 1)


class Failing(Automatic):
    """Raises or diverges at client 1 in round 1."""

    own_turn_state = ("turn",)
    turn = None

    def __init__(self, how):
        super().__init__("SGD")
        self.how = how

    def training_step(self, batch, batch_idx):
        if self.current_epoch == 1 and self.turn == 1:
            if self.how == "raise":
                self.net[0].weight.requires_grad_(False)
                self.net[1].eval()
                raise RuntimeError("no such luck")
            return super().training_step(batch, batch_idx) * float("nan")
        return super().training_step(batch, batch_idx)

    def on_turn_start(self, turn):
        self.turn = turn.client


@pytest.mark.parametrize(("how", "word"), [("raise", "no such luck"), ("nan", "not finite")])
def test_a_failing_client_is_left_out_and_the_rest_renormalised(how, word):
    torch.manual_seed(3)
    module, data = Failing(how), make_data()
    expected = plain_fedavg(Automatic("SGD").eval(), data, 0, 3, None)
    expected.load_state_dict(module.state_dict())
    expected = plain_fedavg(expected, data, 3, 3, lambda r: [0, 2] if r == 1 else [0, 1, 2])
    strategy = FedAvgStrategy(3, seed=0)
    trainer = make_trainer(strategy, 3)
    with pytest.warns(UserWarning, match=f"client 'client 1' is left out of round 1: .*{word}"):
        trainer.fit(module, data)
    assert same(weights(module), weights(expected))
    assert module.net[0].weight.requires_grad
    assert module.net[1].training
    assert [(e["round"], e["client"]) for e in strategy.left_out] == [(1, 1)]


class AlwaysFailing(Automatic):
    def training_step(self, batch, batch_idx):
        raise KeyError("missing label")


@pytest.mark.filterwarnings("ignore:client .* is left out")
def test_a_round_that_loses_every_client_raises_what_they_met():
    module = AlwaysFailing()
    before = weights(module)
    with pytest.raises(KeyError, match="every client of round 0"):
        run(module, make_data(), 1, communication_interval=2)
    assert same(before, weights(module))


def test_personal_tensors_never_leave_their_client():
    torch.manual_seed(3)
    module = TwoOptimizers()
    start = weights(module)
    strategy = FedAvgStrategy(4, personal=["b.*"], seed=0)
    trainer = make_trainer(strategy, 3)
    trainer.fit(module, make_data())
    assert torch.equal(module.b.weight, start["b.weight"])
    assert not torch.equal(module.a.weight, start["a.weight"])
    seen = []
    for client in range(3):
        with strategy.client_model(client):
            seen.append(module.b.weight.detach().clone())
    assert not torch.equal(seen[0], seen[1])
    assert torch.equal(module.b.weight, start["b.weight"])


def test_everything_personal_is_local_training_without_exchange():
    """Each client's weights after 3 rounds of 4 iterations are those it reaches alone."""
    torch.manual_seed(3)
    module, data = Manual("SGD"), make_data()
    start = copy.deepcopy(module)
    strategy = FedAvgStrategy(4, personal=["*"], optimizer_state="keep", seed=0)
    make_trainer(strategy, 3).fit(module, data)
    assert strategy.local_only
    alone = copy.deepcopy(start).train()
    optimizer = alone.configure_optimizers()
    for round in range(3):
        seed_all(data.seed, "turn", round, 1)
        for i, batch in enumerate(make_turn(data, 1, round).batches(4)):
            plain_step(alone, [optimizer], batch, i)
    with strategy.client_model(1):
        for name, value in module.named_parameters():
            assert torch.equal(value, dict(alone.named_parameters())[name])


def test_a_personal_pattern_that_matches_nothing_is_an_error():
    with pytest.raises(ValueError, match="critic"):
        run(Automatic(), make_data(), 1, communication_interval=1, personal=["critic.*"])


class Frozen(Automatic):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(3, 3).requires_grad_(False)
        self.ema = nn.Linear(3, 3)
        self.ema.exchanged = False

    def on_round_end(self, iterations):
        self.rounds = getattr(self, "rounds", 0) + iterations


def test_frozen_parameters_and_unexchanged_modules_are_left_alone():
    module = Frozen()
    strategy = FedAvgStrategy(2, seed=0)
    make_trainer(strategy, 2).fit(module, make_data())
    assert not any(name.startswith("ema") for name in strategy.exchange.live)
    assert list(strategy.exchange.quiet) == ["backbone.weight", "backbone.bias"]
    assert module.rounds == 4


def test_two_runs_with_one_seed_are_equal_and_another_seed_differs():
    results = []
    for seed in (0, 0, 1):
        torch.manual_seed(3)
        module = Automatic()
        run(module, make_data(seed=seed), 2, communication_interval=4)
        results.append(weights(module))
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"communication_interval": 0}, "communication_interval=0"),
        ({"cohort_size": 0}, "cohort_size=0"),
        ({"client_weights": "size"}, "client_weights='size'"),
        ({"optimizer_state": "share"}, "optimizer_state='share'"),
    ],
)
def test_settings_out_of_range_are_named(options, word):
    with pytest.raises(ValueError, match=word):
        FedAvgStrategy(**options)


def test_a_cohort_larger_than_the_federation_is_an_error():
    with pytest.raises(ValueError, match="cohort_size"):
        run(Automatic(), make_data(), 1, communication_interval=1, cohort_size=4)


def test_momentum_of_the_server_persists_over_rounds():
    """First keras step at lr 0.5: w - 0.5 sqrt(1 - b2) / (1 - b1) m / (sqrt(v) + eps)."""
    torch.manual_seed(3)
    module, data = Automatic("SGD"), make_data((8,))
    start = weights(module)
    reference = plain_fedavg(module, data, 1, 3, lambda r: [0])
    run(module, data, 1, communication_interval=3, server_optimizer=lambda p: FedAdam(p, lr=0.5))
    g = start["net.0.weight"] - reference.net[0].weight.detach()
    m, v = 0.1 * g, 0.001 * g * g
    expected = start["net.0.weight"] - 0.5 * (0.001**0.5 / 0.1) * m / (v.sqrt() + 1e-4)
    torch.testing.assert_close(module.net[0].weight.detach(), expected, atol=1e-6, rtol=1e-5)


class Complex(Automatic):
    """One complex parameter w, pulled to 1 + 1j by gradient descent."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, dtype=torch.complex64))

    def training_step(self, batch, batch_idx):
        return (self.w - (1 + 1j)).abs().square().sum()

    def configure_optimizers(self):
        return torch.optim.SGD([self.w], lr=0.25)


def test_complex_parameters_are_averaged():
    """The gradient is 2 (w - 1 - 1j), so a step of 0.25 halves the distance for every client: 1/4 left after two."""
    module = Complex()
    run(module, make_data(), 1, communication_interval=2)
    assert module.w.tolist() == pytest.approx([0.75 + 0.75j] * 2)


class Bare(Aggregator):
    """A rule that keeps no count of its own."""

    def start(self, server):
        self.kept = list(server)

    def grow(self, server, places):
        for place, tensor in zip(places, server):
            self.kept.insert(place, tensor)

    def add(self, client, update, weight):
        self.kept = [t.detach().clone() for t in update]

    def result(self):
        return self.kept


class OneOfTwo(Ranks):
    """One process of two, as far as is known before anything is exchanged."""

    def __init__(self):
        self.size, self.rank = 2, 0


@pytest.mark.parametrize("aggregator", [Bare(), NormClipping(1.0, Bare())])
def test_an_aggregator_that_merges_nothing_is_refused_before_the_first_round_of_several_processes(
    aggregator, monkeypatch
):
    monkeypatch.setattr("fedgen.federated.strategy.Ranks", OneOfTwo)
    trainer = make_trainer(FedAvgStrategy(3, seed=0, aggregator=aggregator), 2)
    with pytest.raises(MisconfigurationException, match="processes"):
        trainer.fit(Automatic(), make_data())


def test_an_aggregator_needs_no_count_of_clients():
    strategy = FedAvgStrategy(3, seed=0, aggregator=Bare())
    with pytest.warns(UserWarning, match="left"):
        make_trainer(strategy, 2).fit(Failing("raise"), make_data())
    assert len(strategy.left_out) == 1
