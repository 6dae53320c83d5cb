import numpy as np
import pytest
import torch

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID, Natural, SavedPartition, save_partition
from fedgen.data import Examples

NAMES = ("ann", "bob", "cleo", "dan")


def owned(*owners, names=NAMES):
    count = len(owners)
    labels = torch.zeros(count, dtype=torch.int64)
    return Examples(torch.zeros(count, 1), labels, "toy/train", (), torch.tensor(owners, dtype=torch.int64), names)


def test_each_owner_is_a_client_of_that_name():
    examples = owned(3, 0, 1, 0, 3, 3)
    assert [part.tolist() for part in Natural().assign(examples, seed=0)] == [[1, 3], [2], [0, 4, 5]]
    assert Natural().names(examples) == ["ann", "bob", "dan"]


def test_owners_with_too_few_examples_are_left_out():
    examples = owned(3, 0, 1, 0, 3, 3)
    assert [part.tolist() for part in Natural(min_examples=2).assign(examples, seed=0)] == [[1, 3], [0, 4, 5]]
    assert Natural(min_examples=2).names(examples) == ["ann", "dan"]
    with pytest.raises(ValueError, match="min_examples"):
        Natural(min_examples=4).assign(examples, seed=0)


def test_a_cap_keeps_a_random_part_and_smaller_caps_lie_within_larger_ones():
    examples = owned(*[0] * 100, *[1] * 4)
    parts = {cap: Natural(max_examples=cap).assign(examples, seed=0) for cap in (5, 30)}
    assert [[len(part) for part in parts[cap]] for cap in (5, 30)] == [[5, 4], [30, 4]]
    assert set(parts[5][0]) < set(parts[30][0])
    assert 30 < parts[30][0].mean() < 70
    assert not np.array_equal(parts[30][0], Natural(max_examples=30).assign(examples, seed=1)[0])


def test_the_cap_of_an_owner_does_not_depend_on_the_others():
    alone = Natural(max_examples=3).assign(owned(*[0] * 20, names=("cleo",)), seed=0)[0]
    beside = Natural(max_examples=3).assign(owned(*[2] * 20, 0, 1), seed=0)[2]
    assert np.array_equal(alone, beside)


def test_owners_survive_a_subset_and_reach_training():
    examples = owned(3, 0, 1, 0, 3, 3)
    part = examples.subset([5, 1, 0])
    assert Natural().names(part) == ["ann", "dan"]
    assert [own.tolist() for own in Natural().assign(part, seed=0)] == [[1], [0, 2]]
    clients = FederatedDataModule(examples, Natural(), held_out=0.0).clients
    assert [client.name for client in clients] == ["ann", "bob", "dan"]


def test_natural_clients_can_be_saved(tmp_path):
    examples = owned(3, 0, 1, 0, 3, 3)
    path = save_partition(tmp_path / "clients.npz", Natural(max_examples=2), examples, seed=0)
    assert SavedPartition(path).names(examples) == ["ann", "bob", "dan"]


def test_data_that_does_not_name_its_owners_is_refused():
    examples = Examples(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64), "flat/train", ())
    with pytest.raises(ValueError, match="Natural"):
        Natural().assign(examples, seed=0)
    assert len(IID(2).assign(examples, seed=0)) == 2
    with pytest.raises(ValueError, match="owners"):
        Natural().assign(owned(), seed=0)


@pytest.mark.parametrize("options", [{"min_examples": 0}, {"max_examples": 0}])
def test_counts_below_one_are_refused(options):
    with pytest.raises(ValueError, match="_examples"):
        Natural(**options)
