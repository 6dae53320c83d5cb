"""The digits are those of scikit-learn, which need not be imported for them."""

import pytest
import torch

from fedgen.data import Digits


@pytest.mark.slow
def test_they_are_what_scikit_learn_loads():
    from sklearn.datasets import load_digits

    examples, loaded = Digits().read("train"), load_digits()
    levels = torch.from_numpy(loaded.data)  # float64 [1797, 64], 0 to 16
    assert torch.equal(examples.inputs.flatten(1), (levels * (255 / 16)).round().to(torch.uint8))
    assert torch.equal(examples.labels, torch.from_numpy(loaded.target).long())


def test_grey_levels_and_labels_of_the_first_digit():
    examples = Digits().read("train")
    assert examples.inputs.shape == (1797, 1, 8, 8)
    assert examples.inputs.is_contiguous()
    assert examples.inputs[0, 0, 0].tolist() == [0, 0, 80, 207, 143, 16, 0, 0]  # 0, 0, 5, 13, 9, 1, 0, 0 sixteenths
    assert examples.labels[:10].tolist() == list(range(10))
