"""The DCGAN pair (Radford et al. 2016, arXiv 1511.06434) for 16, 20, 24, 28, 32, 64, ... pixels, of any width."""

from torch import Tensor, nn

from fedgen.models.networks.network import Critic, Generator


def count_doublings(image_size: int) -> int:
    """How often 4x4 or more must double to reach the size: 3 for 32 (from 4), 2 for 28 (from 7), 4 for 64 (from 4).

    Raises:
        ValueError: if the size is below 16 or not a multiple of 4.
    """
    if image_size < 16 or image_size % 4:
        raise ValueError(f"image_size must be a multiple of 4 from 16 (16, 28, 32, 64, ...), got {image_size}")
    doublings = 0
    while image_size % 2 == 0 and image_size >= 8:
        image_size //= 2
        doublings += 1
    return doublings


class DCGANGenerator(Generator):
    """Linear, then transposed 4x4 convolutions that double the side and halve the maps, BatchNorm and ReLU between.

    Args:
        image_size: pixels a side, a multiple of 4 from 16.
        channels: 1 grey, 3 colour.
        latent_dim: length of a latent.
        width: feature maps before the last layer (the paper's 64x64 model has 128); 16 or 32 trains on two CPU cores.
    """

    def __init__(self, image_size: int = 32, channels: int = 3, latent_dim: int = 128, width: int = 64) -> None:
        super().__init__(image_size, channels, latent_dim, width=width)
        doublings = count_doublings(image_size)
        base, maps = image_size >> doublings, width << (doublings - 1)
        layers: list[nn.Module] = [
            nn.Linear(latent_dim, maps * base * base, bias=False),
            nn.Unflatten(1, (maps, base, base)),
            nn.BatchNorm2d(maps),
            nn.ReLU(),
        ]
        for _ in range(doublings - 1):
            layers += [
                nn.ConvTranspose2d(maps, maps // 2, 4, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(maps // 2),
                nn.ReLU(),
            ]
            maps //= 2
        self.body = nn.Sequential(*layers, nn.ConvTranspose2d(maps, channels, 4, stride=2, padding=1), nn.Tanh())

    def forward(self, latents: Tensor) -> Tensor:
        return self.body(latents)


class DCGANCritic(Critic):
    """4x4 convolutions that halve the side and double the maps, leaky ReLU between, a linear layer at the end.

    No normalisation, unlike the paper's discriminator: a gradient penalty is taken per image, and BatchNorm makes an
    image's score depend on the others (Gulrajani et al. 2017, section 4).

    Args:
        image_size: pixels a side, a multiple of 4 from 16.
        channels: 1 grey, 3 colour.
        width: feature maps after the first layer.
    """

    def __init__(self, image_size: int = 32, channels: int = 3, width: int = 64) -> None:
        super().__init__(image_size, channels, width=width)
        doublings = count_doublings(image_size)
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
        maps = width
        for _ in range(doublings - 1):
            layers += [nn.Conv2d(maps, 2 * maps, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
            maps *= 2
        base = image_size >> doublings
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(maps * base * base, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images).squeeze(1)
