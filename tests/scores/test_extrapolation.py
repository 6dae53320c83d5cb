import pytest
import torch

from fedgen.scores import FrechetReference
from fedgen.scores.frechet.few_images import _extrapolate, fid_infinity
from fedgen.scores.theory import population_gaussian
from fedgen.statistics import summarize

DIM = 8
SPREAD = torch.linspace(1, 0.2, DIM, dtype=torch.float64)
MEANS = torch.zeros(2, DIM, dtype=torch.float64)
MEANS[0, 0], MEANS[1, 0] = -0.5, 0.5


def draw(count: int, mean: torch.Tensor, spread: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    return torch.randn(count, DIM, generator=random, dtype=torch.float64) * spread + mean


def truth(generated_spread: torch.Tensor, mean: torch.Tensor) -> dict[str, float]:
    clients = [population_gaussian(centre, SPREAD.square().diag()) for centre in MEANS]
    made = population_gaussian(mean, generated_spread.square().diag())
    return FrechetReference.from_summaries(clients, ddof=0).score(made, errors=False).values


@pytest.mark.slow
def test_it_removes_the_bias_and_its_intervals_cover_the_truth() -> None:
    """`all` of the mixture's Gaussian as well: its population covariance is known."""
    random, draws = torch.Generator().manual_seed(0), 75
    mean, spread = torch.full((DIM,), 0.3, dtype=torch.float64), SPREAD * 1.3
    exact = truth(spread, mean)
    found: dict[str, list[tuple[float, float, float]]] = {"avg": [], "all": []}
    for number in range(draws):
        clients = [draw(240, centre, SPREAD, random) for centre in MEANS]
        results = fid_infinity(clients, draw(240, mean, spread, random), real="sample", seed=number)
        for key, result in results.items():
            found[key].append((result.points[0][1], result.value, result.error))
    for key, rows in found.items():
        full, values, errors = torch.tensor(rows, dtype=torch.float64).T
        bias = float(values.mean()) - exact[key]
        noise = float(values.std()) / draws**0.5
        assert float(full.mean()) - exact[key] > 5 * noise  # there was a bias
        assert abs(bias) < 3 * noise
        covered = float(((values - exact[key]).abs() < 1.96 * errors).double().mean())
        assert 0.95 - 3.2 * (0.95 * 0.05 / draws) ** 0.5 <= covered <= 1.0, (key, covered)
        assert 0.7 < float(values.std() / errors.square().mean().sqrt()) < 1.2


@pytest.mark.slow
def test_fixed_clients_are_the_population() -> None:
    random, draws = torch.Generator().manual_seed(1), 60
    clients = [draw(30, MEANS[0], SPREAD, random), draw(6, MEANS[1], SPREAD, random)]  # the second has no full rank
    reference = FrechetReference.from_features(clients)
    made = population_gaussian(MEANS[0], (SPREAD * 1.2).square().diag(), 1e12)
    exact = reference.score(made, errors=False).values
    rows = []
    for _ in range(draws):
        results = fid_infinity(reference, draw(240, MEANS[0], SPREAD * 1.2, random))
        rows.append([(results[key].value - exact[key], results[key].error) for key in ("avg", "all")])
    misses, errors = torch.tensor(rows, dtype=torch.float64).unbind(-1)
    assert (misses.mean(0).abs() < 3 * misses.std(0) / draws**0.5).all()
    assert ((misses.abs() < 1.96 * errors).double().mean(0) >= 0.88).all()


def test_points_are_means_over_parts_that_share_no_image() -> None:
    random = torch.Generator().manual_seed(2)
    client, generated = (draw(400, MEANS[0], SPREAD, random) for _ in range(2))
    result = fid_infinity([client], generated, parts=2)["all"]
    whole = FrechetReference.from_features([client]).score(generated)
    assert [images for images, _ in result.points] == [400, 200]
    assert result.points[0][1] == pytest.approx(whole.values["all"])
    assert result.error == whole.error_parts["generated"]["all"]
    assert result.value == pytest.approx(2 * result.points[0][1] - result.points[1][1])  # the line through two points
    assert result.slope == pytest.approx(400 * (result.points[1][1] - result.points[0][1]))


def test_the_line_goes_through_points_that_lie_on_one() -> None:
    scores = [[3.0 + 500.0 * level / 1000] * level for level in range(1, 6)]
    result = _extrapolate(scores, 1000, 0.1)
    assert (result.value, result.slope, result.error) == pytest.approx((3.0, 500.0, 0.1))


def test_each_client_has_the_line_that_it_has_alone() -> None:
    random = torch.Generator().manual_seed(6)
    clients = [draw(count, mean, SPREAD, random) for count, mean in ((120, MEANS[0]), (180, MEANS[1]))]
    generated = draw(120, MEANS[0], SPREAD, random)
    for real in ("fixed", "sample"):
        results = fid_infinity(clients, generated, real=real, per_client=True)
        assert list(results) == ["avg", "all", "client 0", "client 1"]
        first, second = (results[f"client {client}"] for client in range(2))
        assert results["avg"].value == pytest.approx(0.4 * first.value + 0.6 * second.value)
        alone = fid_infinity(clients[:1], generated, real=real)["all"]  # cut as the first of several is
        assert (first.value, first.slope, first.error) == pytest.approx((alone.value, alone.slope, alone.error))
        assert [score for _, score in first.points] == pytest.approx([score for _, score in alone.points])
        assert second.error > 0
        assert set(fid_infinity(clients, generated, real=real)) == {"avg", "all"}


def test_the_seed_decides_the_cuts() -> None:
    random = torch.Generator().manual_seed(3)
    clients, generated = [draw(200, MEANS[0], SPREAD, random)], draw(200, MEANS[0], SPREAD, random)
    results = [fid_infinity(clients, generated, real="sample", seed=seed)["avg"].value for seed in (0, 0, 1)]
    assert results[0] == results[1] != results[2]


def test_few_images_are_refused_with_the_numbers() -> None:
    random = torch.Generator().manual_seed(4)
    few, many = draw(79, MEANS[0], SPREAD, random), draw(80, MEANS[0], SPREAD, random)
    with pytest.raises(ValueError, match="generated"):
        fid_infinity([many], few)
    with pytest.raises(ValueError, match="features"):
        fid_infinity([many, few], many, real="sample")
    assert set(fid_infinity([many, few], many)) == {"avg", "all"}


def test_what_cannot_be_cut_is_refused() -> None:
    many = draw(80, MEANS[0], SPREAD, torch.Generator().manual_seed(5))
    for clients in ([summarize(many)], FrechetReference.from_features([many])):
        with pytest.raises(ValueError, match="features"):
            fid_infinity(clients, many, real="sample")
    with pytest.raises(ValueError, match="levels"):
        fid_infinity([many], many, parts=1)
    with pytest.raises(ValueError, match="sample"):
        fid_infinity([many], many, real="both")
