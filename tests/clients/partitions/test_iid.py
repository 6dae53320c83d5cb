import numpy as np

from fedgen.clients.partitions import IID
from tests.clients.partitions.test_partition import labelled


def test_all_examples_are_dealt_in_parts_whose_sizes_differ_by_at_most_one():
    clients = IID(3).assign(labelled([0] * 11), seed=0)
    assert sorted(map(len, clients)) == [3, 4, 4]
    assert sorted(np.concatenate(clients)) == list(range(11))


def test_clients_have_the_label_shares_of_the_whole():
    examples = labelled([0] * 3000 + [1] * 1000)
    shares = [examples.labels[client].float().mean() for client in IID(4).assign(examples, seed=0)]
    # The standard error of a share is sqrt(0.25 * 0.75 / 1000) = 0.014.
    assert all(abs(share - 0.25) < 0.06 for share in shares)
