"""Spectral normalisation (Miyato et al. 2018, arXiv 1802.05957) of whole networks, and its state under averaging.

`torch.nn.utils.parametrizations.spectral_norm` keeps the singular vectors u and v of every weight as floating buffers,
each improved by one power iteration in a forward pass of training. Federated averaging averages them as it does all
floating buffers: clients start a round from the same vectors, so theirs point the same way and the mean is a good start
for the merged weight's. But it is no unit vector, nor the merged weight's own: in eval mode, without power iterations,
the weight would be divided by too little. `refresh` puts that right at the round's end.
"""

from collections.abc import Collection

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm

LAYERS = (nn.Conv2d, nn.Linear, nn.Embedding)


def normalise_spectrally(network: nn.Module) -> None:
    """Divides the weight of every convolution, linear layer and embedding by its largest singular value, from now on.

    Gains and biases of conditional BatchNorm are left alone, as published.
    """
    for name, layer in list(network.named_modules()):
        if isinstance(layer, LAYERS) and not name.endswith((".gain", ".bias")):
            spectral_norm(layer)


@torch.no_grad()
def refresh(network: nn.Module, frozen: Collection[str] = (), iterations: int = 5) -> None:
    """Brings the singular vectors to the weights as they are, by power iterations; modes stay as they are.

    Args:
        network: the network.
        frozen: names of submodules whose weights do not move; they are left to the bit.
        iterations: for each weight.
    """
    for name, layer in network.named_modules():
        if isinstance(layer, parametrize.ParametrizationList) and name not in frozen:
            modes = [part.training for part in layer]
            for part in layer:
                part.train()
            for _ in range(iterations):
                layer()  # computing the weight takes a step
            for part, mode in zip(layer, modes):
                part.train(mode)
