"""An aggregator of somebody's own that needs all updates at once is one small class."""

import torch

from fedgen.federated import CollectingAggregator


class MidRange(CollectingAggregator):
    def combine(self, stacked):
        return [(part.amin(0) + part.amax(0)) / 2 for part in stacked]


class TwoRanks:
    """Two processes: this one, and another that has clients of its own."""

    size = 2

    def __init__(self, other):
        self.other = other

    def gather(self, own):
        return [own, self.other]


def collect(*updates):
    rule = MidRange()
    rule.start([torch.zeros(1)])
    for client, value in enumerate(updates):
        rule.add(client, [torch.tensor([value])], weight=1 + client)
    return rule


def test_every_client_has_one_voice_and_nothing_of_a_round_is_in_the_next():
    rule = collect(1.0, 2.0, 9.0)
    assert rule.clients == [0, 1, 2]
    assert rule.result()[0].tolist() == [5.0]
    rule.start([torch.zeros(1)])
    rule.add(4, [torch.tensor([3.0])], weight=1)
    assert (rule.clients, rule.result()[0].tolist()) == ([4], [3.0])


def test_tensors_that_a_later_turn_changes_first_join_the_round():
    rule = collect(1.0)
    rule.grow([torch.tensor([5.0], dtype=torch.float16)], [0])
    rule.add(1, [torch.tensor([7.0], dtype=torch.float16), torch.tensor([3.0])], weight=1)
    average, weight = rule.result()
    assert (average.tolist(), average.dtype, weight.tolist()) == ([6.0], torch.float32, [2.0])


def test_clients_of_other_processes_count_in_the_clients_order():
    rule = collect(1.0, 2.0)
    rule.clients = [0, 2]
    rule.merge(TwoRanks({1: [torch.tensor([9.0])]}), torch.device("cpu"))
    assert rule.clients == [0, 1, 2]
    assert rule.result()[0].tolist() == [5.0]


def test_it_bounds_nobody_unless_it_says_so_and_names_those_far_from_what_it_gives():
    rule = collect(0.0, 4.9, 5.1, 10.0, 5.0)  # 5 away, 0.1, 0.1, 5 and 0
    assert not rule.robust
    rule.result()
    assert list(rule.remarks()) == [0, 3]
    assert rule.remarks()[3] == "is 5 away from the combined weights, the median client 0.1"
