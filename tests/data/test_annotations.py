"""Labels and owners of anybody's Dataset."""

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from fedgen.data.examples import as_kinds, find_labels, find_owners
from tests.data.tables import CLASSES, table


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


@pytest.mark.parametrize("given", [[3, 1, 3, 1], [3.0, 1.0, 3.0, 1.0], np.array([3.0, 1, 3, 1]), [[3], [1], [3], [1]]])
def test_so_do_labels_that_are_given(given):
    given = [np.array(one) for one in given] if isinstance(given[0], list) else given
    assert found(Plain(), given) == ([3, 1, 3, 1], ("0", "1", "2", "3"))


@pytest.mark.parametrize("kind", [list("baba"), np.array(list("baba")), np.array(list("baba"), dtype=object)])
def test_texts_are_classes_in_sorted_order(kind):
    assert found(Plain(kind=kind), "kind") == ([1, 0, 1, 0], ("a", "b"))


def test_numbers_of_no_class_are_names_unless_models_see_them():
    assert found(Plain(), [70_000, -5, 70_000, -5]) == ([1, 0, 1, 0], ("-5", "70000"))
    with pytest.raises(ValueError, match="labels"):
        find_labels(None, [0, 1, -1, -1], 4, seen=True)
    with pytest.raises(ValueError, match="labels"):
        find_labels(None, [0, 1, 2, 10_000], 4, seen=True)


def test_parts_of_data_sets_are_looked_through():
    whole = Plain(targets=[2, 0, 2, 1], classes=["x", "y", "z"])
    assert found(Subset(whole, [3, 0]), count=2) == ([1, 2], ("x", "y", "z"))
    assert found(ConcatDataset([whole, Subset(whole, [1])]), count=5)[0] == [2, 0, 2, 1, 0]
    with pytest.warns(UserWarning, match="ConcatDataset"):
        assert found(ConcatDataset([whole, Plain()]), count=8) == ([0] * 8, ())
    assert found(TensorDataset(torch.zeros(4, 2), torch.tensor([1, 0, 1, 0]))) == ([1, 0, 1, 0], ("0", "1"))


@pytest.mark.parametrize(
    ("classes", "names"),
    [
        (np.array(["x", "y", "z"]), ("x", "y", "z")),
        (torch.tensor([4, 5, 6]), ("4", "5", "6")),
        (3, ("0", "1", "2")),
        (lambda: "abc", ("0", "1", "2")),
    ],
    ids=["array", "tensor", "number", "method"],
)
def test_names_of_classes_may_be_an_array_and_what_are_no_names_is_left_alone(classes, names):
    whole = Plain(targets=[2, 0, 2, 1], classes=classes)
    assert found(whole) == ([2, 0, 2, 1], names)
    assert found(Subset(whole, [0]), count=1) == ([2], names)


def test_columns_of_the_library_datasets_are_found_in_parts_of_its_sets():
    """As `random_split` makes: their labels were left out without a word."""
    whole = table(labels=[2, 0, 2])
    for given in (None, "label"):
        assert found(Subset(whole, [1, 2]), given, count=2) == ([0, 2], tuple(CLASSES))
    assert found(ConcatDataset([whole, Subset(whole, [1])])) == ([2, 0, 2, 0], tuple(CLASSES))
    with pytest.warns(UserWarning, match="ConcatDataset"):
        assert found(ConcatDataset([table(labels=None), Subset(whole, [1])])) == ([0] * 4, ())


def test_names_of_classes_are_those_that_all_parts_give():
    """They were left out, and two sets' numbers of unlike classes were one class without a word."""
    first = Plain(targets=[2, 0, 2, 1], classes=["x", "y", "z"])
    again = Plain(targets=[1, 1, 1, 1], classes=["x", "y"])
    assert found(ConcatDataset([again, first]), count=8) == ([1, 1, 1, 1, 2, 0, 2, 1], ("x", "y", "z"))
    other = Plain(targets=[1, 1, 1, 1], classes=["x", "z"])
    with pytest.warns(UserWarning, match="ConcatDataset"):
        assert found(ConcatDataset([first, other]), count=8) == ([2, 0, 2, 1, 1, 1, 1, 1], ("0", "1", "2"))


def test_a_subset_takes_rows_of_pandas_by_their_place():
    """A shuffled or filtered table keeps its index: labels and owners were those of other rows, or a KeyError."""
    column = pytest.importorskip("pandas").Series([2, 0, 2, 1], index=[3, 1, 0, 2])
    whole = Subset(Plain(targets=column, person=column.map("p{}".format)), [0, 3])
    assert found(whole, count=2) == ([2, 1], ("0", "1", "2"))
    assert find_owners(whole, "person", 2)[1] == ("p1", "p2")
    assert find_owners(whole, "person", 2)[0].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ([0.5, 1.5, 2.5, 3.0], "item 0: 0.5"),
        (torch.zeros(4, 6, 6), r"item 0: ndarray of shape \[6, 6\]"),
        ([torch.zeros(2, 4)] * 4, r"item 0: Tensor of shape \[2, 4\]"),
        ([{"boxes": 1}] * 4, "item 0: {'boxes': 1}"),
        ([[1, 1]] * 4, r"item 0: \[1, 1\]"),
        ([None] * 4, "item 0: None"),
    ],
)
def test_what_is_plainly_no_class_is_no_label_and_told(targets, said):
    with pytest.warns(UserWarning, match=rf"Plain\.targets, {said} is neither .* no labels; .* labels=\[\]"):
        assert found(Plain(targets=targets)) == ([0] * 4, ())
    assert found(Plain(targets=targets), []) == ([0] * 4, ())


@pytest.mark.parametrize("targets", [None, "folder", 3, {"a": 1}, ["cat", "dog"]])
def test_attributes_that_are_not_one_an_item_are_no_labels(targets):
    assert found(Plain(targets=targets)) == ([0] * 4, ())


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ([0, None, 1, 1], "item 1: None; all must be integers"),
        (np.array([0, 1, np.nan, 1]), "item 2: nan"),
        (["a", "b", 1, "a"], "item 2: 1 after 'a'"),
        (np.array(["a", None, "b", "a"], dtype=object), "item 1: None"),
        (np.eye(4), r"rows are one-hot; .* as onehot\.argmax\(1\)"),
        ([[0, 1]] * 4, "rows are one-hot"),
        ([0, 1, 1], "has 3 values for 4 items; give one an item"),
        (["a", "b", "a"], "has 3 values for 4 items"),
    ],
)
def test_a_value_that_cannot_be_a_label_is_refused_by_its_item(targets, said):
    with pytest.raises(ValueError, match=rf"Plain\.targets.* ?{said}"):
        found(Plain(targets=targets))
    with pytest.raises(ValueError, match=said.replace("Plain.targets", "labels")):
        found(Plain(targets=targets), "targets")


def test_labels_of_a_part_of_a_data_set_are_checked_in_the_whole():
    with pytest.raises(ValueError, match="targets"):
        found(Subset(Plain(targets=[0, 1, 1]), [0, 1, 2]), count=3)


def test_owners_are_told_never_guessed_but_by_their_own_name():
    assert find_owners(Plain(targets=[1, 0, 1, 0]), None, 4) == (None, ())
    owners, names = find_owners(Plain(owners=["b", "a", "b", "b"]), None, 4)
    assert (owners.tolist(), names) == ([1, 0, 1, 1], ("a", "b"))
    owners, names = find_owners(Plain(), [10, 9, 10, 9], 4)
    assert (owners.tolist(), names) == ([1, 0, 1, 0], ("9", "10"))


def test_kinds_are_integers_or_texts():
    assert as_kinds([True, False], "y") == [1, 0]
    assert as_kinds([np.int64(3), torch.tensor(4), np.float32(5)], "y") == [3, 4, 5]
    assert as_kinds(np.array(["a", "b"]), "y") == ["a", "b"]
