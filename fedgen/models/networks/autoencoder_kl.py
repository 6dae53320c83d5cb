"""The autoencoder of latent diffusion, on diffusers' AutoencoderKL."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fedgen.extras import need
from fedgen.models.networks.network import Network
from fedgen.models.require import require


class AutoencoderKL(Network):
    """Normal posteriors of latents [N, c, h, w] of images [N, C, H, W] in [-1, 1], and images of latents.

    The convolutional autoencoder of Rombach et al. 2022 (arXiv 2112.10752); h and w are H and W halved once for every
    width beyond the first. The defaults are Stable Diffusion's; widths of 16 and 32 train on two CPU cores.

    Args:
        image_size: pixels a side that it is trained for, a multiple of 2 for every width beyond the first.
        channels: 1 grey, 3 colour.
        latent_channels: c.
        widths: feature maps at full size, half, a quarter, ...
        layers: residual blocks at each size, one more in the decoder.
        attention: whether the middle has self-attention.
        options: further arguments of diffusers' AutoencoderKL, which win over all the above.

    Raises:
        ValueError: for sizes that do not halve, or latents that are normalised channel by channel.
    """

    def __init__(
        self,
        image_size: int = 256,
        channels: int = 3,
        latent_channels: int = 4,
        widths: Sequence[int] = (128, 256, 512, 512),
        layers: int = 2,
        attention: bool = True,
        options: dict[str, Any] | None = None,
    ) -> None:
        kind = need("diffusers", "diffusion", "AutoencoderKL").AutoencoderKL
        widths = list(widths)
        super().__init__(
            image_size=image_size,
            channels=channels,
            latent_channels=latent_channels,
            widths=widths,
            layers=layers,
            attention=attention,
            options=options,
        )
        config: dict[str, Any] = {"sample_size": image_size, "in_channels": channels, "out_channels": channels}
        config |= {"latent_channels": latent_channels, "layers_per_block": layers, "scaling_factor": 1.0}
        config |= {"block_out_channels": tuple(widths), "mid_block_add_attention": attention}
        config |= {"down_block_types": ("DownEncoderBlock2D",) * len(widths)}
        config |= {"up_block_types": ("UpDecoderBlock2D",) * len(widths)}
        config |= {"norm_num_groups": math.gcd(32, *(max(1, width // 4) for width in widths))} | (options or {})
        side, self.factor = config["sample_size"], 2 ** (len(config["block_out_channels"]) - 1)
        require(
            len(config["block_out_channels"]) > 0 and side >= 1 and side % self.factor == 0,
            f"image_size={side} does not halve for the widths {list(config['block_out_channels'])}; pad the data"
            " (pad_to), or give fewer widths",
        )
        require(
            config.get("latents_mean") is None and config.get("latents_std") is None,
            "this AutoencoderKL normalises latents channel by channel (latents_mean, latents_std), and fedgen does so"
            " by one factor and shift; take another",
        )
        self.body: Any = kind(**config)
        self.image_shape = (config["in_channels"], side, side)
        self.latent_shape = (config["latent_channels"], side // self.factor, side // self.factor)

    @classmethod
    def around(cls, config: Mapping[str, Any]) -> "AutoencoderKL":
        """The network of a config of diffusers' AutoencoderKL, as in its config.json, with new weights."""
        options = {key: value for key, value in config.items() if not key.startswith("_")}
        side, channels = options["sample_size"], options["in_channels"]
        return cls(side, channels, options["latent_channels"], options["block_out_channels"], options=options)

    @property
    def scaling(self) -> float:
        """The factor of latents, after the shift, for a model of them."""
        return float(self.body.config.scaling_factor)

    @property
    def shift(self) -> float:
        """The number that is subtracted from latents first."""
        return float(self.body.config.shift_factor or 0.0)

    def encode(self, images: Tensor) -> Any:
        """The posteriors of images [N, C, H, W]: an object with `sample()`, `mode()` and `kl()` in nats [N]."""
        return self.body.encode(images, return_dict=False)[0]

    def decode(self, latents: Tensor) -> Tensor:
        """Images [N, C, H, W] of latents [N, c, h, w], not cut to [-1, 1]."""
        found: Tensor = self.body.decode(latents, return_dict=False)[0]
        return found

    def forward(self, images: Tensor) -> Tensor:
        """Images [N, C, H, W] of the modes of images' posteriors."""
        return self.decode(self.encode(images).mode())
