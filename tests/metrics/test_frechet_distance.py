"""The Fréchet distance as a metric is the function's, and torchmetrics'."""

import warnings

import pytest
import torch
from torch import nn
from torchmetrics.image import FrechetInceptionDistance

from fedgen.embeddings import ModuleEmbedding
from fedgen.metrics import FrechetDistance
from fedgen.scores import frechet_distance
from fedgen.statistics import summarize
from tests.metrics.sets import CLIENTS, DIM, GENERATED, features, filled


def test_two_points_a_side_by_hand():
    # means 1 and 4, variances (ddof 1) 2 and 8: 9 + 2 + 8 - 2 sqrt(16) = 11
    metric = FrechetDistance(dim=1)
    metric.update(torch.tensor([[0.0], [2.0]]), real=True)
    metric.update(torch.tensor([[2.0], [6.0]]), real=False)
    assert metric.compute().item() == pytest.approx(11)
    population = FrechetDistance(dim=1, ddof=0)  # variances 1 and 4: 9 + 1 + 4 - 4
    population.merge_state(metric)
    assert population.compute().item() == pytest.approx(10)


def test_the_value_is_that_of_the_function_on_all_features():
    metric = FrechetDistance(dim=DIM)
    for part in CLIENTS:
        metric.update(part, real=True)
    metric.update(GENERATED, real=False)
    expected = frechet_distance(summarize(torch.cat(CLIENTS)), summarize(GENERATED))[0]
    assert metric.compute().item() == pytest.approx(expected, rel=1e-13)
    assert metric.compute().dtype == torch.float64


@pytest.mark.parametrize("mean", [1e3, 1e5])  # of features that vary by 0.5
def test_no_digits_are_lost_far_from_the_origin(mean):
    sides = features(40, 1).double() + mean, features(50, 2).double() + mean
    exact = frechet_distance(*map(summarize, sides))[0]
    metric = FrechetDistance(dim=DIM)
    for side, real in zip(sides, (True, False)):
        for part in side.split([1, 7, len(side) - 8]):
            metric.update(part, real=real)
    assert metric.compute().item() == pytest.approx(exact, rel=1e-10)


def test_states_whose_first_batches_lie_far_apart_merge_without_loss():
    far = [features(30, 1).double() + 1e5, features(20, 1).double() - 1e5]
    merged, late = FrechetDistance(dim=DIM), FrechetDistance(dim=DIM)
    merged.update(GENERATED, real=False)
    merged.update(far[0], real=True)
    late.update(far[1], real=True)
    merged.merge_state(late)
    exact = frechet_distance(summarize(torch.cat(far)), summarize(GENERATED))[0]
    assert merged.compute().item() == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(("real", "generated"), [(40, 50), (4, 50), (50, 3), (3, 4)])
def test_the_moments_lose_less_than_ten_digits_of_the_value_from_features(real, generated):
    one, other = features(real, 1), features(generated, 2)
    metric = FrechetDistance(dim=DIM)
    metric.update(one, real=True)
    metric.update(other, real=False)
    exact = frechet_distance(summarize(one), summarize(other))[0]
    assert metric.compute().item() == pytest.approx(exact, rel=1e-10)


def test_features_may_be_of_any_floating_dtype():
    metric = FrechetDistance(dim=DIM)
    metric.update(CLIENTS[2].bfloat16(), real=True)
    metric.update(GENERATED.double(), real=False)
    exact = frechet_distance(summarize(CLIENTS[2].bfloat16()), summarize(GENERATED))[0]
    assert metric.compute().item() == pytest.approx(exact, rel=1e-10)


class Channels(nn.Module):
    """Four features of grey levels, for images of either package."""

    num_features = 4

    def forward(self, levels):
        levels = levels.float() / 64
        return torch.cat([levels.mean((2, 3)), levels.amax((2, 3))[:, :1]], dim=1)


def test_it_equals_torchmetrics_on_the_same_images_and_network():
    draw = torch.Generator().manual_seed(0)
    real = torch.randint(0, 256, (30, 3, 8, 8), generator=draw, dtype=torch.uint8)
    generated = torch.randint(50, 200, (20, 3, 8, 8), generator=draw, dtype=torch.uint8)
    ours = FrechetDistance(ModuleEmbedding(Channels(), input_range="uint8"), dim=4)
    theirs = FrechetInceptionDistance(Channels())
    for metric in (ours, theirs):
        for part in real.split(7):
            metric.update(part, real=True)
        metric.update(generated, real=False)
    assert ours.compute().item() == pytest.approx(theirs.compute().item(), rel=1e-6)  # theirs ends in float32


def test_a_side_with_too_few_images_is_an_error_that_names_it_and_its_count():
    metric = FrechetDistance(dim=2)
    metric.update(torch.zeros(5, 2), real=True)
    metric.update(torch.zeros(1, 2), real=False)
    with pytest.raises(ValueError, match="generated"):
        metric.compute()
    metric.update(torch.zeros(1, 2), real=False)
    assert metric.compute() == 0


def test_reset_forgets_both_sides_or_keeps_the_real_one():
    both, kept = filled("frechet"), filled("frechet", reset_real_features=False)
    exact = kept.compute()
    both.reset()
    kept.reset()
    for metric in (both, kept):
        metric.update(GENERATED, real=False)
    assert torch.equal(kept.compute(), exact)
    with pytest.raises(ValueError, match="real"):
        both.compute()


def test_fewer_images_than_features_are_said_once():
    metric = FrechetDistance(dim=8)
    for real, count in ((True, 5), (False, 6)):
        metric.update(torch.randn(count, 8, generator=torch.Generator().manual_seed(count)), real=real)
    said = r"biased upwards, as there are fewer samples than features \(8\): 5 real, 6 generated\."
    with pytest.warns(UserWarning, match=said):
        metric.compute()
    metric._computed = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric.compute()
