"""Networks, a game and data that do not fit each other are told before anything trains."""

import pytest
import torch
from torch import nn

from fedgen.models import Hinge, WassersteinGP
from fedgen.models.adversarial import check_images, check_pair
from fedgen.models.networks import DCGANCritic, SAGANCritic, SmallCritic, SmallGenerator


def test_pairs_that_can_play_pass():
    check_pair(SmallGenerator(width=2), SmallCritic(width=2), WassersteinGP())
    check_pair(SmallGenerator(width=2), DCGANCritic(8, 1, 2, batch_norm=True), Hinge())


@pytest.mark.parametrize(
    ("critic", "loss", "message"),
    [
        (SAGANCritic(8, 1, 2, 4, num_classes=3), Hinge(), "the generator has num_classes=None and the critic 3"),
        (DCGANCritic(16, 1, 2, batch_norm=True), WassersteinGP(), "WassersteinGP penalises .* BatchNorm"),
        (SmallCritic(width=2), "hinge", "loss='hinge' is no game"),
    ],
)
def test_pairs_that_cannot_play_are_refused(critic, loss, message):
    with pytest.raises(ValueError, match=message):
        check_pair(SmallGenerator(width=2), critic, loss)


def test_shapes_are_tried_on_two_images():
    generator = SmallGenerator(width=2)
    check_images(generator, SmallCritic(width=2), (1, 8, 8))
    check_images(generator, None, None)
    with pytest.raises(ValueError, match="generator"):
        check_images(generator, None, (3, 8, 8))
    with pytest.raises(ValueError, match="critic"):
        check_images(generator, SmallCritic(image_size=16, width=2), None)
    with pytest.raises(ValueError, match="generator"):
        check_images(generator, nn.Linear(3, 1), None)
    with pytest.raises(ValueError, match=r"one score an image, \[N\], got \[2, 1, 8, 8\] of 2"):
        check_images(generator, nn.Identity(), None)
    assert torch.is_grad_enabled()
