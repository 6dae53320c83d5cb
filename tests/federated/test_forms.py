"""What a turn may do to a module's tensors themselves: put others in their places, take some away, reshape them."""

import pytest
import torch
from torch import nn

from fedgen.federated.client_state.exchange import Exchange


class Net(nn.Module):
    """Two tied weights, a buffer that is assigned anew, one that no checkpoint holds, and a frozen layer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        self.tied = nn.Linear(2, 3, bias=False)
        self.tied.weight = self.body[0].weight
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.register_buffer("average", torch.zeros(2))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def exchange(net):
    found = Exchange(net, [p for p in net.parameters() if p.requires_grad], ())
    found.snapshot()
    return found


def state_of(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


def put(make):
    """A fault that puts another tensor behind the first bias."""

    def change(net):
        net.body[0].bias.data = make(net.body[0].bias.data)

    return change


def delete(net):
    del net.body[0].bias


def add(net):
    net.body[0].extra = nn.Parameter(torch.zeros(1))


def add_child(net):
    net.more = nn.Sequential(nn.Linear(1, 1))


def replace_parameter(net):
    net.body[0].bias = nn.Parameter(torch.zeros(4))


def replace_buffer(net):
    net.average = torch.zeros(2, dtype=torch.float64)


def replace_child(net):
    net.body[0] = nn.Linear(2, 5)


def delete_child(net):
    del net.body


FAULTS = {
    "shape": (put(lambda t: t[:2]), r"body\.0\.bias has shape \[2\] instead of \[3\]"),
    "dtype": (put(lambda t: t.double()), r"body\.0\.bias has dtype torch\.float64 instead of torch\.float32"),
    "both": (put(lambda t: t[:1].half()), r"shape \[1\] instead of \[3\], dtype torch\.float16 instead of"),
    "gone": (delete, r"body\.0\.bias is gone"),
    "new": (add, r"body\.0\.extra is new, and the server has no such tensor"),
    "new child": (add_child, r"more\.0\.bias is new"),
    "parameter": (replace_parameter, r"body\.0\.bias has shape \[4\] instead of \[3\]"),
    "buffer": (replace_buffer, r"average has dtype torch\.float64"),
    "child": (replace_child, r"body\.0\.weight has shape \[5, 2\] instead of \[3, 2\]"),
    "no child": (delete_child, r"body\.0\.bias is gone"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_another_form_is_named_and_undone(net, exchange, name):
    change, said = FAULTS[name]
    before, own = state_of(net), list(net.parameters())
    net.body[0].bias.grad = torch.ones(3)
    change(net)
    assert not exchange.still_fits()
    with pytest.raises(ValueError, match=said + ".*, after 7 local iterations"):
        exchange.settle(7)
    exchange.restore_forms()
    exchange.load_server()
    after = state_of(net)
    assert list(after) == list(before)
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert all(new is old for new, old in zip(net.parameters(), own, strict=True))
    assert net.tied.weight is net.body[0].weight
    exchange.settle(7)
    net.body(torch.ones(1, 2)).sum().backward()  # a gradient of the old form would be refused


def test_a_tensor_assigned_anew_in_the_same_form_counts_by_its_values(net, exchange):
    known, weight = net.average, net.body[0].weight
    net.average = torch.tensor([1.0, 2.0])
    net.body[0] = nn.Linear(2, 3)
    sent = net.body[0].weight.detach().clone()
    exchange.settle(1)
    assert net.average is known
    assert known.tolist() == [1.0, 2.0]
    assert net.body[0].weight is weight
    assert torch.equal(weight, sent)
    exchange.load_server()
    assert net.average.tolist() == [0.0, 0.0]


def test_what_no_checkpoint_holds_may_change(net, exchange):
    net.scratch = torch.zeros(5)
    net.register_buffer("cache", torch.zeros(2), persistent=False)
    net.body[1] = nn.Tanh()
    net.loss = nn.MSELoss()
    exchange.settle(1)
    exchange.restore_forms()
    assert len(net.scratch) == 5
    assert len(net.cache) == 2
    assert isinstance(net.body[1], nn.Tanh)
    assert isinstance(net.loss, nn.MSELoss)


def test_the_first_tensor_that_is_not_finite_is_named(net, exchange):
    with torch.no_grad():
        net.average[1] = float("inf")
    with pytest.raises(FloatingPointError, match="iterations"):
        exchange.settle(3)
