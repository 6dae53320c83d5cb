"""FLD against a plain implementation by autograd, identities, and generators with and without memory."""

import math

import pytest
import torch
from torch import Tensor

from fedgen.evaluation.score_choice import choose
from fedgen.scores import FeatureLikelihoodReference
from fedgen.scores.manifold.feature_likelihood import AdaptiveDensity
from fedgen.seeds import generator

DIM = 6


def draw(count: int, random: torch.Generator, shift: float = 0.0) -> Tensor:
    return torch.randn(count, DIM, generator=random, dtype=torch.float64) + shift


def normals(x: Tensor, centres: Tensor, log_variances: Tensor) -> Tensor:
    """Log-densities [n, m] of isotropic normals, by torch's own distribution."""
    deviations = (log_variances / 2).exp().unsqueeze(1)
    return torch.distributions.Normal(centres, deviations, validate_args=False).log_prob(x.unsqueeze(1)).sum(2)


def plain_losses(centres: Tensor, train: Tensor, held_out: Tensor) -> Tensor:
    """-log density / D of held-out images, with the fit by autograd of the loss as it is written down."""
    dim, count = train.shape[1], len(centres)
    nearest = torch.cdist(train, centres, compute_mode="donot_use_mm_for_euclid_dist").square().min(0).values
    logs = ((nearest + 1e-3) / dim).log().requires_grad_()
    broad = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    mean = train.mean(0, keepdim=True)
    optimizer = torch.optim.Adam([logs, broad], lr=0.5)
    losses: list[float] = []
    for number in range(50):
        optimizer.zero_grad()
        away = normals(mean + 0.9 * (train - mean), mean, broad)
        both = torch.cat([normals(train, centres, logs) - math.log(count), away], 1)
        loss = -both.logsumexp(1).mean() / dim
        loss.backward()
        optimizer.step()
        logs.data.clamp_(-40, 40)
        losses.append(float(loss.detach()))
        if number > 5 and max(abs(one - losses[-1]) for one in losses[-5:]) < 5e-4:
            break
    return -(normals(held_out, centres, logs.detach()).logsumexp(1) - math.log(count)) / dim


def plain(generated: Tensor, train: Tensor, held_out: Tensor, seed: int = 0) -> float:
    mean, deviation = held_out.mean(0), held_out.std(0)
    made, own, other = ((part - mean) / deviation for part in (generated, train, held_out))
    draws = generator(seed, "halves of training images")
    ranked = (own @ torch.randn(own.shape[1], generator=draws, dtype=torch.float64)).argsort()
    size = min(len(made), len(own) // 2)
    baselines = []
    for _ in range(8):
        halves = ranked[torch.randperm(len(own), generator=draws)]
        baselines.append(plain_losses(own[halves[:size]], own[halves[size:]], other).mean())
    return 100 * float(plain_losses(made, own, other).mean() - sum(baselines) / 8)


@pytest.mark.slow
@pytest.mark.parametrize("count", [15, 60])  # fewer and more than half of the training images
def test_values_are_those_of_a_plain_implementation(count: int) -> None:
    random = torch.Generator().manual_seed(0)
    train, held_out = [draw(50, random), draw(31, random, 1.0)], [draw(20, random), draw(25, random, 1.0)]
    made = draw(count, random, 0.5)
    made[:3] = train[0][:3]
    score = FeatureLikelihoodReference.from_features(train, held_out, seed=7).score(made)
    assert (score.name, score.higher_is_better) == ("fld", False)
    expected = [plain(made, *pair, seed=7) for pair in zip(train, held_out)]
    assert score.per_client.tolist() == pytest.approx(expected, rel=1e-4, abs=1e-3)  # distances are kept in float32
    assert score.values["all"] == pytest.approx(plain(made, torch.cat(train), torch.cat(held_out), 7), rel=1e-4)
    assert score.values["avg"] == pytest.approx((50 * expected[0] + 31 * expected[1]) / 81, rel=1e-4)
    assert score.values["worst"] == float(score.per_client.max())


def test_the_density_integrates_to_one() -> None:
    random = torch.Generator().manual_seed(1)
    density = AdaptiveDensity(*(torch.randn(count, 1, generator=random).double() for count in (20, 40)))
    places = torch.linspace(-60, 60, 100_001, dtype=torch.float64)
    total = torch.trapezoid(density.log_density(places.unsqueeze(1)).exp(), places)
    assert float(total) == pytest.approx(1, rel=1e-3)


def test_a_normal_alone_has_the_variance_that_is_likeliest() -> None:
    train = torch.tensor([[-1.0], [1.0]]).double().repeat(50, 1)  # of variance 1
    density = AdaptiveDensity(torch.zeros(1, 1).double(), train)
    assert float(density.log_variances.exp()) == pytest.approx(1, rel=0.1)  # the loss is within 5e-4
    assert float(density.log_density(torch.zeros(1, 1).double()).exp()) == pytest.approx(
        (2 * math.pi) ** -0.5, rel=0.05
    )


@pytest.mark.slow
def test_scales_of_features_order_and_constant_features_do_not_matter() -> None:
    random = torch.Generator().manual_seed(2)
    train, held_out, made = draw(40, random), draw(30, random), draw(35, random)
    value = FeatureLikelihoodReference.from_features([train], [held_out]).score(made).values["all"]
    scales, shift = torch.rand(DIM, generator=random).double() * 9 + 0.1, draw(1, random)
    scaled = FeatureLikelihoodReference.from_features([train * scales + shift], [held_out * scales + shift])
    assert scaled.score(made * scales + shift).values["all"] == pytest.approx(value, rel=1e-4, abs=1e-3)
    turned = FeatureLikelihoodReference.from_features([train], [held_out.flip(0)]).score(made.flip(0))
    assert turned.values["all"] == pytest.approx(value, rel=1e-4, abs=1e-3)
    wider = [torch.cat([part, torch.full((len(part), 2), 0.1).double()], 1) for part in (train, held_out, made)]
    wide = FeatureLikelihoodReference.from_features([wider[0]], [wider[1]]).score(wider[2])
    assert wide.values["all"] == pytest.approx(value, rel=1e-9)


@pytest.mark.slow
def test_the_same_generated_set_has_the_same_bits_and_batches_are_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(3)
    reference = FeatureLikelihoodReference.from_features([draw(60, random)], [draw(20, random)])
    made, smaller = draw(50, random), draw(20, random)
    first = reference.score(made).values
    reference.score(smaller)
    assert reference.score(made).values == first
    monkeypatch.setattr("fedgen.scores.manifold.feature_likelihood.ROWS", 7)
    assert reference.score(made).values["all"] == pytest.approx(first["all"], rel=1e-6)
    monkeypatch.setattr("fedgen.scores.manifold.feature_likelihood.BATCH", 20)
    assert reference.score(made).values["all"] != pytest.approx(first["all"], rel=1e-3)


@pytest.mark.slow
def test_a_generator_that_memorises_is_told_from_one_that_cannot() -> None:
    random = torch.Generator().manual_seed(4)
    train, held_out = [draw(300, random), draw(100, random, 2.0)], [draw(300, random), draw(100, random, 2.0)]
    reference = FeatureLikelihoodReference.from_features(train, held_out)
    copies = torch.cat(train)[torch.randperm(400, generator=random)[:200]]
    fresh = reference.score(torch.cat([draw(150, random), draw(50, random, 2.0)]))
    near = reference.score(copies + 0.02 * draw(200, random))
    exact = reference.score(copies)
    assert abs(fresh.values["all"]) < 10
    assert near.values["all"] - 3 * near.errors["all"] > fresh.values["all"] + 3 * fresh.errors["all"]
    assert near.values["all"] > 100
    assert exact.values["all"] > near.values["all"]
    assert near.values["avg"] > fresh.values["avg"] + 50
    shifted = reference.score(draw(200, random, 4.0))  # no copies, but off the data
    assert shifted.values["all"] > fresh.values["all"] + 3 * fresh.errors["all"]


@pytest.mark.slow
def test_values_do_not_depend_on_the_order_of_images_or_clients_nor_halves_on_rounding() -> None:
    random = torch.Generator().manual_seed(7)
    train, held_out = [draw(60, random), draw(40, random, 1.0)], [draw(30, random), draw(50, random, 1.0)]
    train[1][:5] = train[1][5]  # copies
    made, make = draw(50, random, 0.3), FeatureLikelihoodReference.from_features
    score = make(train, held_out).score(made)
    shuffled = [[part[torch.randperm(len(part), generator=random)] for part in side] for side in (train, held_out)]
    other = make(*(side[::-1] for side in shuffled)).score(made.flip(0))
    assert other.values == pytest.approx(score.values, rel=1e-6)
    assert other.errors == pytest.approx(score.errors, rel=1e-6)
    assert other.client_errors.flip(0).tolist() == pytest.approx(score.client_errors.tolist(), rel=1e-6)
    rounded = [[part * (1 + 1e-6 * torch.randn(part.shape, generator=random)) for part in side] for side in shuffled]
    assert make(*rounded).score(made).values == pytest.approx(score.values, abs=0.01)


@pytest.mark.slow
def test_held_out_images_in_a_generators_place_score_as_fresh_ones_do_below_0_where_clients_are_small() -> None:
    random = torch.Generator().manual_seed(8)
    train, held_out = ([draw(100, random) for _ in range(4)] for _ in range(2))
    reference = FeatureLikelihoodReference.from_features(train, held_out)
    fresh, floor = reference.score(draw(400, random)), reference.score(torch.cat(held_out).flip(0), real=True)
    for how in ("avg", "all"):
        assert abs(floor.values[how] - fresh.values[how]) < 4 * fresh.errors[how]
        assert reference.score(torch.cat(held_out)).values[how] < fresh.values[how] - 8  # each finds itself
    assert fresh.values["avg"] == pytest.approx(-5, abs=0.3)  # half of 100 images says less than 400 images do


@pytest.mark.slow
@pytest.mark.parametrize("held", [50, 400])  # spread by held-out images and halves, and nearly by halves alone
def test_errors_are_the_spread_over_held_out_images_and_halves(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgen.scores.manifold.feature_likelihood.PASSES", 2)  # true of any density, fitted or not
    random = torch.Generator().manual_seed(5)
    train, made = [draw(60, random), draw(40, random, 1.0)], draw(50, random, 0.3)
    scores = []
    for seed in range(25):
        held_out = [draw(held, random), draw(held, random, 1.0)]
        scores.append(FeatureLikelihoodReference.from_features(train, held_out, seed=seed).score(made))
    for key in ("avg", "all"):
        values = torch.tensor([score.values[key] for score in scores])
        errors = torch.tensor([score.errors[key] for score in scores])
        assert 0.75 < float(values.std() / errors.square().mean().sqrt()) < 1.25, key
        covered = (values - values.mean()).abs() < 2 * errors
        assert float(covered.double().mean()) > 0.88


@pytest.mark.slow
def test_errors_of_avg_hold_the_halves_of_all_clients_as_those_of_one_client_do() -> None:
    """Of one client avg and worst are its score; of two, whose halves are drawn alike, avg has the least error."""
    draws = torch.Generator().manual_seed(1)
    train, held_out, made = (torch.randn(2, n, 3, generator=draws) for n in (20, 200, 30))
    alone = [FeatureLikelihoodReference.from_features([t], [h]).score(made[0]) for t, h in zip(train, held_out)]
    for score in alone:
        assert score.client_errors is not None
        assert score.errors["avg"] == pytest.approx(float(score.client_errors), rel=1e-12) == score.errors["worst"]
    both = FeatureLikelihoodReference.from_features(list(train), list(held_out)).score(made[0])
    single = [score.errors["avg"] for score in alone]
    assert both.errors["avg"] <= sum(single) / 2


def test_what_cannot_be_compared_is_refused() -> None:
    random = torch.Generator().manual_seed(6)
    one, two, make = draw(5, random), draw(6, random), FeatureLikelihoodReference.from_features
    with pytest.raises(ValueError, match="held"):
        make([one, two], [one])
    with pytest.raises(ValueError, match="FLD"):
        make([one, two], [one, two[:1]])
    with pytest.raises(ValueError, match="features"):
        make([one], [two[:, :3]])
    with pytest.raises(ValueError, match="alike"):
        make([one, two], [one, two[:1].repeat(3, 1)])
    with pytest.raises(ValueError, match="weight"):
        make([one, two], [one, two], [1.0, 0.0])
    with pytest.raises(ValueError, match="features"):
        make([one], [two]).score(two[:, :3])
    with pytest.raises(ValueError, match="whole"):
        choose({"name": "fld", "seed": -1})
