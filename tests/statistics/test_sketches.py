"""The cubic kernel's mean from sums, against the kernel over all pairs."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from fedgen.statistics import (
    CubicSketch,
    Message,
    MessageError,
    add,
    gaussian_from_message,
    gaussian_to_sums,
    pool,
    summarize,
)

DIM = 6


def client(number: int, count: int) -> torch.Tensor:
    draws = torch.Generator().manual_seed(number)
    return torch.randn(count, DIM, generator=draws, dtype=torch.float64).exp() * (0.5 + number / 4)


CLIENTS = [client(number, count) for number, count in enumerate((5, 20, 41))]


def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (1 + x @ y.T / DIM) ** 3


def sketched(centre: torch.Tensor | None, number: int = 400, seed: int = 0, clients: list[torch.Tensor] = CLIENTS):
    sketch = CubicSketch(DIM, number, seed, centre)
    total = add(*(Message.from_bytes(sketch.message(part).to_bytes(), "cubic") for part in clients))
    pooled = gaussian_from_message(add(*(gaussian_to_sums(summarize(part)) for part in clients)))
    return sketch.read(total, pooled)


def without_sketch(moments):
    """The moments with E t^3 taken out, by an empty sketch: what the sums give exactly."""
    return replace(moments, sketch=torch.zeros_like(moments.sketch))


@pytest.mark.parametrize("centre", [None, torch.cat(CLIENTS).mean(0), torch.arange(6.0, dtype=torch.float64)])
def test_all_but_the_third_moments_is_exact_around_any_centre(centre) -> None:
    pooled = torch.cat(CLIENTS)
    other = client(7, 30)
    sides = [without_sketch(sketched(centre)), without_sketch(sketched(centre, clients=[other]))]
    origin = torch.zeros(DIM, dtype=torch.float64) if centre is None else centre
    for (x, y), found in (
        ((pooled, pooled), sides[0].mean_kernel(sides[0])),
        ((pooled, other), sides[0].mean_kernel(sides[1])),
        ((other, pooled), sides[1].mean_kernel(sides[0])),
    ):
        third = (((x - origin) @ (y - origin).T) / DIM) ** 3
        expected = float((kernel(x, y) - third).mean())
        assert found.value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("centre", [None, torch.cat(CLIENTS).mean(0)])
def test_each_images_mean_kernel_is_that_of_a_set_of_one_with_its_gradient(centre) -> None:
    sketch, moments, points = CubicSketch(DIM, 400, 0, centre), sketched(centre), client(7, 4)
    values, gradient = sketch.mean_kernels(points, moments)
    for point, value in zip(points, values):
        alone = sketched(centre, clients=[point.unsqueeze(0)])
        assert float(value) == pytest.approx(moments.mean_kernel(alone).value, rel=1e-11)
    step = 1e-6
    for axis in range(DIM):
        ahead, behind = (points + sign * step * torch.eye(DIM, dtype=torch.float64)[axis] for sign in (1, -1))
        slope = (sketch.mean_kernels(ahead, moments)[0] - sketch.mean_kernels(behind, moments)[0]) / (2 * step)
        torch.testing.assert_close(gradient[:, axis], slope, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="sketches"):
        replace(sketch, seed=1).mean_kernels(points, moments)


@cache
def over_seeds():
    return [sketched(torch.cat(CLIENTS).mean(0), 200, seed) for seed in range(60)]


@pytest.mark.parametrize("estimator", ["u", "v"])
def test_the_error_over_seeds_is_the_stated_one_and_the_mean_is_right(estimator) -> None:
    pooled = torch.cat(CLIENTS)
    found = [each.within(estimator) for each in over_seeds()]
    block = kernel(pooled, pooled)
    count = len(pooled)
    expected = float(block.mean() if estimator == "v" else (block.sum() - block.trace()) / (count * (count - 1)))
    values = torch.tensor([each.value for each in found])
    stated = torch.tensor([each.error for each in found]).square().mean().sqrt()
    assert float(values.std() / stated) == pytest.approx(1, abs=0.35)
    assert abs(float(values.mean()) - expected) < 4 * float(values.std()) / 60**0.5


def test_centring_lowers_the_error_and_more_sketches_do() -> None:
    mean = torch.cat(CLIENTS).mean(0)
    plain, centred, many = sketched(None), sketched(mean), sketched(mean, number=6400)
    assert centred.within().error < plain.within().error / 2
    assert many.within().error < centred.within().error / 2


def test_mmd2_between_two_sets_from_their_sketches_alone() -> None:
    pooled, other = torch.cat(CLIENTS), client(7, 30)
    centre = pooled.mean(0)
    found = sketched(centre, 3000).mmd2(sketched(centre, 3000, clients=[other]), "u")
    sides = []
    for x in (pooled, other):
        block = kernel(x, x)
        sides.append((block.sum() - block.trace()) / (len(x) * (len(x) - 1)))
    expected = float(sides[0] + sides[1] - 2 * kernel(pooled, other).mean())
    assert abs(found.value - expected) < 4 * found.error
    assert found.error < 0.1 * expected
    same = sketched(centre).mmd2(sketched(centre), "v")
    assert same.value == pytest.approx(0, abs=1e-12)  # no noise is left where the sets are equal
    assert same.error == 0


def test_moments_of_different_sketches_do_not_compare() -> None:
    """Other signs, another centre or another D gave a number, and a wrong one."""
    mean = torch.cat(CLIENTS).mean(0)
    base = sketched(mean)
    for other in (sketched(mean, seed=1), sketched(None), sketched(mean, number=200)):
        for compare in (base.mmd2, base.mean_kernel):
            with pytest.raises(ValueError, match="sketches"):
                compare(other)


def test_remarks_keep_embeddings_apart() -> None:
    sketch = CubicSketch(DIM, 10)
    first = sketch.message(CLIENTS[0], embedding="a")
    with pytest.raises(MessageError, match="differently"):
        add(first, sketch.message(CLIENTS[1], embedding="b"))
    assert sketch.read(first, summarize(CLIENTS[0])).count == len(CLIENTS[0])


def test_a_message_is_what_its_formulas_say_on_one_image() -> None:
    sketch = CubicSketch(2, number=3, seed=1, centre=torch.tensor([1.0, 0.0], dtype=torch.float64))
    message = sketch.message(torch.tensor([[3.0, 4.0]]))
    assert float(message.tensors["count"]) == 1
    assert float(message.tensors["diagonal"]) == pytest.approx((1 + 25 / 2) ** 3)
    assert message.tensors["tilted"].tolist() == [2 * 4, 2 * 8, 2 * 16]  # <c, z> z z^T of z = (2, 4)
    for value in message.tensors["sketch"].tolist():
        assert round(abs(value)) in {
            2**a * 6**b for a, b in ((0, 3), (1, 2), (2, 1), (3, 0))
        }  # of +-2 +-4, three times
    assert len(CubicSketch(2).message(torch.ones(4, 2)).tensors["tilted"]) == 0


def test_what_was_made_otherwise_does_not_add_and_is_not_read() -> None:
    sketch, pooled = CubicSketch(DIM, 10), pool(summarize(part) for part in CLIENTS)
    message = add(*(sketch.message(part) for part in CLIENTS))
    with pytest.raises(MessageError, match="differently"):
        add(message, CubicSketch(DIM, 10, seed=1).message(CLIENTS[0]))
    with pytest.raises(MessageError, match="differently"):
        add(message, CubicSketch(DIM, 10, centre=torch.ones(DIM)).message(CLIENTS[0]))
    with pytest.raises(MessageError, match="shapes"):
        add(message, CubicSketch(DIM, 11).message(CLIENTS[0]))
    with pytest.raises(MessageError, match="settings"):
        CubicSketch(DIM, 10, seed=2).read(message, pooled)
    with pytest.raises(MessageError, match="features"):
        sketch.read(message, summarize(CLIENTS[0]))
    with pytest.raises(MessageError, match="expected"):
        sketch.read(gaussian_to_sums(pooled), pooled)


def test_unusable_settings_and_features_are_refused() -> None:
    with pytest.raises(ValueError, match="dim=4 and number=1"):
        CubicSketch(4, number=1)
    with pytest.raises(ValueError, match="centre"):
        CubicSketch(4, centre=torch.ones(3))
    with pytest.raises(ValueError, match="features"):
        CubicSketch(4).message(CLIENTS[0])
    with pytest.raises(ValueError, match="NaN"):
        CubicSketch(2).message(torch.tensor([[float("nan"), 1.0]]))
    single = sketched(None, clients=[CLIENTS[0][:1]])
    with pytest.raises(ValueError, match="estimator"):
        single.within("u")
