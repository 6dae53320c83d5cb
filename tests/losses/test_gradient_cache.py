"""The gradient of a large batch from its chunks."""

import pytest
import torch
from torch import nn

from fedgen.losses.embedded import gradient_cache


def spread(features):
    """A loss that no chunk can know alone."""
    return (features - features.mean(0)).square().mean().sqrt()


def gradients_of(network, backward):
    network.zero_grad()
    backward()
    return [parameter.grad.clone() for parameter in network.parameters()]


@pytest.mark.parametrize("chunk", [1, 3, 8, 100])
def test_the_gradient_is_that_of_the_whole_batch(chunk):
    torch.manual_seed(0)
    network, inputs = nn.Linear(4, 3).double(), torch.randn(8, 4, dtype=torch.float64)

    def cached():
        for part in gradient_cache(spread, network, inputs, chunk):
            part.backward()

    whole = gradients_of(network, lambda: spread(network(inputs)).backward())
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(whole, gradients_of(network, cached)))


def test_graphs_are_held_a_chunk_at_a_time():
    seen = []

    def encode(part):
        seen.append((len(part), torch.is_grad_enabled()))
        return part * scale

    scale = torch.ones((), requires_grad=True)
    for part in gradient_cache(spread, encode, torch.randn(5, 2), 2):
        part.backward()
    assert seen == [(2, False), (2, False), (1, False), (2, True), (2, True), (1, True)]


def test_random_draws_are_the_same_in_both_passes_and_the_stream_goes_on_behind_them():
    draws = []

    def encode(part):
        draws.append(torch.rand(3))
        return part * scale

    scale = torch.ones((), requires_grad=True)
    torch.manual_seed(0)
    for part in gradient_cache(spread, encode, torch.randn(4, 2, generator=torch.Generator().manual_seed(1)), 2):
        part.backward()
    following = torch.rand(3)
    assert torch.equal(draws[0], draws[2])
    assert torch.equal(draws[1], draws[3])
    torch.manual_seed(0)
    assert torch.equal(torch.rand(9)[6:], following)


def test_a_chunk_has_an_image():
    with pytest.raises(ValueError, match="chunk"):
        next(gradient_cache(spread, nn.Identity(), torch.zeros(2, 2), 0))
