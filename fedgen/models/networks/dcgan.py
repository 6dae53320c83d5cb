"""Plain pairs: DCGAN's (Radford et al. 2016, arXiv 1511.06434) for 8, 16, 20, 24, 28, ... pixels, and perceptrons."""

from torch import nn

from fedgen.models.networks.network import Critic, Generator
from fedgen.models.networks.pair_layers import count_doublings


def _initialise(network: nn.Module, std: float | None) -> None:
    """Weights N(0, std) and BatchNorm gains N(1, std), as published with 0.02; None leaves PyTorch's own."""
    if std is None:
        return
    for layer in network.modules():
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            nn.init.normal_(layer.weight, 0.0, std)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.weight, 1.0, std)


class DCGANGenerator(Generator):
    """Linear, then transposed 4x4 convolutions that double the side and halve the maps, BatchNorm and ReLU between.

    Args:
        image_size: pixels a side, a multiple of 4 from 8.
        channels: 1 grey, 3 colour.
        latent_dim: length of a latent.
        width: feature maps before the last layer (the paper's 64x64 model has 128); 16 or 32 trains on two CPU cores.
        initial_std: of normal initial weights, published as 0.02; None for PyTorch's initialisation.
    """

    def __init__(
        self,
        image_size: int = 32,
        channels: int = 3,
        latent_dim: int = 128,
        width: int = 64,
        initial_std: float | None = None,
    ) -> None:
        super().__init__(image_size, channels, latent_dim, width=width, initial_std=initial_std)
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
        _initialise(self, initial_std)


class DCGANCritic(Critic):
    """4x4 convolutions that halve the side and double the maps, leaky ReLU between, a linear layer at the end.

    No normalisation by default, unlike the paper's discriminator: a gradient penalty is taken per image, and BatchNorm
    makes an image's score depend on the others (Gulrajani et al. 2017, section 4). Games without a penalty may have it.

    Args:
        image_size: pixels a side, a multiple of 4 from 8.
        channels: 1 grey, 3 colour.
        width: feature maps after the first layer.
        batch_norm: whether every convolution but the first is followed by BatchNorm, as published.
        initial_std: of normal initial weights, published as 0.02; None for PyTorch's initialisation.
    """

    def __init__(
        self,
        image_size: int = 32,
        channels: int = 3,
        width: int = 64,
        batch_norm: bool = False,
        initial_std: float | None = None,
    ) -> None:
        super().__init__(image_size, channels, width=width, batch_norm=batch_norm, initial_std=initial_std)
        doublings = count_doublings(image_size)
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
        maps = width
        for _ in range(doublings - 1):
            layers.append(nn.Conv2d(maps, 2 * maps, 4, stride=2, padding=1, bias=not batch_norm))
            maps *= 2
            layers += [nn.BatchNorm2d(maps)] if batch_norm else []
            layers.append(nn.LeakyReLU(0.2))
        base = image_size >> doublings
        self.body = nn.Sequential(*layers, nn.Flatten(), nn.Linear(maps * base * base, 1))
        _initialise(self, initial_std)


class SmallGenerator(Generator):
    """Linear layers with BatchNorm and ReLU between, reshaped to an image.

    Args:
        image_size: pixels a side.
        channels: 1 grey, 3 colour.
        latent_dim: length of a latent.
        width: units of a hidden layer.
    """

    def __init__(self, image_size: int = 8, channels: int = 1, latent_dim: int = 32, width: int = 128) -> None:
        super().__init__(image_size, channels, latent_dim, width=width)
        self.body = nn.Sequential(
            nn.Linear(latent_dim, width, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, channels * image_size**2),
            nn.Tanh(),
            nn.Unflatten(1, self.image_shape),
        )


class SmallCritic(Critic):
    """Linear layers with leaky ReLU between, on the image's pixels; no normalisation, as the gradient penalty asks.

    Args:
        image_size: pixels a side.
        channels: 1 grey, 3 colour.
        width: units of a hidden layer.
    """

    def __init__(self, image_size: int = 8, channels: int = 1, width: int = 128) -> None:
        super().__init__(image_size, channels, width=width)
        self.body = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * image_size**2, width),
            nn.LeakyReLU(0.2),
            nn.Linear(width, width),
            nn.LeakyReLU(0.2),
            nn.Linear(width, 1),
        )
