"""A pair for tiny images (8x8 digits): a few milliseconds a critic iteration on one CPU core."""

from torch import Tensor, nn

from fedgen.models.networks.network import Critic, Generator


def _require_size(image_size: int) -> None:
    if image_size < 8 or image_size % 4:
        raise ValueError(f"the small pair makes images of 8, 12, 16, ... pixels a side, got image_size={image_size}")


class SmallGenerator(Generator):
    """Linear to [4 * width, S/4, S/4], then two doublings, BatchNorm and ReLU between.

    Args:
        image_size: pixels a side, a multiple of 4 from 8.
        channels: 1 grey, 3 colour.
        latent_dim: length of a latent.
        width: feature maps before the last layer.
    """

    def __init__(self, image_size: int = 8, channels: int = 1, latent_dim: int = 32, width: int = 16) -> None:
        super().__init__(image_size, channels, latent_dim, width=width)
        _require_size(image_size)
        base = image_size // 4
        self.body = nn.Sequential(
            nn.Linear(latent_dim, 4 * width * base * base, bias=False),
            nn.Unflatten(1, (4 * width, base, base)),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(4 * width, 2 * width, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, channels, 3, padding=1),
            nn.Tanh(),
        )

    def forward(self, latents: Tensor) -> Tensor:
        return self.body(latents)


class SmallCritic(Critic):
    """Two halving convolutions and a linear layer; no normalisation, as the gradient penalty asks.

    Args:
        image_size: pixels a side, a multiple of 4 from 8.
        channels: 1 grey, 3 colour.
        width: feature maps after the first layer.
    """

    def __init__(self, image_size: int = 8, channels: int = 1, width: int = 16) -> None:
        super().__init__(image_size, channels, width=width)
        _require_size(image_size)
        base = image_size // 4
        self.body = nn.Sequential(
            nn.Conv2d(channels, 2 * width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(2 * width, 4 * width, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(4 * width * base * base, 1),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images).squeeze(1)
