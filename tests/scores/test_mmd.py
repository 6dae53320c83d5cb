from fractions import Fraction
from itertools import product

import pytest
import torch
from torch_fidelity.metric_kid import kid_features_to_metric
from torchmetrics.image.kid import poly_mmd

from fedgen.clients.heterogeneity.heterogeneity import kid_to_pool
from fedgen.scores import KernelReference, PolynomialKernel, RBFKernel, mmd2, mmd2_subsets
from fedgen.scores.kernel import kernels
from fedgen.scores.kernel.kernels import Kernel


def draw(count: int, seed: int, scale: float = 1.0, shift: float = 0.0, dim: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator, dtype=torch.float64) * scale + shift


CLIENTS = [draw(37, 1), draw(5, 2, 2, 1), draw(21, 3, 0.5, -1), draw(80, 4, 1.5)]
GENERATED = [draw(n, n, 0.5 + n / 50, n / 100) for n in (40, 55, 3, 90)]
KERNELS = [PolynomialKernel(), PolynomialKernel(degree=2, gamma=0.5, coef0=0.0), RBFKernel(), RBFKernel(1.5)]


def by_loop(x: torch.Tensor, y: torch.Tensor, kernel: Kernel, unbiased: bool) -> float:
    def within(z: torch.Tensor) -> torch.Tensor:
        block = kernel.block(z, z)
        total = block.sum() - block.diagonal().sum() if unbiased else block.sum()
        return total / (len(z) * (len(z) - unbiased))

    return float(within(x) + within(y) - 2 * kernel.block(x, y).mean())


@pytest.mark.parametrize("block", [9, 2048])  # several with a rest, and one
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("estimator", ["u", "v"])
def test_blocks_give_the_plain_formula(
    kernel: Kernel, estimator: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "BLOCK", block)
    x, y = draw(20, 1), draw(31, 2, 2, 1)
    expected = by_loop(x, y, kernel, estimator == "u")
    assert mmd2(x, y, kernel, estimator) == pytest.approx(expected, rel=1e-12)
    single = mmd2(x.float(), y.float(), kernel, estimator)
    assert single == pytest.approx(expected, rel=1e-5)


def cubic(x: torch.Tensor, y: torch.Tensor) -> list[list[Fraction]]:
    """The cubic kernel matrix without rounding."""
    rows, columns = ([[Fraction(value) for value in row] for row in side.tolist()] for side in (x, y))
    return [[(sum(a * b for a, b in zip(p, q)) / len(p) + 1) ** 3 for q in columns] for p in rows]


def exact_u(x: torch.Tensor, y: torch.Tensor) -> tuple[Fraction, Fraction]:
    """The U-statistic of the cubic kernel without rounding, and the mean size of the kernels that it is made of."""

    def mean(block: list[list[Fraction]], within: bool) -> Fraction:
        rows, columns = range(len(block)), range(len(block[0]))
        kept = [block[i][j] for i, j in product(rows, columns) if not within or i != j]
        return sum(kept, Fraction()) / len(kept)

    parts = [(cubic(x, x), True, 1), (cubic(y, y), True, 1), (cubic(x, y), False, -2)]
    sizes = [abs(times) * mean([[abs(k) for k in row] for row in block], within) for block, within, times in parts]
    return sum((times * mean(block, within) for block, within, times in parts), Fraction()), sum(sizes, Fraction())


@pytest.mark.parametrize(("dim", "outlier"), [(3, 1e6), (8, 1e6), (3, 1.0), (8, 1e4)])  # by monomials and by pairs
def test_an_outlier_costs_the_u_statistic_no_digits(dim: int, outlier: float) -> None:
    clients, generated = [draw(7, 1, dim=dim), draw(12, 2, dim=dim)], draw(15, 3, dim=dim)
    clients[0][3] *= outlier
    union = torch.cat(clients)
    value, size = exact_u(union, generated)
    found = KernelReference.from_features(clients).score(generated).values["all"]
    assert abs(Fraction(found) - value) < 1e-15 * size
    assert abs(Fraction(mmd2(union, generated)) - value) < 1e-15 * size
    owners = (torch.arange(19) >= 7).long()
    value, size = exact_u(*clients)  # the pool is the client and the others
    for client, rest in enumerate((Fraction(12, 19), Fraction(7, 19))):
        to_pool = float(kid_to_pool(union, [owners])[0, client])
        assert abs(Fraction(to_pool) - rest**2 * value) < 1e-15 * rest**2 * size


def test_two_images_a_side_by_hand() -> None:
    x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [2.0]])
    # (xy + 1)^3: within x 1 1 1 8, within y 8 27 27 125, between 1 1 8 27
    assert mmd2(x, y, estimator="u") == pytest.approx(1 + 27 - 2 * 37 / 4)
    assert mmd2(x, y, estimator="v") == pytest.approx(11 / 4 + 187 / 4 - 2 * 37 / 4)


def test_the_rbf_kernel_does_not_depend_on_the_origin() -> None:
    x, y = draw(30, 1), draw(40, 2)
    near, far = (KernelReference.from_features([x + s, x[:9] + 1 + s], RBFKernel()).score(y + s) for s in (0.0, 1e6))
    assert far.values == pytest.approx(near.values, rel=1e-7)
    assert far.errors == pytest.approx(near.errors, rel=1e-7)


def test_subsets_are_those_of_torch_fidelity() -> None:
    x, y = draw(90, 1), draw(70, 2, 1.2)
    peer = kid_features_to_metric(x, y, kid_subsets=20, kid_subset_size=30, verbose=False)
    mean, spread = mmd2_subsets(x, y, subsets=20, size=30)
    assert mean == pytest.approx(peer["kernel_inception_distance_mean"], rel=1e-12)
    assert spread == pytest.approx(peer["kernel_inception_distance_std"], rel=1e-11)


def test_subsets_with_the_rbf_kernel_are_those_of_torch_fidelity() -> None:
    x, y = draw(60, 1), draw(60, 2, 1.2)
    options = {"kid_kernel": "rbf", "kid_kernel_rbf_sigma": 2.0}
    peer = kid_features_to_metric(x, y, kid_subsets=5, kid_subset_size=30, verbose=False, **options)
    assert mmd2_subsets(x, y, RBFKernel(2.0), 5, 30)[0] == pytest.approx(
        peer["kernel_inception_distance_mean"], rel=1e-9
    )


def test_the_formula_is_that_of_torchmetrics() -> None:
    x, y = draw(50, 1), draw(50, 2, 1.2)
    assert mmd2(x, y) == pytest.approx(float(poly_mmd(x, y)), rel=1e-12)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("estimator", ["u", "v"])
def test_reference_scores_each_client_and_the_union(kernel: Kernel, estimator: str) -> None:
    reference = KernelReference.from_features(CLIENTS, kernel, estimator)
    for generated in GENERATED:
        score = reference.score(generated)
        singles = torch.tensor([mmd2(client, generated, kernel, estimator) for client in CLIENTS], dtype=torch.float64)
        torch.testing.assert_close(score.per_client, singles, rtol=1e-10, atol=1e-12)
        union = mmd2(torch.cat(CLIENTS), generated, kernel, estimator)
        assert score.values["all"] == pytest.approx(union, rel=1e-10, abs=1e-12)
        assert score.values["worst"] == pytest.approx(float(singles.max()), rel=1e-10)


@pytest.mark.parametrize("kernel", [PolynomialKernel(), RBFKernel()], ids=repr)
@pytest.mark.parametrize("estimator", ["u", "v"])
@pytest.mark.parametrize("weights", ["examples", "uniform", [0.1, 0.6, 0.1, 0.2]])
def test_avg_minus_all_is_the_same_for_every_generator(
    kernel: Kernel, estimator: str, weights: str | list[float]
) -> None:
    reference = KernelReference.from_features(CLIENTS, kernel, estimator, weights)
    size = float(reference.within.abs().mean())
    for generated in GENERATED:
        values = reference.score(generated, errors=False).values
        assert abs(values["avg"] - values["all"] - reference.gap) < 1e-12 * max(size, abs(values["avg"]))


def test_the_v_gap_is_the_mean_distance_of_clients_to_their_pool() -> None:
    reference = KernelReference.from_features(CLIENTS, estimator="v")
    union = torch.cat(CLIENTS)
    distances = [len(client) / len(union) * mmd2(union, client, estimator="v") for client in CLIENTS]
    assert reference.gap == pytest.approx(sum(distances), rel=1e-11)
    mixture = KernelReference.from_features(CLIENTS, estimator="v", weights="uniform")
    assert mixture.gap == pytest.approx(float(mixture.weights @ (mixture.within - mixture.within_pool)), rel=1e-12)
    assert mixture.gap > 0


def test_all_is_at_most_avg_for_v() -> None:
    for weights in ("examples", "uniform"):
        reference = KernelReference.from_features([*CLIENTS, draw(1, 9)], estimator="v", weights=weights)
        assert all(s.values["all"] <= s.values["avg"] for s in map(reference.score, GENERATED))


def test_uniform_weights_on_equal_clients_are_examples() -> None:
    clients = [draw(20, seed, seed) for seed in (1, 2, 3)]
    for estimator in ("u", "v"):
        scores = [KernelReference.from_features(clients, None, estimator, w) for w in ("examples", "uniform")]
        first, second = (reference.score(GENERATED[0]) for reference in scores)
        assert first.values == pytest.approx(second.values, rel=1e-12)
        assert first.errors == pytest.approx(second.errors, rel=1e-9)


@pytest.mark.parametrize("variance", [0.5, 2.0, 3.5])
def test_two_clients_around_one_generator_as_derived(variance: float) -> None:
    generator = torch.Generator().manual_seed(0)
    clients = [torch.randn(3000, 2, generator=generator) + torch.tensor([sign, 0.0]) for sign in (-1.0, 1.0)]
    generated = torch.randn(3000, 2, generator=generator) * torch.tensor([variance**0.5, 1.0])
    reference = KernelReference.from_features(clients)
    score = reference.score(generated)
    assert abs(score.values["all"] - 0.75 * (variance - 2) ** 2) < 3 * score.errors["all"]
    assert abs(score.values["avg"] - score.values["all"] - 3.875) < 3 * score.errors["avg"]


def test_unusable_input_is_refused_with_a_remedy() -> None:
    with pytest.raises(ValueError, match="estimator"):
        KernelReference.from_features([draw(3, 1), draw(1, 2)])
    with pytest.raises(ValueError, match="generated"):
        KernelReference.from_features([draw(3, 1)]).score(draw(1, 2))
    with pytest.raises(ValueError, match="x has one image"):
        mmd2(draw(1, 1), draw(3, 2))
    with pytest.raises(ValueError, match="features"):
        KernelReference.from_features([draw(3, 1), draw(4, 2, dim=3)])
    with pytest.raises(ValueError, match="at least one client"):
        KernelReference.from_features([])
    with pytest.raises(ValueError, match="embedding"):
        mmd2(draw(3, 1), draw(3, 1, dim=2))
    with pytest.raises(ValueError, match="'u' or 'v'"):
        mmd2(draw(3, 1), draw(3, 2), estimator="unbiased")
    with pytest.raises(ValueError, match="size"):
        mmd2_subsets(draw(3, 1), draw(9, 2), size=4)
    with pytest.raises(ValueError, match="degree"):
        PolynomialKernel(degree=0)
    with pytest.raises(ValueError, match="sigma"):
        RBFKernel(0.0)


def test_kernels_beyond_float64_are_refused_by_name() -> None:
    huge, remedy = draw(4, 1) * 1e50, r"divide all features by one number"  # whose sixth powers are infinite in sums
    with pytest.raises(ValueError, match=rf"^y: the kernel of an image with itself is .*e\+30\d, .* {remedy}"):
        mmd2(draw(4, 1), huge)
    with pytest.raises(ValueError, match=rf"^the clients' features: .* {remedy}"):
        KernelReference.from_features([draw(4, 1), huge])
    with pytest.raises(ValueError, match=rf"^the generated side: .* {remedy}"):
        KernelReference.from_features([draw(4, 1)]).score(huge)
    assert mmd2(draw(4, 1), huge, RBFKernel()) == pytest.approx(mmd2(draw(4, 1), huge * 1e-3, RBFKernel()))


def test_v_accepts_single_images() -> None:
    score = KernelReference.from_features([draw(1, 1)], estimator="v").score(draw(1, 2))
    assert score.values["avg"] == pytest.approx(mmd2(draw(1, 1), draw(1, 2), estimator="v"))
    assert score.errors == {"avg": 0.0, "all": 0.0, "worst": 0.0}
