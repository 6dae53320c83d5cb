"""The density of a model, for log-likelihood through the evaluation."""

import math

import pytest
import torch
from torch import nn

from fedgen.data import Examples
from fedgen.evaluation import Evaluator, evaluate
from fedgen.evaluation.answers import density_of


class Normal(nn.Module):
    """N(mean, I) in float32, with dropout that only training notices."""

    def __init__(self, mean=0.0):
        super().__init__()
        self.mean = nn.Parameter(torch.full((2,), mean))
        self.dropout = nn.Dropout(0.9)

    def sample(self, num_images, generator=None):
        return torch.randn(num_images, 2, generator=generator) + self.mean

    def log_prob(self, points):
        assert points.dtype == torch.float32
        return -((self.dropout(points) - self.mean) ** 2).sum(1) / 2 - math.log(2 * math.pi)


class Blind(nn.Module):
    sample = Normal.sample


def points(count, seed, shift=0.0):
    drawn = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed)) + shift
    return Examples(drawn, torch.zeros(count, dtype=torch.int64), "toy/train", ())


CLIENTS = {"train": [points(30, 0), points(10, 1, 1.0)]}
OPTIONS = {"embeddings": ["identity"], "scores": ["ll", "fid"], "num_images": 50, "seed": 0}


def test_the_log_likelihood_of_each_clients_points_is_recorded():
    model = Normal().train()
    records = {r.name: r for r in evaluate(model, CLIENTS, **OPTIONS)}
    assert model.training  # put back
    rows = torch.cat([client.inputs for client in CLIENTS["train"]]).double()
    by_hand = -(rows**2).sum(1) / 2 - math.log(2 * math.pi)
    assert records["ll_all"].value == pytest.approx(float(by_hand.mean()), rel=1e-6)
    assert records["ll_avg"].value == pytest.approx(records["ll_all"].value)
    assert records["ll_worst"].value == min(records["ll_avg"].per_client)
    assert records["ll_avg"].higher_is_better
    assert not records["fid_avg"].higher_is_better


def test_a_model_without_a_density_is_named_before_any_work():
    with pytest.raises(TypeError, match="log_prob"):
        evaluate(Blind(), CLIENTS, **OPTIONS)
    with pytest.raises(TypeError, match="lambda"):
        evaluate(lambda number, draws: torch.zeros(number, 2), CLIENTS, **OPTIONS)
    judge = Evaluator(CLIENTS, **OPTIONS)
    assert judge.asked_of(Normal())["density"] is not None
    assert judge.asked_of(Normal())["answers"] is None
    with pytest.raises(ValueError, match="generator"):
        judge.try_out(lambda number, draws: torch.zeros(number, 2))


def test_a_distribution_is_a_density_too():
    normal = torch.distributions.MultivariateNormal(torch.zeros(2), torch.eye(2))
    assert density_of(normal) is normal
