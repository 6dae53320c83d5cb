"""The SAGAN pair (Zhang et al. 2018, arXiv 1805.08318) for ImageNet at 128x128, conditional as published.

Residual networks with spectral normalisation in both and self-attention at 32x32 maps; conditional BatchNorm in the
generator, a projection discriminator (Miyato and Koyama 2018). At 128 pixels the generator's maps are 1024, 1024, 512,
256, 128, 64 and the critic's 64, 128, 256, 512, 1024, 1024. Other sizes add or drop the widest blocks.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.models.networks.blocks import CriticBlock, FirstCriticBlock, UpBlock
from fedgen.models.networks.doublings import count_doublings
from fedgen.models.networks.network import Critic, Generator
from fedgen.models.networks.pair_layers import check_labels, convolution, linear
from fedgen.models.networks.sngan import ProjectionHead
from fedgen.models.networks.spectral import normalise_spectrally

WIDEST = 16  # the published networks' widest maps, in units of their narrowest


class SelfAttention(nn.Module):
    """gamma * attention(x) + x, with gamma learnt from 0: at first the maps pass as they are.

    As in the authors' released model, keys and values are pooled to a quarter of the positions; queries and keys have
    an eighth of the maps, values a half.

    Args:
        maps: feature maps, at least 8 for the published proportions.
    """

    def __init__(self, maps: int) -> None:
        super().__init__()
        inner, values = max(1, maps // 8), max(1, maps // 2)
        self.query, self.key = convolution(maps, inner, 1, False, bias=False), convolution(maps, inner, 1, False, False)
        self.value, self.out = convolution(maps, values, 1, False, False), convolution(values, maps, 1, False, False)
        self.gamma = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        queries = self.query(x).flatten(2)  # [N, C/8, positions]
        keys = F.max_pool2d(self.key(x), 2).flatten(2)  # [N, C/8, positions/4]
        values = F.max_pool2d(self.value(x), 2).flatten(2)  # [N, C/2, positions/4]
        attention = torch.bmm(queries.transpose(1, 2), keys).softmax(dim=-1)  # rows sum to 1
        attended = torch.bmm(values, attention.transpose(1, 2)).unflatten(2, x.shape[2:])
        return self.gamma * self.out(attended) + x


class SAGANGenerator(Generator):
    """Linear to 4x4 maps (7x7 for 28 pixels), doubling residual blocks with attention between, BN, ReLU, conv, tanh.

    Args:
        image_size: pixels a side, a multiple of 4 from 8; 128 is the paper's.
        channels: 1 grey, 3 colour.
        latent_dim: length of a latent.
        width: feature maps before the last layer, doubled for every halving of the side up to 16 times.
        attention_size: side of the maps that attend to themselves.
        num_classes: labels' classes of a conditional model; None for an unconditional one.

    Raises:
        ValueError: if no maps have the attention's side.
    """

    def __init__(
        self,
        image_size: int = 128,
        channels: int = 3,
        latent_dim: int = 128,
        width: int = 64,
        attention_size: int = 32,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(
            image_size, channels, latent_dim, width=width, attention_size=attention_size, num_classes=num_classes
        )
        self.num_classes = num_classes
        doublings = count_doublings(image_size)
        base = image_size >> doublings
        maps = [width * min(WIDEST, 1 << left) for left in reversed(range(doublings))]
        maps = [maps[0], *maps]  # before and after each block
        sides = [base << done for done in range(doublings + 1)]
        self._attends = _position(sides, attention_size, "generator")
        self.start = nn.Sequential(linear(latent_dim, maps[0] * base * base), nn.Unflatten(1, (maps[0], base, base)))
        self.blocks = nn.ModuleList(UpBlock(inputs, outputs, num_classes) for inputs, outputs in pairwise(maps))
        self.attention = SelfAttention(maps[self._attends])
        self.end = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), convolution(width, channels, 3, False), nn.Tanh())
        normalise_spectrally(self)

    def forward(self, latents: Tensor, labels: Tensor | None = None) -> Tensor:
        check_labels(self.num_classes, labels, self)
        x = self.start(latents)
        for place, block in enumerate(self.blocks):
            x = block(self.attention(x) if place == self._attends else x, labels)
        return self.end(self.attention(x) if self._attends == len(self.blocks) else x)


class SAGANCritic(Critic):
    """Residual blocks halving the side to 4 (7 for 28 pixels) with attention between, one more, and a projection head.

    Args:
        image_size: pixels a side, a multiple of 4 from 8; 128 is the paper's.
        channels: 1 grey, 3 colour.
        width: feature maps after the first block, doubled for every halving of the side up to 16 times.
        attention_size: side of the maps that attend to themselves.
        num_classes: labels' classes of a conditional model; None for an unconditional one.

    Raises:
        ValueError: if no maps have the attention's side.
    """

    def __init__(
        self,
        image_size: int = 128,
        channels: int = 3,
        width: int = 64,
        attention_size: int = 32,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(image_size, channels, width=width, attention_size=attention_size, num_classes=num_classes)
        self.num_classes = num_classes
        halvings = count_doublings(image_size)
        maps = [width * min(WIDEST, 1 << done) for done in range(halvings)]
        attends = _position([image_size >> (done + 1) for done in range(halvings)], attention_size, "critic")
        blocks: list[nn.Module] = [FirstCriticBlock(channels, width)]
        blocks += [CriticBlock(inputs, outputs, down=True) for inputs, outputs in pairwise(maps)]
        blocks.append(CriticBlock(maps[-1], maps[-1], down=False))
        blocks.insert(attends + 1, SelfAttention(maps[attends]))
        self.blocks = nn.Sequential(*blocks)
        self.head = ProjectionHead(maps[-1], num_classes)
        normalise_spectrally(self)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        check_labels(self.num_classes, labels, self)
        return self.head(self.blocks(images), labels)


def _position(sides: list[int], attention_size: int, network: str) -> int:
    if attention_size not in sides:
        known = ", ".join(str(side) for side in sides)
        raise ValueError(f"attention_size={attention_size}: the {network} has maps of side {known}; choose one")
    return sides.index(attention_size)
