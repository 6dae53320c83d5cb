"""The augmentations of StyleGAN2-ADA (Karras et al. 2020, arXiv 2006.06676), and the controller of their probability.

Transforms (appendix B) are drawn for each image and differentiable twice; their probability is adapted (section 3.1).
Colours: v = (1, 1, 1) / sqrt(3) is the axis of grey: a colour's part along it has its mean in every channel.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedgen.losses.feature_loss import KeepsPrecision
from fedgen.models.networks.network import arguments_of, build, describe
from fedgen.models.require import require
from fedgen.models.stylegan2.augment_images import (
    SYM2,
    SYM6,
    Affine,
    filter_bank,
    normalised_gain,
    per_axis,
    resample,
    scale_bands,
)
from fedgen.models.stylegan2.operations import make_filter


class Draws:
    """Draws for one batch, a row an image, in float32 whatever the images are of; or all at a percentile q."""

    # of a normal draw that is erfinv(2q - 1), without its factor sqrt(2), as in the reference arrays

    def __init__(self, images: Tensor, p: Tensor, percentile: float | None = None) -> None:
        self.count, self.device, self.dtype = len(images), images.device, images.dtype
        self.p, self.percentile = p, percentile

    def uniform(self, *columns: int) -> Tensor:
        """Uniform in [0, 1): [N, *columns]."""
        if self.percentile is not None:
            return self._constant(self.percentile, columns)
        return torch.rand(self.count, *columns, device=self.device).to(self.dtype)

    def symmetric(self, limit: float, *columns: int) -> Tensor:
        """Uniform in [-limit, limit): [N, *columns]."""
        return (2 * self.uniform(*columns) - 1) * limit

    def integer(self, below: int) -> Tensor:
        """Uniform among the integers from 0 to below - 1, as floats [N]."""
        return (self.uniform() * below).floor()

    def normal(self, std: float, *columns: int) -> Tensor:
        """Normal with mean 0: [N, *columns]."""
        return self._normal(columns, 2 * (self.percentile or 0.0) - 1) * std

    def half_normal(self, std: float, *columns: int) -> Tensor:
        """The magnitude of a normal draw with mean 0: [N, *columns]."""
        return self._normal(columns, self.percentile or 0.0).abs() * std

    def scale(self, std: float) -> Tensor:
        """2 to the power of a normal draw: [N]."""
        return self.normal(std).exp2()

    def fires(self, value: Tensor, multiplier: float, otherwise: float) -> Tensor:
        """The values [N, ...] where the transform fires, with probability multiplier * p; elsewhere `otherwise`."""
        return self._where(value, multiplier * self.p, otherwise)

    def fires_half(self, value: Tensor, multiplier: float, otherwise: float) -> Tensor:
        """`fires` with the probability of which two independent halves make multiplier * p."""
        return self._where(value, 1 - (1 - multiplier * self.p).clamp(min=0).sqrt(), otherwise)

    def _where(self, value: Tensor, probability: Tensor, otherwise: float) -> Tensor:
        if self.percentile is not None:
            return value
        fired = torch.rand(self.count, device=self.device) < probability
        return torch.where(fired.reshape(-1, *[1] * (value.ndim - 1)), value, otherwise)

    def _constant(self, value: float, columns: tuple[int, ...]) -> Tensor:
        return torch.full((self.count, *columns), value, device=self.device, dtype=self.dtype)

    def _normal(self, columns: tuple[int, ...], at: float) -> Tensor:
        """Standard normal draws, or with a percentile erfinv at a number: without the quantile's factor sqrt(2)."""
        if self.percentile is not None:
            return self._constant(at, columns).erfinv()
        return torch.randn(self.count, *columns, device=self.device).to(self.dtype)


class ColorMap(NamedTuple):
    """Maps c -> matrix c + offset of RGB colours, [N, 3, 4], offset last; methods add a transform after the map."""

    rows: Tensor

    @classmethod
    def identity(cls, count: int, like: Tensor) -> "ColorMap":
        """`count` times c -> c, of a tensor's device and dtype."""
        return cls(torch.eye(3, 4, dtype=like.dtype, device=like.device).expand(count, 3, 4))

    def brighten(self, by: Tensor) -> "ColorMap":
        """Adds [N] to every channel."""
        return ColorMap(torch.cat([self.rows[..., :3], self.rows[..., 3:] + by[:, None, None]], dim=2))

    def scale(self, by: Tensor) -> "ColorMap":
        """Multiplies every channel by [N]."""
        return ColorMap(self.rows * by[:, None, None])

    def flip_luma(self, by: Tensor) -> "ColorMap":
        """Reflects about the plane orthogonal to v, where [N] is 1; not at all where it is 0."""
        return ColorMap(self.rows - 2 * by[:, None, None] * self._luma)

    def rotate_hue(self, angle: Tensor) -> "ColorMap":
        """Rotates about v by [N] radians (Rodrigues' formula)."""
        cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
        turned = (self.rows.roll(1, dims=1) - self.rows.roll(-1, dims=1)) / 3**0.5  # v x rows
        return ColorMap(self.rows * cos + turned * sin + self._luma * (1 - cos))

    def saturate(self, by: Tensor) -> "ColorMap":
        """Scales the part orthogonal to v by [N]."""
        return ColorMap(self._luma + (self.rows - self._luma) * by[:, None, None])

    def apply(self, images: Tensor) -> Tensor:
        """Images [N, 3, H, W] in other colours, or [N, 1, H, W] in the mean of the channels that grey becomes."""
        if images.shape[1] == 1:
            rows = self.rows.mean(dim=1)[:, :, None, None]
            return images * rows[:, :3].sum(dim=1, keepdim=True) + rows[:, 3:]
        matrix, offset = self.rows.split([3, 1], dim=2)
        return torch.baddbmm(offset, matrix, images.flatten(2)).reshape(images.shape)

    @property
    def _luma(self) -> Tensor:
        """The rows' part along v: [N, 1, 4]."""
        return self.rows.mean(dim=1, keepdim=True)


BLIT = ("xflip", "rotate90", "xint")
GEOMETRY = ("scale", "rotate", "aniso", "xfrac")
COLOR = ("brightness", "contrast", "lumaflip", "hue", "saturation")
MULTIPLIERS = (*BLIT, *GEOMETRY, *COLOR, "imgfilter", "noise", "cutout")

PIPES: dict[str, tuple[str, ...]] = {
    "blit": BLIT,
    "geom": GEOMETRY,
    "color": COLOR,
    "filter": ("imgfilter",),
    "noise": ("noise",),
    "cutout": ("cutout",),
    "bg": BLIT + GEOMETRY,
    "bgc": BLIT + GEOMETRY + COLOR,
    "bgcf": (*BLIT, *GEOMETRY, *COLOR, "imgfilter"),
    "bgcfn": (*BLIT, *GEOMETRY, *COLOR, "imgfilter", "noise"),
    "bgcfnc": MULTIPLIERS,
}
"""The published sets of transforms, by their names; "bgc" is the paper's choice."""


class Augment(KeepsPrecision):
    """Images [N, C, H, W] under random transforms, each fired for each image with probability p times its multiplier.

    A transform whose multiplier is 0 is skipped and draws nothing. With any of the geometric ones (the first seven)
    images of at least 4 pixels a side pass through twice their resolution and back, even where none fired; that changes
    nothing beyond rounding, as the filter is a wavelet's, but mirrored or turned images lose a little at the finest.

    Draws come from torch's global generator of the images' device, for one transform after the other in the order of
    the arguments: its value and then whether it fires; `rotate` twice (before and after `aniso`), `imgfilter` once a
    band, and `noise` its strengths, then whether, then the noise.

    `p` is a buffer, 0 at the start; `AdaptiveAugment` moves it. Half-precision images are transformed in float32.

    Args:
        xflip: mirrors with probability 1/2, where it fires, as everywhere below.
        rotate90: by 0 to 3 quarter turns.
        xint: shifts by whole pixels, up to `xint_max` of the size along each axis.
        scale: by 2^N(0, scale_std).
        rotate: by up to `rotate_max` half turns, before `aniso` and again after it; either fires with 1 - sqrt(1 - p).
        aniso: x by 2^N(0, aniso_std), y by its inverse.
        xfrac: shifts by N(0, xfrac_std) of the size along each axis.
        brightness: adds N(0, brightness_std).
        contrast: multiplies by 2^N(0, contrast_std).
        lumaflip: inverts luma, with probability 1/2; hue and saturation are kept.
        hue: rotated by up to `hue_max` half turns; nothing on grey images.
        saturation: multiplied by 2^N(0, saturation_std); nothing on grey images.
        imgfilter: scales four bands of frequency by 2^N(0, imgfilter_std); images need more than 21 pixels a side.
        noise: adds N(0, s) to every value, s = |N(0, noise_std)| an image.
        cutout: sets a rectangle to 0, `cutout_size` of each side, around a uniform centre.
        xint_max: share of the size.
        scale_std: octaves.
        rotate_max: 1 is any angle.
        aniso_std: octaves.
        xfrac_std: share of the size.
        brightness_std: where images run from -1 to 1.
        contrast_std: octaves.
        hue_max: 1 is any angle.
        saturation_std: octaves.
        imgfilter_bands: multiplies the multiplier for each band, from the lowest.
        imgfilter_std: octaves.
        noise_std: where images run from -1 to 1.
        cutout_size: share of the size.

    Raises:
        ValueError: for a multiplier or strength that is negative or not finite, or not four bands.
    """

    p: Tensor
    Hz_geom: Tensor
    Hz_fbank: Tensor

    federated_rules: ClassVar[dict[str, str]] = {"Hz_geom": "server", "Hz_fbank": "server"}  # constants

    def __init__(
        self,
        *,
        xflip: float = 0,
        rotate90: float = 0,
        xint: float = 0,
        scale: float = 0,
        rotate: float = 0,
        aniso: float = 0,
        xfrac: float = 0,
        brightness: float = 0,
        contrast: float = 0,
        lumaflip: float = 0,
        hue: float = 0,
        saturation: float = 0,
        imgfilter: float = 0,
        noise: float = 0,
        cutout: float = 0,
        xint_max: float = 0.125,
        scale_std: float = 0.2,
        rotate_max: float = 1.0,
        aniso_std: float = 0.2,
        xfrac_std: float = 0.125,
        brightness_std: float = 0.2,
        contrast_std: float = 0.5,
        hue_max: float = 1.0,
        saturation_std: float = 1.0,
        imgfilter_bands: Sequence[float] = (1, 1, 1, 1),
        imgfilter_std: float = 1.0,
        noise_std: float = 0.1,
        cutout_size: float = 0.5,
    ) -> None:
        given = arguments_of(locals())
        super().__init__()
        self.settings: dict[str, Any] = {name: _plain(name, value) for name, value in given.items()}
        # the official names: checkpoints hold them
        self.register_buffer("p", torch.zeros(()))
        self.register_buffer("Hz_geom", make_filter(SYM6))
        self.register_buffer("Hz_fbank", filter_bank(SYM2))

    @classmethod
    def of_pipe(cls, name: str, **strengths: Any) -> "Augment":
        """The augmentation of a published set of transforms, each with multiplier 1.

        Args:
            name: of `PIPES`.
            strengths: other arguments of the constructor.

        Raises:
            ValueError: for another name.
        """
        require(name in PIPES, f"no augmentation is called {name!r}; there are {', '.join(PIPES)}")
        return cls(**(dict.fromkeys(PIPES[name], 1.0) | strengths))

    def forward(self, images: Tensor, percentile: float | None = None) -> Tensor:
        """The images [N, C, H, W] transformed, of their shape and dtype.

        Args:
            images: float; C = 3 or 1 if a colour transform is on.
            percentile: q in (0, 1): no draws but the noise; every transform fires with its value at q (see `Draws`),
                and the rotation after `aniso` is by nothing.

        Raises:
            ValueError: for images of another shape or kind, or too small for a transform; a percentile out of range.
        """
        self._check(images, percentile)
        dtype = images.dtype
        if dtype in (torch.float16, torch.bfloat16):
            images = images.float()
        draws = Draws(images, self.p, percentile)
        with torch.autocast(images.device.type, enabled=False):
            if self._any(BLIT + GEOMETRY):
                images = resample(images, self._inverse(images, draws), self.Hz_geom)
            if self._any(COLOR):
                images = self._color_map(images, draws).apply(images)
            if self._any(("imgfilter",)):
                images = scale_bands(images, self._band_gains(images, draws), self.Hz_fbank)
            if self._any(("noise",)):
                images = self._with_noise(images, draws)
            if self._any(("cutout",)):
                images = self._with_cutout(images, draws)
        return images.to(dtype)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={self.settings[name]:g}" for name in MULTIPLIERS if self.settings[name])

    def _any(self, names: Sequence[str]) -> bool:
        return any(self.settings[name] for name in names)

    def _check(self, images: Tensor, percentile: float | None) -> None:
        require(
            images.ndim == 4 and images.is_floating_point() and images.numel() > 0,
            f"images must be floats [N, C, H, W], got {images.dtype} {list(images.shape)}",
        )
        require(
            images.shape[1] in (1, 3) or not self._any(COLOR),
            f"colour transforms need images of 3 channels (RGB) or 1 (grey), got {images.shape[1]}; leave"
            f" {', '.join(name for name in COLOR if self.settings[name])} at 0",
        )
        require(percentile is None or 0 < percentile < 1, f"percentile must lie within (0, 1), got {percentile}")

    def _inverse(self, images: Tensor, draws: Draws) -> Affine:
        """For each image the map from pixels of the result to the input's: inverses, in the transforms' order."""
        at, inverse = self.settings, Affine.identity(len(images), images)
        size = per_axis(images.shape[3], images.shape[2], images)
        if at["xflip"]:
            flips = draws.fires(draws.integer(2), at["xflip"], 0)
            inverse = inverse.scale(1 - 2 * flips, torch.ones_like(flips))
        if at["rotate90"]:
            turns = draws.fires(draws.integer(4), at["rotate90"], 0)
            inverse = inverse.rotate(turns * (math.pi / 2))
        if at["xint"]:
            shares = draws.fires(draws.symmetric(at["xint_max"], 2), at["xint"], 0)
            inverse = inverse.translate(-(shares * size).round())
        if at["scale"]:
            factors = draws.fires(draws.scale(at["scale_std"]), at["scale"], 1)
            inverse = inverse.scale(1 / factors, 1 / factors)
        if at["rotate"]:
            angles = draws.fires_half(draws.symmetric(math.pi * at["rotate_max"]), at["rotate"], 0)
            inverse = inverse.rotate(angles)
        if at["aniso"]:
            factors = draws.fires(draws.scale(at["aniso_std"]), at["aniso"], 1)
            inverse = inverse.scale(1 / factors, factors)
        if at["rotate"] and draws.percentile is None:
            angles = draws.fires_half(draws.symmetric(math.pi * at["rotate_max"]), at["rotate"], 0)
            inverse = inverse.rotate(angles)
        if at["xfrac"]:
            shares = draws.fires(draws.normal(at["xfrac_std"], 2), at["xfrac"], 0)
            inverse = inverse.translate(-shares * size)
        return inverse

    def _color_map(self, images: Tensor, draws: Draws) -> ColorMap:
        at, colors, grey = self.settings, ColorMap.identity(len(images), images), images.shape[1] == 1
        if at["brightness"]:
            colors = colors.brighten(draws.fires(draws.normal(at["brightness_std"]), at["brightness"], 0))
        if at["contrast"]:
            colors = colors.scale(draws.fires(draws.scale(at["contrast_std"]), at["contrast"], 1))
        if at["lumaflip"]:
            colors = colors.flip_luma(draws.fires(draws.integer(2), at["lumaflip"], 0))
        if at["hue"] and not grey:
            angles = draws.symmetric(math.pi * at["hue_max"])
            colors = colors.rotate_hue(draws.fires(angles, at["hue"], 0))
        if at["saturation"] and not grey:
            colors = colors.saturate(draws.fires(draws.scale(at["saturation_std"]), at["saturation"], 1))
        return colors

    def _band_gains(self, images: Tensor, draws: Draws) -> Tensor:
        """[N, 4], of the four bands in turn."""
        gains, at = images.new_ones(len(images), len(self.Hz_fbank)), self.settings
        for band, multiplier in enumerate(at["imgfilter_bands"]):
            fired = draws.fires(draws.scale(at["imgfilter_std"]), at["imgfilter"] * multiplier, 1)
            gains = gains * normalised_gain(fired, band)
        return gains

    def _with_noise(self, images: Tensor, draws: Draws) -> Tensor:
        strengths = draws.fires(draws.half_normal(self.settings["noise_std"]), self.settings["noise"], 0)
        noise = torch.randn(images.shape, device=images.device).to(images.dtype)
        return images + noise * strengths[:, None, None, None]

    def _with_cutout(self, images: Tensor, draws: Draws) -> Tensor:
        centers = draws.uniform(2)
        sides = draws.fires(torch.full_like(centers[:, 0], self.settings["cutout_size"]), self.settings["cutout"], 0)
        outside_x, outside_y = (
            ((torch.arange(size, device=images.device).to(images.dtype) + 0.5) / size - centers[:, axis, None]).abs()
            >= sides[:, None] / 2
            for axis, size in enumerate((images.shape[3], images.shape[2]))
        )
        return images * (outside_x[:, None, None, :] | outside_y[:, None, :, None])


def _plain(name: str, value: Any) -> float | list[float]:
    """An argument as plain types, checked."""
    if name == "imgfilter_bands":
        require(len(value) == 4, f"imgfilter_bands must be four numbers, got {value}")
        return [_plain_number(name, number) for number in value]
    return _plain_number(name, value)


def _plain_number(name: str, value: float) -> float:
    require(math.isfinite(value) and value >= 0, f"{name} must be a finite number of at least 0, got {value}")
    return float(value)


class AdaptiveAugment(KeepsPrecision):
    """An augmentation whose p follows r = mean sign(D(augmented real)), the share of certainty about real images.

    The discriminator's logits of augmented real images go to `observe`; every few iterations `update` compares their
    r with the target and moves p by a fixed step, up where the discriminator is too sure. Without a target p is fixed,
    without an augmentation images stay as they are; r is measured all the same.

    Under `FedAvgStrategy` a client's turn starts from the server's p, moves it by its own logits, and the server takes
    the weighted mean: one discriminator is trained, so one p belongs to it, and it moves as the clients' discriminators
    overfit on average. An update that a turn's end cuts in two goes on with the clients' mean signs and counts, that is
    their joint r. All three are floating buffers, which is all that the rule takes. `kimg` counts one client's images.
    `personal: ["*augment.p", "*signs", "*count"]` keeps a p with each client instead.

    Args:
        augment: an `Augment`, the name of a published set of transforms ("bgc"), or None for none.
        target: r at which p stays; None keeps p as it is.
        kimg: thousands of real images in which p moves by 1, if r stays on one side; 100 suits fine-tuning.
        p: where it starts.

    Raises:
        ValueError: for an unknown name or a value out of range.
    """

    signs: Tensor
    count: Tensor

    def __init__(
        self, augment: Augment | str | None = "bgc", target: float | None = 0.6, kimg: float = 500, p: float = 0.0
    ) -> None:
        given = arguments_of(locals())
        super().__init__()
        require(target is None or -1 <= target <= 1, f"target must lie in [-1, 1], as means of signs do, got {target}")
        require(kimg > 0, f"kimg must be above 0, got {kimg}")
        require(math.isfinite(p) and p >= 0, f"p must be a finite number of at least 0, got {p}")
        if isinstance(augment, str):
            augment = Augment.of_pipe(augment)
        self.augment: Augment | None = build(augment, "augment", Augment, "augmentation")
        self.target, self.kimg = target, kimg
        self.settings = given | {"augment": None if self.augment is None else describe(self.augment)}
        if self.augment is not None:
            self.augment.p.fill_(p)
        self.register_buffer("signs", torch.zeros(()))  # sum of the signs observed since the last update
        self.register_buffer("count", torch.zeros(()))  # of those

    @property
    def p(self) -> Tensor:
        """The probability, a scalar; 0 without an augmentation."""
        return self.count.new_zeros(()) if self.augment is None else self.augment.p

    def forward(self, images: Tensor) -> Tensor:
        """The images [N, C, H, W] augmented, in training and evaluation mode alike."""
        return images if self.augment is None else self.augment(images)

    @torch.no_grad()
    def observe(self, logits: Tensor) -> None:
        """Counts the discriminator's logits, of any shape, of augmented real images."""
        self.signs += logits.detach().sign().float().sum()
        self.count += logits.numel()

    @torch.no_grad()
    def update(self, images: int) -> Tensor:
        """r of what was observed since the last update, a scalar, NaN if nothing was; p moves by its sign.

        p := max(p + sign(r - target) * images / (1000 kimg), 0). There is no upper limit; above 1 it acts as 1.

        Args:
            images: real images trained on since the last update: batch times iterations, whoever observed them.
        """
        r = self.signs / self.count
        if self.augment is not None and self.target is not None:
            # nothing to go by: p stays
            step = (r - self.target).sign().nan_to_num(nan=0.0) * (images / (1000 * self.kimg))
            self.augment.p.copy_((self.augment.p + step).clamp(min=0))
        self.signs.zero_()
        self.count.zero_()
        return r
