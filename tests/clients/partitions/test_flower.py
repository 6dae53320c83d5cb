"""Clients by partitioners of flwr-datasets, and by stand-ins without that library."""

import json
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser

from fedgen.clients.partitions import FlowerPartition, Natural, Partition, load_partition, save_partition
from fedgen.clients.partitions.by_owner import find_class
from fedgen.data import Examples
from tests.clients.partitions.test_partition import labelled
from tests.data import flower

EXAMPLES = labelled([index // 10 for index in range(40)])


def stand_in(name):
    return f"tests.data.flower.{name}"


def owned(*owners):
    labels = torch.zeros(len(owners), dtype=torch.int64)
    names = ("ann", "bob", "cleo")
    return Examples(torch.zeros(len(owners), 1), labels, "toy/train", (), torch.tensor(owners), names)


def test_rows_are_dealt_by_the_partitioner_in_random_order():
    rule = FlowerPartition(stand_in("Deal"), {"num_partitions": 4})
    clients = rule.assign(EXAMPLES, seed=0)
    assert [len(client) for client in clients] == [10] * 4
    assert sorted(np.concatenate(clients)) == list(range(40))
    assert min(len(set(EXAMPLES.labels[client].tolist())) for client in clients) > 1
    assert rule.names(EXAMPLES) == ["client 0", "client 1", "client 2", "client 3"]
    assert all(np.array_equal(a, b) for a, b in zip(clients, rule.assign(EXAMPLES, seed=0)))
    assert not np.array_equal(clients[0], rule.assign(EXAMPLES, seed=1)[0])


@pytest.mark.parametrize("column", ["label", "owner"])
def test_a_partitioner_sees_labels_and_owners(column):
    examples = EXAMPLES if column == "label" else owned(2, 0, 2, 0)
    rule = FlowerPartition(stand_in("ByColumn"), {"partition_by": column})
    found = [client.tolist() for client in rule.assign(examples, seed=0)]
    if column == "label":
        assert found == [list(range(10 * label, 10 * label + 10)) for label in range(4)]
        assert rule.names(examples) == ["0", "1", "2", "3"]
    else:
        assert found == [client.tolist() for client in Natural().assign(examples, seed=0)]
        assert rule.names(examples) == Natural().names(examples)


def test_owners_with_too_few_examples_are_no_clients():
    examples, options = owned(2, 0, 2, 1, 0), {"partition_by": "owner"}
    rule = FlowerPartition(stand_in("ByColumn"), options, min_examples=2)
    assert rule.names(examples) == Natural(2).names(examples) == ["ann", "cleo"]
    assert [one.tolist() for one in rule.assign(examples, seed=0)] == [[1, 4], [0, 2]]
    with pytest.raises(ValueError, match="min_examples"):
        FlowerPartition(stand_in("ByColumn"), options, min_examples=3).assign(examples, seed=0)
    with pytest.raises(ValueError, match="min_examples"):
        FlowerPartition("Deal", {"num_partitions": 2}, min_examples=2)


def test_a_seed_of_the_partitioners_own_comes_from_the_partitions_unless_it_is_given():
    rules = (
        FlowerPartition(stand_in("Seeded"), {"num_partitions": 2}),
        FlowerPartition(stand_in("Seeded"), {"num_partitions": 2, "seed": 3}),
    )
    seeds = [[rule._made(EXAMPLES, seed).seed for seed in (0, 1)] for rule in rules]
    assert seeds[0][0] != seeds[0][1]
    assert seeds[1] == [3, 3]


def test_settings_and_the_partition_file(tmp_path):
    rule = FlowerPartition(stand_in("Deal"), {"num_partitions": 2})
    stored = load_partition(save_partition(tmp_path / "clients.npz", rule, EXAMPLES, seed=0))
    assert stored.partition == json.loads(json.dumps(rule.settings()))
    assert stored.partition["options"] == {"num_partitions": 2}
    assert FlowerPartition("NaturalIdPartitioner").settings()["options"] == {}


def test_a_recipe_names_partitioner_and_options():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(Partition, "partition")
    instantiate = getattr(parser, "instantiate", parser.instantiate_classes)  # renamed in jsonargparse 4.49
    given = {
        "class_path": "fedgen.clients.partitions.FlowerPartition",
        "init_args": {"partitioner": stand_in("Deal"), "options": {"num_partitions": 2}},
    }
    rule = instantiate(parser.parse_object({"partition": given})).partition
    assert [len(client) for client in rule.assign(EXAMPLES, seed=0)] == [20, 20]


def test_what_does_not_fit_is_refused(monkeypatch):
    with pytest.raises(ValueError, match="options"):
        FlowerPartition(stand_in("Deal"), {"alpha": 1}).assign(EXAMPLES, seed=0)
    with pytest.raises(ValueError, match="partition"):
        FlowerPartition(stand_in("Columns"), {"num_partitions": 2}).assign(EXAMPLES, seed=0)
    with pytest.raises(ValueError, match="client 3 has no examples"):
        FlowerPartition(stand_in("Deal"), {"num_partitions": 4}).assign(EXAMPLES.subset([0, 1, 2]), seed=0)
    library = ModuleType("flwr_datasets.partitioner")
    library.DealPartitioner = flower.Deal
    monkeypatch.setitem(sys.modules, "flwr_datasets", ModuleType("flwr_datasets"))
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", library)
    assert find_class("DealPartitioner") is flower.Deal
    with pytest.raises(ValueError, match="flwr_datasets"):
        FlowerPartition("Deel").names(EXAMPLES)
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", None)
    with pytest.raises(ImportError, match="DealPartitioner"):
        FlowerPartition("DealPartitioner").assign(EXAMPLES, seed=0)


@pytest.mark.parametrize(
    ("name", "options", "clients"),
    [
        ("IidPartitioner", {"num_partitions": 4}, 4),
        ("LinearPartitioner", {"num_partitions": 4}, 4),
        ("SizePartitioner", {"partition_sizes": [5, 35]}, 2),
        ("NaturalIdPartitioner", {"partition_by": "label"}, 4),
        ("GroupedNaturalIdPartitioner", {"partition_by": "label", "group_size": 2}, 2),
        (
            "DirichletPartitioner",
            {"num_partitions": 3, "partition_by": "label", "alpha": 1.0, "min_partition_size": 1},
            3,
        ),
        ("PathologicalPartitioner", {"num_partitions": 4, "partition_by": "label", "num_classes_per_partition": 2}, 4),
        ("ShardPartitioner", {"num_partitions": 4, "partition_by": "label", "num_shards_per_partition": 2}, 4),
    ],
)
@pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")  # datasets' own call of pyarrow
def test_the_partitioners_of_flwr_datasets_deal_our_examples(name, options, clients):
    pytest.importorskip("flwr_datasets.partitioner")
    rule = FlowerPartition(name, options)
    found = rule.assign(EXAMPLES, seed=0)
    assert len(found) == len(rule.names(EXAMPLES)) == clients
    assert all(np.array_equal(a, b) for a, b in zip(found, rule.assign(EXAMPLES, seed=0)))
    if name == "NaturalIdPartitioner":
        assert [client.tolist() for client in found] == [list(range(10 * k, 10 * k + 10)) for k in range(4)]
