import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from fedgen.scores import (
    CriticOptions,
    FederatedScore,
    FrechetReference,
    KernelReference,
    LikelihoodReference,
    ManifoldReference,
    SlicedReference,
    WassersteinReference,
)
from fedgen.scores.aggregate import OverClients, mean_variance
from fedgen.scores.manifold.manifold import NAMES
from fedgen.scores.wasserstein.wasserstein import CriticSide
from fedgen.statistics import summarize

Score = Callable[[list[Tensor], Tensor, list[float] | str], FederatedScore]


def draw(count: int, seed: int, scale: float = 1.0, shift: float = 0.0, dim: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator, dtype=torch.float64) * scale + shift


def density(dim: int) -> MultivariateNormal:
    return MultivariateNormal(torch.full((dim,), 0.3).double(), torch.eye(dim).double())


SCORES: dict[str, Score] = {
    "fid": lambda parts, made, weights: FrechetReference.from_features(parts, weights, ddof=0).score(made),
    "kid, unbiased": lambda parts, made, weights: KernelReference.from_features(parts, weights=weights).score(made),
    "kid, biased": lambda parts, made, weights: KernelReference.from_features(parts, None, "v", weights).score(made),
    "sw1": lambda parts, made, weights: SlicedReference.from_features(parts, 1, 10, weights=weights).score(made),
    "sw2": lambda parts, made, weights: SlicedReference.from_features(parts, 2, 10, weights=weights).score(made),
    "ll": lambda parts, made, weights: LikelihoodReference.from_points(parts, weights).score(density(made.shape[1])),
}


def test_three_clients_by_hand() -> None:
    scores, of_pool = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([5.0, 5.0, 8.0])
    found = OverClients(scores, of_pool, torch.full((3,), 1 / 3, dtype=torch.float64)).errors()
    assert found["avg"] == pytest.approx((7 / 3) ** 0.5)  # the variance is 7
    assert found["all"] == pytest.approx(1.0)
    weighted = OverClients(scores, of_pool, torch.tensor([0.5, 0.25, 0.25]).double()).errors()
    squares = 0.5**2 * 1.5**2 + 0.25**2 * 0.5**2 + 0.25**2 * 3.5**2  # the mean is 2.5
    assert weighted["avg"] == pytest.approx((squares / (1 - 0.375)) ** 0.5)


def test_clients_of_weight_zero_do_not_count_and_one_client_says_nothing() -> None:
    scores = torch.tensor([1.0, 2.0, 6.0, 7.0])
    some = OverClients(scores, scores, torch.tensor([0.5, 0.0, 0.5, 0.0]).double()).errors()
    assert some["avg"] == pytest.approx(2.5)
    assert OverClients(scores, scores, torch.tensor([0.0, 1.0, 0.0, 0.0]).double()).errors() == {}
    assert OverClients(scores[:1], scores[:1], torch.ones(1).double()).errors() == {}


@pytest.mark.parametrize("name", SCORES)
def test_a_single_client_or_no_errors_asked_for_give_none(name: str) -> None:
    assert SCORES[name]([draw(9, 1)], draw(9, 2), "examples").errors_over_clients == {}
    assert SCORES[name]([draw(9, 1), draw(9, 3)], draw(9, 2), [1.0, 0.0]).errors_over_clients == {}
    reference = KernelReference.from_features([draw(9, 1), draw(9, 3)])
    assert reference.score(draw(9, 2), errors=False).errors_over_clients == {}


def check_slopes(score: Score, clients: list[Tensor], made: Tensor, weights: list[float], rel: float = 1e-3) -> None:
    """Errors follow from the change of the scores' own values as the mixture's weights move towards each client."""
    step, shares = 1e-5, torch.tensor(weights, dtype=torch.float64)

    def moved(client: int, by: float) -> float:
        towards = torch.eye(len(clients), dtype=torch.float64)[client]
        return score(clients, made, ((1 - by) * shares + by * towards).tolist()).values["all"]

    found = score(clients, made, weights)
    slopes = [(moved(client, step) - moved(client, -step)) / (2 * step) for client in range(len(clients))]
    expected = float(mean_variance(torch.tensor(slopes, dtype=torch.float64), shares)) ** 0.5
    assert found.errors_over_clients["all"] == pytest.approx(expected, rel=rel)
    assert found.errors_over_clients["avg"] == pytest.approx(float(mean_variance(found.per_client, shares)) ** 0.5)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("weights", [[0.51, 0.2, 0.29], [0.11, 0.78, 0.11]])  # levels of both sides meet nowhere
def test_all_follows_the_clients_as_its_mixture_moves_towards_them(name: str, weights: list[float]) -> None:
    clients, made = [draw(9, 1), draw(14, 2, 2, 1), draw(12, 3, 0.5)], draw(25, 4, 1.5, 0.3)
    check_slopes(SCORES[name], clients, made, weights)


FEW_AND_MANY = [draw(9, 1, dim=6), draw(700, 2, 2, 1, dim=6), draw(4, 3, 0.5, dim=6), draw(1, 5, dim=6)]
KINDS = {
    "few images": ([part[:2] for part in FEW_AND_MANY], draw(40, 4, dim=6)),
    "few and many": (FEW_AND_MANY, draw(40, 4, 1.5, 0.2, dim=6)),
    "few generated": (FEW_AND_MANY, draw(4, 4, 1.5, 0.2, dim=6)),
    "singular": ([part * (torch.arange(6) < 4) for part in FEW_AND_MANY], draw(40, 4, dim=6)),
    "of another unit": ([part * 1e60 for part in FEW_AND_MANY], draw(40, 4, 1.5, dim=6) * 1e60),
}


@pytest.mark.parametrize("kind", KINDS)
def test_fid_slopes_are_right_for_any_rank(kind: str) -> None:
    check_slopes(SCORES["fid"], *KINDS[kind], [0.3, 0.4, 0.2, 0.1], rel=2e-3)


def test_fid_slopes_need_no_images() -> None:
    clients, made = [draw(90, 1), draw(600, 2, 2, 1), draw(2, 3)], draw(80, 4, 1.5)
    score = FrechetReference.from_features(clients).score(made)
    summaries = FrechetReference.from_summaries(map(summarize, clients)).score(summarize(made))
    assert summaries.errors_over_clients == pytest.approx(score.errors_over_clients, rel=1e-6)


def test_fid_of_clients_without_spread_has_finite_errors() -> None:
    clients = [torch.full((5, 2), value, dtype=torch.float64) for value in (1.0, 1.0, 1.0)]
    found = FrechetReference.from_features(clients).score(draw(30, 1, dim=2)).errors_over_clients
    assert found == {"avg": 0.0, "all": pytest.approx(0.0, abs=1e-12)}


def test_infinite_scores_have_infinite_errors() -> None:
    scores = torch.tensor([1.0, -math.inf, 2.0])
    found = OverClients(scores, scores, torch.full((3,), 1 / 3).double()).errors()
    assert found == {"avg": math.inf, "all": math.inf}


def test_manifold_errors_are_sums_of_the_jackknife_over_each_clients_images() -> None:
    clients, made = [draw(16, 1, dim=2), draw(9, 2, 2, 1, dim=2), draw(14, 3, 0.5, dim=2)], draw(15, 4, 1.5, dim=2)
    union, shares = torch.cat(clients), torch.tensor([16, 9, 14]).double() / 39
    left = []
    for place in range(len(union)):
        others = torch.cat([union[:place], union[place + 1 :]])
        scores = ManifoldReference.from_features([others], 3).score(made, errors=False)
        left.append([scores[name].values["all"] for name in NAMES])
    slopes = [-38 * part.mean(0) for part in torch.tensor(left, dtype=torch.float64).split([16, 9, 14])]
    expected = mean_variance(torch.stack(slopes, 1), shares).sqrt()
    for weights in ("examples", "uniform"):  # the pool is the union whatever the weights
        found = ManifoldReference.from_features(clients, 3, weights).score(made)
        for name, error in zip(NAMES, expected.tolist()):
            assert found[name].errors_over_clients["all"] == pytest.approx(error, rel=1e-9), name
            own = mean_variance(found[name].per_client, None if weights == "uniform" else shares)
            assert found[name].errors_over_clients["avg"] == pytest.approx(float(own) ** 0.5, abs=1e-7)
    recall = ManifoldReference.from_features(clients, 3).score(made)["recall"].errors_over_clients
    assert recall["avg"] == pytest.approx(recall["all"])


def test_critics_vary_over_clients_by_their_mean_values() -> None:
    clients, shares = [draw(20, 1), draw(40, 2, 2, 1), draw(20, 3, 0.5)], torch.tensor([0.25, 0.5, 0.25]).double()
    options = CriticOptions(hidden=8, held_out=0, max_steps=5)
    reference = WassersteinReference.from_features(clients, options)
    found = reference.score(draw(30, 4)).errors_over_clients
    values = [reference.critics[-1].values(CriticSide.plain(part, torch.arange(len(part)))).mean() for part in clients]
    assert found["all"] == pytest.approx(float(mean_variance(torch.stack(values), shares)) ** 0.5)


def a_federation(seed: int, number: int = 20) -> list[Tensor]:
    """Clients drawn from a population of clients N(m, s^2 I) with random m and s, and of random size."""
    random = torch.Generator().manual_seed(seed)
    sizes = torch.randint(20, 60, (number,), generator=random).tolist()
    parts = []
    for size in sizes:
        mean, spread = torch.randn(2, generator=random), 1 + 0.3 * torch.rand(1, generator=random)
        parts.append((torch.randn(size, 2, generator=random) * spread + mean).double())
    return parts


CASES = [("fid", "examples"), ("kid, unbiased", "uniform"), ("sw2", "uniform"), ("ll", "examples")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "weights"), CASES)
def test_errors_are_the_spread_over_repeated_draws_of_20_clients(name: str, weights: str) -> None:
    made = draw(100, 0, 2.0, 0.7, dim=2)
    scores = [SCORES[name](a_federation(seed), made, weights) for seed in range(45)]
    for key in ("avg", "all"):
        spread = float(torch.tensor([score.values[key] for score in scores]).std())
        stated = sum(score.errors_over_clients[key] for score in scores) / len(scores)
        assert 0.8 < spread / stated < 1.25, (key, spread / stated)
