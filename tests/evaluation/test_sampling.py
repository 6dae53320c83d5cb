"""The same images for the same seed and round, and no trace in the training's random streams."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from fedgen.evaluation import draw_images, mixture, sampler_of
from fedgen.evaluation.image_sampling import inside
from tests.evaluation.samples import grey_noise


def draw(number, seed=0, round=0, stream="train", sample=grey_noise):
    return draw_images(sample, number, seed, round, stream, chunk=7)


def test_the_first_images_are_the_same_however_many_are_drawn():
    assert torch.equal(draw(5), draw(30)[:5])
    assert torch.equal(draw(14), draw(30)[:14])


def test_other_seeds_rounds_and_streams_give_other_images():
    base = draw(10)
    for other in (draw(10, seed=1), draw(10, round=1), draw(10, stream="report")):
        assert not torch.equal(base, other)
    assert torch.equal(base, draw(10))


def test_images_are_uint8_and_points_stay_floats():
    assert draw(3).dtype == torch.uint8
    points = draw(9, sample=lambda n, g: torch.randn(n, 2, generator=g, dtype=torch.float64))
    assert points.shape == (9, 2)
    assert points.dtype == torch.float32


def test_global_random_streams_are_left_alone_and_yet_seeded_inside():
    def careless(n, draws):
        return torch.rand(n, 1, 2, 2) + float(np.random.rand()) + random.random() - 1

    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    expected = torch.rand(2), np.random.rand(), random.random()
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    first = draw(10, sample=careless)
    found = torch.rand(2), np.random.rand(), random.random()
    assert torch.equal(expected[0], found[0])
    assert expected[1:] == found[1:]
    assert torch.equal(first, draw(10, sample=careless))


@pytest.mark.parametrize(
    ("made", "error", "said"),
    [
        (lambda n: (torch.zeros(n, 1, 2, 2), 3), TypeError, "and gave a tuple of Tensor, int; return the images alone"),
        (lambda n: {"images": 3}, TypeError, "and gave a dict; return the images alone"),
        (lambda n: torch.zeros(n, 2, 2).byte(), ValueError, r"and gave torch.uint8; grey levels"),
        (lambda n: torch.zeros(n), ValueError, r"and gave \[2\]"),
        (lambda n: torch.zeros(n, 1, 2, 2).int(), ValueError, r"and gave torch.int32; grey levels are torch.uint8"),
    ],
)
def test_what_a_module_samples_that_is_no_images_is_told_with_its_class(made, error, said):
    class Mine(nn.Module):
        def sample(self, num_images):
            return made(num_images)

    with pytest.raises(error, match=r"^Mine: sample\(2\) must give one tensor, \[2, C, H, W\] of floats.*" + said):
        draw_images(sampler_of(Mine()), 2, 0, 0, chunk=2)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (lambda n, g: torch.zeros(n - 1, 1, 2, 2), r"sample\(7\) must give"),
        (lambda n, g: torch.zeros(n), r"sample\(7\) must give"),
        (lambda n, g: torch.full((n, 1, 2, 2), float("nan")), "NaN"),
        (lambda n, g: torch.full((n, 2), float("inf")), "NaN or infinity"),
    ],
)
def test_unusable_images_are_refused(sample, message):
    with pytest.raises(ValueError, match=message):
        draw(10, sample=sample)


def test_a_mixture_takes_its_shares_to_one_image_a_chunk_and_in_random_order():
    def constant(level):
        return lambda n, g: torch.full((n, 1, 1, 1), level, dtype=torch.uint8)

    weights = torch.tensor([0.5, 0.3, 0.199, 0.001])
    mixed = mixture([constant(k) for k in range(4)], weights)
    images = draw_images(mixed, 10_000, 0, 0, chunk=50).flatten()
    counts = torch.bincount(images.long(), minlength=4) / 10_000
    assert counts.tolist() == pytest.approx(weights.tolist(), abs=0.005)
    assert counts[3] > 0  # 0.05 images a chunk, and yet not rounded away
    assert images[:50].bincount(minlength=3)[:2].tolist() in ([25, 15], [25, 16], [26, 15], [25, 14])
    assert not torch.equal(images[:50], images[:50].sort().values)


def test_a_sampler_can_be_put_inside_a_context():
    from contextlib import contextmanager

    seen = []

    @contextmanager
    def place():
        seen.append("in")
        yield
        seen.append("out")

    inside(place, grey_noise)(3, torch.Generator())
    assert seen == ["in", "out"]


class Sampling(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.net[2].eval()  # a mode of its own, which must come back
        self.modes = []

    def sample(self, num_images):
        self.modes.append([module.training for module in self.modules()])
        return self.net(torch.randn(num_images, 4)).view(-1, 1, 2, 2)


def test_a_model_samples_in_eval_mode_and_gets_its_modes_back():
    module = Sampling()
    before = [m.training for m in module.modules()]
    statistics = module.net[1].running_mean.clone()
    first = draw(10, sample=sampler_of(module))
    assert not any(any(modes) for modes in module.modes)
    assert [m.training for m in module.modules()] == before
    assert torch.equal(module.net[1].running_mean, statistics)
    assert torch.equal(first, draw(10, sample=sampler_of(module)))  # though it takes no generator


def test_a_model_without_sample_is_refused():
    with pytest.raises(TypeError, match="num_images"):
        sampler_of(nn.Linear(1, 1))


def test_samples_in_0_to_1_are_warned_of_and_drawn_all_the_same():
    def unit(number, draws):
        return torch.rand(number, 1, 2, 2, generator=draws)

    with pytest.warns(UserWarning, match="samples"):
        drawn = draw_images(unit, 60, 0, 0, chunk=10)
    assert drawn.min() >= 128
    draw_images(lambda number, draws: torch.zeros(number, 1, 2, 2), 60, 0, 0)  # before its first step
