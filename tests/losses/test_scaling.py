"""What an extra loss weighs beside the adversarial one."""

import pytest
import torch

from fedgen.losses import AdaptiveWeight, FixedWeight


def scalar(value):
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def test_a_fixed_weight_is_the_same_at_every_step_with_or_without_a_game():
    weight = FixedWeight(0.25)
    assert weight(scalar(8.0), None) == 0.25
    assert weight(scalar(-3.0), scalar(1.0)) == 0.25


def test_without_memory_the_adaptive_weight_is_the_papers_ratio():
    weight = AdaptiveWeight(decay=0.0)
    assert float(weight(scalar(8.0), scalar(-2.0))) == pytest.approx(0.25)
    assert float(weight(scalar(0.5), scalar(3.0))) == pytest.approx(6.0)
    assert float(AdaptiveWeight(strength=0.5, decay=0.0)(scalar(8.0), scalar(2.0))) == pytest.approx(0.125)


def test_magnitudes_are_running_means_that_do_not_lean_to_zero_at_first():
    weight = AdaptiveWeight(decay=0.5)
    assert float(weight(scalar(8.0), scalar(2.0))) == pytest.approx(2 / 8)
    # the first step counts for a third, the second for two
    assert float(weight(scalar(2.0), scalar(5.0))) == pytest.approx((2 / 3 + 10 / 3) / (8 / 3 + 4 / 3))


def test_a_wasserstein_loss_that_crosses_zero_does_not_switch_the_extra_loss_off():
    remembering, forgetting = AdaptiveWeight(decay=0.9, floor=0.0), AdaptiveWeight(decay=0.0, floor=0.0)
    for game in (2.0, 1.0, 0.0):
        kept, lost = remembering(scalar(1.0), scalar(game)), forgetting(scalar(1.0), scalar(game))
    assert lost == 0
    assert kept > 0.9
    assert float(AdaptiveWeight(decay=0.0, floor=0.3)(scalar(1.0), scalar(0.0))) == pytest.approx(0.3)


@pytest.mark.parametrize("game", [1e-3, 1e3])
def test_an_extra_loss_of_zero_or_nearly_so_gives_a_finite_weight(game):
    assert AdaptiveWeight(decay=0.0)(scalar(0.0), scalar(game)) == 0
    assert torch.isfinite(AdaptiveWeight(decay=0.0)(scalar(1e-40), scalar(game)))


def test_the_weight_carries_no_gradient_and_has_the_values_dtype():
    for weight in (FixedWeight(), AdaptiveWeight()):
        found = weight(scalar(2.0), scalar(1.0))
        assert not found.requires_grad
        assert found.dtype == torch.float64


def test_the_running_means_are_saved():
    weight = AdaptiveWeight(decay=0.5)
    weight(scalar(8.0), scalar(2.0))
    again = AdaptiveWeight(decay=0.5)
    again.load_state_dict(weight.state_dict())
    assert torch.equal(again(scalar(1.0), scalar(1.0)), weight(scalar(1.0), scalar(1.0)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FixedWeight(-1.0), r"factor=-1.0"),
        (lambda: AdaptiveWeight(strength=-1.0), "strength=-1.0"),
        (lambda: AdaptiveWeight(decay=1.0), r"decay=1.0: must lie in \[0, 1\)"),
        (lambda: AdaptiveWeight(floor=-0.1), "floor=-0.1"),
        (lambda: AdaptiveWeight()(scalar(1.0), None), "needs the adversarial loss.*use a FixedWeight"),
    ],
)
def test_what_makes_no_sense_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_evaluation_and_steps_without_gradient_are_not_remembered():
    weight = AdaptiveWeight(decay=0.5)
    weight(scalar(8.0), scalar(2.0))
    before = weight.magnitudes.clone(), weight.mass.clone()
    with torch.no_grad():
        watched = weight(scalar(2.0), scalar(5.0))
    weight.eval()
    evaluated = weight(scalar(2.0), scalar(5.0))
    assert torch.equal(weight.magnitudes, before[0])
    assert torch.equal(weight.mass, before[1])
    weight.train()
    assert watched == evaluated == weight(scalar(2.0), scalar(5.0))
    assert not torch.equal(weight.magnitudes, before[0])


def test_a_parents_precision_does_not_round_the_running_means():
    weight = AdaptiveWeight()
    torch.nn.ModuleDict({"weight": weight}).half()
    assert weight.magnitudes.dtype == torch.float32
    assert float(weight(scalar(1e6), scalar(1e6))) == pytest.approx(1.0)
