"""Drift of averaged local steps: none after one, some after several, none for clients who are alike."""

import pytest
import torch
from torch import nn

from fedgen.losses import EmbeddedLoss, MMD2Loss
from fedgen.losses.one_message import local_drift
from tests.losses.simple import MeanLoss, two_numbers


class Point(nn.Module):
    """The same number, whatever the latents."""

    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(torch.zeros(1))

    def forward(self, latents):
        return self.place.expand(len(latents)).unsqueeze(1)


def test_scores_of_one_curvature_do_not_drift():
    """Steps on (x - a_i)^2 halve the way to a_i; the mean of the clients' places goes half the way to the mean."""
    objective = EmbeddedLoss(MeanLoss("own"), ["identity"]).set_references([torch.full((2, 1), -1.0), torch.ones(6, 1)])
    generator = Point()
    found = local_drift(generator, objective, (2, 6), torch.zeros(5, 2, 1), lr=0.25)
    assert max(found) < 1e-6
    assert generator.place.item() == 0
    assert generator.place.grad is None


def test_other_weights_than_the_objectives_are_seen_at_once():
    """Clients at 0 and 1: half of the way to 1/2 is 1/4, and half of the way to 3/4 is 3/8."""
    objective = EmbeddedLoss(MeanLoss("own"), ["identity"]).set_references([torch.zeros(2, 1), torch.ones(2, 1)])
    found = local_drift(Point(), objective, (1, 3), torch.zeros(1, 2, 1), lr=0.25)
    assert found == [pytest.approx(0.5)]


@pytest.mark.parametrize(("parts", "drifts"), [((0, 1), True), ((0, 0), False)])
def test_mmd2_drifts_over_steps_unless_clients_are_alike(parts, drifts):
    draws = torch.Generator().manual_seed(0)
    dark = torch.randint(0, 100, (6, 1, 4, 4), dtype=torch.uint8, generator=draws)
    clients = [dark, dark + 150]
    objective = EmbeddedLoss(MMD2Loss(aggregate="own"), [two_numbers()])
    objective.set_references([clients[part] for part in parts])
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Unflatten(1, (1, 4, 4)))
    latents = torch.randn(6, 8, 3, generator=draws)
    found = local_drift(generator, objective, (6, 6), latents, lr=0.5)
    assert len(found) == 6
    assert found[0] < 1e-5
    assert (found[-1] > 1e-3) is drifts
