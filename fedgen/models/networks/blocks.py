"""Pre-activation residual blocks that double or halve the side, of the ResNet, SNGAN and SAGAN pairs."""

from torch import Tensor, nn
from torch.nn import functional as F

from fedgen.models.networks.pair_layers import batch_norm, convolution, normalise


class UpBlock(nn.Module):
    """Doubles the side: BN, ReLU, nearest-neighbour upsampling, conv, BN, ReLU, conv, and a 1x1 conv past them.

    Args:
        inputs: feature maps that come in.
        outputs: feature maps that go out.
        num_classes: labels' classes, for conditional BatchNorm; None for none.
    """

    def __init__(self, inputs: int, outputs: int, num_classes: int | None = None) -> None:
        super().__init__()
        self.norm1, self.norm2 = batch_norm(inputs, num_classes), batch_norm(outputs, num_classes)
        self.conv1, self.conv2 = convolution(inputs, outputs, 3, True), convolution(outputs, outputs, 3, True)
        self.shortcut = convolution(inputs, outputs, 1, False)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        # a 1x1 convolution and nearest-neighbour upsampling commute: the cheaper order gives the same values
        shortcut = F.interpolate(self.shortcut(x), scale_factor=2.0)
        x = self.conv1(F.interpolate(F.relu(normalise(self.norm1, x, labels)), scale_factor=2.0))
        return shortcut + self.conv2(F.relu(normalise(self.norm2, x, labels)))


class CriticBlock(nn.Module):
    """ReLU, conv, ReLU, conv without normalisation; `down` halves the side by mean pooling.

    Args:
        inputs: feature maps that come in.
        outputs: feature maps that go out; a 1x1 conv leads past the block if they are others, or it halves.
        down: whether to halve the side.
    """

    def __init__(self, inputs: int, outputs: int, down: bool) -> None:
        super().__init__()
        self.conv1, self.conv2 = convolution(inputs, outputs, 3, True), convolution(outputs, outputs, 3, True)
        plain = not down and inputs == outputs
        self.shortcut = nn.Identity() if plain else convolution(inputs, outputs, 1, False)
        self.down = down

    def forward(self, x: Tensor) -> Tensor:
        residual = self.conv2(F.relu(self.conv1(F.relu(x))))
        if self.down:
            # pooling and a 1x1 convolution commute as well
            return self.shortcut(F.avg_pool2d(x, 2)) + F.avg_pool2d(residual, 2)
        return self.shortcut(x) + residual


class FirstCriticBlock(nn.Module):
    """A critic's first block, which halves the side: images are not passed through a ReLU.

    Args:
        channels: of the images.
        maps: feature maps that go out.
    """

    def __init__(self, channels: int, maps: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = convolution(channels, maps, 3, True), convolution(maps, maps, 3, True)
        self.shortcut = convolution(channels, maps, 1, False)

    def forward(self, images: Tensor) -> Tensor:
        residual = self.conv2(F.relu(self.conv1(images)))
        return self.shortcut(F.avg_pool2d(images, 2)) + F.avg_pool2d(residual, 2)
