"""The weighted running mean of clients' tensors, on two clients and five scalars."""

import itertools

import pytest
import torch
from torch import nn

from fedgen.federated import Aggregator, Mean
from fedgen.federated.aggregators.mean import Federation


def mean_of(updates, weights, server=None):
    mean = Mean()
    mean.start(server or updates[0])
    for client, (update, weight) in enumerate(zip(updates, weights)):
        mean.add(client, update, weight)
    return mean.result()


def test_two_clients_of_three_and_one_examples():
    a, b = torch.tensor([0.0, 1.0, 2.0, -4.0, 8.0]), torch.tensor([4.0, 1.0, -2.0, 4.0, 0.0])
    (result,) = mean_of([[a], [b]], [3.0, 1.0])
    assert result.tolist() == [1.0, 1.0, 1.0, -2.0, 6.0]


def test_only_the_weights_ratio_matters():
    a, b = torch.tensor([0.0, 8.0]), torch.tensor([4.0, 0.0])
    assert torch.equal(mean_of([[a], [b]], [3.0, 1.0])[0], mean_of([[a], [b]], [300.0, 100.0])[0])


def test_half_precision_is_accumulated_in_float32():
    """1 and 1 + 2^-10 are neighbours in float16, so their mean 1 + 2^-11 has no float16."""
    a, b = torch.ones(1, dtype=torch.float16), torch.full((1,), 1 + 2**-10, dtype=torch.float16)
    (result,) = mean_of([[a], [b]], [1.0, 1.0])
    assert result.dtype == torch.float32
    assert result.item() == 1 + 2**-11


def test_float64_stays_float64():
    values = [[torch.tensor([1.0 + k * 1e-12], dtype=torch.float64)] for k in range(2)]
    (result,) = mean_of(values, [1.0, 1.0])
    assert result.dtype == torch.float64
    assert result.item() == pytest.approx(1.0 + 5e-13, abs=1e-15)


def test_clients_that_agree_leave_the_value_exact_to_the_bit():
    value = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    (result,) = mean_of([[value.clone()] for _ in range(7)], [3.0, 1.0, 7.0, 0.1, 11.0, 1e-3, 29.0])
    assert torch.equal(result, value)


def test_the_order_of_clients_changes_the_mean_by_rounding_only():
    draws = torch.Generator().manual_seed(0)
    clients = [(torch.randn(50, dtype=torch.float64, generator=draws), w) for w in (1.0, 5.0, 2.0, 12.0)]
    expected = sum(w * x for x, w in clients) / 20
    for order in itertools.permutations(clients):
        (result,) = mean_of([[x] for x, _ in order], [w for _, w in order])
        torch.testing.assert_close(result, expected, rtol=1e-13, atol=1e-14)


def test_memory_does_not_grow_with_the_cohort_or_the_rounds():
    mean, server = Mean(), [torch.zeros(3), torch.zeros(2, 2)]
    pointers = []
    for _ in range(3):
        mean.start(server)
        for client in range(20):
            mean.add(client, [torch.ones(3), torch.ones(2, 2)], 1.0)
            pointers.append([t.data_ptr() for t in mean.result()])
    assert all(p == pointers[0] for p in pointers)


def test_a_new_round_forgets_the_one_before():
    mean, server = Mean(), [torch.zeros(1)]
    mean.start(server)
    mean.add(0, [torch.tensor([100.0])], 50.0)
    mean.start(server)
    mean.add(1, [torch.tensor([1.0])], 1.0)
    mean.add(2, [torch.tensor([3.0])], 1.0)
    assert mean.result()[0].item() == 2.0


def test_the_server_and_the_clients_tensors_are_not_changed():
    server, a, b = torch.zeros(2), torch.ones(2), torch.full((2,), 3.0)
    mean_of([[a], [b]], [1.0, 1.0], [server])
    assert server.tolist() == [0, 0]
    assert a.tolist() == [1, 1]
    assert b.tolist() == [3, 3]


def test_live_parameters_are_copied_and_their_graph_is_not_kept():
    parameter = nn.Parameter(torch.ones(2))
    mean = Mean()
    mean.start([torch.zeros(2)])
    mean.add(0, [parameter], 1.0)
    with torch.no_grad():
        parameter.fill_(9.0)
    assert mean.result()[0].tolist() == [1, 1]
    assert not mean.result()[0].requires_grad


def test_a_model_of_another_precision_starts_afresh():
    mean = Mean()
    for dtype in (torch.float32, torch.float64):
        mean.start([torch.zeros(2, dtype=dtype)])
        mean.add(0, [torch.full((2,), 1 / 3, dtype=dtype)], 1.0)
        assert mean.result()[0].dtype == dtype


def test_nothing_exchanged_is_nothing_averaged():
    mean = Mean()
    mean.start([])
    mean.add(0, [], 4.0)
    assert mean.result() == []


def test_another_rule_needs_three_methods():
    class Last(Aggregator):
        def start(self, server):
            self.kept = []

        def add(self, client, update, weight):
            self.kept = [t.clone() for t in update]

        def result(self):
            return self.kept

    last = Last()
    last.start([])
    last.add(0, [torch.ones(1)], 1.0)
    assert last.result()[0].item() == 1.0


def test_the_former_name_of_a_hook_is_called_and_warned_of():
    with pytest.warns(DeprecationWarning, match="begin_round"):

        class Older(Mean):
            def announce(self, federation):
                super().announce(federation)
                self.seen = federation.round

    rule = Older()
    rule.begin_round(Federation(0, 5, 2, 1))
    assert rule.seen == rule.federation.round == 5
