"""The clients' data for Lightning: turns under the strategy, pooled batches elsewhere."""

import hashlib
from types import SimpleNamespace

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.clients import FederatedDataModule, Turn
from fedgen.clients.data_module import ClientBatches
from fedgen.clients.partitions import IID, ByClass, Dirichlet, Partition
from fedgen.data import DataSet, Digits, Examples
from fedgen.federated import FedAvgStrategy


def examples(count=40):
    grey = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()
    return Examples(grey, torch.arange(count) % 4, "toy/train", ("0", "1", "2", "3"))


def make(count=40, partition=None, **options):
    return FederatedDataModule(examples(count), partition or IID(4), **{"batch_size": 4, "seed": 0, **options})


def under(module, strategy, round=0):
    """The training loader that a trainer's loops would get."""
    module.trainer = SimpleNamespace(strategy=strategy, current_epoch=round, max_epochs=None, world_size=1)
    loader = module.train_dataloader()
    return loader.turns if isinstance(loader, ClientBatches) else loader


def fedavg(**options):
    return FedAvgStrategy(2, **{"seed": 0, **options})


def grey_levels(x):
    return ((x[:, 0, 0, 0] + 1) * 127.5).round().int().tolist()


# ------------------------------------------------------------------ clients


def test_a_data_set_is_loaded_once_and_dealt_by_its_labels():
    module = FederatedDataModule(Digits(), ByClass(), seed=0)
    assert [client.name for client in module.clients] == [f"class {digit}" for digit in range(10)]
    assert module.clients is module.clients
    for digit, client in enumerate(module.clients):
        assert set(client.train_examples.labels.tolist()) == {digit}
    assert sum(len(c.train) + len(c.held_out) for c in module.clients) == len(module.examples)


def test_the_train_split_is_what_is_dealt():
    class Toy(DataSet):
        name = "toy"
        asked: tuple = ()

        def read(self, split):
            self.asked += (split,)
            return examples()

    data = Toy()
    module = FederatedDataModule(data, IID(2), seed=0)
    module.setup("fit")
    module.setup("validate")
    assert data.asked == ("train",)


def test_examples_in_memory_are_accepted():
    assert [len(c.train) for c in make(held_out=0.0).clients] == [10] * 4


@pytest.mark.parametrize(("held_out", "expected"), [(0.0, 0), (0.2, 2), (0.25, 2), (0.29, 2), (0.3, 3), (0.99, 9)])
def test_the_floor_of_the_fraction_of_each_client_is_held_out(held_out, expected):
    module = make(held_out=held_out)
    assert [len(client.held_out) for client in module.clients] == [expected] * 4
    assert [len(client.train) for client in module.clients] == [10 - expected] * 4


def test_a_client_with_one_example_trains_on_it():
    assert [len(client.train) for client in make(4, held_out=0.9).clients] == [1] * 4


def test_clients_share_nothing_and_the_same_seed_splits_the_same():
    def split(seed):
        return [(c.train.tolist(), c.held_out.tolist()) for c in make(seed=seed).clients]

    flat = [i for train, held_out in split(0) for i in train + held_out]
    assert sorted(flat) == list(range(40))
    assert split(0) == split(0)
    assert split(0) != split(1)


def test_seed_everything_counts_where_no_seed_is_given(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "5")
    module = make(seed=None)
    assert module.seed == 5
    assert torch.equal(module.clients[0].train, make(seed=5).clients[0].train)


@pytest.mark.slow
def test_ten_thousand_clients_cost_index_lists_only():
    data = Examples(torch.zeros(30_000, 1, 4, 4, dtype=torch.uint8), torch.zeros(30_000).long(), "toy/train", ("a",))
    module = FederatedDataModule(data, IID(10_000), held_out=0.4, seed=0)
    assert len(module.clients) == 10_000
    assert {client.data.inputs.data_ptr() for client in module.clients} == {data.inputs.data_ptr()}
    assert [len(client.train) for client in module.clients[:3]] == [2] * 3
    turns = list(under(module, fedavg(cohort_size=3)))
    assert len(turns) == 3
    assert all(turn._examples.inputs.data_ptr() == data.inputs.data_ptr() for turn in turns)


# ------------------------------------------------------------------ turns


def test_a_round_is_one_turn_for_each_client_in_cohort_order():
    strategy, module = fedavg(cohort_size=3), make(partition=IID(8))
    for round in range(6):
        loader = under(module, strategy, round)
        turns = list(loader)
        assert len(loader) == 3
        assert all(isinstance(turn, Turn) for turn in turns)
        assert [turn.client for turn in turns] == strategy.sample_cohort(8, round)
        assert [turn.round for turn in turns] == [round] * 3
        assert [turn.is_first for turn in turns] == [True, False, False]
        assert [turn.is_last for turn in turns] == [False, False, True]
        assert [turn.name for turn in turns] == [f"client {turn.client}" for turn in turns]


def test_a_cohort_of_one_is_first_and_last():
    (turn,) = under(make(), fedavg(cohort_size=1))
    assert turn.is_first
    assert turn.is_last


def test_a_turn_trains_on_the_clients_training_examples_in_the_modules_batches():
    module = make(held_out=0.2)
    for turn in under(module, fedavg()):
        assert turn.num_examples == 8
        batches = list(turn.batches(2))
        assert [len(x) for x, _ in batches] == [4, 4]
        seen = [g for x, _ in batches for g in grey_levels(x)]
        assert sorted(seen) == module.clients[turn.client].train.tolist()


def test_a_client_smaller_than_a_batch_trains_on_all_it_has():
    module = make(12, batch_size=64, held_out=0.0)
    (x, y) = next(next(iter(under(module, fedavg()))).batches(1))
    assert len(x) == len(y) == 3


def test_a_round_is_the_same_whether_reached_by_training_or_by_resuming():
    def batches(module, round):
        loader = under(module, fedavg(cohort_size=2), round)
        return [(turn.client, [x.tolist() for x, _ in turn.batches(3)]) for turn in loader]

    trained = make()
    for round in range(5):
        batches(trained, round)
    assert batches(trained, 5) == batches(make(), 5)
    assert batches(trained, 5) != batches(trained, 4)


# ------------------------------------------------------------------ pooled training


def pooled(module, round=0):
    return [(grey_levels(x), y.tolist()) for x, y in under(module, SimpleNamespace(), round)]


def test_another_strategy_gets_all_clients_training_examples_shuffled():
    module = make(held_out=0.2)
    epoch = pooled(module)
    assert len(epoch) == 8
    flat = [g for greys, _ in epoch for g in greys]
    assert sorted(flat) == sorted(module.pooled("train").tolist())
    assert flat != sorted(flat)
    assert all(label == grey % 4 for greys, labels in epoch for grey, label in zip(greys, labels))


def test_pooled_epochs_are_functions_of_seed_and_epoch():
    assert pooled(make(), 3) == pooled(make(), 3)
    assert pooled(make(), 3) != pooled(make(), 4)
    assert pooled(make(), 3) != pooled(make(seed=1), 3)


def test_a_pooled_epoch_seeds_what_the_model_draws():
    drawn = []
    for _ in range(2):
        next(iter(under(make(), SimpleNamespace(), 3)))
        drawn.append((torch.rand(1).item(), np.random.rand()))
        torch.manual_seed(77)
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(("iterations", "expected"), [(None, 10), (1, 1), (25, 25)])
def test_the_length_of_a_pooled_epoch_can_be_set(iterations, expected):
    loader = under(make(held_out=0.0, iterations=iterations), SimpleNamespace())
    assert len(loader) == len(list(loader)) == expected


def test_the_last_pooled_batch_is_filled_from_another_pass():
    """30 examples in batches of 4: 8 batches, two examples seen twice."""
    epoch = pooled(make(30, IID(3), held_out=0.0))
    assert [len(greys) for greys, _ in epoch] == [4] * 8
    counts = np.bincount([g for greys, _ in epoch for g in greys])
    assert counts.tolist().count(2) == 2
    assert counts.min() == 1


def test_without_a_trainer_the_loader_is_the_pooled_one():
    assert sum(len(x) for x, _ in make(held_out=0.2).train_dataloader()) == 32


# ------------------------------------------------------------------ held-out data


@pytest.mark.parametrize("loader", ["val_dataloader", "test_dataloader", "predict_dataloader"])
def test_other_loaders_give_the_held_out_examples_once_in_order(loader):
    module = make(held_out=0.3, batch_size=5)
    batches = list(getattr(module, loader)())
    assert [len(x) for x, _ in batches] == [5, 5, 2]
    assert len(getattr(module, loader)()) == 3
    assert [g for x, _ in batches for g in grey_levels(x)] == module.pooled("held_out").tolist()


def test_with_nothing_held_out_those_loaders_are_empty():
    assert len(make(held_out=0.0).val_dataloader()) == 0
    assert list(make(held_out=0.0).val_dataloader()) == []


def test_images_are_floats_in_minus_one_to_one_and_labels_int64():
    module = FederatedDataModule(Digits(), ByClass(), batch_size=32, seed=0)
    turn = next(iter(under(module, fedavg())))
    for x, y in [*turn.batches(2), *module.val_dataloader(), next(iter(under(module, SimpleNamespace())))]:
        assert x.dtype == torch.float32
        assert x.min() >= -1
        assert x.max() <= 1
        assert x.min() == -1
        assert y.dtype == torch.int64
        assert 0 <= y.min() <= y.max() <= 9


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"held_out": 1.0}, "held_out=1.0"),
        ({"held_out": -0.1}, "held_out=-0.1"),
        ({"held_out": float("nan")}, "held_out=nan"),
        ({"iterations": 0}, "iterations=0"),
    ],
)
def test_settings_out_of_range_are_named(options, word):
    with pytest.raises(ValueError, match=word):
        make(**options)


class Broken(Partition):
    """Gives its second client nothing."""

    num_clients = 2

    def __init__(self):
        pass

    def assign(self, examples, seed):
        return [np.arange(len(examples)), np.array([], dtype=np.int64)]

    def names(self, examples):
        return ["Rome", "Athens"]


def test_a_client_without_data_is_named():
    with pytest.raises(ValueError, match="partition"):
        _ = make(partition=Broken()).clients


def test_a_cohort_larger_than_the_federation_is_an_error_before_training():
    with pytest.raises(ValueError, match="cohort_size"):
        len(under(make(), fedavg(cohort_size=9)))


def test_it_is_a_lightning_data_module():
    assert isinstance(make(), lightning.LightningDataModule)


def test_turns_draw_from_the_strategys_seed_and_the_partition_from_its_own():
    def first_batch(**seeds):
        module = make(seed=seeds["data"])
        turn = next(iter(under(module, fedavg(seed=seeds["strategy"]))))
        return grey_levels(next(turn.batches(1))[0]), sorted(module.clients[0].train.tolist())

    (batch, owned), (other_batch, same_owned) = first_batch(data=0, strategy=0), first_batch(data=0, strategy=1)
    assert batch != other_batch
    assert owned == same_owned


def test_the_shape_of_an_image_is_known_before_training():
    assert make().image_shape == (1, 2, 2)


def test_pooled_training_in_several_processes_is_refused_not_repeated():
    module = make()
    module.trainer = SimpleNamespace(strategy=object(), current_epoch=0, world_size=2)
    with pytest.raises(MisconfigurationException, match="batches"):
        module.train_dataloader()


# ------------------------------------------------------------------ what was drawn before is drawn today


def fingerprint(data, partition):
    """A hash of all batches of two rounds, two pooled epochs and the held-out examples."""
    digest = hashlib.blake2b(digest_size=16)
    module = FederatedDataModule(data, partition, batch_size=16, held_out=0.2, seed=5)
    batches = []
    for strategy in (FedAvgStrategy(3, cohort_size=2, seed=7), SimpleNamespace()):
        for round in range(2):
            for item in under(module, strategy, round):
                batches += item.batches(3) if isinstance(item, Turn) else [item]
    for tensor in (tensor for batch in [*batches, *module.val_dataloader()] for tensor in batch):
        digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def test_batches_of_data_in_memory_are_those_of_earlier_versions_to_the_bit():
    points = Examples(torch.arange(120.0).view(60, 2), torch.zeros(60).long(), "p/train", ())
    assert fingerprint(Digits(), Dirichlet(4, 0.5)) == "f59b9635e7f6e0e36d0e2e4f601e17a2"
    assert fingerprint(points, IID(3)) == "53c9a591d331b12a6e2ebbb8496c9aa8"
