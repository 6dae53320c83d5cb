import math

import pytest
import torch
from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric
from torchmetrics.image.fid import _compute_fid

from fedgen.scores import FrechetReference, frechet_distance
from fedgen.statistics import Gaussian, Projection, pool, summarize

DIM = 12


def draw(count: int, seed: int, scale: float = 1.0, shift: float = 0.0, dim: int = DIM) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    spectrum = torch.logspace(0, -1, dim, dtype=torch.float64)
    return torch.randn(count, dim, generator=generator, dtype=torch.float64) * spectrum * scale + shift


def normal(mean: list[float], variances: list[float]) -> Gaussian:
    """A population: so many images that ddof does not matter."""
    count = 1e15
    return Gaussian(count, torch.tensor(mean).double(), scatter=torch.diag(torch.tensor(variances).double()) * count)


def torch_fidelity(x: torch.Tensor, y: torch.Tensor) -> float:
    sides = [fid_features_to_statistics(side) for side in (x, y)]
    return fid_statistics_to_metric(*sides, verbose=False)["frechet_inception_distance"]


def torchmetrics(x: torch.Tensor, y: torch.Tensor) -> float:
    return float(_compute_fid(x.mean(0), x.T.cov(), y.mean(0), y.T.cov()))


PAIRS = {
    "full rank": (draw(60, 1), draw(80, 2, 2, 0.3)),
    "few generated": (draw(60, 1), draw(5, 2, 2, 0.3)),
    "few real": (draw(5, 1), draw(80, 2, 2, 0.3)),
    "few on both sides": (draw(5, 1), draw(9, 2, 2, 0.3)),
    "two images": (draw(2, 1), draw(2, 2)),
    "as many images as features": (draw(DIM, 1), draw(80, 2)),
    "one image more than features": (draw(DIM + 1, 1), draw(DIM + 1, 2)),
    "identical": (draw(60, 1), draw(60, 1)),
    "identical and few": (draw(5, 1), draw(5, 1)),
    "a constant feature": (draw(60, 1) * (torch.arange(DIM) > 0), draw(80, 2)),
    "constant generator": (draw(60, 1), torch.ones(40, DIM).double()),
    "constant client": (torch.ones(40, DIM).double(), draw(60, 1)),
    "constant twice": (torch.ones(40, DIM).double(), torch.zeros(5, DIM).double()),
    "collapsed to four images": (draw(60, 1), draw(4, 2).repeat(10, 1)),
    "collapsed on both sides": (draw(3, 1).repeat(20, 1), draw(4, 2).repeat(10, 1)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_equals_the_peers_on_ordinary_and_degenerate_features(name: str) -> None:
    x, y = PAIRS[name]
    ours, terms = frechet_distance(summarize(x), summarize(y))
    assert ours == pytest.approx(torch_fidelity(x, y), rel=1e-6, abs=2e-7)
    assert ours == pytest.approx(torchmetrics(x, y), rel=1e-6, abs=2e-7)
    assert ours == pytest.approx(sum(terms.values()), rel=1e-14)
    reversed_, _ = frechet_distance(summarize(y), summarize(x))
    assert ours == pytest.approx(reversed_, rel=1e-7, abs=1e-7)
    reference = FrechetReference.from_features([x])
    for errors in (False, True):
        score = reference.score(y, errors)
        assert score.per_client[0] == pytest.approx(ours, rel=1e-7, abs=1e-7)
        assert all(math.isfinite(value) for value in [*score.values.values(), *score.errors.values()])


def scaled(count: int, seed: int, size: float = 1.0, dim: int = 20) -> torch.Tensor:
    """Correlated features of a condition of 1e10, in no order of their scales."""
    random = torch.Generator().manual_seed(0)
    mixing = torch.eye(dim).double() + torch.randn(dim, dim, generator=random, dtype=torch.float64) / 4
    scales = torch.logspace(0, -5, dim, dtype=torch.float64)[torch.randperm(dim, generator=random)]
    return draw(count, seed, size, 0.1, dim) @ mixing * scales


@pytest.mark.parametrize("counts", [(300, 320), (14, 320), (300, 14), (14, 12)])
def test_features_of_very_different_scales_lose_no_digits(counts: tuple[int, int]) -> None:
    x, y = scaled(counts[0], 1), scaled(counts[1], 2, 1.2)
    roots = [(side - side.mean(0)) / (len(side) - 1) ** 0.5 for side in (x, y)]
    trace = torch.linalg.svdvals(roots[0] @ roots[1].T).sum()  # tr sqrt(C_1 C_2), with no small eigenvalue squared
    terms = [root.square().sum() for root in roots] + [(x.mean(0) - y.mean(0)).square().sum()]
    expected = pytest.approx(float(sum(terms) - 2 * trace), rel=1e-12)
    assert frechet_distance(summarize(x), summarize(y))[0] == expected
    reference = FrechetReference.from_features([x])
    for errors in (False, True):
        assert reference.score(y, errors).values["all"] == expected


def test_twice_the_features_are_at_the_distance_of_their_trace_whatever_their_scales() -> None:
    x = scaled(300, 1)
    expected = float(x.mean(0).square().sum() + x.T.cov().trace())  # (2 - 1)^2 of either
    assert frechet_distance(summarize(x), summarize(2 * x))[0] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("counts", [(50, 60, 70), (9, 12, 300)])
def test_the_order_of_features_of_very_different_scales_changes_no_error(counts: tuple[int, ...]) -> None:
    *clients, made = [scaled(count, seed, 1 + seed / 10) for seed, count in enumerate(counts)]
    order = made.var(0).argsort()
    one = FrechetReference.from_features(clients).score(made)
    other = FrechetReference.from_features([part[:, order] for part in clients]).score(made[:, order])
    for key in ("values", "errors", "errors_over_clients"):
        assert getattr(other, key) == pytest.approx(getattr(one, key), rel=1e-4), key
    torch.testing.assert_close(other.client_errors, one.client_errors, rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", ["identical", "identical and few"])
def test_identical_sets_are_at_distance_zero(name: str) -> None:
    assert frechet_distance(*map(summarize, PAIRS[name]))[0] == pytest.approx(0, abs=1e-12)


def test_one_dimension_by_hand() -> None:
    distance, terms = frechet_distance(normal([1.0], [9.0]), normal([-1.0], [4.0]))
    assert terms["mean"] == pytest.approx(4)
    assert terms["covariance"] == pytest.approx((3 - 2) ** 2)
    assert distance == pytest.approx(5)


CLIENTS = [draw(40, 1, 1, 0.5), draw(5, 2, 2), draw(3, 3, 0.5, -1), draw(70, 4, 1.5), draw(4, 5)]


@pytest.mark.parametrize("generated", [draw(90, 6, 1.2, 0.1), draw(6, 7)], ids=["many", "few"])
@pytest.mark.parametrize("clients", [CLIENTS, CLIENTS[2:3] + CLIENTS[4:5]], ids=["dense pool", "thin pool"])
def test_all_is_the_score_of_concatenated_features(clients: list[torch.Tensor], generated: torch.Tensor) -> None:
    union = frechet_distance(summarize(torch.cat(clients)), summarize(generated))[0]
    for errors in (False, True):
        score = FrechetReference.from_features(clients).score(generated, errors)
        assert score.values["all"] == pytest.approx(union, rel=1e-12)
        singles = [frechet_distance(summarize(client), summarize(generated))[0] for client in clients]
        torch.testing.assert_close(score.per_client, torch.tensor(singles).double(), rtol=1e-6, atol=1e-6)
        assert score.values["worst"] == pytest.approx(max(singles), rel=1e-12)
        sizes = [len(client) for client in clients]
        average = sum(n * single for n, single in zip(sizes, singles)) / sum(sizes)
        assert score.values["avg"] == pytest.approx(average, rel=1e-12)


@pytest.mark.parametrize("weights", ["uniform", [0.1, 0.2, 0.3, 0.2, 0.2]])
@pytest.mark.parametrize("ddof", [0, 1])
def test_all_with_weights_is_the_score_of_the_weighted_mixture(weights: str | list[float], ddof: int) -> None:
    generated = draw(90, 6)
    numbers = [0.2] * 5 if weights == "uniform" else weights
    mixture = pool([summarize(client) for client in CLIENTS], numbers)
    expected = frechet_distance(mixture, summarize(generated), ddof)[0]
    score = FrechetReference.from_features(CLIENTS, weights, ddof).score(generated, errors=False)
    assert score.values["all"] == pytest.approx(expected, rel=1e-12)


def test_summaries_and_generators_of_features_give_the_same_values() -> None:
    generated = draw(90, 6)
    score = FrechetReference.from_features(client for client in CLIENTS).score(generated)
    summaries = FrechetReference.from_summaries(map(summarize, CLIENTS)).score(summarize(generated))
    assert score.values == pytest.approx(summaries.values, rel=1e-12)
    assert score.errors == pytest.approx(summaries.errors, rel=0.5)  # normal features here, so the stand-ins fit


def test_the_distance_on_a_public_pca_is_one_line_from_features_or_summaries() -> None:
    projection = Projection.fit(draw(200, 50), 3)
    generated = draw(90, 6)
    projected = projection.project(generated)
    score = FrechetReference.from_features(map(projection.project, CLIENTS)).score(projected)
    union = frechet_distance(summarize(projection.project(torch.cat(CLIENTS))), summarize(projected))[0]
    assert score.values["all"] == pytest.approx(union, rel=1e-12)
    summaries = map(projection.project_summary, map(summarize, CLIENTS))
    from_summaries = FrechetReference.from_summaries(summaries).score(projection.project_summary(summarize(generated)))
    assert from_summaries.values == pytest.approx(score.values, rel=1e-9)


def test_summaries_may_stand_beside_features() -> None:
    mixed = FrechetReference.from_features([CLIENTS[0], summarize(CLIENTS[1]), *CLIENTS[2:]])
    whole = FrechetReference.from_features(CLIENTS)
    assert mixed.score(draw(50, 1)).values == pytest.approx(whole.score(draw(50, 1)).values, rel=1e-12)


@pytest.mark.slow
def test_many_small_clients_in_batches_equal_a_loop() -> None:
    sizes = torch.randint(2, 60, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    clients = [draw(size, seed, 1 + seed / 40, dim=64) for seed, size in enumerate(sizes)]
    for generated in (draw(100, 99, dim=64), draw(20, 99, dim=64)):
        loop = [frechet_distance(summarize(client), summarize(generated))[0] for client in clients]
        for errors in (False, True):
            score = FrechetReference.from_features(clients).score(generated, errors)
            torch.testing.assert_close(score.per_client, torch.tensor(loop).double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("weights", ["examples", "uniform"])
def test_all_is_at_most_avg_for_populations(seed: int, weights: str) -> None:
    clients = [draw(n, 10 * seed + n, 1 + n / 20, n / 10) for n in (1, 4, 30, 11)]
    for count in (3, 50):
        score = FrechetReference.from_features(clients, weights, ddof=0).score(draw(count, seed, 2), errors=False)
        assert score.values["all"] <= score.values["avg"]


def test_all_may_exceed_avg_with_divisor_n_minus_1() -> None:
    clients = [torch.tensor([[-1.0], [1.0]]).double()] * 2
    generator = normal([0.0], [100.0])
    score = FrechetReference.from_features(clients).score(generator, errors=False)
    assert score.values["avg"] == pytest.approx((10 - 2**0.5) ** 2)  # 73.7
    assert score.values["all"] == pytest.approx((10 - (4 / 3) ** 0.5) ** 2)  # 78.2
    population = FrechetReference.from_features(clients, ddof=0).score(generator, errors=False)
    assert population.values["avg"] == pytest.approx(81)
    assert population.values["all"] == pytest.approx(81)


@pytest.mark.parametrize("variance", [0.25, 1.0, 2.0, 3.5])
def test_two_clients_around_one_generator_as_derived(variance: float) -> None:
    clients = [normal([sign, 0.0], [1.0, 1.0]) for sign in (-1.0, 1.0)]
    reference = FrechetReference.from_summaries(clients)
    exact = reference.score(normal([0.0, 0.0], [variance, 1.0]), errors=False).values
    assert exact["avg"] == pytest.approx(1 + (variance**0.5 - 1) ** 2)
    assert exact["all"] == pytest.approx((variance**0.5 - 2**0.5) ** 2, abs=1e-9)
    assert reference.score(reference.pooled, errors=False).values["avg"] == pytest.approx(4 - 8**0.5)


def test_two_clients_around_one_generator_as_sampled() -> None:
    generator = torch.Generator().manual_seed(0)
    clients = [torch.randn(20_000, 2, generator=generator) + torch.tensor([sign, 0.0]) for sign in (-1.0, 1.0)]
    generated = torch.randn(20_000, 2, generator=generator) * torch.tensor([1.5**0.5, 1.0])
    score = FrechetReference.from_features(clients).score(generated)
    assert abs(score.values["avg"] - (1 + (1.5**0.5 - 1) ** 2)) < 3 * score.errors["avg"] < 0.06
    assert abs(score.values["all"] - (1.5**0.5 - 2**0.5) ** 2) < 3 * score.errors["all"] < 0.02


def test_terms_add_up_and_the_mean_terms_gap_ignores_the_generator() -> None:
    reference = FrechetReference.from_features(CLIENTS)
    gaps = []
    for seed in (6, 7, 8):
        score = reference.score(draw(50, seed, seed, seed / 10), errors=False)
        for aggregate in ("avg", "all"):
            assert sum(term[aggregate] for term in score.terms.values()) == pytest.approx(score.values[aggregate])
        gaps.append(score.terms["mean"]["avg"] - score.terms["mean"]["all"])
    assert gaps[1:] == pytest.approx(gaps[:1] * 2, rel=1e-12)


def test_a_client_of_one_image_is_scored_with_divisor_n() -> None:
    lone, generated = draw(1, 1), draw(50, 6)
    score = FrechetReference.from_features([lone, CLIENTS[0]], ddof=0).score(generated)
    centre = summarize(generated)
    expected = float((lone[0] - centre.mean).square().sum() + centre.trace(ddof=0))
    assert score.per_client[0] == pytest.approx(expected, rel=1e-12)
    assert all(error > 0 and math.isfinite(error) for error in score.errors.values())


def test_clients_of_singular_covariances_have_the_errors_that_they_have_alone() -> None:
    # as pixels that are black in all of a client's images
    clients = [draw(40 + k, k) * (torch.arange(DIM) < kept) for k, kept in enumerate((6, 8, 8))]
    generated = draw(50, 9)
    together = FrechetReference.from_features(clients).score(generated)
    for k, client in enumerate(clients):
        alone = FrechetReference.from_features([client]).score(generated)
        assert float(together.per_client[k]) == pytest.approx(alone.values["avg"], rel=1e-9)
    weighed = FrechetReference.from_features(clients, [0.0, 1.0, 0.0]).score(generated)
    assert weighed.errors["avg"] == pytest.approx(
        FrechetReference.from_features([clients[1]]).score(generated).errors["avg"], rel=1e-6
    )


def test_clients_of_weight_zero_do_not_count() -> None:
    generated = draw(50, 6)
    some = FrechetReference.from_features(CLIENTS, [1, 0, 1, 0, 0]).score(generated)
    alone = FrechetReference.from_features(CLIENTS[0:3:2], "uniform").score(generated)
    assert some.values == pytest.approx(alone.values, rel=1e-12)
    assert some.errors == pytest.approx(alone.errors, rel=1e-6)


def test_unusable_clients_are_named() -> None:
    with pytest.raises(ValueError, match="ddof"):
        FrechetReference.from_features([draw(3, 1), draw(1, 2)])
    with pytest.raises(ValueError, match="NaN"):
        FrechetReference.from_features([draw(3, 1), torch.tensor([[0.0], [math.nan]])])
    with pytest.raises(ValueError, match="features"):
        FrechetReference.from_features([draw(3, 1), draw(4, 2, dim=3)])
    with pytest.raises(ValueError, match="at least one client"):
        FrechetReference.from_features([])
    with pytest.raises(ValueError, match="one number a client"):
        FrechetReference.from_features([draw(3, 1), draw(4, 2)], [1.0, 2.0, 3.0])
    for weights, message in (([1.0, -1.0], "not negative"), ("sizes", "'examples'"), ([0.0, 0.0], "all zero")):
        with pytest.raises(ValueError, match=message):
            FrechetReference.from_features([draw(3, 1), draw(4, 2)], weights)
    with pytest.raises(ValueError, match="embedding"):
        FrechetReference.from_features([draw(3, 1)]).score(draw(4, 2, dim=3))
    with pytest.raises(ValueError, match="ddof"):
        FrechetReference.from_features([draw(3, 1)]).score(draw(1, 2))


@pytest.mark.parametrize("number", [3, 20])  # fewer images than features, and more
def test_features_too_large_for_float64_are_refused_by_name(number: int) -> None:
    torch.manual_seed(0)
    usual, huge = torch.randn(20, 4).double(), torch.randn(number, 4).double() * 1e200
    remedy = r"beyond 1e\+70; check the embedding, or divide all features by one number"
    with pytest.raises(ValueError, match=rf"^features of client 1 reach \d.*e\+200: .* {remedy}"):
        FrechetReference.from_features([usual, huge])
    with pytest.raises(ValueError, match=rf"^generated features reach .* {remedy}"):
        FrechetReference.from_features([usual]).score(huge)
    stranger = Gaussian(20, torch.zeros(4).double(), scatter=torch.eye(4).double() * 1e300)
    with pytest.raises(ValueError, match=rf"^the second summary is of features of size .*e\+149: .* {remedy}"):
        frechet_distance(summarize(usual), stranger)
    with pytest.raises(OverflowError, match=rf"^the clients' summary is of features of size .* {remedy}"):
        FrechetReference.from_summaries([stranger]).score(usual)
