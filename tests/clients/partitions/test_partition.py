import numpy as np
import pytest
import torch

from fedgen.clients.partitions import IID, ByClass, BySize, CoarseDirichlet, Dirichlet, Shards, check_assignment
from fedgen.data import Examples


def labelled(labels, classes=None):
    count = max(labels) + 1
    inputs = torch.zeros(len(labels), 1)
    return Examples(inputs, torch.tensor(labels), "toy/train", classes or tuple(map(str, range(count))))


RANDOM = [
    Shards(5),
    IID(7),
    BySize(7),
    Dirichlet(6, 0.5),
    CoarseDirichlet(6, groups={"even": ["0", "2"], "odd": ["1", "3"]}),
]
RULES = [ByClass(), ByClass(2), Shards(4, 3), Dirichlet(6, 5.0, rotate=False), *RANDOM]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_every_partition_gives_sorted_disjoint_positions_and_repeats_itself(rule):
    examples = labelled([index * 7 % 4 for index in range(101)])
    clients = rule.assign(examples, seed=3)
    together = np.concatenate(clients)
    assert all(len(client) and client.dtype == np.int64 and (np.diff(client) > 0).all() for client in clients)
    assert len(np.unique(together)) == len(together) <= 101
    assert len(rule.names(examples)) == len(clients)
    assert all(np.array_equal(a, b) for a, b in zip(clients, rule.assign(examples, seed=3)))


@pytest.mark.parametrize("rule", RANDOM, ids=repr)
def test_another_seed_gives_other_clients_and_the_global_generators_do_not_matter(rule):
    examples = labelled([index % 4 for index in range(101)])
    first = rule.assign(examples, seed=0)
    np.random.seed(1)
    assert all(np.array_equal(a, b) for a, b in zip(first, rule.assign(examples, seed=0)))
    assert any(not np.array_equal(a, b) for a, b in zip(first, rule.assign(examples, seed=1)))


def test_settings_are_the_class_and_its_arguments():
    assert Dirichlet(6, 1, rotate=False).settings() == {
        "class": "Dirichlet",
        "num_clients": 6,
        "alpha": 1.0,
        "rotate": False,
    }
    assert repr(Shards(5)) == "Shards(num_clients=5, shards_per_client=2)"


def test_clients_are_numbered_where_they_have_no_better_name():
    assert IID(2).names(labelled([0, 0])) == ["client 0", "client 1"]


@pytest.mark.parametrize(
    "rule", [ByClass(), Shards(2), Dirichlet(2, 1.0), CoarseDirichlet(2)], ids=lambda rule: type(rule).__name__
)
def test_rules_about_labels_refuse_data_without_labels(rule):
    flat = Examples(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64), "flat/train", ())
    with pytest.raises(ValueError, match=f"{type(rule).__name__} needs labels, but data flat/train has none"):
        rule.assign(flat, seed=0)
    assert len(IID(2).assign(flat, seed=0)) == 2


@pytest.mark.parametrize(
    "rule",
    [Shards(4), IID(4), BySize(4), Dirichlet(4, 1.0), CoarseDirichlet(4, groups={"all": ["0", "1"]})],
    ids=lambda rule: type(rule).__name__,
)
def test_more_clients_than_examples_are_refused(rule):
    name = type(rule).__name__
    with pytest.raises(ValueError, match=f"{name} cannot assign 3 examples to 4 clients; use fewer clients"):
        rule.assign(labelled([0, 1, 1]), seed=0)


@pytest.mark.parametrize("make", [lambda: IID(0), lambda: BySize(0), lambda: Shards(0), lambda: Dirichlet(-1, 1.0)])
def test_a_number_of_clients_below_one_is_refused(make):
    with pytest.raises(ValueError, match="num_clients"):
        make()


def test_a_checked_assignment_is_sorted():
    assert [client.tolist() for client in check_assignment([np.array([3, 0]), np.array([1])], 4)] == [[0, 3], [1]]


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ([], "needs one name for each client"),
        ([[0], []], "client 1 has no examples"),
        ([[0], [4]], "client 1 has positions 4 to 4 .* outside the 4 examples"),
        ([[0], [-1]], "client 1 has positions -1 to -1"),
        ([[0.5]], r"client 0 has positions .*float64"),
        ([[0, 2], [1, 2]], "client 1 and client 0 both have example 2"),
        ([[1, 1]], "client 0 has example 1 more than once"),
    ],
)
def test_a_wrong_assignment_names_the_client(assignment, message):
    with pytest.raises(ValueError, match=message):
        check_assignment([np.array(client) for client in assignment], 4)


def test_names_and_clients_must_be_as_many():
    with pytest.raises(ValueError, match="got 1 for 2 clients"):
        check_assignment([np.array([0]), np.array([1])], 4, ["a"])
