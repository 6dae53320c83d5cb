"""The discriminator of StyleGAN2 (Karras et al. 2020, arXiv 1912.04958), with the names of the published weights."""

import math
from collections.abc import Iterator, Sequence
from itertools import count
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedgen.models.networks.network import Critic, arguments_of, require_shape
from fedgen.models.stylegan2.layers import Convolution, Dense, Mapping, MinibatchStd, as_condition
from fedgen.models.stylegan2.operations import (
    TAPS,
    Half,
    levels,
    make_filter,
    require_resolution,
    without_autocast,
    working_dtype,
)

Architecture = Literal["resnet", "orig"]


class DiscriminatorBlock(nn.Module):
    """The block of one resolution, of images if these have `channels`; `trained` says which layers train."""

    resample_filter: Tensor

    federated_rules: ClassVar[dict[str, str]] = {"resample_filter": "server"}  # a constant

    def __init__(
        self,
        channels: int,
        inputs: int,
        outputs: int,
        architecture: Architecture,
        half: Half | None,
        taps: Sequence[float] | None,
        clamp: float | None,
        activation: str,
        trained: Iterator[bool],
    ) -> None:
        super().__init__()
        self.precision = half
        self.register_buffer("resample_filter", make_filter(taps))

        def layer(maps: int, made: int, kernel: int, down: int = 1) -> Convolution:
            own = taps if down > 1 else TAPS  # as published: one that does not resample keeps the usual filter, unused
            return Convolution(
                maps, made, kernel, activation=activation, down=down, taps=own, clamp=clamp, trained=next(trained)
            )

        self.fromrgb = layer(channels, inputs, 1) if channels else None
        self.conv0 = layer(inputs, inputs, 3)
        self.conv1 = layer(inputs, outputs, 3, down=2)
        self.skip = None
        if architecture == "resnet":
            self.skip = Convolution(inputs, outputs, 1, bias=False, down=2, taps=taps, trained=next(trained))

    def forward(self, x: Tensor, full: Tensor) -> Tensor:
        """Maps [N, outputs, size / 2, size / 2] of the image or of maps; `full` has the precision that is not half."""
        x = x.to(working_dtype(self.precision, full))
        if self.fromrgb is not None:
            x = self.fromrgb(x)
        if self.skip is None:
            return self.conv1(self.conv0(x))
        shortcut = self.skip(x, gain=math.sqrt(0.5))
        return shortcut + self.conv1(self.conv0(x), gain=math.sqrt(0.5))


class DiscriminatorEpilogue(nn.Module):
    """The 4 x 4 end: spread over the minibatch, a convolution and two dense layers, to [N, outputs]."""

    def __init__(
        self, maps: int, outputs: int, group_size: int | None, group_channels: int, clamp: float | None, activation: str
    ) -> None:
        super().__init__()
        self.mbstd = MinibatchStd(group_size, group_channels) if group_channels else None
        self.conv = Convolution(maps + group_channels, maps, 3, activation=activation, clamp=clamp)
        self.fc = Dense(maps * 16, maps, activation=activation)
        self.out = Dense(maps, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, maps, 4, 4] to numbers [N, outputs]."""
        if self.mbstd is not None:
            x = self.mbstd(x)
        return self.out(self.fc(self.conv(x).flatten(1)))


class StyleGAN2Discriminator(Critic):
    """StyleGAN2's discriminator: logits [N] for "real", of images [N, channels, R, R].

    An image's logit depends on the others of its group. The `state_dict` has the keys and shapes of the published
    networks. Precision is its own matter: autocast does not reach inside.

    Args:
        image_size: R, a power of two of at least 8.
        channels: of images.
        num_classes: classes of a conditional network (a projection: Miyato and Koyama 2018, arXiv 1802.05637).
        channel_base: feature maps times resolution.
        channel_max: feature maps at most.
        half_resolutions: highest resolutions in half precision (published: 4).
        half: "float16", which runs on GPUs alone (a CPU uses float32), or "bfloat16".
        clamp: bound on every convolution's results, but the shortcuts' (published: 256); None for none.
        architecture: "resnet" as published, or "orig", without shortcuts (published for CIFAR-10).
        group_size: images whose spread is appended to their features; None for the whole batch.
        group_channels: feature maps of that spread; 0 for none.
        condition_dim: features of the embedded label; those of the 4 x 4 maps by default.
        mapping_layers: dense layers of the label's mapping.
        mapping_lr: their learning rate multiplier.
        embed_features: of the label before them; condition_dim by default.
        layer_features: between them; condition_dim by default.
        frozen_layers: layers that do not train, counted from the image on (Mo et al. 2020, arXiv 2002.10964).
        taps: the resampling filter, one axis; None for none.
        activation: "lrelu", "relu" or "linear".
        channels_last: whether maps are kept in that memory format, which half precision on GPUs wants.

    Raises:
        ValueError: for a value out of range.
    """

    def __init__(
        self,
        image_size: int,
        channels: int = 3,
        num_classes: int | None = None,
        channel_base: int = 16384,
        channel_max: int = 512,
        half_resolutions: int = 0,
        half: Half = "float16",
        clamp: float | None = None,
        architecture: Architecture = "resnet",
        group_size: int | None = 4,
        group_channels: int = 1,
        condition_dim: int | None = None,
        mapping_layers: int = 8,
        mapping_lr: float = 0.01,
        embed_features: int | None = None,
        layer_features: int | None = None,
        frozen_layers: int = 0,
        taps: Sequence[float] | None = TAPS,
        activation: str = "lrelu",
        channels_last: bool = False,
    ) -> None:
        require_resolution(image_size)
        if architecture not in ("resnet", "orig"):
            raise ValueError(f"architecture={architecture!r}: choose 'resnet' or 'orig'")
        if min(channels, num_classes or 1) < 1 or min(group_channels, frozen_layers) < 0:
            raise ValueError(f"out of range: {channels=}, {num_classes=}, {group_channels=}, {frozen_layers=}")
        taps = None if taps is None else [float(tap) for tap in taps]
        super().__init__(**arguments_of(locals()))
        self.num_classes, self.group_size, self.channels_last = num_classes, group_size, channels_last
        sizes = list(levels(image_size, channel_base, channel_max, half_resolutions))
        trained = (layer >= frozen_layers for layer in count())
        self.resolutions = [size for size, _, _ in sizes[:0:-1]]
        shared = taps, clamp, activation, trained
        for (size, maps, in_half), (_, made, _) in zip(sizes[:0:-1], sizes[-2::-1]):
            images = channels if size == image_size else 0
            block = DiscriminatorBlock(images, maps, made, architecture, half if in_half else None, *shared)
            self.add_module(f"b{size}", block)
        maps = sizes[0][1]
        features = (maps if condition_dim is None else condition_dim) if num_classes else 0
        self.mapping = None
        if num_classes:
            widths = embed_features, layer_features
            self.mapping = Mapping(
                0, num_classes, features, mapping_layers, *widths, activation, mapping_lr, average=None
            )
        self.b4 = DiscriminatorEpilogue(maps, features or 1, group_size, group_channels, clamp, activation)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Logits [N].

        Args:
            images: [N, channels, R, R] in [-1, 1].
            labels: of a conditional network's images, int64 [N], or weights of its classes, float [N, num_classes].

        Raises:
            ValueError: for other shapes, a batch that is no multiple of the minibatch-std group, or odd labels.
        """
        require_shape(images, self.image_shape, type(self).__name__)
        full = self.b4.out.weight
        with without_autocast(images):
            x = images.to(memory_format=torch.channels_last) if self.channels_last else images
            for size in self.resolutions:
                x = self.get_submodule(f"b{size}")(x, full)
            scores = self.b4(x.to(full.dtype).contiguous())
            condition = as_condition(labels, self.num_classes, len(images), self)
            if self.mapping is None:
                return scores[:, 0]
            mapped = self.mapping(None, condition)
            return (scores * mapped).sum(dim=1) / math.sqrt(mapped.shape[1])
