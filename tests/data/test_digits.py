"""The digits are those of scikit-learn, which need not be imported for them."""

import pytest
import torch

from fedgen.data import Digits
from fedgen.data.sets import digits


@pytest.mark.slow
def test_the_file_of_the_package_holds_what_scikit_learn_loads():
    read, loaded = digits._read_installed(), digits._load()
    assert read is not None
    for ours, theirs in zip(read, loaded):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


@pytest.mark.slow
def test_without_that_file_scikit_learn_is_asked(monkeypatch):
    examples = Digits().read("train")
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    other = Digits().read("train")
    assert torch.equal(examples.inputs, other.inputs)
    assert torch.equal(examples.labels, other.labels)
    assert examples.classes == other.classes


def test_grey_levels_and_labels_of_the_first_digit():
    examples = Digits().read("train")
    assert examples.inputs.shape == (1797, 1, 8, 8)
    assert examples.inputs.is_contiguous()
    assert examples.inputs[0, 0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]  # 0, 0, 5, 13, 9, 1, 0, 0 sixteenths
    assert examples.labels[:10].tolist() == list(range(10))
