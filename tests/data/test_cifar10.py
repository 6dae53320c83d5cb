import pytest

from fedgen.data import CIFAR10
from tests.data.published import write_cifar10


@pytest.mark.parametrize("as_bytes", [True, False])
def test_five_batches_make_the_train_split_and_one_the_test_split(tmp_path, offline, as_bytes):
    write_cifar10(tmp_path, as_bytes)
    train, test = CIFAR10(tmp_path).load(), CIFAR10(tmp_path).load("test")
    assert train.inputs.shape == (10, 3, 32, 32)
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert train.inputs[3, :, 5, 7].tolist() == [11, 111, 11]
    assert (train.name, len(train.classes)) == ("cifar10/train", 10)
    assert (test.name, len(test), test.classes[5]) == ("cifar10/test", 2, "dog")
