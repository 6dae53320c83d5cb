"""Labels and owners of anybody's Dataset."""

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from fedgen.data.annotations import as_kinds, find_labels, find_owners


class Plain(Dataset):
    """A data set whose items must not be read."""

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __len__(self):
        return 4

    def __getitem__(self, position):
        raise AssertionError("an item was read")


def found(dataset, given=None, count=4):
    labels, classes = find_labels(dataset, given, count)
    return labels.tolist(), classes


@pytest.mark.parametrize("targets", [[2, 0, 2, 1], torch.tensor([2, 0, 2, 1]), np.array([[2], [0], [2], [1]])])
def test_numbers_are_classes_as_batches_have_them(targets):
    assert found(Plain(targets=targets)) == ([2, 0, 2, 1], ("0", "1", "2"))
    assert found(Plain(labels=targets, classes=["x", "y", "z", "never"])) == ([2, 0, 2, 1], ("x", "y", "z", "never"))


def test_numbers_with_gaps_keep_their_place():
    assert found(Plain(targets=[3, 1, 3, 1])) == ([3, 1, 3, 1], ("0", "1", "2", "3"))


def test_labels_that_are_given_are_numbered_in_order():
    assert found(Plain(), [70, 5, 70, 5]) == ([1, 0, 1, 0], ("5", "70"))
    assert found(Plain(kind=["b", "a", "b", "b"]), "kind") == ([1, 0, 1, 1], ("a", "b"))


def test_parts_of_data_sets_are_looked_through():
    whole = Plain(targets=[2, 0, 2, 1], classes=["x", "y", "z"])
    assert found(Subset(whole, [3, 0]), count=2) == ([1, 2], ("x", "y", "z"))
    assert found(ConcatDataset([whole, Subset(whole, [1])]), count=5)[0] == [2, 0, 2, 1, 0]
    assert found(TensorDataset(torch.zeros(4, 2), torch.tensor([1, 0, 1, 0]))) == ([1, 0, 1, 0], ("0", "1"))


@pytest.mark.parametrize(
    "targets", [[0.5, 1.5, 2.5, 3.5], torch.zeros(4, 6, 6), [torch.zeros(2, 4)] * 4, [[1, 0]] * 4, [0, 1], None]
)
def test_what_is_no_class_is_no_label(targets):
    assert found(Plain(targets=targets)) == ([0] * 4, ())


def test_owners_are_told_never_guessed_but_by_their_own_name():
    assert find_owners(Plain(targets=[1, 0, 1, 0]), None, 4) == (None, ())
    owners, names = find_owners(Plain(owners=["b", "a", "b", "b"]), None, 4)
    assert (owners.tolist(), names) == ([1, 0, 1, 1], ("a", "b"))
    owners, names = find_owners(Plain(), [10, 9, 10, 9], 4)
    assert (owners.tolist(), names) == ([1, 0, 1, 0], ("9", "10"))


def test_kinds_are_integers_or_texts():
    assert as_kinds([True, False]) == [1, 0]
    assert as_kinds([np.int64(3), torch.tensor(4)]) == [3, 4]
    assert as_kinds(["a", 1]) is None
    assert as_kinds(np.array(["a", "b"])) == ["a", "b"]
