"""The Fréchet distance without the bias of few images: closed forms, differences, draws of known populations."""

import math

import mpmath
import pytest
import torch

from fedgen.metrics import FederatedFrechetDistance, FrechetDistance
from fedgen.scores import ClientSide, FrechetReference, GeneratedSet, frechet_distance
from fedgen.scores.frechet.corrected import corrected_traces, effective_count, marks_of
from fedgen.scores.frechet.frechet import CorrectedFrechetScore, FrechetScore
from fedgen.statistics import Gaussian, Projection, pool, summarize

DIM = 24
SCALES = (1 / torch.arange(1, DIM + 1, dtype=torch.float64)).sqrt()


def drawn(count, seed, scale=1.0, dim=DIM):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator, dtype=torch.float64) * SCALES[:dim] * scale


def trace(values, first, second):
    values = torch.as_tensor(values, dtype=torch.float64).view(1, -1)
    return float(corrected_traces(values, torch.tensor([float(first)], dtype=torch.float64), float(second))[0])


def zeros_of_psi(values, freedom):
    """The eigenvalues of diag(l) - sqrt(l) sqrt(l)^T / N: where 1 - 1/N sum l / (l - z) is 0."""
    values = torch.as_tensor(values, dtype=torch.float64)
    return torch.linalg.eigvalsh(values.diag() - torch.outer(values.sqrt(), values.sqrt()) / freedom)


@pytest.mark.parametrize("freedom", [6, 9, 40])
def test_at_equal_numbers_it_is_the_closed_form(freedom):
    values = torch.tensor([0.02, 0.3, 1.0, 1.7, 12.0], dtype=torch.float64)
    expected = 2 * freedom * (values.sqrt().sum() - zeros_of_psi(values, freedom).sqrt().sum())
    assert trace(values, freedom, freedom) == pytest.approx(float(expected), rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(6, 11), (11, 6), (8, 40)])
def test_at_other_numbers_it_is_the_integral_along_the_cuts(first, second):
    """The contour drawn in to the l_i and to the cuts between zeros of psi_1 and psi_2, in mpmath."""
    values = [0.5, 1.2, 3.0]
    with mpmath.workdps(30):
        exact = [mpmath.mpf(value) for value in values]

        def psi(z, freedom):
            return 1 - sum(one / (one - z) for one in exact) / freedom

        def height(z):
            fall = -sum(one / (one - z) ** 2 for one in exact) / second
            return mpmath.sqrt(abs(z * psi(z, second) / psi(z, first))) * fall / psi(z, second)

        along = mpmath.mpf(0)
        for starts in zip(*(zeros_of_psi(values, freedom).tolist() for freedom in (first, second))):
            ends = [mpmath.findroot(lambda z, n=n: psi(z, n), x) for x, n in zip(starts, (first, second))]
            along += mpmath.quad(height, [min(ends), sum(ends) / 2, max(ends)])
        poles = 2 * mpmath.sqrt(first * second) * sum(map(mpmath.sqrt, exact))
        expected = poles + mpmath.sign(second - first) * 2 * second / mpmath.pi * along
    assert trace(values, first, second) == pytest.approx(float(expected), rel=1e-12)


def test_both_sides_may_change_places_and_many_images_need_no_correction():
    values = torch.rand(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert trace(values, 60, 300) == pytest.approx(trace(values, 300, 60), rel=1e-9)
    assert trace(values, 1e9, 1e9) == pytest.approx(float(values.sqrt().sum()), rel=1e-7)


@pytest.mark.parametrize("condition", [1e2, 1e10, 1e16])
def test_it_scales_as_a_deviation_does_whatever_the_condition(condition):
    values = torch.logspace(0, -math.log10(condition), 30, dtype=torch.float64)
    assert trace(values * 1e20, 50, 70) == pytest.approx(1e10 * trace(values, 50, 70), rel=1e-9)
    assert 0 < trace(values, 50, 70) > float(values.sqrt().sum())


def test_slopes_are_differences():
    values = torch.rand(1, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64).sort().values
    numbers = torch.tensor([19.0], dtype=torch.float64), 50.0
    _, slopes = corrected_traces(values, *numbers, slopes=True)
    for place in range(12):
        step = torch.zeros_like(values)
        step[0, place] = 1e-5 * values[0, place]
        up, down = (float(corrected_traces(values + way * step, *numbers)[0]) for way in (1, -1))
        assert float(slopes[0, place]) == pytest.approx((up - down) / (2 * float(step.sum())), rel=1e-6)


@pytest.mark.parametrize(("first", "second", "size"), [(30, 30, 1.5), (48, 48, 1.0), (36, 400, 1.5), (36, 400, 1.0)])
def test_of_gaussians_the_bias_is_off(first, second, size):
    truth = float((SCALES.square() * (1 - size) ** 2).sum())
    pairs = [(summarize(drawn(first, 2 * k)), summarize(drawn(second, 2 * k + 1, size))) for k in range(60)]
    plain, corrected = (
        torch.tensor([frechet_distance(a, b, bias=bias)[0] for a, b in pairs]) for bias in ("plug-in", "corrected")
    )
    assert plain.mean() - truth > 0.15
    assert abs(corrected.mean() - truth) < 0.08 * (plain.mean() - truth) + 3 * corrected.std() / 60**0.5


def test_terms_add_up_and_the_mean_term_has_no_bias_either():
    found = []
    for seed in range(100):
        value, terms = frechet_distance(summarize(drawn(30, seed)), summarize(drawn(40, seed + 1000)), bias="corrected")
        assert value == pytest.approx(sum(terms.values()), abs=1e-14)
        found.append(terms["mean"])
    found = torch.tensor(found)
    assert abs(found.mean()) < 3 * found.std() / len(found) ** 0.5


def test_directions_without_variance_need_no_images():
    dead = torch.cat([drawn(30, 1), torch.zeros(30, 60, dtype=torch.float64)], 1)
    other = torch.cat([drawn(50, 2), torch.zeros(50, 60, dtype=torch.float64)], 1)
    alone = frechet_distance(summarize(drawn(30, 1)), summarize(drawn(50, 2)), bias="corrected")[0]
    assert frechet_distance(summarize(dead), summarize(other), bias="corrected")[0] == pytest.approx(alone, rel=1e-6)
    assert FrechetReference.from_features([dead], bias="corrected").score(other).values["all"] == pytest.approx(
        alone, rel=1e-6
    )


@pytest.mark.parametrize(("first", "second"), [(25, 50), (50, 25), (10, 50), (25, 25)])
def test_too_few_images_are_refused_with_the_least_number(first, second):
    a, b = summarize(drawn(first, 1)), summarize(drawn(second, 2))
    least = min(DIM, first - 1, second - 1) + 2
    with pytest.raises(ValueError, match=f"at least {least}"):
        frechet_distance(a, b, bias="corrected")
    assert math.isfinite(frechet_distance(summarize(drawn(26, 1)), summarize(drawn(26, 2)), bias="corrected")[0])


def test_a_client_of_too_few_images_is_named_before_anything_is_scored():
    with pytest.raises(ValueError, match=r"client 1 has 20 images.* at least 26"):
        FrechetReference.from_features([drawn(60, 0), drawn(20, 1)], bias="corrected")
    dead = torch.cat([drawn(60, 0), torch.zeros(60, 60, dtype=torch.float64)], 1)
    reference = FrechetReference.from_features([dead], bias="corrected")
    for errors in (False, True):
        with pytest.raises(ValueError, match="the generated set has 20 images"):
            reference.score(dead[:20], errors)


def test_other_words_and_the_other_divisor_are_refused():
    a, b = summarize(drawn(40, 1)), summarize(drawn(40, 2))
    with pytest.raises(ValueError, match="bias"):
        frechet_distance(a, b, bias="none")
    for call in (
        lambda: frechet_distance(a, b, ddof=0, bias="corrected"),
        lambda: FrechetReference.from_features([drawn(40, 1)], ddof=0, bias="corrected"),
        lambda: CorrectedFrechetScore(ddof=0),
    ):
        with pytest.raises(ValueError, match="ddof"):
            call()


CLIENTS = [drawn(30, 1), drawn(45, 2, 1.2) + 0.3, drawn(70, 3, 0.8)]
GENERATED = drawn(64, 4, 1.1)


@pytest.mark.parametrize("weights", ["examples", "uniform", [0.2, 0.5, 0.3]])
def test_clients_and_pool_are_the_distances_one_by_one(weights):
    score = FrechetReference.from_features(CLIENTS, weights, bias="corrected").score(GENERATED)
    sides = [*map(summarize, CLIENTS)]
    sides.append(pool(sides, None if weights == "examples" else score_weights(weights)))
    expected = [frechet_distance(side, summarize(GENERATED), bias="corrected")[0] for side in sides]
    assert score.name == "fidc"
    assert score.per_client.tolist() == pytest.approx(expected[:3], rel=1e-9)
    assert score.values["all"] == pytest.approx(expected[3], rel=1e-9)
    summaries = FrechetReference.from_summaries(map(summarize, CLIENTS), weights, bias="corrected")
    assert summaries.score(summarize(GENERATED)).values == pytest.approx(score.values, rel=1e-9)


def score_weights(weights):
    return [1 / 3] * 3 if weights == "uniform" else weights


def test_many_clients_in_batches_give_what_each_gives_alone():
    clients = [drawn(30 + k % 7, k) for k in range(20)]
    score = FrechetReference.from_features(clients, bias="corrected").score(GENERATED)
    alone = [frechet_distance(summarize(c), summarize(GENERATED), bias="corrected")[0] for c in clients]
    assert score.per_client.tolist() == pytest.approx(alone, rel=1e-8)


@pytest.mark.slow
def test_errors_are_the_spread_of_repeated_draws_away_from_zero():
    values, errors = [], []
    for seed in range(50):
        clients = [drawn(60, 3 * seed), drawn(90, 3 * seed + 1) + 0.2]
        score = FrechetReference.from_features(clients, bias="corrected").score(drawn(120, 3 * seed + 2, 2.0))
        values.append([score.values[how] for how in ("avg", "all")])
        errors.append([score.errors[how] for how in ("avg", "all")])
    ratios = torch.tensor(errors).square().mean(0).sqrt() / torch.tensor(values).std(0)
    assert all(0.75 < ratio < 1.3 for ratio in ratios.tolist())


def test_errors_follow_from_differences_of_single_images():
    """The infinitesimal jackknife by hand: a generated image's weight moves a little."""
    summary, shares = summarize(CLIENTS[0]), torch.full((64,), 1 / 64, dtype=torch.float64)

    def value(weights):
        mean = weights @ GENERATED
        deviations = GENERATED - mean
        scatter = 64 * (deviations.T * weights) @ deviations
        return frechet_distance(summary, Gaussian(64, mean, scatter=scatter), bias="corrected")[0]

    step, centre = 1e-5, value(shares)
    influence = []
    for image in range(64):
        moved = shares * (1 - step)
        moved[image] += step
        influence.append((value(moved) - centre) / step)
    expected = (torch.tensor(influence).var() / 64).sqrt()
    score = FrechetReference.from_features([CLIENTS[0]], bias="corrected").score(GENERATED)
    assert score.error_parts["generated"]["all"] == pytest.approx(float(expected), rel=1e-3)


@pytest.mark.parametrize("repeated", [torch.arange(50).repeat(2), torch.arange(100) % 60])
def test_images_that_occur_twice_count_once(repeated):
    images = drawn(100, 5)[repeated]
    times = repeated.bincount().double()
    assert effective_count(marks_of(images)) == pytest.approx(float(times.sum() ** 2 / times.square().sum()))
    noisy = images.float() * (1 + 1e-7 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0)))
    assert effective_count(marks_of(noisy)) == pytest.approx(effective_count(marks_of(images)))


@pytest.mark.slow
def test_without_counting_them_repeated_images_of_clients_would_bring_the_bias_back():
    counted, plain = [], []
    for seed in range(40):
        real, images = drawn(50, 2 * seed).repeat(2, 1), drawn(100, 2 * seed + 1)
        score = FrechetReference.from_features([real], bias="corrected").score(images)
        counted.append(score.values["all"])
        plain.append(frechet_distance(summarize(real), summarize(images), bias="corrected")[0])
    assert sum(plain) / 40 > 0.2
    assert abs(sum(counted) / 40) < 0.05
    assert score.notes == ("images of 1 of 1 clients occur twice, and count once",)


@pytest.mark.parametrize("different", [30, 200])
def test_a_generator_that_repeats_itself_is_as_far_as_its_law_is(different):
    """Its images are draws of a few: as a small sample of another law it would have no distance at all."""
    found, law = [], []
    for seed in range(10):
        images = drawn(different, 2 * seed + 1)
        chosen = torch.randint(different, (1000,), generator=torch.Generator().manual_seed(seed))
        score = FrechetReference.from_features([drawn(1000, 2 * seed)], bias="corrected").score(images[chosen], False)
        found.append(score.values["all"])
        own = images - images.mean(0)
        cross = SCALES.unsqueeze(1) * (own.T @ own / different) * SCALES
        roots = torch.linalg.eigvalsh(cross).clamp(min=0).sqrt().sum()
        law.append(float(images.mean(0).square().sum() + own.square().sum() / different + SCALES @ SCALES - 2 * roots))
    assert sum(found) == pytest.approx(sum(law), rel=0.1)
    assert "of 1,000 generated images about" in score.notes[0]


def test_a_collapsed_generator_has_a_score_all_the_same():
    reference = FrechetReference.from_features(CLIENTS, bias="corrected")
    for made in (GENERATED[:1].repeat(64, 1), GENERATED[:9].repeat(8, 1)):
        for errors in (False, True):
            assert all(math.isfinite(value) for value in reference.score(made, errors).values.values())


def test_one_pass_gives_both_and_the_plain_distance_to_the_bit():
    side = ClientSide(CLIENTS, "examples", asked=("fid", "fidc"))
    both = FrechetScore().fit(side).score(GeneratedSet(GENERATED), errors=True)
    plain = FrechetReference.from_features(CLIENTS).score(GENERATED)
    corrected = FrechetReference.from_features(CLIENTS, bias="corrected").score(GENERATED)
    assert both["fid"].values == plain.values
    assert both["fid"].errors == plain.errors
    assert both["fidc"].values == corrected.values
    assert both["fidc"].errors == corrected.errors
    assert FrechetScore().same_pass(CorrectedFrechetScore())
    assert CorrectedFrechetScore().fit(ClientSide(CLIENTS, "examples")).score(GeneratedSet(GENERATED), True).keys() == {
        "fidc"
    }


def test_copies_of_real_images_raise_an_alarm():
    real = torch.cat([drawn(60, 11), drawn(60, 12)])
    reference = FrechetReference.from_features([real[:60], real[60:]], bias="corrected")
    assert reference.score(drawn(120, 13)).notes == ()
    (said,) = reference.score(real).notes
    assert "fidc_all below 0" in said
    assert "fedgen audit" in said


def test_on_a_public_projection_summaries_and_features_agree():
    projection = Projection.fit(drawn(500, 20), 6)
    few = [drawn(15, 21), drawn(18, 22)]
    ours = FrechetReference.from_features(map(projection.project, few), bias="corrected")
    theirs = FrechetReference.from_summaries([projection.project_summary(summarize(c)) for c in few], bias="corrected")
    made = projection.project(GENERATED)
    assert theirs.score(made, False).values == pytest.approx(ours.score(made, False).values, rel=1e-8)


def test_metrics_have_it_by_one_option():
    one, many = FrechetDistance(bias="corrected"), FederatedFrechetDistance(3, aggregate="all", bias="corrected")
    for number, client in enumerate(CLIENTS):
        many.update(client, client=number)
    many.update(GENERATED, client=None)
    one.update(CLIENTS[0], real=True)
    one.update(GENERATED, real=False)
    expected = FrechetReference.from_features(CLIENTS, bias="corrected").score(GENERATED, errors=False)
    assert float(one.compute()) == pytest.approx(float(expected.per_client[0]), rel=1e-7)
    assert float(many.compute()) == pytest.approx(expected.values["all"], rel=1e-7)
    with pytest.raises(ValueError, match="ddof"):
        FrechetDistance(ddof=0, bias="corrected")


def test_a_client_of_weight_0_is_not_the_worst_though_others_lie_below_0():
    copied = drawn(300, 30) * 40
    reference = FrechetReference.from_features([copied, drawn(60, 31)], [1.0, 0.0], bias="corrected")
    score = reference.score(copied)
    assert score.per_client[0] < -1
    assert score.values["worst"] == score.per_client[0]
    assert score.errors["worst"] == pytest.approx(float(score.client_errors[0]))


@pytest.mark.parametrize("errors", [True, False])
def test_a_client_of_equal_images_has_the_distance_of_the_means_and_a_variance(errors):
    constant = torch.ones(60, DIM, dtype=torch.float64)
    score = FrechetReference.from_features([constant], bias="corrected").score(GENERATED, errors)
    expected = (GENERATED.mean(0) - 1).square().sum() + GENERATED.var(0, correction=0).sum()
    assert score.values["all"] == pytest.approx(float(expected))


def test_repeats_are_counted_where_another_client_is_known_by_its_statistics():
    draws = torch.Generator().manual_seed(0)
    repeats, single = (
        torch.randn(40, 3, generator=draws).double().repeat(3, 1),
        torch.randn(60, 3, generator=draws).double(),
    )
    known = FrechetReference([repeats, single], [0.7, 0.3], 1, ["corrected"])._different
    mixed = FrechetReference([repeats, summarize(single)], [0.7, 0.3], 1, ["corrected"])._different
    assert mixed == pytest.approx(known)
    assert mixed == pytest.approx([40, 60, 1 / (0.49 / 40 + 0.09 / 60)])
