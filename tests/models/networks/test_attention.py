import pytest
import torch

from fedgen.models.networks.resnets import SelfAttention


def test_maps_pass_unchanged_at_first_and_gamma_is_learnt():
    torch.manual_seed(0)
    attention, x = SelfAttention(8), torch.randn(2, 8, 4, 4)
    assert torch.equal(attention(x), x)
    attention(x).square().sum().backward()
    assert attention.gamma.grad.abs() > 0


def test_every_position_is_a_mean_over_pooled_positions_by_hand():
    """One map of 2x2: keys and values are the one pooled maximum, whatever the queries."""
    attention = SelfAttention(1)
    for layer, weight in ((attention.query, 1.0), (attention.key, 1.0), (attention.value, 2.0), (attention.out, 3.0)):
        layer.weight.data.fill_(weight)
    attention.gamma.data.fill_(0.5)
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(1, 1, 2, 2)
    # values 2x, of which the maximum 8; times 3 and gamma: 12 more everywhere
    assert torch.allclose(attention(x), x + 12.0)


def test_attention_weights_are_a_softmax_over_positions():
    """Against the plain double loop."""
    torch.manual_seed(0)
    attention, x = SelfAttention(16), torch.randn(1, 16, 4, 4)
    attention.gamma.data.fill_(1.0)
    query, key, value = (layer(x) for layer in (attention.query, attention.key, attention.value))
    pooled = torch.nn.functional.max_pool2d
    keys, values = pooled(key, 2)[0].flatten(1), pooled(value, 2)[0].flatten(1)
    expected = torch.zeros(1, 8, 4, 4)
    for row in range(4):
        for column in range(4):
            weights = torch.stack([query[0, :, row, column] @ keys[:, j] for j in range(4)]).exp()
            expected[0, :, row, column] = (values * (weights / weights.sum())).sum(1)
    assert torch.allclose(attention(x), attention.out(expected) + x, atol=1e-5)


@pytest.mark.parametrize("maps", [1, 8, 12])
def test_any_number_of_maps_will_do(maps):
    assert SelfAttention(maps)(torch.randn(2, maps, 7, 7)).shape == (2, maps, 7, 7)
