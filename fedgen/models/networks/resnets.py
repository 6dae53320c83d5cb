"""Residual pairs: those of WGAN-GP, SNGAN and SAGAN."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.models.networks.network import Critic, Generator
from fedgen.models.networks.pair_layers import (
    CriticBlock,
    UpBlock,
    check_labels,
    convolution,
    count_doublings,
    linear,
    normalise_spectrally,
)


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


def critic_blocks(image_size: int, channels: int, width: int) -> nn.Sequential:
    """Residual blocks halving the side down to 7, 8, 10 or 12 (from 8 or 12: to half), and two more there."""
    doublings = count_doublings(image_size)
    halvings = doublings - 1 if image_size >> doublings < 7 else doublings
    return nn.Sequential(
        CriticBlock(channels, width, down=True, of_images=True),
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
    """Scores [N] of maps [N, C, H, W]: linear in h = sum over positions of ReLU(maps), plus <embedding(label), h>."""

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


class SelfAttention(nn.Module):
    """gamma * attention(x) + x, with gamma learnt from 0, keys and values pooled as in the authors' released model."""

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


WIDEST = 16  # the published networks' widest maps, in units of their narrowest


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
        blocks: list[nn.Module] = [CriticBlock(channels, width, down=True, of_images=True)]
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
