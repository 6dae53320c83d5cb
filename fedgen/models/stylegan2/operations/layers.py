"""Layers of StyleGAN2 with equalised learning rates: weights are stored as N(0, 1) and scaled when used.

Karras et al. 2018 (arXiv 1710.10196), section 4.1. Names of parameters and buffers are those of the published weights.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedgen.models.stylegan2.operations.convolution import activation_gain, bounded, convolve, rectify
from fedgen.models.stylegan2.operations.filters import TAPS, make_filter

_CONSTANTS = {"resample_filter": "server"}  # what becomes of it under federated averaging


class Dense(nn.Module):
    """A linear layer [N, outputs] with an activation and a learning rate of its own.

    Args:
        inputs: features in.
        outputs: features out.
        bias: its initial value.
        activation: "lrelu", "relu" or "linear".
        lr_multiplier: of its learning rate: weights are stored divided by it.
    """

    def __init__(
        self, inputs: int, outputs: int, bias: float = 0.0, activation: str = "linear", lr_multiplier: float = 1.0
    ) -> None:
        super().__init__()
        activation_gain(activation)
        self.activation, self.lr_multiplier = activation, lr_multiplier
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / lr_multiplier)
        self.bias = nn.Parameter(torch.full((outputs,), bias))

    def forward(self, x: Tensor) -> Tensor:
        gain = activation_gain(self.activation) * self.lr_multiplier
        weight = self.weight.to(x.dtype) * (gain / math.sqrt(self.weight.shape[1]))
        return rectify(torch.addmm(self.bias.to(x.dtype) * gain, x, weight.T), self.activation)


class Convolution(nn.Module):
    """A convolution of the discriminator: scaled weights, resampling, bias, activation, gain, clamp.

    Args:
        inputs: feature maps in.
        outputs: feature maps out.
        kernel: 1 or 3.
        bias: whether there is one.
        activation: "lrelu", "relu" or "linear".
        up: 1 or 2.
        down: 1 or 2.
        taps: the resampling filter, one axis.
        clamp: results are kept within +- clamp * gain.
        trained: whether weights are parameters; those of frozen layers are buffers of the same names.
    """

    resample_filter: Tensor

    federated_rules: Mapping[str, str] = _CONSTANTS

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        bias: bool = True,
        activation: str = "linear",
        up: int = 1,
        down: int = 1,
        taps: Sequence[float] | None = TAPS,
        clamp: float | None = None,
        trained: bool = True,
    ) -> None:
        super().__init__()
        activation_gain(activation)
        self.activation, self.up, self.down, self.clamp = activation, up, down, clamp
        weight, zeros = torch.randn(outputs, inputs, kernel, kernel), torch.zeros(outputs) if bias else None
        self.bias: Tensor | None
        if trained:
            self.weight = nn.Parameter(weight)
            self.bias = None if zeros is None else nn.Parameter(zeros)
        else:
            self.register_buffer("weight", weight)
            self.register_buffer("bias", zeros)
            self.federated_rules = {**_CONSTANTS, "weight": "server", "bias": "server"}
        self.register_buffer("resample_filter", make_filter(taps))

    def forward(self, x: Tensor, gain: float = 1.0) -> Tensor:
        """Maps [N, outputs, H * up / down, W * up / down]; `gain` multiplies them, and the bound on them."""
        total = activation_gain(self.activation) * gain
        weight = self.weight * (total / math.sqrt(self.weight[0].numel()))
        bias = None if self.bias is None else (self.bias * total).to(x.dtype)
        # a convolution upsamples as one (kernel rotated), and correlates otherwise: published weights depend on it
        x = convolve(x, weight, self.resample_filter, self.up, self.down, flip=self.up == 1, bias=bias)
        return bounded(rectify(x, self.activation), None if self.clamp is None else self.clamp * gain)


class MinibatchStd(nn.Module):
    """Appends the spread of features within groups of images as more feature maps (Karras et al. 2018, section 3).

    Of N images in groups of G, image i is in group i mod (N / G).

    Args:
        group_size: images of a group; the whole batch if it is smaller, or if None.
        channels: maps appended, one for each equal share of the features.
    """

    def __init__(self, group_size: int | None = 4, channels: int = 1) -> None:
        super().__init__()
        if (group_size is not None and group_size < 1) or channels < 1:
            raise ValueError(f"groups must have an image and a channel: group_size={group_size}, channels={channels}")
        self.group_size, self.channels = group_size, channels

    def forward(self, x: Tensor) -> Tensor:
        n, maps, height, width = x.shape
        group = n if self.group_size is None else min(self.group_size, n)
        if n % group or maps % self.channels:
            raise ValueError(
                f"{n} images do not divide into groups of {group}, or {maps} feature maps by {self.channels}; choose"
                " batches that are a multiple of the minibatch-std group, or a smaller group"
            )
        shares = x.reshape(group, n // group, self.channels, maps // self.channels, height, width)
        spread = (shares.var(dim=0, correction=0) + 1e-8).sqrt().mean(dim=(2, 3, 4))  # [N / G, channels]
        spread = spread.repeat(group, 1)[:, :, None, None].expand(-1, -1, height, width)
        return torch.cat([x, spread.to(x.dtype)], dim=1)
