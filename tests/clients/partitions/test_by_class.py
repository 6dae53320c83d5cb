import pytest

from fedgen.clients.partitions import ByClass
from tests.clients.partitions.test_partition import labelled


def test_client_k_holds_class_k():
    clients = ByClass().assign(labelled([2, 0, 1, 0]), seed=0)
    assert [client.tolist() for client in clients] == [[1, 3], [2], [0]]


def test_consecutive_classes_are_grouped():
    clients = ByClass(classes_per_client=2).assign(labelled([3, 0, 2, 1]), seed=0)
    assert [client.tolist() for client in clients] == [[1, 3], [0, 2]]


def test_clients_are_named_after_their_classes():
    examples = labelled([0, 1, 2, 3], ("cat", "dog", "2", "3"))
    assert ByClass().names(examples) == ["cat", "dog", "class 2", "class 3"]
    assert ByClass(2).names(examples) == ["cat + dog", "class 2 + class 3"]


def test_a_class_without_examples_is_no_client():
    examples = labelled([0, 2, 2])
    assert ByClass().names(examples) == ["class 0", "class 2"]
    assert [client.tolist() for client in ByClass().assign(examples, seed=0)] == [[0], [1, 2]]


def test_classes_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="classes_per_client"):
        ByClass(2).assign(labelled([0, 1, 2]), seed=0)


def test_less_than_one_class_for_a_client_is_refused():
    with pytest.raises(ValueError, match="classes_per_client"):
        ByClass(0)
