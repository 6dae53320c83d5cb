"""Layers that pairs of networks share: initialised convolutions, and BatchNorm with and without labels."""

from torch import Tensor, nn


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
    """BatchNorm whose gain and bias depend on the image's label (Dumoulin et al. 2017, arXiv 1610.07629).

    Args:
        maps: feature maps.
        num_classes: labels run from 0 to num_classes - 1.
    """

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
