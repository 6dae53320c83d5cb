import pytest
import torch

from fedgen.scores import frechet_distance
from fedgen.scores.theory import population_gaussian
from fedgen.statistics import pool


def test_the_pool_of_the_toys_clients_is_the_mixture_of_the_paper() -> None:
    clients = [population_gaussian(torch.tensor([x, 0.0]), torch.eye(2)) for x in (-1.0, 1.0)]
    pooled = pool(clients)
    assert pooled.mean.tolist() == [0, 0]
    assert pooled.covariance(ddof=0).tolist() == [[2, 0], [0, 1]]


def test_counts_weigh_clients_and_change_no_covariance() -> None:
    covariance = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
    one, many = (population_gaussian(torch.zeros(2), covariance, count) for count in (1.0, 7.0))
    assert torch.equal(one.covariance(0), many.covariance(0))
    shifted = population_gaussian(torch.ones(2), covariance, 3.0)
    assert pool([one, shifted]).mean.tolist() == [0.75, 0.75]


def test_an_estimate_is_refused() -> None:
    one = population_gaussian(torch.zeros(2), torch.eye(2))
    with pytest.raises(ValueError, match="ddof"):
        frechet_distance(one, one)


@pytest.mark.parametrize(
    ("covariance", "message"),
    [
        (torch.eye(3), "must be"),
        (torch.tensor([[1.0, 0.5], [0.0, 1.0]]), "not symmetric"),
        (torch.tensor([[1.0, 2.0], [2.0, 1.0]]), "negative eigenvalue -1"),
        (torch.tensor([[1.0, float("nan")], [float("nan"), 1.0]]), "finite"),
    ],
)
def test_what_is_no_covariance_is_refused(covariance: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        population_gaussian(torch.zeros(2), covariance)
