"""The CIFAR-10 ResNet pair of WGAN-GP (Gulrajani et al. 2017, arXiv 1704.00028, appendix): 128 maps, latent 128.

As in the authors' released model, unconditional: BatchNorm in the generator, no normalisation in the critic (layer
normalisation belongs to the paper's deeper models), nearest-neighbour upsampling before a block's first convolution,
mean pooling after its second, He initialisation where a ReLU follows the input and Glorot elsewhere. The pair for
32x32 has 1,204,483 and 1,053,825 parameters; other sizes add or drop resampling blocks.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.models.networks.dcgan import count_doublings
from fedgen.models.networks.network import Critic, Generator


def _convolution(inputs: int, outputs: int, kernel: int, after_relu: bool) -> nn.Conv2d:
    """A convolution that keeps the size, with zero biases and He (after a ReLU) or Glorot weights."""
    layer = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2)
    if after_relu:
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    else:
        nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return layer


def _linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class UpBlock(nn.Module):
    """Pre-activation residual block that doubles the side: BN, ReLU, upsample, conv, BN, ReLU, conv."""

    def __init__(self, maps: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(maps), nn.BatchNorm2d(maps)
        self.conv1, self.conv2 = _convolution(maps, maps, 3, True), _convolution(maps, maps, 3, True)
        self.shortcut = _convolution(maps, maps, 1, False)

    def forward(self, x: Tensor) -> Tensor:
        # a 1x1 convolution and nearest-neighbour upsampling commute: the cheaper order gives the same values
        shortcut = F.interpolate(self.shortcut(x), scale_factor=2.0)
        x = self.conv1(F.interpolate(F.relu(self.norm1(x)), scale_factor=2.0))
        return shortcut + self.conv2(F.relu(self.norm2(x)))


class CriticBlock(nn.Module):
    """Pre-activation residual block without normalisation; `down` halves the side by mean pooling."""

    def __init__(self, maps: int, down: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = _convolution(maps, maps, 3, True), _convolution(maps, maps, 3, True)
        self.shortcut = _convolution(maps, maps, 1, False) if down else nn.Identity()
        self.down = down

    def forward(self, x: Tensor) -> Tensor:
        residual = self.conv2(F.relu(self.conv1(F.relu(x))))
        if self.down:
            # pooling and a 1x1 convolution commute as well
            return self.shortcut(F.avg_pool2d(x, 2)) + F.avg_pool2d(residual, 2)
        return x + residual


class FirstCriticBlock(nn.Module):
    """The critic's first block: images are not passed through a ReLU, and the shortcut pools before its convolution."""

    def __init__(self, channels: int, maps: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = _convolution(channels, maps, 3, True), _convolution(maps, maps, 3, True)
        self.shortcut = _convolution(channels, maps, 1, False)

    def forward(self, images: Tensor) -> Tensor:
        residual = self.conv2(F.relu(self.conv1(images)))
        return self.shortcut(F.avg_pool2d(images, 2)) + F.avg_pool2d(residual, 2)


class ResNetGenerator(Generator):
    """Linear to [width, 4, 4] (7x7 for 28 pixels), doubling residual blocks, BN, ReLU, conv, tanh.

    Args:
        image_size: pixels a side, a multiple of 4 from 16; 32 is the paper's.
        channels: 1 grey, 3 colour.
        latent_dim: length of a latent.
        width: feature maps throughout.
    """

    def __init__(self, image_size: int = 32, channels: int = 3, latent_dim: int = 128, width: int = 128) -> None:
        super().__init__(image_size, channels, latent_dim, width=width)
        doublings = count_doublings(image_size)
        base = image_size >> doublings
        self.body = nn.Sequential(
            _linear(latent_dim, width * base * base),
            nn.Unflatten(1, (width, base, base)),
            *(UpBlock(width) for _ in range(doublings)),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            _convolution(width, channels, 3, False),
            nn.Tanh(),
        )

    def forward(self, latents: Tensor) -> Tensor:
        return self.body(latents)


class ResNetCritic(Critic):
    """Residual blocks halving the side down to 8 (7 for 28 pixels), two more at that size, ReLU, mean pool, linear.

    Args:
        image_size: pixels a side, a multiple of 4 from 16; 32 is the paper's.
        channels: 1 grey, 3 colour.
        width: feature maps throughout.
    """

    def __init__(self, image_size: int = 32, channels: int = 3, width: int = 128) -> None:
        super().__init__(image_size, channels, width=width)
        doublings = count_doublings(image_size)
        halvings = doublings - 1 if image_size >> doublings < 7 else doublings
        self.blocks = nn.Sequential(
            FirstCriticBlock(channels, width),
            *(CriticBlock(width, down=True) for _ in range(halvings - 1)),
            *(CriticBlock(width, down=False) for _ in range(2)),
        )
        self.score = _linear(width, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.score(F.relu(self.blocks(images)).mean((2, 3))).squeeze(1)
