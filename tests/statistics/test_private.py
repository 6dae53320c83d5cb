"""Clipped and noised sums: sensitivity, the noise's size and symmetry, and the summary that comes out."""

import math
from dataclasses import replace

import pytest
import torch
from scipy.stats import kstest

from fedgen.scores import FrechetReference, frechet_distance
from fedgen.statistics import (
    FixedPoint,
    Gaussian,
    Message,
    MessageError,
    Privacy,
    add,
    gaussian_from_message,
    mask,
    private_gaussian,
    private_sums,
    project_positive,
    summarize,
)
from fedgen.statistics.private import clip

PRIVACY = Privacy(epsilon=1.0, delta=1e-5, radius=3.0)
WEAK = Privacy(epsilon=1e6, delta=0.5, radius=100.0)  # next to no noise: what is left are the sums


def images(seed: int, count: int, dim: int = 5, scale: float = 0.5) -> torch.Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def change(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """L2 change of (sum x, sum x x^T) when y takes the place of x, for each of their rows [..., D]."""
    outer = x.unsqueeze(-1) * x.unsqueeze(-2) - y.unsqueeze(-1) * y.unsqueeze(-2)
    return ((x - y).square().sum(-1) + outer.square().sum((-2, -1))).sqrt()


def test_the_sensitivity_by_hand() -> None:
    assert replace(PRIVACY, count="public").sensitivity == pytest.approx(math.sqrt(90))
    assert PRIVACY.sensitivity == pytest.approx(math.sqrt(91))
    assert replace(PRIVACY, count="public", neighbours="replace").sensitivity == pytest.approx(math.sqrt(2) * 9.5)


@pytest.mark.parametrize("radius", [0.3, 0.7, 0.8, 1.0, 3.0])
def test_no_image_changes_the_sums_by_more_than_the_sensitivity_and_some_do(radius) -> None:
    add_one = Privacy(1.0, 1e-5, radius, count="public").sensitivity
    replace_one = Privacy(1.0, 1e-5, radius, "replace", "public").sensitivity
    x = torch.tensor([radius, 0.0], dtype=torch.float64)
    assert float(change(x, 0 * x)) == pytest.approx(add_one)
    angles = torch.linspace(0, math.pi, 721, dtype=torch.float64)
    around = radius * torch.stack([angles.cos(), angles.sin()], 1)
    found = [change(a * x, b * around).max() for a, b in ((1.0, 1.0), (1.0, 0.7), (0.4, 0.9))]
    assert max(found) <= replace_one * (1 + 1e-12)
    assert float(max(found)) == pytest.approx(replace_one, rel=1e-4)
    assert replace_one <= 2 * add_one


def test_images_beyond_the_radius_are_pulled_in_along_their_direction() -> None:
    points = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(clip(points, 2.5), torch.tensor([[1.5, 2.0], [0.3, 0.4], [0.0, 0.0]]))


def test_without_noise_to_speak_of_the_summary_is_the_images() -> None:
    parts = [images(1, 30) + 2, images(2, 50)]
    centre = torch.full((5,), 1.0, dtype=torch.float64)
    messages = [private_sums(part, WEAK, centre, seed=0, client=i) for i, part in enumerate(parts)]
    total = add(*(Message.from_bytes(message.to_bytes(), "private-sums") for message in messages))
    assert float(total.tensors["clients"]) == 2
    found, expected = private_gaussian(total, WEAK, centre), summarize(torch.cat(parts))
    noise = WEAK.sigma * 2**0.5
    assert abs(found.count - 80) < 5 * noise
    torch.testing.assert_close(found.mean, expected.mean, rtol=0, atol=noise)
    torch.testing.assert_close(found.covariance(), expected.covariance(), rtol=0, atol=noise)


def noises(privacy: Privacy, draws: int, client: int = 0, seed: int | None = 0) -> dict[str, torch.Tensor]:
    """The noise alone: messages of one image at the origin."""
    point = torch.zeros(1, 3)
    seeds = [None if seed is None else seed + i for i in range(draws)]
    found = [private_sums(point, privacy, seed=each, client=client).tensors for each in seeds]
    return {name: torch.stack([tensors[name] for tensors in found]) for name in found[0]}


@pytest.mark.slow
def test_the_noise_is_isotropic_in_the_norm_that_the_sensitivity_is_told_in() -> None:
    found, sigma = noises(PRIVACY, 700), PRIVACY.sigma
    assert sigma == pytest.approx(math.sqrt(91) * 3.7306, rel=1e-4)
    assert float(found["count"].std()) == pytest.approx(sigma, rel=0.08)
    assert float(found["sum"].std()) == pytest.approx(sigma, rel=0.04)
    outer = found["outer"].std(0) / sigma
    expected = torch.tensor([1, 0.5**0.5, 0.5**0.5, 1, 0.5**0.5, 1], dtype=torch.float64)
    torch.testing.assert_close(outer, expected, rtol=0.1, atol=0)
    assert abs(float(torch.corrcoef(found["outer"].T).triu(1).abs().max())) < 0.15


@pytest.mark.slow
def test_shared_noise_adds_to_the_whole_over_the_clients() -> None:
    shared = replace(PRIVACY, sharers=4, count="public")
    found = sum(noises(shared, 400, client)["sum"] for client in range(4))
    assert float(found.std()) == pytest.approx(shared.sigma, rel=0.1)
    assert float(noises(shared, 400)["sum"].std()) == pytest.approx(shared.sigma / 2, rel=0.1)


def test_a_public_count_is_sent_as_it_is() -> None:
    assert (noises(replace(PRIVACY, count="public"), 5)["count"] == 1).all()
    assert len(noises(PRIVACY, 5)["count"].unique()) == 5


def test_a_seed_repeats_the_noise_and_the_default_never_does() -> None:
    first, again = noises(PRIVACY, 1)["outer"], noises(PRIVACY, 1)["outer"]
    assert torch.equal(first, again)
    assert not torch.equal(first, noises(PRIVACY, 1, client=1)["outer"])
    assert not torch.equal(noises(PRIVACY, 1, seed=None)["outer"], noises(PRIVACY, 1, seed=None)["outer"])


@pytest.mark.slow
def test_secure_noise_has_the_promised_variance_and_nothing_in_common_between_numbers_and_releases() -> None:
    """Numbers of one message, and messages after one another as of several clients, are uncorrelated."""
    shared = replace(PRIVACY, sharers=4)
    found = noises(shared, 1000, seed=None)
    whole = torch.cat([found["count"].unsqueeze(1) - 1, found["sum"], found["outer"]], 1) / (shared.sigma / 2)
    expected = torch.tensor([1, 1, 1, 1, 1, 0.5, 0.5, 1, 0.5, 1], dtype=torch.float64)
    torch.testing.assert_close(whole.var(0), expected, rtol=6 * (2 / 1000) ** 0.5, atol=0)
    assert float(torch.corrcoef(whole.T).fill_diagonal_(0).abs().max()) < 6 / 1000**0.5
    assert float((whole[1:] * whole[:-1]).mean(0).abs().max()) < 6 / 1000**0.5


def test_whole_numbers_promise_what_floats_do() -> None:
    """A recipe's 1 at one client is another's 1.0."""
    parts = [private_sums(images(i, 900), Privacy(e, 1e-5, r), seed=0) for i, (e, r) in enumerate(((8, 3), (8.0, 3.0)))]
    assert private_gaussian(add(*parts), Privacy(8.0, 1e-5, 3)).dim == 5


def test_messages_of_other_embeddings_do_not_add_and_remarks_stand_beside_the_promise() -> None:
    first = private_sums(images(0, 900), PRIVACY, seed=0, embedding="a")
    with pytest.raises(MessageError, match="differently"):
        add(first, private_sums(images(1, 900), PRIVACY, seed=0, client=1, embedding="b"))
    assert private_gaussian(first, PRIVACY).dim == 5


def test_the_secure_source_is_normal() -> None:
    outer = private_sums(torch.zeros(1, 120), replace(PRIVACY, count="public")).tensors["sum"] / PRIVACY.sigma
    more = [private_sums(torch.zeros(1, 120), PRIVACY).tensors["sum"] / PRIVACY.sigma for _ in range(40)]
    assert kstest(torch.cat(more).numpy(), "norm").pvalue > 1e-6
    assert outer.abs().max() < 8


@pytest.mark.parametrize(("byte", "extreme"), [(b"\x00", -8.2), (b"\xff", 8.2)])
def test_the_secure_source_has_no_infinite_draw(monkeypatch, byte, extreme) -> None:
    monkeypatch.setattr("os.urandom", lambda number: byte * number)
    message = private_sums(torch.zeros(1, 2), PRIVACY)
    assert (message.tensors["sum"] / PRIVACY.sigma).tolist() == pytest.approx([extreme] * 2, abs=0.1)


def test_a_state_of_the_generators_is_left_alone() -> None:
    state = torch.get_rng_state()
    private_sums(images(1, 4), PRIVACY)
    private_sums(images(1, 4), PRIVACY, seed=1)
    assert torch.equal(state, torch.get_rng_state())


def diagonal(*values: float) -> Gaussian:
    scatter = torch.diag(torch.tensor(values, dtype=torch.float64))
    return Gaussian(10, torch.zeros(len(values), dtype=torch.float64), scatter=scatter)


def test_the_projection_by_hand() -> None:
    def spectrum(keep_trace: bool, *values: float) -> list[float]:
        scatter = project_positive(diagonal(*values), keep_trace).scatter
        assert scatter is not None
        assert scatter.diag().diag().equal(scatter)
        return pytest.approx(scatter.diag().tolist(), abs=1e-14)

    assert spectrum(False, 2, 1, -1) == [2, 1, 0]
    assert spectrum(True, 2, 1, -1) == [1.5, 0.5, 0]
    assert spectrum(True, 3, 0.2, -1) == [2.2, 0, 0]  # lowering both by 0.5 would leave -0.3
    assert spectrum(True, 1, -2) == [1, 0]  # no matrix has a negative trace
    kept = diagonal(2, 0)
    assert project_positive(kept) is kept
    few = summarize(images(1, 3))
    assert project_positive(few) is few


def test_projections_are_positive_and_the_trace_is_the_better_one_where_small_eigenvalues_drown() -> None:
    falling = torch.arange(1, 41, dtype=torch.float64).rsqrt() * 0.7
    real, generated = images(1, 4000, 40, 1.0) * falling, summarize(images(2, 4000, 40, 0.8) * falling)
    weak = replace(PRIVACY, epsilon=0.2)
    exact = frechet_distance(summarize(real), generated)[1]["covariance"]
    found: dict[str, float] = {}
    for project in ("trace", "clamp", "none"):
        summary = private_gaussian(private_sums(real, weak, seed=0), weak, project=project)
        smallest, trace = torch.linalg.eigvalsh(summary.covariance())[0], float(summary.trace())
        assert smallest < -1e-2 if project == "none" else smallest > -1e-12
        if project != "clamp":
            assert trace == pytest.approx(float(falling.square().sum()), rel=0.3)
        score = FrechetReference.from_summaries([summary]).score(generated, errors=False)
        found[project] = score.terms["covariance"]["all"]
    assert exact < found["trace"] < 0.7 * found["clamp"]
    assert found["none"] == 0  # reads as perfect, which the generator is not


@pytest.mark.slow
def test_noise_lifts_fid_all_the_more_the_more_features_as_the_published_sizes() -> None:
    """50,000 images of variance 0.02 at R = 3, epsilon = 1: half the lift of equal noise on all of the triangle."""
    for dim, published in ((16, 0.0044), (64, 0.047)):
        deviations = images(3, 50_000, dim, 0.141)
        shifted = summarize(images(4, 50_000, dim, 0.141) + (0.12 / dim) ** 0.5)
        privacy = Privacy(1.0, 1e-5, 3.0, count="public", accountant="classic")
        exact, _ = frechet_distance(summarize(deviations), shifted)
        found = [
            frechet_distance(private_gaussian(private_sums(deviations, privacy, seed=s), privacy), shifted)[0] - exact
            for s in range(3)
        ]
        assert 0.2 * published < sum(found) / len(found) < published


def test_noise_survives_fixed_point_and_masks() -> None:
    privacy = replace(PRIVACY, sharers=3)
    fixed = FixedPoint.for_ranges(3, {"count": 1e6, "sum": 1e7, "outer": 1e7, "clients": 1})
    messages = [private_sums(images(i, 200), privacy, seed=0, client=i) for i in range(3)]
    masked = [mask(fixed.encode(message), i, 3, seed=5) for i, message in enumerate(messages)]
    found = private_gaussian(fixed.decode(add(*masked)), privacy)
    expected = private_gaussian(add(*messages), privacy)
    torch.testing.assert_close(found.covariance(), expected.covariance(), rtol=0, atol=1e-9)


def numbers(**values: float) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}


def test_what_would_break_the_promise_is_refused() -> None:
    shared = replace(PRIVACY, sharers=3)
    messages = [private_sums(images(i, 900), shared, seed=0, client=i) for i in range(3)]
    with pytest.raises(MessageError, match="messages"):
        private_gaussian(add(*messages[:2]), shared)
    with pytest.raises(MessageError, match="promises"):
        private_gaussian(add(*messages), PRIVACY)
    with pytest.raises(MessageError, match="differently"):
        add(messages[0], private_sums(images(1, 5), PRIVACY, seed=0))
    with pytest.raises(MessageError, match="differently"):
        add(messages[0], private_sums(images(1, 5), shared, centre=torch.ones(5), seed=0))
    with pytest.raises(MessageError, match="private_gaussian"):
        gaussian_from_message(messages[0])
    lost = Message("private-sums", {**messages[0].tensors, **numbers(count=-4, clients=3)}, messages[0].meta)
    with pytest.raises(MessageError, match=rf"noise {shared.sigma:.3g}\) leaves no two images"):
        private_gaussian(lost, shared)
    each = private_sums(images(0, 2), PRIVACY, seed=0)
    lost = Message("private-sums", {**each.tensors, **numbers(count=-4, clients=4)}, each.meta)
    with pytest.raises(MessageError, match=rf"noise {2 * PRIVACY.sigma:.3g}\) leaves no two images"):
        private_gaussian(lost, PRIVACY)  # four messages, each with the whole noise


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"delta": 1.0}, "delta must be between 0 and 1"),
        ({"radius": 0.0}, "radius must be positive and finite, got 0.0"),
        ({"sharers": 0}, "sharers must be at least 1, got 0"),
        ({"neighbours": "swap"}, "got 'swap'"),
        ({"neighbours": "replace"}, "use count='public'"),
        ({"releases": 0}, "releases must be at least 1"),
    ],
)
def test_promises_out_of_range_are_refused(changed, text) -> None:
    with pytest.raises(ValueError, match=text):
        replace(PRIVACY, **changed)


def test_a_centre_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="centre"):
        private_sums(images(0, 4), PRIVACY, centre=torch.zeros(4))
