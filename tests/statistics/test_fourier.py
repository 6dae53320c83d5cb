"""The RBF kernel's mean from random waves, against the kernel over all pairs."""

import pytest
import torch

from fedgen.statistics import FourierSketch, Message, MessageError, add

DIM = 5


def images(seed: int, count: int, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + shift


CLIENTS = [images(0, 9), images(1, 30, 1.0)]


def kernel(x: torch.Tensor, y: torch.Tensor, sigma: float) -> torch.Tensor:
    return torch.exp(-(torch.cdist(x, y) ** 2) / (2 * sigma**2))


def sketched(sketch: FourierSketch, clients: list[torch.Tensor]):
    return sketch.read(add(*(Message.from_bytes(sketch.message(part).to_bytes()) for part in clients)))


@pytest.mark.parametrize("sigma", [None, 1.0])
def test_the_mean_kernel_is_within_its_stated_error(sigma) -> None:
    pooled, width = torch.cat(CLIENTS), sigma or DIM**0.5
    block, count = kernel(pooled, pooled, width), len(pooled)
    for expected, estimator in ((block.mean(), "v"), ((block.sum() - count) / (count * (count - 1)), "u")):
        found = [
            sketched(FourierSketch(DIM, 300, seed, sigma), CLIENTS).within("u" if estimator == "u" else "v")
            for seed in range(40)
        ]
        values = torch.tensor([each.value for each in found])
        stated = torch.tensor([each.error for each in found]).square().mean().sqrt()
        assert abs(float(values.mean() - expected)) < 4 * float(values.std()) / 40**0.5
        assert float(values.std() / stated) == pytest.approx(1, abs=0.35)


def test_mmd2_between_two_sets_from_their_waves_alone() -> None:
    pooled, other = torch.cat(CLIENTS), images(5, 25, 2.0)
    sketch = FourierSketch(DIM, 20000)
    found = sketched(sketch, CLIENTS).mmd2(sketched(sketch, [other]), "v")
    width = DIM**0.5
    expected = float(
        kernel(pooled, pooled, width).mean()
        + kernel(other, other, width).mean()
        - 2 * kernel(pooled, other, width).mean()
    )
    assert abs(found.value - expected) < 4 * found.error
    assert found.error < 0.05 * expected


def test_a_message_by_hand() -> None:
    message = FourierSketch(2, number=4).message(torch.zeros(3, 2))
    assert message.tensors["cosines"].tolist() == [3.0] * 4
    assert message.tensors["sines"].tolist() == [0.0] * 4


def test_what_was_made_otherwise_is_refused() -> None:
    sketch = FourierSketch(DIM, 10)
    message = sketch.message(CLIENTS[0])
    with pytest.raises(MessageError, match="differently"):
        add(message, FourierSketch(DIM, 10, sigma=1.0).message(CLIENTS[0]))
    with pytest.raises(MessageError, match="settings"):
        FourierSketch(DIM, 12).read(message)
    zero = {name: tensor * 0 for name, tensor in message.tensors.items()}
    with pytest.raises(MessageError, match="count"):
        sketch.read(Message("fourier", zero, message.meta))
    for sigma in (0.0, float("inf")):
        with pytest.raises(ValueError, match=f"sigma must be positive and finite, got {sigma}"):
            FourierSketch(DIM, sigma=sigma)
    pool = sketch.read(message)
    other = FourierSketch(DIM, 10, seed=1)
    for compare in (pool.mmd2, pool.mean_kernel):
        with pytest.raises(ValueError, match="sketches"):
            compare(other.read(other.message(CLIENTS[0])))
    with pytest.raises(MessageError, match="differently"):
        add(message, sketch.message(CLIENTS[1], embedding="b"))


def test_a_whole_sigma_is_the_same_sketch() -> None:
    whole, broken = FourierSketch(DIM, 10, sigma=3), FourierSketch(DIM, 10, sigma=3.0)
    assert broken.read(add(whole.message(CLIENTS[0]), broken.message(CLIENTS[1]))).count == 39
