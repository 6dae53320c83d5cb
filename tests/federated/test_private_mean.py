import csv
import math

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen import FedAvgStrategy, FederatedDataModule
from fedgen.clients.partitions import Natural
from fedgen.federated import PrivateMean, Scaffold
from fedgen.federated.aggregators import Federation
from fedgen.statistics.accounting import federated_epsilon, spent_epsilon
from tests.federated.rank_runs import Net, points


def averaged(aggregator, updates, server, seed=0, round=0):
    aggregator.announce(Federation(seed, round, 10, 2))
    aggregator.start(server)
    for client, update in enumerate(updates):
        aggregator.add(client, update, 1.0)
    return aggregator.result()


def test_updates_are_clipped_as_one_vector_and_divided_by_the_cohort():
    server = [torch.tensor([1.0, 0.0]), torch.tensor([2.0])]
    long = [torch.tensor([4.0, 0.0]), torch.tensor([6.0])]  # (3, 0, 4): of norm 5
    short = [torch.tensor([1.0, 0.5]), torch.tensor([2.0])]  # (0, 0.5, 0)
    mean = PrivateMean(max_norm=2.5, noise_multiplier=0)
    first, second = averaged(mean, [long, short], server)
    torch.testing.assert_close(first, torch.tensor([1 + 1.5 / 2, 0.5 / 2]))
    torch.testing.assert_close(second, torch.tensor([2 + 2.0 / 2]))
    assert mean.clipped == [0]
    first, _ = averaged(mean, [short], server)  # the other was left out: the divisor stays
    torch.testing.assert_close(first, torch.tensor([1.0, 0.25]))


def test_noise_has_the_stated_size_and_hangs_on_seed_and_round():
    server = [torch.zeros(40_000)]
    mean = PrivateMean(max_norm=3.0, noise_multiplier=0.5)
    (first,) = averaged(mean, [], server)
    assert float(first.std()) == pytest.approx(3.0 * 0.5 / 2, rel=0.02)
    assert float(first.mean()) == pytest.approx(0, abs=0.02)
    assert torch.equal(averaged(mean, [], server)[0], first)
    assert not torch.equal(averaged(mean, [], server, round=1)[0], first)
    assert not torch.equal(averaged(mean, [], server, seed=1)[0], first)
    secret = PrivateMean(3.0, 0.5, noise="secret")
    assert not torch.equal(averaged(secret, [], server)[0], averaged(secret, [], server)[0])


def test_epsilon_without_sampling_bounds_the_exact_one():
    """Of all clients each round it is the Gaussian mechanism, whose exact epsilon is known."""
    exact = spent_epsilon([4.0 / 2] * 5, 1e-5)
    found = federated_epsilon(4.0, rounds=5, clients=20, cohort=20, delta=1e-5)
    assert exact < found < 1.25 * exact


def test_epsilon_falls_with_noise_and_with_sampling_and_rises_with_rounds():
    base = federated_epsilon(2.0, 100, 1000, 10, 1e-5)
    assert federated_epsilon(4.0, 100, 1000, 10, 1e-5) < base < federated_epsilon(2.0, 200, 1000, 10, 1e-5)
    assert base < federated_epsilon(2.0, 100, 100, 10, 1e-5)
    assert federated_epsilon(2.0, 0, 1000, 10, 1e-5) == 0
    assert federated_epsilon(0.0, 3, 1000, 10, 1e-5) == math.inf


def fit(aggregator, logger=False, **options):
    module = Net()
    data = FederatedDataModule(points(), Natural(), 100, held_out=0.0, seed=1)
    strategy = FedAvgStrategy(4, cohort_size=3, seed=2, aggregator=aggregator, **options)
    quiet = dict.fromkeys(("enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
    trainer = L.Trainer(strategy=strategy, accelerator="cpu", max_epochs=4, logger=logger, **quiet)
    trainer.fit(module, data)
    return module, trainer


def test_a_training_logs_its_epsilon_and_is_repeated_by_its_seed():
    torch.manual_seed(0)
    module, trainer = fit(PrivateMean(1.0, 2.0, delta=1e-3), client_weights="uniform")
    found = trainer.callback_metrics
    assert float(found["epsilon"]) == pytest.approx(federated_epsilon(2.0, 4, 5, 3, 1e-3))
    assert float(found["delta"]) == pytest.approx(1e-3)
    assert 0 <= float(found["clipped"]) <= 1
    torch.manual_seed(0)
    again, _ = fit(PrivateMean(1.0, 2.0, delta=1e-3), client_weights="uniform")
    for one, other in zip(module.parameters(), again.parameters()):
        assert torch.equal(one, other)


def test_every_round_logs_the_epsilon_of_the_rounds_so_far_once(tmp_path):
    fit(PrivateMean(1.0, 2.0, delta=1e-3), CSVLogger(tmp_path, "", ""), client_weights="uniform")
    with (tmp_path / "metrics.csv").open() as file:
        found = [float(row["epsilon"]) for row in csv.DictReader(file) if row["epsilon"]]
    assert found == pytest.approx([federated_epsilon(2.0, rounds, 5, 3, 1e-3) for rounds in (1, 2, 3, 4)])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "client_weights='uniform'"),
        ({"client_weights": "uniform", "optimizer_state": "average"}, "'reset' or 'keep'"),
        ({"client_weights": "uniform", "client_algorithm": Scaffold()}, "control variates"),
    ],
)
def test_what_would_leave_clients_beside_it_is_refused(options, said):
    with pytest.raises(MisconfigurationException, match=said):
        fit(PrivateMean(1.0, 1.0), **options)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_norm": 0.0},
        {"max_norm": math.inf},
        {"noise_multiplier": -1.0},
        {"delta": 0.0},
        {"delta": 1.0},
        {"noise": "loud"},
    ],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        PrivateMean(**{"max_norm": 1.0, "noise_multiplier": 1.0, **settings})
