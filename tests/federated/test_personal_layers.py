"""Layers that clients keep, FedPer and FedRep, against the same things written as plain loops."""

import copy

import pytest
import torch
import yaml
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.federated import FedAvgStrategy, FedRep
from fedgen.seeds import seed_all
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
from tests.federated.test_resume import straight_and_resumed
from tests.federated.test_strategy import make_turn, plain_step
from tests.quick import first_quick

HEAD = "net.4."  # the last layer of `Automatic`
INTERVAL = 5


def fit(module, rounds, rule=None, data=None, interval=INTERVAL, personal=(f"{HEAD}*",), **options):
    strategy = FedAvgStrategy(interval, seed=0, client_algorithm=rule, personal=list(personal), **options)
    make_trainer(strategy, rounds).fit(module, data or make_data())
    return strategy


def plain_loop(module, data, rounds, cohorts, turn, head=HEAD):
    """A body that is averaged and a head for each client, as anybody would write it; server's module and heads."""
    server, heads = copy.deepcopy(module), {}
    for round in range(rounds):
        mean, total = {}, 0.0
        for client in cohorts(round):
            local = copy.deepcopy(server).train()
            local.load_state_dict({**server.state_dict(), **heads.get(client, {})})
            optimizers = local.configure_optimizers()
            optimizers = list(optimizers) if isinstance(optimizers, tuple) else [optimizers]
            seed_all(0, "turn", round, client)
            turn(local, optimizers, make_turn(data, client, round).batches(INTERVAL))
            state = weights(local)
            heads[client] = {name: value for name, value in state.items() if name.startswith(head)}
            size = len(data.clients[client].train)
            total += size
            for name, value in state.items():
                if not name.startswith(head) and value.is_floating_point():
                    mean[name] = torch.lerp(mean[name], value, size / total) if name in mean else value
        server.load_state_dict({**server.state_dict(), **mean})
    return server, heads


def together(local, optimizers, batches):
    """FedPer's turn: every step trains body and head."""
    for index, batch in enumerate(batches):
        plain_step(local, optimizers, batch, index)


def one_after_the_other(head_steps, head=HEAD):
    """FedRep's turn: the head with the body frozen, then the body with the head frozen."""

    def turn(local, optimizers, batches):
        for index, batch in enumerate(batches):
            for name, parameter in local.named_parameters():
                parameter.requires_grad_(name.startswith(head) == (index < head_steps))
                parameter.grad = None
            plain_step(local, optimizers, batch, index)

    return turn


def check(module, strategy, expected):
    server, heads = expected
    found, wanted = weights(module), server.state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in found.items() if value.is_floating_point())
    assert strategy.personal_tensors.keys() == heads.keys()
    assert all(same(dict(strategy.personal_tensors[client]), head) for client, head in heads.items())


def drawn(cohort_size):
    strategy = FedAvgStrategy(INTERVAL, cohort_size=cohort_size, seed=0)
    return lambda round: strategy.sample_cohort(3, round)


@pytest.mark.parametrize(
    ("kind", "optimizer", "cohort_size"),
    [(Automatic, "Adam", None), (Manual, "Adam", 2), (Automatic, "SGD", 2), (Manual, "SGD", None)],
)
def test_personal_layers_are_fedper_to_the_bit(kind, optimizer, cohort_size):
    torch.manual_seed(3)
    module, data = kind(optimizer), make_data()
    expected = plain_loop(module, data, 3, drawn(cohort_size), together)
    strategy = fit(module, 3, data=data, cohort_size=cohort_size)
    check(module, strategy, expected)


CASES = [
    (Automatic, "Adam", 1),
    (Automatic, "SGD", 3),
    (Automatic, "AdamW", 1),
    (Manual, "Adam", 3),
    (Manual, "SGD", 1),
    (Manual, "AdamW", 3),
]


@pytest.mark.parametrize(("kind", "optimizer", "head_steps"), first_quick(CASES, of=3, several=True))
def test_the_head_first_and_then_the_body_is_fedrep_to_the_bit(kind, optimizer, head_steps):
    """Adam, SGD with momentum, and AdamW, whose decay would move what is frozen."""
    torch.manual_seed(3)
    module, data = kind(optimizer), make_data()
    expected = plain_loop(module, data, 3, drawn(2), one_after_the_other(head_steps))
    strategy = fit(module, 3, FedRep(head_steps), data, cohort_size=2)
    check(module, strategy, expected)


def test_of_several_optimizers_each_counts_its_own_steps():
    """The second net's, the head's, steps at iterations 0 and 3: with one step of the head it trains at the first
    alone, and the first net's optimizer, which has no head, leaves its own first step out."""
    torch.manual_seed(3)
    module, data = TwoOptimizers(), make_data()

    def turn(local, optimizers, batches):
        for index, batch in enumerate(batches):
            for place, optimizer in list(enumerate(optimizers))[: 1 if index % 3 else 2]:
                loss = local.losses(batch)
                optimizer.zero_grad()
                loss.backward()
                if (place == 0 and index > 0) or (place == 1 and index == 0):
                    optimizer.step()

    expected = plain_loop(module, data, 2, drawn(None), turn, head="b.")
    strategy = fit(module, 2, FedRep(1), data, personal=["b.*"])
    check(module, strategy, expected)


def test_clipping_sees_what_trains_alone():
    """A huge gradient of the frozen body would shrink the head's to nothing."""

    class Steep(Automatic):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) + 1e6 * self.net[0].weight.sum()

    torch.manual_seed(3)
    module = Steep("SGD")
    head = weights(module)[f"{HEAD}weight"]
    strategy = FedAvgStrategy(2, seed=0, client_algorithm=FedRep(1), personal=[f"{HEAD}*"])
    make_trainer(strategy, 1, gradient_clip_val=1.0).fit(module, make_data())
    moved = (strategy.personal_tensors[0][f"{HEAD}weight"] - head).norm()
    assert moved > 1e-3


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_resumed_run_ends_with_the_same_weights_and_heads_to_the_bit(tmp_path):
    def options():
        return {"personal": [f"{HEAD}*"], "cohort_size": 2, "client_algorithm": FedRep(2)}

    (whole, one), (resumed, other) = straight_and_resumed(Automatic, tmp_path, options)
    assert same(weights(whole), weights(resumed))
    for client, head in one.strategy.personal_tensors.items():
        assert same(dict(head), dict(other.strategy.personal_tensors[client]))


def test_where_nothing_travels_it_is_local_training():
    """As `fedgen fit --local_only` has it."""
    found = []
    for rule in (None, FedRep(2)):
        torch.manual_seed(3)
        found.append(fit(Automatic(), 2, rule, personal=["*"]).personal_tensors)
    assert all(same(dict(found[0][client]), dict(found[1][client])) for client in range(3))


def test_without_a_head_it_is_refused():
    with pytest.raises(MisconfigurationException, match="FedAvgStrategy"):
        fit(Automatic(), 1, FedRep(2), personal=[])


def test_a_turn_without_a_step_of_the_body_is_an_error():
    with pytest.raises(MisconfigurationException, match="iterations"):
        fit(Automatic(), 1, FedRep(5))


def test_no_step_of_the_head_is_an_error():
    with pytest.raises(ValueError, match="head_steps"):
        FedRep(0)


def test_a_recipe_names_it_by_class_path():
    recipe = """
    strategy:
      class_path: fedgen.federated.FedAvgStrategy
      init_args:
        personal: ["net.4.*"]
        client_algorithm: {class_path: fedgen.federated.FedRep, init_args: {head_steps: 10}}
    """
    strategy = strategy_of(yaml.safe_load(recipe))
    assert strategy.client_algorithm.head_steps == 10
