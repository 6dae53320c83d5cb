"""The Vendi score by hand, and against its definition."""

import math

import numpy as np
import pytest
import torch

from fedgen.scores import PolynomialKernel, RBFKernel, vendi_score

NARROW = RBFKernel(sigma=1e-3)  # of two different points here: 0


def draw(count, dim, shift=0.0):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(count)) + shift


def defined(features, kernel):
    """exp(-sum p log p) over the eigenvalues p of K / n, pair by pair."""
    points = features.double().numpy()
    matrix = np.array([[kernel(a, b) for b in points] for a in points]) / len(points)
    shares = [value for value in np.linalg.eigvalsh(matrix) if value > 1e-12]
    return math.exp(-sum(value * math.log(value) for value in shares))


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def gaussian(a, b):
    return math.exp(-((a - b) ** 2).sum() / (2 * 3.0**2))


@pytest.mark.parametrize("kernel", [None, RBFKernel()])
@pytest.mark.parametrize("count", [1, 3, 50])
def test_copies_of_one_image_are_one(kernel, count):
    assert vendi_score(draw(1, 8).repeat(count, 1), kernel) == pytest.approx(1)


@pytest.mark.parametrize("kernel", [None, NARROW])
def test_images_with_nothing_in_common_are_as_many_as_they_are(kernel):
    assert vendi_score(torch.eye(6) * torch.arange(1.0, 7).unsqueeze(1), kernel) == pytest.approx(6)


@pytest.mark.parametrize("copies", [1, 4, 20])  # fewer and more images than features
@pytest.mark.parametrize("kernel", [None, NARROW])
def test_equal_groups_of_copies_are_as_many_as_groups(kernel, copies):
    assert vendi_score(torch.eye(3, 8).repeat_interleave(copies, 0), kernel) == pytest.approx(3)


def test_unequal_groups_by_hand():
    # shares 3/4 and 1/4
    expected = math.exp(0.75 * math.log(4 / 3) + 0.25 * math.log(4))
    assert vendi_score(torch.eye(2)[[0, 0, 0, 1]]) == pytest.approx(expected)


def test_two_images_at_an_angle_by_hand():
    # K / 2 has eigenvalues (1 +- cos 60 degrees) / 2 = 3/4 and 1/4
    pair = torch.tensor([[1.0, 0.0], [0.5, 3**0.5 / 2]])
    assert vendi_score(pair) == pytest.approx(math.exp(0.75 * math.log(4 / 3) + 0.25 * math.log(4)), rel=1e-6)


@pytest.mark.parametrize(("count", "dim"), [(5, 12), (12, 12), (40, 12)])
def test_the_value_is_the_definitions(count, dim):
    features = draw(count, dim, shift=0.5)
    assert vendi_score(features) == pytest.approx(defined(features, cosine), rel=1e-10)
    assert vendi_score(features, RBFKernel(3.0)) == pytest.approx(defined(features, gaussian), rel=1e-10)


def test_cosines_forget_lengths():
    features = draw(20, 6)
    lengths = torch.rand(20, 1) + 0.5
    assert vendi_score(features * lengths) == pytest.approx(vendi_score(features), rel=1e-6)


@pytest.mark.parametrize("dim", [3, 30])
def test_images_without_a_direction_are_alike_and_unlike_others(dim):
    features = torch.cat([torch.eye(2, dim).repeat(4, 1), torch.zeros(4, dim)])
    assert vendi_score(features) == pytest.approx(3)


def test_many_images_are_taken_in_parts():
    features = draw(9000, 4)
    whole = torch.nn.functional.normalize(features.double())
    eigenvalues = torch.linalg.eigvalsh(whole.T @ whole / len(whole))
    assert vendi_score(features) == pytest.approx(float(torch.special.entr(eigenvalues).sum().exp()))
    assert vendi_score(features.float()) <= 4


def test_unusable_input_is_named():
    with pytest.raises(ValueError, match="PolynomialKernel"):
        vendi_score(draw(4, 3), PolynomialKernel())
    with pytest.raises(ValueError, match="NaN"):
        vendi_score(torch.tensor([[float("nan")]]))
    with pytest.raises(ValueError, match="empty"):
        vendi_score(torch.empty(0, 3))
