import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen import FedAvgStrategy, FederatedDataModule
from fedgen.clients import sample_cohort
from fedgen.clients.partitions import Natural
from fedgen.federated import PrivateMean, Scaffold
from fedgen.federated.aggregators import private_mean
from fedgen.federated.aggregators.mean import Federation
from fedgen.statistics.private import spent_epsilon
from tests.federated.modules import Automatic, make_data, make_trainer
from tests.federated.rank_runs import Net, points
from tests.trainers import quiet_trainer


def averaged(aggregator, updates, server, seed=0, round=0, folder=Path()):
    aggregator.begin_round(Federation(seed, round, 10, 2, folder))
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


def test_complex_tensors_are_clipped_and_noisy_in_both_parts():
    server = [torch.zeros(20_000, dtype=torch.complex64)]
    mean = PrivateMean(max_norm=2.5, noise_multiplier=0)
    (found,) = averaged(mean, [[torch.tensor([3 + 4j])]], [torch.zeros(1, dtype=torch.complex64)])
    torch.testing.assert_close(found, torch.tensor([(1.5 + 2j) / 2]))
    assert mean.clipped == [0]
    (found,) = averaged(PrivateMean(max_norm=3.0, noise_multiplier=0.5), [], server)
    for part in (found.real, found.imag):
        assert float(part.std()) == pytest.approx(3.0 * 0.5 / 2, rel=0.02)


def test_updates_as_long_as_numbers_allow_are_clipped_to_the_norm():
    mean = PrivateMean(max_norm=1e-3, noise_multiplier=0)  # over 3e40: of that float32 knows one digit
    (found,) = averaged(mean, [[torch.full((10_000,), 3e38)]], [torch.zeros(10_000)])
    assert float(found.double().norm()) == pytest.approx(1e-3 / 2, rel=1e-6)


def test_noise_has_the_stated_size_and_hangs_on_seed_and_round(tmp_path):
    server = [torch.zeros(40_000)]
    mean = PrivateMean(max_norm=3.0, noise_multiplier=0.5)
    (first,) = averaged(mean, [], server)
    assert float(first.std()) == pytest.approx(3.0 * 0.5 / 2, rel=0.02)
    assert float(first.mean()) == pytest.approx(0, abs=0.02)
    assert torch.equal(averaged(mean, [], server)[0], first)
    assert not torch.equal(averaged(mean, [], server, round=1)[0], first)
    assert not torch.equal(averaged(mean, [], server, seed=1)[0], first)
    secret = PrivateMean(3.0, 0.5, noise="secret")
    first, second = (averaged(secret, [], server, folder=tmp_path)[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert float(first.std()) == pytest.approx(3.0 * 0.5 / 2, rel=0.02)
    assert float((first * second).mean()) == pytest.approx(0, abs=0.02)  # apart, so the second hides as much


def released(rounds, folder, past=None, **settings):
    """A secret mean that has released so many rounds of 2 of 10 clients, as if from process to process."""
    for round in rounds:
        mean = PrivateMean(1.0, 2.0, noise="secret", **settings)
        mean.load_state_dict(past)
        mean.begin_round(Federation(0, round, 10, 2, folder))
        mean.start([torch.zeros(3)])
        mean.result()
    return mean


def spent(*rounds):
    """The epsilon of the client drawn most often in these rounds of 2 of 10 clients."""
    most = max(sum(client in sample_cohort(10, 2, 0, round) for round in rounds) for client in range(10))
    return spent_epsilon([2.0 / 2] * most, 1e-5, "rdp")


def test_a_round_done_again_with_fresh_noise_spends_again(tmp_path):
    mean = released([0, 1, 2, 1, 2], tmp_path)
    assert mean.metrics(3) == {"epsilon": spent(0, 1, 2, 1, 2), "delta": 1e-5}
    assert spent(0, 1, 2, 1, 2) > spent(0, 1, 2)
    found = released([3], tmp_path).metrics(4)
    assert found["epsilon"] == spent(0, 1, 2, 1, 2, 3)


def test_releases_of_another_process_in_the_folder_are_counted(tmp_path):
    """One that was thought dead: both have read the folder's file when they began."""
    means = [PrivateMean(1.0, 2.0, noise="secret") for _ in range(2)]
    for round in range(8):
        for mean in means:
            averaged(mean, [], [torch.zeros(3)], round=round, folder=tmp_path)
    assert means[-1].metrics(8)["epsilon"] == spent(*range(8), *range(8))


def test_a_release_is_on_disk_before_there_is_noise(tmp_path, monkeypatch):
    def killed(number):
        raise KeyboardInterrupt

    monkeypatch.setattr(private_mean, "secure_normal", killed)
    with pytest.raises(KeyboardInterrupt):
        released([0], tmp_path)
    monkeypatch.undo()
    assert released([0], tmp_path).metrics(1)["epsilon"] == spent(0, 0)


def test_rounds_of_a_checkpoint_from_elsewhere_count_once(tmp_path):
    past = released([0], tmp_path / "elsewhere").state_dict()
    assert past == PAST
    assert released([5], tmp_path, past).metrics(6)["epsilon"] == spent(*range(6))


PAST = {"noise_multiplier": 2.0, "noise": "secret", "seed": 0, "clients": 10, "cohort": 2}
COHORTS = [{**PAST, **other} for other in ({"seed": 1}, {"clients": 9}, {"cohort": 10})]
OTHERS = [{}, [2.0], {**PAST, "noise_multiplier": 1.0}, {**PAST, "noise": "seeded"}]  # no noise, or another


@pytest.mark.parametrize("past", [None, *COHORTS, *OTHERS])
def test_rounds_of_which_nobody_knows_that_they_were_such_are_not_counted_as_if(past, tmp_path):
    released([0], tmp_path)
    with pytest.raises(MisconfigurationException, match="epsilon"):
        released([5], tmp_path, past)
    assert released([5], tmp_path, PAST).metrics(6)["epsilon"] == spent(*range(6))


@pytest.mark.parametrize("past", [None, *COHORTS])
def test_of_releases_the_folder_knows_the_cohorts(past, tmp_path):
    released([0], tmp_path)
    assert released([1], tmp_path, past).metrics(2)["epsilon"] == spent(0, 1)


@pytest.mark.parametrize("past", OTHERS)
def test_a_checkpoint_of_other_noise_is_not_of_the_rounds_that_the_folder_counts(past, tmp_path):
    released([0, 1], tmp_path)
    with pytest.raises(MisconfigurationException, match="epsilon"):
        released([2], tmp_path, past)


def test_what_a_mean_has_counted_before_says_nothing_of_another_checkpoint():
    mean = PrivateMean(1.0, 2.0)
    for round in range(3):
        averaged(mean, [], [torch.zeros(3)], round=round)
        mean.metrics(round + 1)
    mean.load_state_dict(None)
    with pytest.raises(MisconfigurationException, match="epsilon"):
        averaged(mean, [], [torch.zeros(3)], round=3)


def test_checkpoints_hold_plain_numbers_and_before_a_round_what_was_said(tmp_path):
    mean = PrivateMean(1.0, np.float64(2.0), noise="secret")
    mean.load_state_dict(PAST)
    assert mean.state_dict() == PAST
    mean.begin_round(Federation(0, 1, 10, np.int64(2), tmp_path))
    torch.save(mean.state_dict(), tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt", weights_only=True) == PAST


def test_seeded_rounds_repeat_themselves_and_count_once(tmp_path):
    mean, server = PrivateMean(1.0, 2.0), [torch.zeros(3)]
    for round in (*range(6), 1):
        averaged(mean, [], server, round=round, folder=tmp_path)
        found = mean.metrics(round + 1)
    assert found == {"epsilon": spent(0, 1), "delta": 1e-5, "clipped": 0.0}
    assert spent(0, 1) < spent(*range(6))
    assert not list(tmp_path.iterdir())


class Both:
    """What two processes tell each other, of which rank 0 has merged first."""

    size, told = 2, ()

    def __init__(self, rank):
        self.rank = rank

    def gather(self, value):
        if self.rank == 0:
            Both.told = [*Both.told, value]
            return [value, value]
        first, *Both.told = Both.told
        return [first, value]

    def add(self, tensors, device):
        return tensors


def test_processes_log_one_epsilon_and_one_of_them_writes_the_file(tmp_path):
    released([0, 1], tmp_path)
    means = [PrivateMean(1.0, 2.0, noise="secret") for _ in range(2)]
    for rank, mean in enumerate(means):
        folder = tmp_path if rank == 0 else tmp_path / "of another node"
        mean.load_state_dict(PAST)
        mean.begin_round(Federation(0, 1, 10, 2, folder))  # round 1 again
        mean.start([torch.zeros(3)])
        mean.merge(Both(rank), torch.device("cpu"))
    assert [mean.metrics(2)["epsilon"] for mean in means] == [spent(0, 1, 1)] * 2
    assert released([2], tmp_path).metrics(3)["epsilon"] == spent(0, 1, 1, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["releases.json"]


def fitted(rounds, times=1):
    """What `fit` has spent: of 5 clients, 3 a round, by the one drawn most often."""
    drawn = [client for round in range(rounds) for client in sample_cohort(5, 3, 2, round)]
    return spent_epsilon([2.0 / 2] * times * max(map(drawn.count, drawn)), 1e-3, "rdp")


def fit(aggregator, logger=False, folder=None, rounds=4, start=None, **options):
    module = Net()
    data = FederatedDataModule(points(), Natural(), 100, held_out=0.0, seed=1)
    strategy = FedAvgStrategy(4, cohort_size=3, seed=2, aggregator=aggregator, **options)
    trainer = quiet_trainer(rounds, strategy=strategy, logger=logger, default_root_dir=folder)
    trainer.fit(module, data, ckpt_path=start)
    return module, trainer


def test_a_training_logs_its_epsilon_and_is_repeated_by_its_seed():
    torch.manual_seed(0)
    module, trainer = fit(PrivateMean(1.0, 2.0, delta=1e-3), client_weights="uniform")
    found = trainer.callback_metrics
    assert float(found["epsilon"]) == pytest.approx(fitted(4))
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
    assert found == pytest.approx([fitted(rounds) for rounds in (1, 2, 3, 4)])


def test_a_secret_training_again_in_its_folder_has_released_twice_and_does_not_tell_who_was_clipped(tmp_path):
    _, trainer = fit(PrivateMean(1.0, 2.0, 1e-3, "secret"), folder=tmp_path, client_weights="uniform")
    assert float(trainer.callback_metrics["epsilon"]) == pytest.approx(fitted(4))
    _, trainer = fit(PrivateMean(1.0, 2.0, 1e-3, "secret"), folder=tmp_path, client_weights="uniform")
    assert float(trainer.callback_metrics["epsilon"]) == pytest.approx(fitted(4, times=2))
    assert "clipped" not in trainer.callback_metrics


@pytest.mark.slow
def test_a_training_goes_on_from_elsewhere_with_the_noise_of_before_alone(tmp_path):
    """From checkpoints in folders without `releases.json`."""
    for name, before in {"plain": None, "private": PrivateMean(1.0, 2.0, 1e-3, "secret")}.items():
        _, trainer = fit(before, folder=tmp_path / name, rounds=2, client_weights="uniform")
        trainer.save_checkpoint(tmp_path / f"{name}.ckpt")

    def gone_on(name, noise=2.0, folder=None):
        options = {"start": tmp_path / f"{name}.ckpt", "client_weights": "uniform"}
        folder = tmp_path / (folder or f"{name}-{noise}")
        return fit(PrivateMean(1.0, noise, 1e-3, "secret"), folder=folder, **options)[1]

    ordinary = torch.load(tmp_path / "plain.ckpt", weights_only=True)
    del ordinary["fedavg"]
    torch.save(ordinary, tmp_path / "ordinary.ckpt")

    assert float(gone_on("private").callback_metrics["epsilon"]) == pytest.approx(fitted(4))
    for name, noise in (("plain", 2.0), ("private", 20.0)):
        with pytest.raises(MisconfigurationException, match="epsilon"):
            gone_on(name, noise)
    for name in ("plain", "ordinary"):  # whose rounds are not those that the folder counts
        with pytest.raises(MisconfigurationException, match="epsilon"):
            gone_on(name, folder="private")
    assert float(gone_on("private", folder="private").callback_metrics["epsilon"]) == pytest.approx(fitted(4))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "client_weights='uniform'"),
        ({"client_weights": "uniform", "optimizer_state": "average"}, "optimizer states too: pass 'reset'"),
        ({"client_weights": "uniform", "optimizer_state": "keep"}, "in the run's checkpoints: pass 'reset'"),
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


class WithConstants(Automatic):
    """Has a schedule and an index table beside its net, as diffusion models and transformers have, and counters."""

    def __init__(self, **integers):
        super().__init__("SGD")
        self.register_buffer("betas", torch.linspace(0.1, 0.9, 100))
        self.register_buffer("table", torch.arange(3))
        for name, value in integers.items():
            self.register_buffer(name, value)


def private(rules=None):
    return FedAvgStrategy(2, seed=0, aggregator=PrivateMean(1.0, 1.0), client_weights="uniform", rules=rules)


def test_constants_get_no_noise_and_do_not_travel():
    """BatchNorm's statistics, which turns change, get noise; its count grows by the interval in every round."""
    module, strategy = WithConstants(), private()
    make_trainer(strategy, 3).fit(module, make_data())
    assert torch.equal(module.betas, torch.linspace(0.1, 0.9, 100))
    assert module.table.tolist() == [0, 1, 2]
    assert int(module.net[1].num_batches_tracked) == 3 * 2
    assert strategy.exchange.moving == ["net.1.running_mean", "net.1.running_var"]
    # Linear(3, 8), BatchNorm1d(8) with its statistics, Linear(8, 2)
    assert strategy.exchange.num_bytes == 4 * (24 + 8 + 4 * 8 + 16 + 2)


@pytest.mark.parametrize(
    ("integers", "rules", "named"),
    [
        ({"count": torch.tensor(0)}, {}, "count: the maximum of integer"),
        ({"flag": torch.zeros(1, dtype=torch.bool)}, {}, "flag: the maximum of integer or boolean"),
        ({}, {"table": "max"}, "table has the rule 'max'"),
    ],
)
def test_counters_of_one_client_are_refused_beside_noise(integers, rules, named):
    with pytest.raises(MisconfigurationException, match=named):
        make_trainer(private(rules), 1).fit(WithConstants(**integers), make_data())


class Queueing(WithConstants):
    def training_step(self, batch, batch_idx):
        self.table[0] += 1
        return super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore:client ")
def test_a_table_that_a_turn_changes_ends_the_round_with_the_remedy():
    with pytest.raises(RuntimeError, match="integer"):
        make_trainer(private(), 1).fit(Queueing(), make_data())
    module = Queueing()
    make_trainer(private({"table": "server"}), 1).fit(module, make_data())
    assert module.table.tolist() == [0, 1, 2]


class Thawing(WithConstants):
    """Layers that thaw in the second round, after which what travels is found anew."""

    def __init__(self):
        super().__init__()
        self.net[0].requires_grad_(False)

    def on_train_epoch_start(self):
        self.net[0].requires_grad_(self.current_epoch > 0)


def test_counts_do_not_begin_to_travel_where_layers_thaw():
    module, strategy = Thawing(), private()
    make_trainer(strategy, 3).fit(module, make_data())
    assert "net.0.weight" in strategy.exchange.trained
    assert strategy.exchange.advancing == {"net.1.num_batches_tracked"}
    assert "table" in strategy.exchange.held
    assert int(module.net[1].num_batches_tracked) == 3 * 2
