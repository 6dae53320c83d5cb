"""Layers of pairs: initialised convolutions, BatchNorm with labels, residual blocks, spectral normalisation.

Spectral normalisation (Miyato et al. 2018, arXiv 1802.05957) under averaging: torch's `spectral_norm` keeps the
singular vectors u and v of every weight as floating buffers, each improved by one power iteration in a forward pass of
training. Federated averaging averages them: clients start a round from the same vectors, so theirs point the same way.
But the mean is no unit vector, nor the merged weight's own: in eval mode the weight would be divided by too little.
`refresh` puts that right at the round's end.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm


def convolution(inputs: int, outputs: int, kernel: int, after_relu: bool, bias: bool = True) -> nn.Conv2d:
    """A convolution that keeps the size, with zero biases and He (after a ReLU) or Glorot weights."""
    layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=bias)
    if after_relu:
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    else:
        nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer with zero biases and Glorot weights."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class ConditionalBatchNorm(nn.Module):
    """BatchNorm whose gain and bias depend on the image's label (Dumoulin et al. 2017, arXiv 1610.07629)."""

    def __init__(self, maps: int, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(maps, affine=False)
        self.gain, self.bias = nn.Embedding(num_classes, maps), nn.Embedding(num_classes, maps)
        nn.init.ones_(self.gain.weight)
        nn.init.zeros_(self.bias.weight)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.gain(labels)[:, :, None, None] * self.norm(x) + self.bias(labels)[:, :, None, None]


def batch_norm(maps: int, num_classes: int | None) -> nn.Module:
    """BatchNorm, conditional if there are classes; call it by `normalise`."""
    return nn.BatchNorm2d(maps) if num_classes is None else ConditionalBatchNorm(maps, num_classes)


def normalise(norm: nn.Module, x: Tensor, labels: Tensor | None) -> Tensor:
    """Normalise maps [N, C, H, W] by a layer of `batch_norm`; labels are None for one without classes."""
    return norm(x) if labels is None else norm(x, labels)


def check_labels(num_classes: int | None, labels: Tensor | None, owner: nn.Module) -> None:
    """Raises ValueError if a conditional network is called without labels, or an unconditional one with them."""
    name = type(owner).__name__
    if num_classes is None and labels is not None:
        raise ValueError(f"{name} is unconditional and takes no labels; give it num_classes")
    if num_classes is not None and labels is None:
        raise ValueError(f"{name} has {num_classes} classes and needs labels int64 [N]")


def count_doublings(image_size: int) -> int:
    """Count how often 4x4 or more must double to reach the size: 3 for 32 (from 4), 2 for 28 (from 7)."""
    if image_size < 8 or image_size % 4:
        raise ValueError(f"image_size must be a multiple of 4 from 8 (8, 16, 28, 32, 64, ...), got {image_size}")
    doublings = 0
    while image_size % 2 == 0 and image_size >= 8:
        image_size //= 2
        doublings += 1
    return doublings


class UpBlock(nn.Module):
    """Doubles the side: BN, ReLU, nearest-neighbour upsampling, conv, BN, ReLU, conv, and a 1x1 conv past them."""

    def __init__(self, inputs: int, outputs: int, num_classes: int | None = None) -> None:
        super().__init__()
        self.norm1, self.norm2 = batch_norm(inputs, num_classes), batch_norm(outputs, num_classes)
        self.conv1, self.conv2 = convolution(inputs, outputs, 3, True), convolution(outputs, outputs, 3, True)
        self.shortcut = convolution(inputs, outputs, 1, False)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        # a 1x1 convolution and nearest-neighbour upsampling commute: the cheaper order gives the same values
        shortcut = F.interpolate(self.shortcut(x), scale_factor=2.0)
        x = self.conv1(F.interpolate(F.relu(normalise(self.norm1, x, labels)), scale_factor=2.0))
        return shortcut + self.conv2(F.relu(normalise(self.norm2, x, labels)))


class CriticBlock(nn.Module):
    """ReLU (not of images), conv, ReLU, conv without normalisation; `down` halves the side by mean pooling."""

    def __init__(self, inputs: int, outputs: int, down: bool, of_images: bool = False) -> None:
        super().__init__()
        self.conv1, self.conv2 = convolution(inputs, outputs, 3, True), convolution(outputs, outputs, 3, True)
        plain = not down and inputs == outputs
        self.shortcut = nn.Identity() if plain else convolution(inputs, outputs, 1, False)
        self.down, self.of_images = down, of_images

    def forward(self, x: Tensor) -> Tensor:
        residual = self.conv2(F.relu(self.conv1(x if self.of_images else F.relu(x))))
        if self.down:
            # pooling and a 1x1 convolution commute as well
            return self.shortcut(F.avg_pool2d(x, 2)) + F.avg_pool2d(residual, 2)
        return self.shortcut(x) + residual


LAYERS = (nn.Conv2d, nn.Linear, nn.Embedding)


def normalise_spectrally(network: nn.Module) -> None:
    """Divides weights by their largest singular value from now on; not those of conditional BatchNorm, as published."""
    for name, layer in list(network.named_modules()):
        if isinstance(layer, LAYERS) and not name.endswith((".gain", ".bias")):
            spectral_norm(layer)


@torch.no_grad()
def refresh(network: nn.Module, frozen: Collection[str] = (), iterations: int = 5) -> None:
    """Brings the singular vectors to the weights as they are, by power iterations; modes stay as they are."""
    for name, layer in network.named_modules():
        if isinstance(layer, parametrize.ParametrizationList) and name not in frozen:
            modes = [part.training for part in layer]
            for part in layer:
                part.train()
            for _ in range(iterations):
                layer()  # computing the weight takes a step
            for part, mode in zip(layer, modes):
                part.train(mode)
