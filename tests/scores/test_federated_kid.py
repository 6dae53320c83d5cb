"""KID-avg and KID-all from messages, against the scores on features at hand; and FID-all from sums."""

import pytest
import torch

from fedgen.scores import (
    FrechetReference,
    KernelReference,
    PolynomialKernel,
    RBFKernel,
    kid_from_messages,
    kid_message,
)
from fedgen.statistics import (
    CubicSketch,
    FourierSketch,
    Message,
    MessageError,
    add,
    gaussian_from_message,
    gaussian_to_sums,
    summarize,
)

DIM = 16


def images(seed: int, count: int, scale: float = 1.0, shift: float = 0.0) -> torch.Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(count, DIM, generator=draws, dtype=torch.float64) * scale + shift


CLIENTS = [images(i, count, 0.6 + 0.3 * i, 0.4 * i) for i, count in enumerate((21, 90, 160))]
GENERATED = images(9, 120, 1.0, 0.5)


def pooled():
    return gaussian_from_message(add(*(Message.from_bytes(gaussian_to_sums(summarize(x)).to_bytes()) for x in CLIENTS)))


def total(kernel, estimator: str, generated: torch.Tensor = GENERATED) -> Message:
    references = [KernelReference.from_features([part], kernel, "u" if estimator == "u" else "v") for part in CLIENTS]
    return add(*(Message.from_bytes(kid_message(reference, generated).to_bytes()) for reference in references))


def cubic(number: int = 1000, seed: int = 0):
    summary = pooled()
    sketch = CubicSketch(DIM, number, seed, summary.mean)
    return sketch.read(add(*(sketch.message(part) for part in CLIENTS)), summary)


def test_fid_all_from_sums_is_that_of_concatenated_features() -> None:
    expected = FrechetReference.from_features([torch.cat(CLIENTS)]).score(GENERATED, errors=False).values["all"]
    found = FrechetReference.from_summaries([pooled()]).score(GENERATED, errors=False).values["all"]
    assert found == pytest.approx(expected, rel=1e-13)
    torch.testing.assert_close(pooled().covariance(), summarize(torch.cat(CLIENTS)).covariance(), rtol=0, atol=3e-15)


@pytest.mark.parametrize("estimator", ["u", "v"])
def test_kid_avg_is_exact_and_kid_all_within_the_stated_error(estimator) -> None:
    reference = KernelReference.from_features(CLIENTS, estimator=estimator)
    expected = reference.score(GENERATED, errors=False).values
    messages = total(None, estimator)
    found = [kid_from_messages(messages, cubic(seed=seed)) for seed in range(20)]
    for each in found:
        assert each.avg == pytest.approx(expected["avg"], rel=1e-13)
        assert each.all == each.avg - each.constant
        assert abs(each.all - expected["all"]) < 5 * each.error
        assert each.constant == pytest.approx(reference.gap, rel=2e-2)
    mean = sum(each.constant for each in found) / len(found)
    assert mean == pytest.approx(reference.gap, abs=3 * found[0].error / len(found) ** 0.5)


def test_a_thousand_centred_sketches_give_the_constant_to_one_part_in_a_thousand() -> None:
    clients = [images(i, count, 0.8, 0.5) + 0.5 * images(50 + i, 1) for i, count in enumerate((37, 120, 300))]
    reference = KernelReference.from_features(clients)
    summary = gaussian_from_message(add(*(gaussian_to_sums(summarize(part)) for part in clients)))
    messages = [kid_message(KernelReference.from_features([part]), GENERATED) for part in clients]
    for seed in range(3):
        sketch = CubicSketch(DIM, 1000, seed, summary.mean)
        pool = sketch.read(add(*(sketch.message(part) for part in clients)), summary)
        found = kid_from_messages(add(*messages), pool)
        assert found.constant == pytest.approx(reference.gap, rel=1e-3)
        assert 0 < found.error < 1e-3 * reference.gap


@pytest.mark.parametrize("estimator", ["u", "v"])
def test_kid_all_is_wrong_by_the_same_for_every_generator_so_that_ranks_are_exact(estimator) -> None:
    side, reference = cubic(50), KernelReference.from_features(CLIENTS, estimator=estimator)
    sets = [images(seed, 50, 0.5 + seed) for seed in range(3)]
    exact = [reference.score(each, errors=False).values["all"] for each in sets]
    found = [kid_from_messages(total(None, estimator, each), side).all for each in sets]
    errors = [value - expected for value, expected in zip(found, exact)]
    assert max(errors) - min(errors) < 1e-12 * max(exact)
    assert abs(errors[0]) > 1e-4  # the sketch's own


def test_the_rbf_kernel_by_waves() -> None:
    kernel = RBFKernel(sigma=3.0)
    expected = KernelReference.from_features(CLIENTS, kernel).score(GENERATED, errors=False).values
    sketch = FourierSketch(DIM, 8000, sigma=3.0)
    side = sketch.read(add(*(sketch.message(part) for part in CLIENTS)))
    found = kid_from_messages(total(kernel, "u"), side)
    assert found.avg == pytest.approx(expected["avg"], rel=1e-12)
    assert abs(found.all - expected["all"]) < 4 * found.error
    assert found.error < 0.05 * expected["avg"]


def test_messages_and_sketch_must_be_of_one_federation_and_kernel() -> None:
    side = cubic(10)
    with pytest.raises(MessageError, match="expected"):
        kid_from_messages(gaussian_to_sums(pooled()), side)
    part = kid_message(KernelReference.from_features([CLIENTS[0]]), GENERATED)
    with pytest.raises(MessageError, match="messages"):
        kid_from_messages(part, side)
    with pytest.raises(MessageError, match="features"):
        kid_from_messages(total(RBFKernel(), "u"), side)
    with pytest.raises(MessageError, match="differently"):
        add(part, kid_message(KernelReference.from_features([CLIENTS[0]], estimator="v"), GENERATED))
    with pytest.raises(MessageError, match="differently"):
        add(part, kid_message(KernelReference.from_features([CLIENTS[0]]), GENERATED[:-1]))
    with pytest.raises(MessageError, match="differently"):
        add(part, kid_message(KernelReference.from_features([CLIENTS[0][:, :8]]), GENERATED[:, :8]))
    with pytest.raises(MessageError, match="differently"):
        add(part, kid_message(KernelReference.from_features([CLIENTS[0]]), GENERATED, embedding="b"))
    smaller = CubicSketch(8, 10).message(CLIENTS[0][:, :8])
    with pytest.raises(MessageError, match="features"):
        kid_from_messages(part, CubicSketch(8, 10).read(smaller, summarize(CLIENTS[0][:, :8])))
    bad = Message("kid", part.tensors, {**part.meta, "estimator": "w"})
    with pytest.raises(MessageError, match="got 'w'"):
        kid_from_messages(
            bad, CubicSketch(DIM, 10).read(CubicSketch(DIM, 10).message(CLIENTS[0]), summarize(CLIENTS[0]))
        )


def test_a_message_is_one_clients_and_of_a_kernel_with_a_sketch() -> None:
    with pytest.raises(ValueError, match="reference"):
        kid_message(KernelReference.from_features(CLIENTS), GENERATED)
    with pytest.raises(ValueError, match="PolynomialKernel"):
        kid_message(KernelReference.from_features(CLIENTS[:1], PolynomialKernel(degree=2)), GENERATED)
