"""Rounds whose cohorts a sampler draws: weights by draws, rounds with few clients or none, resumes, recipes."""

import copy
import logging
from itertools import pairwise

import lightning as L
import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.clients.samplers import AvailabilitySampler, CohortSampler, Shifts, SizeSampler
from fedgen.federated import FedAdam, FedAvgStrategy, PrivateMean, Scaffold
from fedgen.seeds import seed_all
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
from tests.federated.test_resume import train
from tests.federated.test_strategy import OneTurn, make_turn, plain_step
from tests.quick import first_quick


class Scripted(CohortSampler):
    """Gives the cohorts that it was given."""

    def __init__(self, *cohorts):
        self.cohorts = cohorts

    def draw(self, sizes, size, seed, round):
        return self.cohorts[round]


def fit(module, sampler, rounds, data=None, interval=1, **options):
    strategy = FedAvgStrategy(interval, seed=0, sampler=sampler, **options)
    make_trainer(strategy, rounds).fit(module, data or make_quadratics())
    return strategy


def test_a_client_that_is_drawn_twice_counts_twice():
    """From w = 1, rate 0.1, clients (1, 0) and (3, 4) go to 0.9 and 1.9: (0.9 + 2 * 1.9) / 3, with one turn each."""
    module = Quadratic()
    strategy = fit(module, Scripted([0, 1, 1]), 1, client_weights="uniform", cohort_size=3)
    assert module.w.item() == pytest.approx(4.7 / 3, rel=1e-12)
    assert strategy.round.memory.iterations == {0: 1, 1: 1}


def test_rounds_drawn_by_size_are_the_mean_over_draws_of_a_plain_loop():
    torch.manual_seed(3)
    module, data = Automatic("SGD"), make_data((4, 20, 8))
    sampler = SizeSampler()
    cohorts = [sampler.draw([4, 20, 8], 3, 0, round) for round in range(4)]
    assert any(len(set(cohort)) < 3 for cohort in cohorts)  # some client twice
    server = copy.deepcopy(module)
    for round, cohort in enumerate(cohorts):
        ends = [plain_turn(server, data, client, round) for client in cohort]  # one turn for each draw
        mean = {name: torch.stack([end[name] for end in ends]).mean(0) for name in ends[0]}
        server.load_state_dict({**server.state_dict(), **mean})
    fit(module, sampler, 4, data, interval=2, client_weights="uniform", cohort_size=3)
    expected = server.state_dict()
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)


def plain_turn(server, data, client, round):
    """The floating tensors of a client after a turn of two iterations."""
    local = copy.deepcopy(server).train()
    optimizers = [local.configure_optimizers()]
    seed_all(0, "turn", round, client)
    for index, batch in enumerate(make_turn(data, client, round).batches(2)):
        plain_step(local, optimizers, batch, index)
    return {name: value for name, value in local.state_dict().items() if value.is_floating_point()}


def test_a_round_of_fewer_clients_has_the_mean_of_those():
    module = Quadratic()
    fit(module, Scripted([1]), 1, cohort_size=2)
    assert module.w.item() == pytest.approx(1.9, rel=1e-12)


class Ends(L.Callback):
    """Copies of weights, steps and the server's first moment at the ends of rounds."""

    def __init__(self):
        self.weights, self.steps, self.moments = [], [], []

    def on_train_epoch_end(self, trainer, pl_module):
        optimizer = trainer.strategy.round.model.update.state_dict()
        self.weights.append(weights(pl_module))
        self.steps.append(trainer.global_step)
        self.moments.append(optimizer["state"]["state"][0]["m"].clone())


@pytest.mark.parametrize("kind", [Automatic, Manual])
def test_a_round_without_clients_passes_and_leaves_everything_as_it_was(kind, caplog):
    torch.manual_seed(3)
    ends = Ends()
    options = {"server_optimizer": lambda p: FedAdam(p, lr=0.1), "optimizer_state": "average"}
    strategy = FedAvgStrategy(3, seed=0, sampler=Scripted([0, 2], [], [1], []), cohort_size=2, **options)
    with caplog.at_level(logging.INFO):
        make_trainer(strategy, 4, callbacks=[ends]).fit(kind(), make_data())
    assert [same(one, other) for one, other in pairwise(ends.weights)] == [True, False, True]
    assert [torch.equal(one, other) for one, other in pairwise(ends.moments)] == [True, False, True]
    assert ends.steps == [3, 3, 6, 6]
    said = [record.message for record in caplog.records if "passes without" in record.message]
    assert said == [f"round {round} passes without training: no client is available" for round in (1, 3)]
    assert strategy.left_out == []


@pytest.mark.parametrize("algorithm", first_quick([None, Scaffold]))
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_resumed_run_draws_the_same_cohorts_to_the_bit(tmp_path, algorithm):
    """Over rounds of two clients, none and one; interrupted after the empty one, of which there is no checkpoint, as it
    took no step, and after the next."""

    def options():
        rule = algorithm and algorithm()
        return {"sampler": AvailabilitySampler(there, period=4), "cohort_size": 2, "client_algorithm": rule}

    def there(client, round):
        return (client, round) in {(0, 0), (1, 0), (2, 0), (1, 2), (0, 3), (2, 3)}

    whole = Automatic()
    train(whole, tmp_path, 5, **options())
    assert not (tmp_path / "epoch=1.ckpt").exists()
    for kept in (0, 2):
        resumed = Automatic()
        train(resumed, tmp_path, 5, tmp_path / f"epoch={kept}.ckpt", **options())
        assert same(weights(whole), weights(resumed))


def test_a_trace_in_a_file_names_the_data_modules_clients(tmp_path):
    (tmp_path / "trace.csv").write_text("client,first,last\nclient 1,0,0\n")
    module = Quadratic()
    with pytest.warns(UserWarning, match="available"):
        fit(module, AvailabilitySampler(str(tmp_path / "trace.csv")), 1)
    assert module.w.item() == pytest.approx(1.9)
    (tmp_path / "trace.csv").write_text("client,first,last\nsomebody,0,0\n")
    with pytest.raises(ValueError, match="somebody"):
        fit(Quadratic(), AvailabilitySampler(str(tmp_path / "trace.csv")), 1)


def test_settings_that_do_not_go_together_are_refused():
    with pytest.raises(MisconfigurationException, match="client_weights"):
        FedAvgStrategy(1, sampler=SizeSampler())
    with pytest.raises(MisconfigurationException, match="client_weights"):
        FedAvgStrategy(1, sampler=AvailabilitySampler("trace.csv", then=SizeSampler()))
    with pytest.raises(MisconfigurationException, match="uniformly"):
        FedAvgStrategy(1, sampler=Scripted(), aggregator=PrivateMean(1.0, 1.0), client_weights="uniform")


def test_data_that_names_no_clients_is_an_error():
    data = make_data()
    data.setup("fit")

    strategy = FedAvgStrategy(1, seed=0, sampler=Scripted([0]))
    with pytest.raises(MisconfigurationException, match="Scripted"):
        make_trainer(strategy, 1).fit(Automatic(), OneTurn(data))


SAMPLERS = "fedgen.clients.samplers"
SHIFTS = {"class_path": f"{SAMPLERS}.Shifts", "init_args": {"period": 8, "on": 3}}
BY_SIZE = {"class_path": f"{SAMPLERS}.SizeSampler"}
OF_FILE = {"trace": "trace.csv", "period": 24}
OF_SHIFTS = {"trace": SHIFTS, "then": BY_SIZE}


def from_recipe(name, **init_args):
    """The strategy's sampler of a recipe that names it by class path."""
    settings = {"client_weights": "uniform", "sampler": {"class_path": f"{SAMPLERS}.{name}", "init_args": init_args}}
    strategy = {"class_path": "fedgen.federated.FedAvgStrategy", "init_args": settings}
    return strategy_of({"strategy": strategy}).sampler


def test_recipes_name_samplers_and_patterns_by_class_path():
    assert isinstance(from_recipe("SizeSampler"), SizeSampler)
    of_file = from_recipe("AvailabilitySampler", **OF_FILE)
    assert (of_file.trace, of_file.period) == ("trace.csv", 24)
    shifts = from_recipe("AvailabilitySampler", **OF_SHIFTS)
    assert isinstance(shifts.trace, Shifts)
    assert (shifts.trace.period, shifts.trace.on) == (8, 3)
    assert isinstance(shifts.then, SizeSampler)
