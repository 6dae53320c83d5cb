import pytest
import torch

from fedgen.statistics import Gaussian, pool, summarize


def features(*sizes: int, dim: int = 6, seed: int = 0) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(n, dim, generator=draw, dtype=torch.float64) * (1 + i) + i for i, n in enumerate(sizes)]


def assert_equal(left: Gaussian, right: Gaussian) -> None:
    assert left.count == pytest.approx(right.count, rel=1e-14)
    torch.testing.assert_close(left.mean, right.mean, rtol=1e-12, atol=1e-13)
    for ddof in (0, 1):
        torch.testing.assert_close(left.covariance(ddof), right.covariance(ddof), rtol=1e-12, atol=1e-12)


def test_two_points_by_hand() -> None:
    gaussian = summarize(torch.tensor([[0.0, 0.0], [2.0, 4.0]]))
    assert gaussian.mean.tolist() == [1.0, 2.0]
    torch.testing.assert_close(gaussian.covariance(ddof=1), torch.tensor([[2.0, 4.0], [4.0, 8.0]]).double())
    torch.testing.assert_close(gaussian.covariance(ddof=0), torch.tensor([[1.0, 2.0], [2.0, 4.0]]).double())
    assert gaussian.is_low_rank
    assert float(gaussian.trace(ddof=1)) == pytest.approx(10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("count", [3, 50, 9000])
def test_summary_is_numpy_covariance_in_any_dtype(dtype: torch.dtype, count: int) -> None:
    data = features(count)[0].to(dtype)
    gaussian = summarize(data)
    torch.testing.assert_close(gaussian.covariance(), data.double().T.cov(), rtol=1e-11, atol=1e-12)
    assert gaussian.is_low_rank == (count <= 6)


@pytest.mark.parametrize("sizes", [(2, 3), (2, 3, 1), (40, 3, 1, 25), (3, 40), (2, 2, 2, 2)])
def test_pooling_by_count_is_the_summary_of_the_union(sizes: tuple[int, ...]) -> None:
    clients = features(*sizes)
    pooled, union = pool(summarize(client) for client in clients), summarize(torch.cat(clients))
    assert_equal(pooled, union)
    assert pooled.is_low_rank == union.is_low_rank == (sum(sizes) <= 6)
    shares = [size / sum(sizes) for size in sizes]
    assert_equal(pool([summarize(client) for client in clients], shares), union)


@pytest.mark.parametrize("sizes", [(2, 3), (40, 3, 25)])
def test_pooling_by_weight_is_the_mixture_of_populations(sizes: tuple[int, ...]) -> None:
    clients = features(*sizes)
    weights = [0.2, 0.5, 0.3][: len(sizes)]
    pooled = pool([summarize(client) for client in clients], weights)
    images = torch.cat(clients)
    shares = torch.cat([torch.full((n,), w / n / sum(weights)) for n, w in zip(sizes, weights)]).double()
    mean = shares @ images
    population = (images - mean).T @ ((images - mean) * shares.unsqueeze(1))
    torch.testing.assert_close(pooled.mean, mean, rtol=1e-12, atol=1e-7)
    torch.testing.assert_close(pooled.covariance(0), population, rtol=1e-6, atol=1e-6)
    kish = float(1 / shares.square().sum())
    assert pooled.count == pytest.approx(kish, rel=1e-6)
    torch.testing.assert_close(pooled.covariance(1), pooled.covariance(0) * pooled.count / (pooled.count - 1))


def test_pooling_is_associative_with_weighted_low_rank_parts() -> None:
    parts = [summarize(client) for client in features(1, 2, 2)]
    nested = pool([pool(parts[:2], [0.6, 0.4]), parts[2]], [0.7, 0.3])
    flat = pool(parts, [0.42, 0.28, 0.3])
    assert nested.is_low_rank
    assert_equal(nested, flat)


def test_a_client_of_weight_zero_leaves_no_trace() -> None:
    parts = [summarize(client) for client in features(10, 20)]
    assert_equal(pool(parts, [1.0, 0.0]), parts[0])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (torch.zeros(0, 3), "empty"),
        (torch.tensor([[1.0], [float("nan")]]), "1 of 2 rows hold NaN"),
        (torch.zeros(3), "floating"),
        (torch.zeros(3, 2, dtype=torch.int64), "floating"),
    ],
)
def test_unusable_features_are_refused(data: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        summarize(data)


def test_pooling_refuses_what_does_not_fit() -> None:
    small, large = summarize(torch.zeros(2, 3)), summarize(torch.zeros(2, 4))
    with pytest.raises(ValueError, match="features"):
        pool([small, large])
    with pytest.raises(ValueError, match="nothing"):
        pool([])
    with pytest.raises(ValueError, match="negative"):
        pool([small, small], [1.0, -1.0])
    for weights in ([1.0], [1.0, 1.0, 1.0]):
        with pytest.raises(ValueError, match="summary"):
            pool([small, small], weights)


def test_one_image_has_no_covariance_with_divisor_n_minus_1() -> None:
    lone = summarize(torch.ones(1, 2))
    assert lone.covariance(ddof=0).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    with pytest.raises(ValueError, match="ddof"):
        lone.covariance(ddof=1)


def test_inconsistent_moments_are_refused() -> None:
    with pytest.raises(ValueError, match="exactly one"):
        Gaussian(2, torch.zeros(2))
    with pytest.raises(ValueError, match="disagree"):
        Gaussian(2, torch.zeros(2), scatter=torch.zeros(3, 3))
    with pytest.raises(ValueError, match="at least one image"):
        Gaussian(0, torch.zeros(2), scatter=torch.zeros(2, 2))
