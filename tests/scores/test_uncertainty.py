import pytest
import torch

from fedgen.scores import FrechetReference, KernelReference, frechet_distance
from fedgen.scores.aggregate import jackknife_variance, mean_variance
from fedgen.statistics import Gaussian, pool, summarize

DRAWS = 100


def draw(count: int, seed: int, scale: float = 1.0, shift: float = 0.0, dim: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator, dtype=torch.float64) * scale + shift


def without_each(images: torch.Tensor) -> list[torch.Tensor]:
    return [torch.cat([images[:i], images[i + 1 :]]) for i in range(len(images))]


def test_jackknife_of_a_mean_is_the_variance_of_the_mean() -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 9.0])
    leave_one_out = (values.sum() - values) / 3
    assert float(jackknife_variance(leave_one_out)) == pytest.approx(float(values.var()) / 4)
    assert float(mean_variance(values)) == pytest.approx(float(values.var()) / 4)
    assert float(mean_variance(values, torch.full((4,), 0.25))) == pytest.approx(float(values.var()) / 4)
    assert float(mean_variance(values, count=40)) == pytest.approx(float(values.var()) / 40)
    assert float(jackknife_variance(values[:1])) == float(mean_variance(values[:1])) == 0


def jackknife_by_recomputing(reference_of, clients, weights, generated):
    """Standard errors of avg, all, worst: {"generated", "real"}, every image left out in turn."""

    def values(reference, made: torch.Tensor) -> torch.Tensor:
        score = reference.score(made, errors=False)
        return torch.tensor([score.values[key] for key in ("avg", "all", "worst")], dtype=torch.float64)

    whole = reference_of(clients, weights)
    made = torch.stack([values(whole, part) for part in without_each(generated)], dim=1)
    real = torch.zeros(3, dtype=torch.float64)
    for place, client in enumerate(clients):
        left = [reference_of([*clients[:place], part, *clients[place + 1 :]], weights) for part in without_each(client)]
        real += jackknife_variance(torch.stack([values(reference, generated) for reference in left], dim=1))
    keys = ("avg", "all", "worst")
    generated_errors = dict(zip(keys, jackknife_variance(made).sqrt().tolist()))
    return {"generated": generated_errors, "real": dict(zip(keys, real.sqrt().tolist()))}


@pytest.mark.parametrize(("estimator", "weights"), [("u", [0.5, 0.2, 0.3]), ("v", [0.1, 0.8, 0.1])])
def test_kid_errors_are_the_jackknife_exactly(estimator: str, weights: list[float]) -> None:
    clients, generated = [draw(9, 1), draw(4, 2, 2, 3), draw(12, 3, 0.5)], draw(11, 4, 1.5)

    def reference_of(parts: list[torch.Tensor], shares: list[float]) -> KernelReference:
        return KernelReference.from_features(parts, estimator=estimator, weights=shares)

    parts = reference_of(clients, weights).score(generated).error_parts
    plain = jackknife_by_recomputing(reference_of, clients, weights, generated)
    for side in ("generated", "real"):
        assert parts[side] == pytest.approx(plain[side], rel=1e-8)


@pytest.mark.slow
def test_fid_errors_are_close_to_the_jackknife() -> None:
    weights = [0.1, 0.8, 0.1]
    clients, generated = [draw(90, 1), draw(60, 2, 2, 1), draw(120, 3, 0.5)], draw(150, 4, 1.5)
    parts = FrechetReference.from_features(clients, weights).score(generated).error_parts
    plain = jackknife_by_recomputing(FrechetReference.from_features, clients, weights, generated)
    for side in ("generated", "real"):
        assert parts[side] == pytest.approx(plain[side], rel=0.06)


def influence_by_nudging(client: Gaussian, other: Gaussian, images: torch.Tensor) -> torch.Tensor:
    """Derivative of the distance as the client's distribution moves towards each of its images."""
    step = 1e-4  # far above the noise of eigenvalues that are zero
    base = frechet_distance(client, other, ddof=0)[0]
    moved = [pool([client, summarize(image.unsqueeze(0))], [1 - step, step]) for image in images]
    return torch.tensor([(frechet_distance(one, other, ddof=0)[0] - base) / step for one in moved], dtype=torch.float64)


@pytest.mark.parametrize("sizes", [(5, 7), (5, 60), (60, 5), (60, 50), (4, 4)])
def test_fid_errors_follow_the_derivative_for_any_rank(sizes: tuple[int, int]) -> None:
    client, generated = draw(sizes[0], 1, dim=9), draw(sizes[1], 2, 1.5, 0.3, dim=9)
    parts = FrechetReference.from_features([client], ddof=0).score(generated).error_parts
    for side, images, other in (("real", client, generated), ("generated", generated, client)):
        nudged = influence_by_nudging(summarize(images), summarize(other), images)
        assert parts[side]["avg"] == pytest.approx(float(mean_variance(nudged)) ** 0.5, rel=2e-3)
        assert parts[side]["all"] == parts[side]["avg"] == parts[side]["worst"]


def test_fid_errors_of_a_low_rank_pool_follow_the_derivative() -> None:
    clients, generated = [draw(3, 1, dim=9), draw(4, 2, dim=9)], draw(40, 3, dim=9)
    parts = FrechetReference.from_features(clients, "uniform", ddof=0).score(generated).error_parts
    pooled = pool([summarize(client) for client in clients], [0.5, 0.5])
    variance = sum(
        0.25 * float(mean_variance(influence_by_nudging(pooled, summarize(generated), client))) for client in clients
    )
    assert parts["real"]["all"] == pytest.approx(variance**0.5, rel=2e-3)


def test_fid_errors_scale_as_one_over_the_root_of_images() -> None:
    clients = [draw(2000, 1, shift=1), draw(3000, 2, 1.5)]
    small = FrechetReference.from_features(clients).score(draw(1000, 3, 1.3)).error_parts["generated"]
    large = FrechetReference.from_features(clients).score(draw(16000, 4, 1.3)).error_parts["generated"]
    for key in small:
        assert small[key] / large[key] == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_fid_errors_depend_on_neither_scale_nor_origin(offset: float) -> None:
    clients, generated = [draw(60, 1), draw(30, 2, shift=1)], draw(50, 3, 1.3, 0.2)
    base = FrechetReference.from_features(clients).score(generated).errors
    for scale in (1e-6, 1.0, 1e60):
        moved = [(client + offset) * scale for client in clients]
        errors = FrechetReference.from_features(moved).score((generated + offset) * scale).errors
        assert errors == pytest.approx({key: value * scale**2 for key, value in base.items()}, rel=1e-6)


def population(mean: float, variances: list[float]) -> Gaussian:
    count, dim = 1e15, len(variances)
    means = torch.full((dim,), mean, dtype=torch.float64)
    return Gaussian(count, means, scatter=torch.diag(torch.tensor(variances).double()) * count)


@pytest.mark.slow
def test_fid_intervals_cover_the_truth() -> None:
    spreads = [[1.0, 2.0, 0.5], [1.5, 0.7, 1.0]]
    truth = FrechetReference.from_summaries([population(0.0, spreads[0]), population(1.0, spreads[1])], "uniform")
    exact = truth.score(population(0.3, [3.0, 1.0, 0.2]), errors=False).values
    generator = torch.Generator().manual_seed(0)

    def sample(count: int, mean: float, variances: list[float]) -> torch.Tensor:
        draws = torch.randn(count, 3, generator=generator, dtype=torch.float64)
        return draws * torch.tensor(variances).double().sqrt() + mean

    covered = dict.fromkeys(exact, 0)
    for _ in range(DRAWS):
        clients = [sample(300, 0.0, spreads[0]), sample(400, 1.0, spreads[1])]
        score = FrechetReference.from_features(clients, "uniform").score(sample(500, 0.3, [3.0, 1.0, 0.2]))
        for key in exact:
            covered[key] += abs(score.values[key] - exact[key]) < 1.96 * score.errors[key]
    assert all(0.90 <= count / DRAWS <= 0.99 for count in covered.values()), covered


def test_fid_errors_of_equal_distributions_are_on_the_large_side() -> None:
    scores = [FrechetReference.from_features([draw(80, 2 * i)]).score(draw(120, 2 * i + 1)) for i in range(80)]
    spread = float(torch.tensor([score.values["all"] for score in scores]).std())
    assert 1.0 < sum(score.errors["all"] ** 2 for score in scores) / 80 / spread**2 < 1.7**2


@pytest.mark.slow
def test_kid_intervals_cover_the_truth() -> None:
    exact = {"all": 0.75 * (3.0 - 2) ** 2, "avg": 0.75 + 3.875}
    generator = torch.Generator().manual_seed(1)
    covered = dict.fromkeys(exact, 0)
    for _ in range(DRAWS):
        clients = [
            torch.randn(250, 2, generator=generator, dtype=torch.float64) + torch.tensor([s, 0.0]) for s in (-1, 1)
        ]
        generated = torch.randn(500, 2, generator=generator, dtype=torch.float64) * torch.tensor([3.0**0.5, 1.0])
        score = KernelReference.from_features(clients).score(generated)
        for key in exact:
            covered[key] += abs(score.values[key] - exact[key]) < 1.96 * score.errors[key]
    assert all(0.90 <= count / DRAWS <= 0.99 for count in covered.values()), covered


@pytest.mark.parametrize("reference_of", [FrechetReference.from_features, KernelReference.from_features])
def test_each_client_has_the_error_of_its_score_alone(reference_of) -> None:
    clients, generated = [draw(30, 1, 1.0), draw(9, 2), draw(12, 3, 0.5)], draw(25, 4, 0.3)
    score = reference_of(clients).score(generated)
    alone = [reference_of([client]).score(generated).errors["all"] for client in clients]
    assert score.client_errors is not None
    assert score.client_errors.tolist() == pytest.approx(alone, rel=1e-9)
    assert score.errors["worst"] == pytest.approx(float(score.client_errors[score.per_client.argmax()]), rel=1e-12)
    assert reference_of(clients).score(generated, errors=False).client_errors is None
