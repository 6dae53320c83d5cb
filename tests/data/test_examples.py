import numpy as np
import pytest
import torch

from fedgen.data import Examples


def images(labels=(0, 1, 1, 0), classes=("cat", "dog")):
    inputs = torch.arange(len(labels) * 4, dtype=torch.uint8).reshape(-1, 1, 2, 2)
    return Examples(inputs, torch.tensor(labels), "pets/train", classes)


def test_images_tell_their_size_and_labels():
    examples = images()
    assert len(examples) == 4
    assert examples.is_images
    assert examples.is_labelled
    assert examples.shape == (1, 2, 2)
    assert examples.label_counts().tolist() == [2, 2]
    assert repr(examples) == "Examples('pets/train', 4 images (1, 2, 2), 2 classes)"


def test_points_are_no_images():
    points = Examples(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), "toy/train", [])
    assert not points.is_images
    assert not points.is_labelled
    assert points.classes == ()


@pytest.mark.parametrize("indices", [[2, 0], np.array([2, 0]), torch.tensor([2, 0])])
def test_a_subset_keeps_order_name_and_classes(indices):
    part = images().subset(indices)
    assert part.inputs[:, 0, 0, 0].tolist() == [8, 0]
    assert part.labels.tolist() == [1, 0]
    assert (part.name, part.classes) == ("pets/train", ("cat", "dog"))
    assert images().subset(indices, name="pets/held_out").name == "pets/held_out"


def test_a_subset_is_a_copy_and_may_be_empty():
    examples = images()
    examples.subset([0]).inputs.zero_()
    assert examples.inputs[0, 0, 0, 1] == 1
    assert len(examples.subset([])) == 0


@pytest.mark.parametrize("index", [-1, 4])
def test_a_subset_outside_the_examples_is_refused(index):
    with pytest.raises(IndexError, match="there are 4 examples"):
        images().subset([0, index])


@pytest.mark.parametrize("indices", [[True, False, True, True], [0.0], [[0]], 0])
def test_a_subset_by_anything_but_a_list_of_integers_is_refused(indices):
    with pytest.raises(IndexError, match="positions"):
        images().subset(indices)


@pytest.mark.parametrize(
    "inputs", [torch.zeros(2, 1, 2, 2), torch.zeros(2, 2, 2, dtype=torch.uint8), torch.zeros(2, 3, dtype=torch.float64)]
)
def test_inputs_of_another_dtype_or_shape_are_refused(inputs):
    with pytest.raises(ValueError, match="uint8"):
        Examples(inputs, torch.zeros(2, dtype=torch.int64), "pets", ("cat",))


@pytest.mark.parametrize("labels", [torch.zeros(2, 1), torch.zeros(3, dtype=torch.int64)])
def test_labels_of_another_dtype_or_number_are_refused(labels):
    with pytest.raises(ValueError, match="int64"):
        Examples(torch.zeros(2, 5), labels, "toy", ("a",))


def test_whole_floats_are_labels_and_others_are_refused_by_their_item():
    assert Examples(torch.zeros(2, 5), [1.0, 0.0], "toy", ("a", "b")).labels.tolist() == [1, 0]
    with pytest.raises(ValueError, match="integers"):
        Examples(torch.zeros(2, 5), [1.0, float("nan")], "toy", ("a", "b"))


@pytest.mark.parametrize(("labels", "classes"), [((0, 2), ("cat", "dog")), ((-1, 0), ("cat", "dog")), ((0, 1), ())])
def test_labels_without_a_class_are_refused(labels, classes):
    with pytest.raises(ValueError, match="labels"):
        images(labels, classes)


def writers(owners=(1, 0, 1, 2), names=("ann", "bob", "cleo")):
    given = None if owners is None else torch.tensor(owners)
    return Examples(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64), "notes", (), given, names)


def test_a_subset_keeps_who_made_each_example():
    part = writers(names=["ann", "bob", "cleo"]).subset([3, 0])
    assert part.owners.tolist() == [2, 1]
    assert part.owner_names == ("ann", "bob", "cleo")
    assert (images().owners, images().subset([0]).owners, images().owner_names) == (None, None, ())


@pytest.mark.parametrize(
    ("owners", "names", "message"),
    [
        ((0, 1, 0), ("ann", "bob"), r"owners must be int64 \[4\]"),
        ((0.0, 1.0, 0.0, 0.0), ("ann", "bob"), r"owners must be int64 \[4\]"),
        ((0, 2, 0, 0), ("ann", "bob"), "owners run from 0 to 2 but there are 2 owner_names"),
        ((-1, 0, 0, 0), ("ann", "bob"), "owners run from -1 to 0"),
        ((0, 1, 0, 0), ("ann", "ann"), "no two may be alike"),
        (None, ("ann",), "1 owner_names need owners"),
    ],
)
def test_owners_that_do_not_fit_are_refused(owners, names, message):
    with pytest.raises(ValueError, match=message):
        writers(owners, names)


def test_numpy_arrays_and_lists_are_taken():
    found = Examples(
        np.zeros((3, 1, 2, 2), np.uint8), [0, 1, 1], "toy", ("a", "b"), np.array([0, 0, 1], np.int32), ("x", "y")
    )
    assert (found.inputs.dtype, found.labels.dtype, found.owners.dtype) == (torch.uint8, torch.int64, torch.int64)
    assert found.labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (np.zeros((3, 1, 2, 2)), r"got the type torch.float64 \(of shape \(3, 1, 2, 2\)\); convert it"),
        (np.zeros((3, 28, 28), np.uint8), r"got torch.uint8 of shape \(3, 28, 28\): 4 axes are needed"),
        (torch.zeros(3, 1, 2, 2), r"got torch.float32 of shape \(3, 1, 2, 2\): 2 axes are needed"),
        ([[1], [2, 3], [4]], "inputs must be a tensor or an array, got list"),
    ],
)
def test_what_is_wrong_with_inputs_is_the_type_or_the_shape(inputs, words):
    with pytest.raises(ValueError, match=words):
        Examples(inputs, [0, 0, 0], "toy", ())
