"""The generator of StyleGAN2 (Karras et al. 2020, arXiv 1912.04958), with the names of the published weights."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedgen.models.networks.network import Generator, arguments_of
from fedgen.models.stylegan2.layers import Convolution, Dense, Mapping, as_condition
from fedgen.models.stylegan2.operations import (
    TAPS,
    Half,
    activation_gain,
    bounded,
    levels,
    make_filter,
    modulated_conv2d,
    rectify,
    require_resolution,
    upsample2d,
    without_autocast,
    working_dtype,
)

Noise = Tensor | Literal["random", "const", "none"]
Architecture = Literal["skip", "resnet", "orig"]


@dataclass(frozen=True)
class SynthesisOptions:
    """Settings that all blocks and layers of a generator share; see `StyleGAN2Generator`."""

    channels: int
    style_dim: int
    clamp: float | None
    architecture: Architecture
    taps: Sequence[float] | None
    use_noise: bool
    activation: str


class SynthesisLayer(nn.Module):
    """A modulated 3 x 3 convolution with noise: maps [N, outputs, size, size], by `up` larger than those it gets."""

    resample_filter: Tensor
    noise_const: Tensor

    federated_rules: ClassVar[dict[str, str]] = {"resample_filter": "server", "noise_const": "server"}  # constants

    def __init__(self, inputs: int, outputs: int, size: int, up: int, options: SynthesisOptions) -> None:
        super().__init__()
        activation_gain(options.activation)
        self.size, self.up, self.use_noise = size, up, options.use_noise
        self.clamp, self.activation = options.clamp, options.activation
        # as published: a layer that does not resample keeps the usual filter, unused
        self.register_buffer("resample_filter", make_filter(options.taps if up > 1 else TAPS))
        self.affine = Dense(options.style_dim, inputs, bias=1.0)
        self.weight = nn.Parameter(torch.randn(outputs, inputs, 3, 3))
        if self.use_noise:
            self.register_buffer("noise_const", torch.randn(size, size))
            self.noise_strength = nn.Parameter(torch.zeros(()))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, styles: Tensor, noise: Noise, gain: float = 1.0) -> Tensor:
        """Maps of maps [N, inputs, ...] and styles [N, style_dim]; noise as a tensor is [N, size * size]."""
        total = activation_gain(self.activation) * gain  # folded into what the activation gets
        x = modulated_conv2d(
            x,
            self.weight,
            self.affine(styles),
            noise=self._noise(noise, x, total),
            bias=self.bias * total,
            up=self.up,
            taps=self.resample_filter,
            flip=self.up == 1,
            gain=total,
        )
        return bounded(rectify(x, self.activation), None if self.clamp is None else self.clamp * gain)

    def _noise(self, noise: Noise, x: Tensor, gain: float) -> Tensor | None:
        if not self.use_noise or (isinstance(noise, str) and noise == "none"):
            return None
        if isinstance(noise, Tensor):
            drawn = noise.reshape(len(x), 1, self.size, self.size)
        elif noise == "const":
            drawn = self.noise_const
        else:
            drawn = torch.randn(len(x), 1, self.size, self.size, device=x.device)
        return drawn * (self.noise_strength * gain)


class ToRGB(nn.Module):
    """A modulated, not demodulated 1 x 1 convolution: an image's share [N, channels, size, size] of a resolution."""

    def __init__(self, inputs: int, channels: int, style_dim: int, clamp: float | None) -> None:
        super().__init__()
        self.clamp = clamp
        self.affine = Dense(style_dim, inputs, bias=1.0)
        self.weight = nn.Parameter(torch.randn(channels, inputs, 1, 1))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, styles: Tensor) -> Tensor:
        """The share of maps [N, inputs, size, size] and styles [N, style_dim]."""
        styles = self.affine(styles) / math.sqrt(self.weight.shape[1])
        return bounded(modulated_conv2d(x, self.weight, styles, bias=self.bias, demodulate=False), self.clamp)


class SynthesisBlock(nn.Module):
    """The block of one resolution: two modulated convolutions (without `inputs` one), and the image's share."""

    resample_filter: Tensor

    federated_rules: ClassVar[dict[str, str]] = {"resample_filter": "server"}  # a constant

    def __init__(
        self, inputs: int, outputs: int, size: int, last: bool, half: Half | None, options: SynthesisOptions
    ) -> None:
        super().__init__()
        self.precision, self.convolutions = half, 1 if inputs == 0 else 2
        if inputs == 0:
            self.const = nn.Parameter(torch.randn(outputs, size, size))
        self.register_buffer("resample_filter", make_filter(options.taps))
        if inputs:
            self.conv0 = SynthesisLayer(inputs, outputs, size, 2, options)
        self.conv1 = SynthesisLayer(outputs, outputs, size, 1, options)
        self.torgb = self.skip = None
        if last or options.architecture == "skip":
            self.torgb = ToRGB(outputs, options.channels, options.style_dim, options.clamp)
        if inputs and options.architecture == "resnet":
            self.skip = Convolution(inputs, outputs, 1, bias=False, up=2, taps=options.taps)

    @property
    def noise_sizes(self) -> list[int]:
        """Numbers of noise for an image that each of its convolutions takes."""
        size = self.conv1.size**2 if self.conv1.use_noise else 0
        return [size] * self.convolutions

    def forward(
        self, x: Tensor | None, image: Tensor | None, styles: list[Tensor], noise: list[Noise]
    ) -> tuple[Tensor, Tensor | None]:
        """Maps and image at this resolution, from those below, a style a layer and noise a convolution."""
        if x is None:
            x = self.const.expand(len(styles[0]), -1, -1, -1)
        x = x.to(working_dtype(self.precision, styles[0]))
        if self.convolutions == 1:
            x = self.conv1(x, styles[0], noise[0])
        elif self.skip is not None:
            shortcut = self.skip(x, gain=math.sqrt(0.5))
            x = shortcut + self.conv1(self.conv0(x, styles[0], noise[0]), styles[1], noise[1], gain=math.sqrt(0.5))
        else:
            x = self.conv1(self.conv0(x, styles[0], noise[0]), styles[1], noise[1])
        if image is not None:
            image = upsample2d(image, self.resample_filter)
        if self.torgb is not None:
            share = self.torgb(x, styles[-1]).to(styles[-1])
            image = share if image is None else image + share
        return x, image


class Synthesis(nn.Module):
    """Images [N, channels, R, R] from styles [N, num_styles, style_dim], one a convolution and the last image."""

    # a resolution's image share uses the style of the next resolution's first convolution

    def __init__(
        self,
        image_size: int,
        channel_base: int,
        channel_max: int,
        half_resolutions: int,
        half: Half,
        channels_last: bool,
        options: SynthesisOptions,
    ) -> None:
        super().__init__()
        self.image_size, self.style_dim, self.channels_last = image_size, options.style_dim, channels_last
        self.resolutions, before = [], 0
        for size, maps, in_half in levels(image_size, channel_base, channel_max, half_resolutions):
            block = SynthesisBlock(before, maps, size, size == image_size, half if in_half else None, options)
            self.add_module(f"b{size}", block)
            self.resolutions.append(size)
            before = maps
        self.num_styles = 2 * len(self.resolutions)

    @property
    def blocks(self) -> list[SynthesisBlock]:
        """From 4 x 4 up."""
        return [self.get_submodule(f"b{size}") for size in self.resolutions]  # type: ignore[misc]

    @property
    def noise_dim(self) -> int:
        """Numbers of noise that an image takes, all convolutions together."""
        return sum(sum(block.noise_sizes) for block in self.blocks)

    def forward(self, styles: Tensor, noise: Noise = "random") -> Tensor:
        """Images about in [-1, 1]; noise is drawn from torch's global generator, constant, none, or [N, noise_dim]."""
        if styles.shape[1:] != (self.num_styles, self.style_dim):
            raise ValueError(
                f"styles must be [N, {self.num_styles}, {self.style_dim}] for images of {self.image_size} x"
                f" {self.image_size}, got {list(styles.shape)}"
            )
        if isinstance(noise, Tensor) and noise.shape != (len(styles), self.noise_dim):
            raise ValueError(f"noise must be [{len(styles)}, {self.noise_dim}], got {list(noise.shape)}")
        if not isinstance(noise, Tensor) and noise not in ("random", "const", "none"):
            raise ValueError(f"noise={noise!r}: choose 'random', 'const' or 'none', or give a tensor")
        x, image, done, used = None, None, 0, 0
        styles = styles.to(self.blocks[0].const)
        for block in self.blocks:
            given: list[Noise] = [noise] * block.convolutions
            if isinstance(noise, Tensor):
                sizes = block.noise_sizes
                given, used = list(noise[:, used : used + sum(sizes)].split(sizes, dim=1)), used + sum(sizes)
            wanted = list(styles[:, done : done + block.convolutions + 1].unbind(dim=1))
            if x is not None and self.channels_last:
                x = x.contiguous(memory_format=torch.channels_last)
            x, image = block(x, image, wanted, given)
            done += block.convolutions
        assert image is not None
        return image


class StyleGAN2Generator(Generator):
    """StyleGAN2's generator: images [N, channels, R, R], about in [-1, 1], from latents [N, latent_dim].

    Its `state_dict` has the keys and shapes of the published networks. Autocast does not reach inside.

    Args:
        image_size: R, a power of two of at least 8 (published: 32 to 1024).
        channels: of images.
        latent_dim: features of a latent, z.
        num_classes: classes of a conditional network, None for an unconditional one.
        style_dim: features of a style, w.
        mapping_layers: dense layers of the mapping (published: 8; 2 in StyleGAN2-ADA's automatic settings).
        embed_features: of the embedded label; style_dim by default.
        layer_features: between layers of the mapping; style_dim by default.
        mapping_lr: learning rate multiplier of the mapping.
        style_decay: of the running mean of styles, which truncation pulls to.
        channel_base: feature maps times resolution (published: 32768, and half of it up to 256 x 256).
        channel_max: feature maps at most.
        half_resolutions: highest resolutions in half precision (published: 4).
        half: "float16", which runs on GPUs alone (a CPU uses float32), or "bfloat16".
        clamp: bound on every layer's results, which float16 needs (published: 256); None for none.
        architecture: "skip" as published, "resnet" or "orig".
        taps: the resampling filter, one axis; None for none.
        use_noise: whether layers add noise to their maps.
        activation: "lrelu", "relu" or "linear".
        channels_last: whether maps are kept in that memory format, which half precision on GPUs wants.

    Raises:
        ValueError: for a value out of range.
    """

    def __init__(
        self,
        image_size: int,
        channels: int = 3,
        latent_dim: int = 512,
        num_classes: int | None = None,
        style_dim: int = 512,
        mapping_layers: int = 8,
        embed_features: int | None = None,
        layer_features: int | None = None,
        mapping_lr: float = 0.01,
        style_decay: float = 0.995,
        channel_base: int = 16384,
        channel_max: int = 512,
        half_resolutions: int = 0,
        half: Half = "float16",
        clamp: float | None = None,
        architecture: Architecture = "skip",
        taps: Sequence[float] | None = TAPS,
        use_noise: bool = True,
        activation: str = "lrelu",
        channels_last: bool = False,
    ) -> None:
        require_resolution(image_size)
        if architecture not in ("skip", "resnet", "orig"):
            raise ValueError(f"architecture={architecture!r}: choose 'skip', 'resnet' or 'orig'")
        if min(channels, latent_dim, style_dim, num_classes or 1) < 1:
            raise ValueError(f"nothing can be of size 0: {channels=}, {latent_dim=}, {style_dim=}, {num_classes=}")
        taps = None if taps is None else [float(tap) for tap in taps]
        super().__init__(**arguments_of(locals()))
        self.num_classes = num_classes
        options = SynthesisOptions(channels, style_dim, clamp, architecture, taps, use_noise, activation)
        self.synthesis = Synthesis(
            image_size, channel_base, channel_max, half_resolutions, half, channels_last, options
        )
        features = embed_features, layer_features
        self.mapping = Mapping(
            latent_dim, num_classes or 0, style_dim, mapping_layers, *features, activation, mapping_lr, style_decay
        )

    @property
    def num_styles(self) -> int:
        """Styles of an image: one for each convolution, and one more for the last share of the image."""
        return self.synthesis.num_styles

    def styles(
        self,
        latents: Tensor,
        labels: Tensor | None = None,
        truncation: float = 1.0,
        cutoff: int | None = None,
        update_average: bool = True,
    ) -> Tensor:
        """Styles [N, num_styles, style_dim] of latents [N, latent_dim]: one an image, repeated.

        Args:
            latents: standard normal.
            labels: of a conditional network's images, int64 [N], or weights of its classes, float [N, num_classes].
            truncation: styles are pulled to their mean: mean + truncation * (style - mean); 1 leaves them.
            cutoff: only the first so many of an image's styles are pulled; all by default.
            update_average: whether, in training, the mean follows these styles.

        Raises:
            ValueError: for other shapes, or labels where there are none.
        """
        if latents.ndim != 2 or latents.shape[1] != self.latent_dim:
            raise ValueError(f"latents must be [N, {self.latent_dim}], got {list(latents.shape)}")
        with without_autocast(latents):
            condition = as_condition(labels, self.num_classes, len(latents), self)
            found = self.mapping(latents, condition, update_average)[:, None].expand(-1, self.num_styles, -1)
            if truncation == 1:
                return found
            pulled = self.mapping.w_avg.lerp(found, truncation)
            return pulled if cutoff is None else torch.cat([pulled[:, :cutoff], found[:, cutoff:]], dim=1)

    def synthesize(self, styles: Tensor, noise: Noise = "random") -> Tensor:
        """Images [N, channels, R, R] of styles [N, num_styles, style_dim]; see `Synthesis.forward`."""
        with without_autocast(styles):
            return self.synthesis(styles, noise)

    def forward(
        self,
        latents: Tensor,
        labels: Tensor | None = None,
        truncation: float = 1.0,
        cutoff: int | None = None,
        noise: Noise = "random",
    ) -> Tensor:
        """Images of latents [N, latent_dim]; arguments as in `styles` and `Synthesis.forward`."""
        return self.synthesize(self.styles(latents, labels, truncation, cutoff), noise)
