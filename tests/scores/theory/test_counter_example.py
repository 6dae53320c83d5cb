import pytest
import torch

from fedgen.scores import FrechetReference
from fedgen.scores.theory import counter_example


@pytest.mark.parametrize("weights", [[0.25, 0.25, 0.25, 0.25], [0.1, 0.2, 0.3, 0.4]])
def test_every_client_scores_both_generators_alike_and_the_pool_does_not(weights: list[float]) -> None:
    random = torch.Generator().manual_seed(0)
    means = torch.randn(4, 6, generator=random, dtype=torch.float64)
    root = torch.randn(6, 6, generator=random, dtype=torch.float64)
    pair = counter_example(means, root @ root.T, weights)
    reference = FrechetReference.from_summaries(pair.clients, pair.weights, ddof=0)
    scores = [reference.score(made, errors=False) for made in (pair.matching, pair.shifted)]
    torch.testing.assert_close(scores[0].per_client, scores[1].per_client, rtol=1e-9, atol=1e-9)
    assert scores[0].values["avg"] == pytest.approx(scores[1].values["avg"], rel=1e-9)
    assert scores[0].values["all"] == pytest.approx(0, abs=1e-9)
    assert scores[1].values["all"] == pytest.approx(2 * pair.squared_shift, rel=1e-9)
    assert pair.squared_shift > 0.1


def test_two_clients_on_a_line_by_hand() -> None:
    pair = counter_example(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), torch.eye(2))
    assert pair.squared_shift == pytest.approx((2**0.5 - 1) ** 2)  # the pool's covariance is diag(2, 1)
    assert pair.shifted.mean.abs().tolist() == pytest.approx([0, 2**0.5 - 1], abs=1e-12)
    assert pair.shifted.covariance(0).tolist() == [[1, 0], [0, 1]]


def test_means_without_a_direction_left_are_refused() -> None:
    with pytest.raises(ValueError, match="directions"):
        counter_example(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), torch.eye(2))
    with pytest.raises(ValueError, match="directions"):
        counter_example(torch.ones(3, 2), torch.eye(2))
    with pytest.raises(ValueError, match=r"must be \[K, D\]"):
        counter_example(torch.ones(3), torch.eye(2))
