"""Layers of StyleGAN2 with equalised learning rates: weights are stored as N(0, 1) and scaled when used.

Karras et al. 2018 (arXiv 1710.10196), section 4.1. Names of parameters and buffers are those of the published weights.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.models.networks.pair_layers import check_labels
from fedgen.models.stylegan2.operations import (
    TAPS,
    activation_gain,
    bounded,
    convolve,
    make_filter,
    normalize_2nd_moment,
    rectify,
)

_CONSTANTS = {"resample_filter": "server"}  # what becomes of it under federated averaging


class Dense(nn.Module):
    """A linear layer [N, outputs] with an activation; weights are stored divided by `lr_multiplier`."""

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
    """A convolution: scaled weights (buffers if frozen), resampling, bias, activation, gain, clamp times gain."""

    resample_filter: Tensor

    federated_rules: dict[str, str] = _CONSTANTS

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
    """Appends the spread of features in groups of G, image i in i mod (N / G) (Karras et al. 2018, section 3)."""

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


def as_condition(labels: Tensor | None, num_classes: int | None, count: int, owner: nn.Module) -> Tensor | None:
    """Labels as float32 [count, num_classes]: one-hot; weights of classes are taken as they are."""
    check_labels(num_classes, labels, owner)
    if labels is None or num_classes is None:
        return None
    if labels.is_floating_point():
        if labels.shape != (count, num_classes):
            raise ValueError(f"weights of classes must be [{count}, {num_classes}], got {list(labels.shape)}")
        return labels
    if labels.shape != (count,) or labels.dtype != torch.int64:
        raise ValueError(f"labels must be int64 [{count}], got {labels.dtype} {list(labels.shape)}")
    return F.one_hot(labels, num_classes).float()


class Mapping(nn.Module):
    """Styles [N, outputs] from latents [N, latent_dim] and conditions [N, condition_dim]; `w_avg` is their mean."""

    # Karras et al. 2019 (arXiv 1812.04948); a critic's has no latents, and no mean (`average` None)

    w_avg: Tensor

    def __init__(
        self,
        latent_dim: int,
        condition_dim: int,
        outputs: int,
        layers: int = 8,
        embed_features: int | None = None,
        layer_features: int | None = None,
        activation: str = "lrelu",
        lr_multiplier: float = 0.01,
        average: float | None = 0.995,
    ) -> None:
        super().__init__()
        if layers < 0 or latent_dim + condition_dim < 1:
            raise ValueError(f"a mapping of {layers} layers from {latent_dim} + {condition_dim} features cannot be")
        embedded = (outputs if embed_features is None else embed_features) if condition_dim else 0
        hidden = outputs if layer_features is None else layer_features
        self.layers, self.average = layers, average
        if condition_dim:
            self.embed = Dense(condition_dim, embedded)
        widths = [latent_dim + embedded, *[hidden] * (layers - 1), *[outputs] * min(layers, 1)]
        for i, (inputs, width) in enumerate(pairwise(widths)):
            self.add_module(f"fc{i}", Dense(inputs, width, activation=activation, lr_multiplier=lr_multiplier))
        if average is not None:
            self.register_buffer("w_avg", torch.zeros(outputs))

    def forward(self, latents: Tensor | None, condition: Tensor | None = None, update_average: bool = True) -> Tensor:
        """Styles [N, outputs]; in training the running mean moves, unless told not to."""
        parts, dtype = [], next(self.parameters()).dtype
        if latents is not None:
            parts.append(normalize_2nd_moment(latents.to(dtype)))
        if condition is not None:
            parts.append(normalize_2nd_moment(self.embed(condition.to(dtype))))
        x = torch.cat(parts, dim=1)
        for i in range(self.layers):
            x = self.get_submodule(f"fc{i}")(x)
        if self.training and update_average and self.average is not None:
            self.w_avg.copy_(x.detach().mean(dim=0).lerp(self.w_avg, self.average))
        return x
