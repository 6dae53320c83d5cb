"""A mean over real images: avg and all are one number."""

import pytest
import torch

from fedgen.scores.aggregate import mean_score

VALUES = [torch.tensor([1.0, 3.0]).double(), torch.tensor([5.0, 5.0, 8.0, 2.0]).double()]
WEIGHTS = torch.tensor([1 / 3, 2 / 3]).double()


def test_two_clients_by_hand():
    score = mean_score("loss", VALUES, WEIGHTS)
    assert score.per_client.tolist() == [2.0, 5.0]
    assert score.values["avg"] == score.values["all"] == pytest.approx(4.0)
    assert score.values["worst"] == 5.0
    assert not score.higher_is_better
    # variances 2 and 6 (divisor n - 1), over 2 and 4 images
    assert score.errors["worst"] == pytest.approx(1.5**0.5)
    assert score.errors["avg"] == pytest.approx((1 / 9 + 4 / 9 * 1.5) ** 0.5)


def test_where_more_is_better_the_worst_is_the_smallest():
    assert mean_score("right", VALUES, WEIGHTS, higher_is_better=True).values["worst"] == 2.0


def test_no_errors_where_none_are_asked_for():
    assert not mean_score("loss", VALUES, WEIGHTS, errors=False).errors
