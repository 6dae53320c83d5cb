"""A failed turn leaves a module's switches as they were."""

import pytest
import torch
from torch import nn

from fedgen.federated.client_state.switches import Switches


def make():
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    net[0].bias.requires_grad_(False)
    return net, Switches(net)


def disturb(net, error=None):
    net[0].weight.requires_grad_(False)
    net[0].weight.grad = torch.ones(2, 2)
    net[1].eval()
    if error:
        raise error


def test_an_error_puts_switches_back_and_drops_gradients():
    net, switches = make()
    with pytest.raises(RuntimeError, match="no such luck"), switches.restored_on_error():
        disturb(net, RuntimeError("no such luck"))
    assert [p.requires_grad for p in net.parameters()] == [True, False]
    assert net[0].weight.grad is None
    assert net[1].training


def test_without_an_error_they_stay_as_they_are_and_say_what_moved():
    net, switches = make()
    assert not switches.thawed_or_frozen()
    with switches.restored_on_error():
        disturb(net)
    assert [p.requires_grad for p in net.parameters()] == [False, False]
    assert not net[1].training
    assert switches.thawed_or_frozen()
    switches.clear_gradients()
    assert net[0].weight.grad is None


def test_switches_go_back_to_those_of_the_turns_start():
    """Which may be others than when they were first looked at: a callback has thawed a layer."""
    net, switches = make()
    net[0].bias.requires_grad_(True)
    switches.start_turn()
    disturb(net)
    net[0].bias.requires_grad_(False)
    switches.restore()
    assert [p.requires_grad for p in net.parameters()] == [True, True]
    assert net[1].training
    assert net[0].weight.grad is not None  # of which others see
