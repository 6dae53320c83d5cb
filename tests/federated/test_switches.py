"""A failed turn leaves a module's switches as they were."""

import torch
from torch import nn

from fedgen.federated.server_model import Switches


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


def test_they_say_what_moved():
    net, switches = make()
    assert not switches.thawed_or_frozen()
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
