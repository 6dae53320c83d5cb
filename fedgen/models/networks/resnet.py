"""The CIFAR-10 ResNet pair of WGAN-GP (Gulrajani et al. 2017, arXiv 1704.00028, appendix): 128 maps, latent 128.

As in the authors' released model, unconditional: BatchNorm in the generator, no normalisation in the critic (layer
normalisation belongs to the paper's deeper models), nearest-neighbour upsampling before a block's first convolution,
mean pooling after its second, He initialisation where a ReLU follows the input and Glorot elsewhere. The pair for
32x32 has 1,204,483 and 1,053,825 parameters; other sizes add or drop resampling blocks.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.models.networks.blocks import CriticBlock, FirstCriticBlock, UpBlock
from fedgen.models.networks.doublings import count_doublings
from fedgen.models.networks.network import Critic, Generator
from fedgen.models.networks.pair_layers import convolution, linear


class ResNetGenerator(Generator):
    """Linear to [width, 4, 4] (7x7 for 28 pixels), doubling residual blocks, BN, ReLU, conv, tanh.

    Args:
        image_size: pixels a side, a multiple of 4 from 8; 32 is the paper's.
        channels: 1 grey, 3 colour.
        latent_dim: length of a latent.
        width: feature maps throughout.
    """

    def __init__(self, image_size: int = 32, channels: int = 3, latent_dim: int = 128, width: int = 128) -> None:
        super().__init__(image_size, channels, latent_dim, width=width)
        doublings = count_doublings(image_size)
        base = image_size >> doublings
        self.body = nn.Sequential(
            linear(latent_dim, width * base * base),
            nn.Unflatten(1, (width, base, base)),
            *(UpBlock(width, width) for _ in range(doublings)),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            convolution(width, channels, 3, False),
            nn.Tanh(),
        )

    def forward(self, latents: Tensor) -> Tensor:
        return self.body(latents)


def critic_blocks(image_size: int, channels: int, width: int) -> nn.Sequential:
    """Residual blocks halving the side down to 7, 8, 10 or 12 (from 8 or 12: to half), and two more there."""
    doublings = count_doublings(image_size)
    halvings = doublings - 1 if image_size >> doublings < 7 else doublings
    return nn.Sequential(
        FirstCriticBlock(channels, width),
        *(CriticBlock(width, width, down=True) for _ in range(halvings - 1)),
        *(CriticBlock(width, width, down=False) for _ in range(2)),
    )


class ResNetCritic(Critic):
    """Residual blocks halving the side (32 down to 8), two more at that size, ReLU, mean pool, linear.

    Args:
        image_size: pixels a side, a multiple of 4 from 8; 32 is the paper's.
        channels: 1 grey, 3 colour.
        width: feature maps throughout.
    """

    def __init__(self, image_size: int = 32, channels: int = 3, width: int = 128) -> None:
        super().__init__(image_size, channels, width=width)
        self.blocks = critic_blocks(image_size, channels, width)
        self.score = linear(width, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.score(F.relu(self.blocks(images)).mean((2, 3))).squeeze(1)
