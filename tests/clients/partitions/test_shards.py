import numpy as np
import pytest

from fedgen.clients.partitions import Shards
from tests.clients.partitions.test_partition import labelled


def test_clients_get_runs_of_the_label_order():
    examples = labelled([index % 10 for index in range(200)])
    clients = Shards(10, shards_per_client=2).assign(examples, seed=0)
    assert [len(client) for client in clients] == [20] * 10
    # Twenty shards of ten images cut each class of twenty in two.
    assert all(len(examples.labels[client].unique()) <= 2 for client in clients)
    assert sorted(np.concatenate(clients)) == list(range(200))


def test_examples_that_do_not_divide_are_all_dealt():
    clients = Shards(3, shards_per_client=2).assign(labelled([index % 4 for index in range(20)]), seed=1)
    assert sum(map(len, clients)) == 20
    assert {len(client) for client in clients} <= {6, 7, 8}


def test_which_images_of_a_class_a_client_gets_is_random():
    clients = Shards(2, shards_per_client=1).assign(labelled([0] * 100), seed=0)
    assert sorted(map(len, clients)) == [50, 50]
    assert clients[0].tolist() not in (list(range(50)), list(range(50, 100)))


def test_more_shards_than_examples_are_refused():
    with pytest.raises(ValueError, match="shards"):
        Shards(3).assign(labelled([0, 1, 0, 1, 0]), seed=0)
