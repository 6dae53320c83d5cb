import pytest
import torch
from torch import nn

from fedgen.models.sampling import decode, evaluating, keeping_buffers


def test_evaluating_restores_each_submodules_own_mode():
    network = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    network[1].eval()
    with evaluating(network):
        assert not any(module.training for module in network.modules())
    assert [module.training for module in network.modules()] == [True, True, False]


def test_evaluating_restores_after_an_error():
    network = nn.Dropout()
    with pytest.raises(KeyError), evaluating(network):
        raise KeyError
    assert network.training


def test_decode_works_in_batches_of_the_networks_dtype_and_returns_float32():
    sizes = []

    class Recorder(nn.Linear):
        def forward(self, latents):
            sizes.append((len(latents), latents.dtype, torch.is_grad_enabled()))
            return super().forward(latents)

    images = decode(Recorder(3, 4).double(), torch.ones(5, 3), batch_size=2)
    assert images.shape == (5, 4)
    assert images.dtype == torch.float32
    assert sizes == [(2, torch.float64, False), (2, torch.float64, False), (1, torch.float64, False)]


def test_decode_hands_each_batch_its_labels():
    class Labels(nn.Linear):
        def forward(self, latents, labels):
            return labels[:, None] + 0 * super().forward(latents)

    images = decode(Labels(3, 1), torch.ones(5, 3), batch_size=2, labels=torch.arange(5))
    assert images.flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_buffers_are_kept_as_they_were():
    norm = nn.BatchNorm1d(2)
    with keeping_buffers(norm):
        norm(torch.randn(4, 2))
        assert norm.num_batches_tracked == 1
    assert norm.running_mean.tolist() == [0, 0]
    assert norm.num_batches_tracked == 0
