from collections.abc import Callable

import numpy as np
import pytest
import torch
from prdc import compute_prdc
from torch import Tensor
from torch_fidelity.metric_prc import prc_features_to_metric

from fedgen.scores import ManifoldReference
from fedgen.scores.aggregate import jackknife_variance
from fedgen.scores.kernel import kernels
from fedgen.scores.manifold import neighbours
from fedgen.scores.manifold import neighbours as pairwise
from fedgen.scores.manifold.manifold import NAMES
from tests.quick import first_quick

KEYS = ("avg", "all", "worst")


def draw(count: int, seed: int, scale: float = 1.0, shift: float = 0.0, dim: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator, dtype=torch.float64) * scale + shift


CLIENTS = [draw(50, 1), draw(31, 2, 1.0, 0.5), draw(90, 3, 0.7)]
GENERATED = draw(120, 4, 1.1)


def by_definition(real: Tensor, made: Tensor, k: int, strict: bool) -> dict[str, float]:
    """The four scores from whole matrices of squared distances, exact for int64 features."""

    def squares(x: Tensor, y: Tensor) -> Tensor:
        return (x.unsqueeze(1) - y).square().sum(2)

    def radii(x: Tensor) -> Tensor:
        return squares(x, x).sort(1).values[:, k]  # the image itself is the first

    between = squares(real, made)
    limits = radii(real).unsqueeze(1)
    within = between < limits if strict else between <= limits
    recalled = between < radii(made) if strict else between <= radii(made)
    return {
        "precision": within.any(0).double().mean().item(),
        "recall": recalled.any(1).double().mean().item(),
        "density": within.double().sum().item() / (k * len(made)),
        "coverage": within.any(1).double().mean().item(),
    }


def check_exact(clients: list[Tensor], made: Tensor, strict: bool) -> None:
    """The scores of features that are whole numbers are those of whole-number arithmetic, k = 5."""
    check(clients, made, lambda part, _: by_definition(part.long(), made.long(), 5, strict), strict=strict)


def check(
    clients: list[Tensor], made: Tensor, expected_of: Callable[[Tensor, int], dict[str, float]], **options
) -> None:
    """Every client's four scores and the pool's are those expected; counts are exact, up to a float's division."""
    scores = ManifoldReference.from_features([part.clone() for part in clients], **options).score(made)
    for place, part in enumerate([*clients, torch.cat(clients)]):
        for name, value in expected_of(part, place).items():
            score = scores[name]
            found = score.values["all"] if place == len(clients) else float(score.per_client[place])
            assert found == pytest.approx(value, rel=1e-12, abs=1e-15), (name, place)


def test_points_on_a_line_by_hand() -> None:
    real, made = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[2.0], [5.0], [9.0]])
    scores = ManifoldReference.from_features([real], k=1).score(made, errors=False)
    # real radii 1, 1, 2: only 2 lies in balls, of 1 (at its surface) and 3; 5 lies in that of 3 (at its surface)
    # generated radii 3, 3, 4: 2 reaches -1 to 5, and so every real point
    assert {name: score.values["all"] for name, score in scores.items()} == pytest.approx(
        {"precision": 2 / 3, "recall": 1.0, "density": 1.0, "coverage": 2 / 3}
    )
    strict = ManifoldReference.from_features([real], k=1, strict=True).score(made, errors=False)
    assert {name: score.values["all"] for name, score in strict.items()} == pytest.approx(
        {"precision": 1 / 3, "recall": 1.0, "density": 1 / 3, "coverage": 1 / 3}
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("block", [25, 2048])  # several blocks, of some clients with a rest, and one
def test_counts_are_those_of_prdc(block: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "BLOCK", block)
    made = GENERATED.to(dtype)
    clients = [part.to(dtype) for part in CLIENTS]
    check(clients, made, lambda part, _: compute_prdc(part.numpy(), made.numpy(), 5), strict=True)


@pytest.mark.parametrize("save_memory", [False, True])
def test_counts_are_those_of_torch_fidelity(save_memory: bool) -> None:
    def peer(part: Tensor, _: int) -> dict[str, float]:
        options = {"prc_neighborhood": 3, "prc_batch_size": 10_000, "save_cpu_ram": save_memory, "verbose": False}
        found = prc_features_to_metric(GENERATED, part, **options)
        counts = {"precision": len(GENERATED), "recall": len(part)}  # it divides in float32
        return {name: round(found[name] * count) / count for name, count in counts.items()}

    check(CLIENTS, GENERATED, peer, k=3)


@pytest.mark.slow
def test_counts_are_those_of_prdc_at_features_of_an_embedding() -> None:
    mixing = draw(256, 9, dim=256) * torch.logspace(0, -2, 256).unsqueeze(1)
    real, made = ((draw(250, seed, dim=256) @ mixing).relu().float() for seed in (5, 6))
    check([real], made, lambda part, _: compute_prdc(part.numpy(), made.numpy(), 5), strict=True)


def near_ties(count: int, seed: int, offset: int) -> Tensor:
    """Whole numbers on a coarse lattice with a jitter of one: squared distances tie, or differ by 1e-4 to 1e-8."""
    generator = torch.Generator().manual_seed(seed)
    lattice = torch.randint(0, 3, (count, 6), generator=generator) * 4000
    return lattice + torch.randint(0, 2, (count, 6), generator=generator) + offset


@pytest.mark.parametrize(
    ("block", "offset", "strict"),
    [(32, 0, False), (32, -(10**7), True), (2048, 0, True), (2048, -(10**7), False)],
)
def test_near_ties_are_decided_exactly_far_from_the_origin_too(
    offset: int, strict: bool, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "BLOCK", block)
    monkeypatch.setattr(neighbours, "PANEL", 1000)
    whole = [near_ties(count, count, offset) for count in (40, 7, 150)]
    made = near_ties(130, 1, offset)
    check_exact([part.float() for part in whole], made.float(), strict)


def test_float32_alone_would_miscount_these(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, made = near_ties(150, 150, 0), near_ties(130, 1, 0)
    exact = by_definition(whole, made, 5, True)
    monkeypatch.setattr(pairwise, "_rounding", lambda x, dtype: 0.0)  # trust every comparison
    monkeypatch.setattr(neighbours, "widths", lambda x, i, y, j, dtype: torch.zeros((), dtype=torch.float64))
    naive = ManifoldReference.from_features([whole.float()], strict=True).score(made.float(), errors=False)
    assert naive["density"].values["all"] != pytest.approx(exact["density"], rel=1e-6)


def test_clients_far_apart_and_of_other_scales() -> None:
    sets = [
        torch.cat(
            [near_ties(count, count, 0), near_ties(count, count + 1, 10**8), near_ties(count, count + 2, 0) * 10**4]
        )
        for count in (60, 30)
    ]
    check_exact([part.double() for part in sets[0].split(60)], sets[1].double(), strict=False)


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e25])
def test_scores_do_not_depend_on_the_features_scale(scale: float) -> None:
    plain, scaled = (
        ManifoldReference.from_features([part * s for part in CLIENTS]).score(GENERATED * s) for s in (1.0, scale)
    )
    for name in NAMES:
        assert scaled[name].values == pytest.approx(plain[name].values, rel=1e-12)


@pytest.mark.parametrize("precision", ["medium", "highest"])
def test_counts_do_not_depend_on_the_precision_that_training_uses(precision: str) -> None:
    real, made = draw(300, 1, dim=512).float(), draw(300, 2, dim=512).float()
    expected = ManifoldReference.from_features([real]).score(made)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = ManifoldReference.from_features([real]).score(made)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)
    for name in NAMES:
        assert found[name].values == expected[name].values


def test_bounds_hold_the_exact_distance_between_them() -> None:
    for dtype in (torch.float32, torch.float64):
        x, y = neighbours.Points(draw(200, 1, 3.0, 100.0, 64)), neighbours.Points(draw(150, 2, 0.1, 100.0, 64))
        y = neighbours.Points(y.features, x.origin)
        low = neighbours.lower_bounds(x, slice(0, 200), y, slice(0, 150), dtype).double()
        i, j = torch.meshgrid(torch.arange(200), torch.arange(150), indexing="ij")
        exact = neighbours.exact_squares(x, i.flatten(), y, j.flatten()).view(200, 150)
        assert (low <= exact).all()
        assert (low + neighbours.widths(x, i, y, j, dtype) >= exact).all()
        expected = (x.features[:, None] - y.features).square().sum(2)
        torch.testing.assert_close(exact, expected, rtol=1e-13, atol=0)


def test_distances_of_a_pair_do_not_depend_on_the_others() -> None:
    x = neighbours.Points(draw(700, 1, dim=129).float())
    i, j = torch.arange(700), torch.arange(699, -1, -1)
    together = neighbours.exact_squares(x, i, x, j)
    assert torch.equal(together, together.flip(0))
    assert all(float(neighbours.exact_squares(x, i[p : p + 1], x, j[p : p + 1])) == together[p] for p in (0, 3, 699))


def test_identical_images_are_outside_their_own_balls_only_by_the_strict_rule() -> None:
    real = torch.ones(8, 3).repeat(40, 1)
    for strict, value in ((False, 1.0), (True, 0.0)):
        scores = ManifoldReference.from_features([real, real[:20]], strict=strict).score(real[:100])
        expected = dict.fromkeys(NAMES, value) | {"density": 320 / 5 * value}
        assert {name: float(score.per_client[0]) for name, score in scores.items()} == expected
    assert compute_prdc(real.numpy(), real[:100].numpy(), 5)["coverage"] == 0


@pytest.mark.parametrize("strict", [False, True])
def test_images_with_copies_and_a_collapsed_generator(strict: bool) -> None:
    whole = [near_ties(30, 1, 0).repeat_interleave(torch.arange(30) % 25 + 1, 0), near_ties(30, 2, 0)]
    for made in (whole[0][:1].repeat(200, 1), torch.cat([whole[1], whole[0][:50]])):
        check_exact([part.float() for part in whole], made.float(), strict)


def test_recall_avg_is_recall_all_by_numbers_of_images_only() -> None:
    for made in (GENERATED, GENERATED[:30] * 0.5, GENERATED + 0.7):
        score = ManifoldReference.from_features(CLIENTS).score(made)["recall"]
        assert score.values["avg"] == pytest.approx(score.values["all"], rel=1e-14)
        assert score.error_parts["generated"]["avg"] == pytest.approx(score.error_parts["generated"]["all"], rel=1e-9)
    uniform = ManifoldReference.from_features(CLIENTS, weights="uniform").score(GENERATED[:30] * 0.5)
    score = uniform["recall"]
    assert abs(score.values["avg"] - score.values["all"]) > 0.01
    plain = ManifoldReference.from_features(CLIENTS).score(GENERATED[:30] * 0.5)
    for name in NAMES:  # the pool is the union whatever the weights
        assert uniform[name].values["all"] == plain[name].values["all"]


def test_higher_is_better_and_the_worst_client_is_the_smallest() -> None:
    for score in ManifoldReference.from_features(CLIENTS).score(GENERATED).values():
        assert score.higher_is_better
        assert score.values["worst"] == float(score.per_client.min())


def test_one_client_is_its_own_pool() -> None:
    for score in ManifoldReference.from_features(CLIENTS[:1]).score(GENERATED).values():
        assert len({score.values[key] for key in KEYS}) == 1
        assert score.errors["avg"] == pytest.approx(score.errors["all"], rel=1e-12)


def without_each(images: Tensor) -> list[Tensor]:
    return [torch.cat([images[:place], images[place + 1 :]]) for place in range(len(images))]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("tied", first_quick([False, True]))
def test_errors_are_the_jackknife_exactly(strict: bool, tied: bool) -> None:
    clients = [draw(10, 1, dim=2), draw(7, 2, 2, 1, dim=2), draw(9, 3, 0.5, dim=2)]
    made, weights = draw(11, 4, 1.5, dim=2), [0.5, 0.2, 0.3]
    if tied:
        clients, made = [part.round() for part in clients], made.round()

    def values(parts: list[Tensor], images: Tensor) -> Tensor:
        scores = ManifoldReference.from_features(parts, 3, weights, strict).score(images, errors=False)
        return torch.tensor([[scores[name].values[key] for key in ("avg", "all")] for name in NAMES])

    found = ManifoldReference.from_features(clients, 3, weights, strict).score(made)
    over_made = jackknife_variance(torch.stack([values(clients, part) for part in without_each(made)], -1)).sqrt()
    over_real = torch.zeros(4, 2, dtype=torch.float64)
    for place, client in enumerate(clients):
        curves = [values([*clients[:place], part, *clients[place + 1 :]], made) for part in without_each(client)]
        over_real += jackknife_variance(torch.stack(curves, -1)).double()
    for place, name in enumerate(NAMES):
        parts = found[name].error_parts
        for column, key in enumerate(("avg", "all")):
            assert parts["generated"][key] == pytest.approx(float(over_made[place, column]), rel=1e-4, abs=1e-6)
            assert parts["real"][key] == pytest.approx(float(over_real[place, column]) ** 0.5, rel=1e-4, abs=1e-6)
        worst = int(found[name].per_client.argmin())
        squares = sum(part["worst"] ** 2 for part in parts.values())
        assert float(found[name].client_errors[worst]) ** 2 == pytest.approx(squares)


@pytest.mark.slow
def test_errors_cover_the_spread_of_repeated_draws() -> None:
    dim, draws = 6, 60
    sizes, made = (150, 80), draw(200, 1, 0.9, 0.2, dim)
    fixed = [draw(size, size, 1.0, size / 400, dim) for size in sizes]
    varied = {
        "real": [([draw(s, s + 1000 * t, 1.0, s / 400, dim) for s in sizes], made) for t in range(1, draws)],
        "generated": [(fixed, draw(200, 1000 * t, 0.9, 0.2, dim)) for t in range(1, draws)],
    }
    right = {("recall", "real"), ("precision", "generated"), ("density", "generated")}
    for side, pairs in varied.items():
        scores = [ManifoldReference.from_features(clients).score(images) for clients, images in pairs]
        for name in NAMES:
            for key in ("avg", "all"):
                spread = np.std([score[name].values[key] for score in scores])
                stated = np.mean([score[name].error_parts[side][key] ** 2 for score in scores]) ** 0.5
                most = 1.25 if (name, side) in right else 2.4
                assert 0.8 < stated / spread < most, (name, side, key, stated / spread)


def test_a_client_of_k_plus_one_images_keeps_its_radii() -> None:
    scores = ManifoldReference.from_features([CLIENTS[0], CLIENTS[1][:6]]).score(GENERATED)
    expected = by_definition(CLIENTS[1][:6], GENERATED, 5, False)
    for name in NAMES:
        assert float(scores[name].per_client[1]) == pytest.approx(expected[name])
        assert np.isfinite(list(scores[name].errors.values())).all()


def test_bad_input_is_refused_by_name() -> None:
    reference = ManifoldReference.from_features(CLIENTS)
    with pytest.raises(ValueError, match="lower"):
        ManifoldReference.from_features([CLIENTS[0], CLIENTS[1][:5]])
    with pytest.raises(ValueError, match="generated"):
        reference.score(GENERATED[:3])
    with pytest.raises(ValueError, match="NaN"):
        ManifoldReference.from_features([CLIENTS[0], CLIENTS[1] * torch.nan])
    with pytest.raises(ValueError, match="NaN"):
        reference.score(GENERATED * torch.inf)
    with pytest.raises(ValueError, match="features"):
        ManifoldReference.from_features([CLIENTS[0], CLIENTS[1][:, :4]])
    with pytest.raises(ValueError, match="embedding"):
        reference.score(GENERATED[:, :4])
    with pytest.raises(ValueError, match="weight"):
        ManifoldReference.from_features(CLIENTS, weights=[1, 1, 0])
    with pytest.raises(ValueError, match="at least one client"):
        ManifoldReference.from_features([])
    with pytest.raises(ValueError, match="overflow"):
        ManifoldReference.from_features([CLIENTS[0] * 1e160])
    for k in (0, 2.5):
        with pytest.raises(ValueError, match="whole"):
            ManifoldReference.from_features(CLIENTS, k=k)
