import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from fedgen.models.ema import EMA
from fedgen.models.networks import SAGANCritic, SAGANGenerator, SNGANCritic
from fedgen.models.networks.pair_layers import ConditionalBatchNorm, normalise_spectrally, refresh


def sigma(weight):
    return torch.linalg.matrix_norm(weight.detach().flatten(1), 2).item()


@pytest.mark.slow
def test_every_weight_has_norm_one_but_for_the_gains_of_batch_norm():
    torch.manual_seed(0)
    networks = [
        SNGANCritic(8, 1, 8),
        SAGANGenerator(8, 1, 5, 8, attention_size=4, num_classes=3),
        SAGANCritic(8, 1, 8, attention_size=4, num_classes=3),
    ]
    for network in networks:
        refresh(network, iterations=50)
        norms = [module for module in network.modules() if isinstance(module, ConditionalBatchNorm)]
        gains = {id(layer) for norm in norms for layer in (norm.gain, norm.bias)}
        layers = [m for m in network.modules() if isinstance(m, (nn.Conv2d, nn.Linear, nn.Embedding))]
        assert len(layers) > 5
        for layer in layers:
            assert is_parametrized(layer) != (id(layer) in gains)
            if id(layer) not in gains:
                assert sigma(layer.weight) == pytest.approx(1.0, abs=1e-2)


def test_training_takes_a_power_iteration_a_pass_and_evaluation_none():
    layer = nn.Sequential(nn.Linear(6, 5))
    normalise_spectrally(layer)
    x = torch.randn(2, 6)
    with torch.no_grad():
        layer[0].parametrizations.weight.original.normal_()
    before = {name: value.clone() for name, value in layer.named_buffers()}
    layer.eval()(x)
    assert all(torch.equal(value, before[name]) for name, value in layer.named_buffers())
    layer.train()(x)
    assert not any(torch.equal(value, before[name]) for name, value in layer.named_buffers())


def test_refreshed_vectors_are_the_weights_own_whatever_they_were_and_modes_stay():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    normalise_spectrally(network)
    network[0].eval()
    modes = [module.training for module in network.modules()]
    for name, buffer in network.named_buffers():
        buffer.mul_(0.3)  # as a mean of unit vectors that point apart
        assert "parametrizations.weight.0._" in name
    assert sigma(network[0].weight) > 5  # divided by too little
    refresh(network, iterations=60)
    assert [module.training for module in network.modules()] == modes
    for layer in network.eval():
        assert sigma(layer.weight) == pytest.approx(1.0, abs=1e-3)
        assert layer.parametrizations.weight[0]._u.norm().item() == pytest.approx(1.0, abs=1e-5)


def test_copies_and_averages_are_networks_of_their_own_with_the_same_keys():
    torch.manual_seed(0)
    network = SNGANCritic(8, 1, 4)
    twin, average = copy.deepcopy(network), EMA(network)
    assert twin.state_dict().keys() == network.state_dict().keys() == average.network.state_dict().keys()
    images = torch.randn(3, 1, 8, 8)
    assert torch.equal(twin.eval()(images), network.eval()(images))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter))
    assert not torch.allclose(network(images), twin(images))
    average.update(network, 0.0)
    assert torch.equal(average(images), network(images))
    twin.load_state_dict(network.state_dict())
    assert torch.equal(twin(images), network(images))
