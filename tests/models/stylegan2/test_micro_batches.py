from types import SimpleNamespace

import pytest
import torch

from fedgen.models.stylegan2.training_steps import check_batches, micro_batches, micro_sizes


@pytest.mark.parametrize(
    ("count", "size", "sizes"), [(10, 4, [4, 4, 2]), (10, None, [10]), (3, 8, [3]), (8, 4, [4, 4]), (1, 1, [1])]
)
def test_parts_are_full_but_for_the_last(count, size, sizes):
    assert micro_sizes(count, size) == sizes


def test_images_keep_their_labels():
    images, labels = torch.arange(5).view(5, 1, 1, 1), torch.arange(5)
    parts = list(micro_batches(images, labels, 2))
    assert [part.flatten().tolist() for part, _ in parts] == [given.tolist() for _, given in parts]
    assert [given for _, given in micro_batches(images, None, 2)] == [None] * 3


def data(*sizes, batch_size=8):
    clients = [SimpleNamespace(name=f"c{size}", train=range(size)) for size in sizes]
    return SimpleNamespace(clients=clients, batch_size=batch_size)


def test_a_client_whose_parts_do_not_divide_into_groups_is_named():
    with pytest.raises(ValueError, match="batches"):
        check_batches(data(8, 6), 4, None)
    check_batches(data(8, 3), 4, None)  # a part below a group is one
    check_batches(data(8, 6), 4, 2)


def test_a_client_without_images_is_named_and_data_that_do_not_say_pass():
    with pytest.raises(ValueError, match="client c0 has no training image"):
        check_batches(data(8, 0), 4, None)
    check_batches(data(8, 6), None, None)
    check_batches(None, 4, None)
