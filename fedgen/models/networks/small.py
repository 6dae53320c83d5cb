"""A pair for tiny images (8x8 digits): two hidden layers each, about 2 ms a critic iteration on one CPU core.

Perceptrons, not convolutions: at 8x8 a convolution's cost is its fixed overhead, paid again in the penalty's double
backward; in runs of a minute these got closer to the digits (in pixels' Fréchet distance) than a convolutional pair.
"""

from torch import Tensor, nn

from fedgen.models.networks.network import Critic, Generator


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

    def forward(self, latents: Tensor) -> Tensor:
        return self.body(latents)


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

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images).squeeze(1)
