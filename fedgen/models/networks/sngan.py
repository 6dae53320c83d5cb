"""The CIFAR-10 ResNet pair of SNGAN (Miyato et al. 2018, arXiv 1802.05957, Table 4), conditional if asked for.

The generator is that of WGAN-GP with 256 maps; the critic has 128 and is spectrally normalised throughout, its maps
summed, not averaged, over positions. With classes the pair is that of the projection discriminator (Miyato and Koyama
2018, arXiv 1802.05637): conditional BatchNorm in the generator, and the label's embedding times the maps in the score.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.models.networks.blocks import UpBlock
from fedgen.models.networks.doublings import count_doublings
from fedgen.models.networks.network import Critic, Generator
from fedgen.models.networks.pair_layers import check_labels, convolution, linear
from fedgen.models.networks.resnet import critic_blocks
from fedgen.models.networks.spectral import normalise_spectrally


class SNGANGenerator(Generator):
    """Linear to [width, 4, 4] (7x7 for 28 pixels), doubling residual blocks, BN, ReLU, conv, tanh.

    Args:
        image_size: pixels a side, a multiple of 4 from 8; 32 is the paper's.
        channels: 1 grey, 3 colour.
        latent_dim: length of a latent.
        width: feature maps throughout.
        num_classes: labels' classes of a conditional model; None for an unconditional one.
    """

    def __init__(
        self,
        image_size: int = 32,
        channels: int = 3,
        latent_dim: int = 128,
        width: int = 256,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(image_size, channels, latent_dim, width=width, num_classes=num_classes)
        self.num_classes = num_classes
        doublings = count_doublings(image_size)
        base = image_size >> doublings
        self.start = nn.Sequential(linear(latent_dim, width * base * base), nn.Unflatten(1, (width, base, base)))
        self.blocks = nn.ModuleList(UpBlock(width, width, num_classes) for _ in range(doublings))
        self.end = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), convolution(width, channels, 3, False), nn.Tanh())

    def forward(self, latents: Tensor, labels: Tensor | None = None) -> Tensor:
        check_labels(self.num_classes, labels, self)
        x = self.start(latents)
        for block in self.blocks:
            x = block(x, labels)
        return self.end(x)


class SNGANCritic(Critic):
    """Residual blocks halving the side down to 8, two more there, ReLU, sum over positions, linear; all normalised.

    Args:
        image_size: pixels a side, a multiple of 4 from 8; 32 is the paper's.
        channels: 1 grey, 3 colour.
        width: feature maps throughout.
        num_classes: labels' classes of a conditional model; None for an unconditional one.
    """

    def __init__(
        self, image_size: int = 32, channels: int = 3, width: int = 128, num_classes: int | None = None
    ) -> None:
        super().__init__(image_size, channels, width=width, num_classes=num_classes)
        self.num_classes = num_classes
        self.blocks = critic_blocks(image_size, channels, width)
        self.head = ProjectionHead(width, num_classes)
        normalise_spectrally(self)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        check_labels(self.num_classes, labels, self)
        return self.head(self.blocks(images), labels)


class ProjectionHead(nn.Module):
    """Scores [N] of maps [N, C, H, W]: linear in h = sum over positions of ReLU(maps), plus <embedding(label), h>.

    Args:
        maps: C.
        num_classes: labels' classes; None for the linear part alone.
    """

    def __init__(self, maps: int, num_classes: int | None) -> None:
        super().__init__()
        self.score = linear(maps, 1)
        self.embedding = nn.Embedding(num_classes, maps) if num_classes is not None else None
        if self.embedding is not None:
            nn.init.xavier_uniform_(self.embedding.weight)

    def forward(self, x: Tensor, labels: Tensor | None) -> Tensor:
        summed = F.relu(x).sum((2, 3))
        score = self.score(summed).squeeze(1)
        return score if self.embedding is None else score + (self.embedding(labels) * summed).sum(1)
