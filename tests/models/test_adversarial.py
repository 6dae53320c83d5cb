import math

import pytest
import torch
from torch import nn

from fedgen.models import Hinge, NonSaturating, WassersteinGP
from fedgen.models.adversarial import gradient_penalty
from fedgen.models.networks import SmallCritic


def linear_critic(weights):
    return lambda images: images.flatten(1) @ weights


@pytest.mark.parametrize("count", [1, 5])
def test_penalty_of_a_linear_critic_is_its_slopes_distance_from_one_squared(count):
    weights = torch.tensor([3.0, 0.0, 4.0, 0.0])  # |w| = 5
    real, fake = torch.randn(count, 1, 2, 2), torch.randn(count, 1, 2, 2)
    assert gradient_penalty(linear_critic(weights), real, fake).item() == pytest.approx(16.0)
    assert gradient_penalty(linear_critic(weights / 10), real, fake).item() == pytest.approx(0.25)  # two-sided


def test_penalty_is_differentiable_in_the_critics_weights():
    weights = torch.tensor([3.0, 4.0], requires_grad=True)
    gradient_penalty(linear_critic(weights), torch.zeros(2, 1, 1, 2), torch.ones(2, 1, 1, 2)).backward()
    assert weights.grad.tolist() == pytest.approx([2 * 4 * 0.6, 2 * 4 * 0.8])  # 2 (|w| - 1) w / |w|


def test_penalty_of_a_constant_critic_has_finite_gradients():
    weights = torch.zeros(4, requires_grad=True)
    penalty = gradient_penalty(linear_critic(weights), torch.zeros(3, 1, 2, 2), torch.ones(3, 1, 2, 2))
    penalty.backward()
    assert penalty.item() == 1.0
    assert torch.isfinite(weights.grad).all()


def test_penalty_is_taken_on_the_segment_of_each_pair_with_a_draw_of_its_own():
    seen = []

    def critic(images):
        seen.append(images.detach())
        return images.sum((1, 2, 3))

    real = torch.zeros(50, 3, 2, 2)
    fake = torch.arange(1.0, 51).view(50, 1, 1, 1).expand(50, 3, 2, 2)
    gradient_penalty(critic, real, fake)
    positions = seen[0] / fake
    assert torch.allclose(positions, positions[:, :1, :1, :1].expand_as(positions))
    assert (positions >= 0).all()
    assert (positions <= 1).all()
    assert positions[:, 0, 0, 0].unique().numel() == 50


def test_wasserstein_losses_by_hand():
    critic = linear_critic(torch.tensor([2.0, 0.0]))  # slope 2: penalty 1
    real = torch.tensor([[1.0, 9.0], [2.0, 9.0]]).view(2, 1, 1, 2)  # scores 2, 4
    fake = torch.tensor([[0.0, 9.0], [0.5, 9.0]]).view(2, 1, 1, 2)  # scores 0, 1
    terms = WassersteinGP(penalty=10).critic_loss(critic, real, fake)
    assert terms.gap.item() == pytest.approx(2.5)
    assert terms.loss.item() == pytest.approx(-2.5 + 10.0)
    assert WassersteinGP().generator_loss(critic, fake).item() == pytest.approx(-0.5)


def test_no_gradient_reaches_the_fake_images_from_the_critics_penalty():
    fake = torch.ones(2, 1, 1, 2, requires_grad=True)
    weights = torch.tensor([3.0, 4.0], requires_grad=True)
    penalty = gradient_penalty(linear_critic(weights), torch.zeros(2, 1, 1, 2), fake)
    assert torch.autograd.grad(penalty, fake, allow_unused=True) == (None,)


def test_a_negative_penalty_is_refused():
    with pytest.raises(ValueError, match="negative"):
        WassersteinGP(-1)


def test_a_generator_under_mixed_precision_makes_images_of_another_type():
    weights = torch.tensor([3.0, 4.0], requires_grad=True)
    real, fake = torch.zeros(2, 1, 1, 2), torch.ones(2, 1, 1, 2, dtype=torch.bfloat16)
    terms = WassersteinGP(1.0).critic_loss(linear_critic(weights), real, fake)
    assert terms.loss.item() == pytest.approx(16.0 + 7.0)  # (5 - 1)^2 - (0 - 7)


def scores(images):
    return images.flatten(1).sum(1)


def images_of(*values):
    return torch.tensor(values, dtype=torch.float32).view(-1, 1, 1, 1).requires_grad_()


def test_hinge_losses_by_hand_and_only_scores_inside_the_margin_pull():
    real, fake = images_of(0.5, 3.0), images_of(-2.0, 0.25)
    terms = Hinge().critic_loss(scores, real, fake)
    # real: max(0, 0.5), max(0, -2); fake: max(0, -1), max(0, 1.25)
    assert terms.loss.item() == pytest.approx(0.5 / 2 + 1.25 / 2)
    assert terms.gap.item() == pytest.approx(1.75 + 0.875)
    gradients = torch.autograd.grad(terms.loss, [real, fake])
    assert [gradient.flatten().tolist() for gradient in gradients] == [[-0.5, 0.0], [0.0, 0.5]]
    loss = Hinge().generator_loss(scores, fake)
    assert loss.item() == pytest.approx(0.875)
    assert torch.autograd.grad(loss, fake)[0].flatten().tolist() == [-0.5, -0.5]


def test_non_saturating_losses_are_cross_entropies_of_the_score_as_logit():
    real, fake = images_of(1.0, -2.0), images_of(0.5, 4.0)

    def probability(score):
        return 1 / (1 + math.exp(-score))

    terms = NonSaturating().critic_loss(scores, real, fake)
    expected = -sum(math.log(probability(score)) for score in (1.0, -2.0)) / 2
    expected -= sum(math.log(1 - probability(score)) for score in (0.5, 4.0)) / 2
    assert terms.loss.item() == pytest.approx(expected)
    assert terms.gap.item() == pytest.approx(-0.5 - 2.25)
    assert not terms.gap.requires_grad
    loss = NonSaturating().generator_loss(scores, fake)
    assert loss.item() == pytest.approx(-sum(math.log(probability(score)) for score in (0.5, 4.0)) / 2)
    slopes = torch.autograd.grad(loss, fake)[0].flatten().tolist()
    assert slopes == pytest.approx([-(1 - probability(score)) / 2 for score in (0.5, 4.0)])


def test_non_saturating_losses_are_finite_for_any_score():
    terms = NonSaturating().critic_loss(scores, images_of(-1e4), images_of(1e4))
    assert terms.loss.item() == pytest.approx(2e4)
    assert NonSaturating().generator_loss(scores, images_of(-1e4)).item() == pytest.approx(1e4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_penalty_under_autocast_is_that_of_full_precision(dtype):
    torch.manual_seed(0)
    critic = SmallCritic(width=32)
    real, fake = torch.rand(8, 1, 8, 8), torch.rand(8, 1, 8, 8)

    def gradients(**autocast):
        critic.zero_grad()
        torch.manual_seed(1)
        with torch.autocast("cpu", **autocast):
            critic(real)  # casts that autocast keeps must not be taken for the weights
            penalty = gradient_penalty(critic, real, fake)
        penalty.backward()
        return penalty.detach(), torch.cat([p.grad.flatten() for p in critic.parameters() if p.grad is not None])

    expected, found = gradients(enabled=False), gradients(dtype=dtype)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("game", [WassersteinGP(3.0), Hinge(), NonSaturating()])
def test_a_game_keeps_its_settings_as_plain_types(game):
    assert type(game)(**game.settings).settings == game.settings
    assert isinstance(game.penalises_slopes, bool)
    assert not isinstance(game, nn.Module)
