"""The preconditioning, loss weight and noise levels of EDM (Karras et al. 2022, arXiv 2206.00364)."""

from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from fedgen.models.require import require


@dataclass(frozen=True)
class Preconditioning:
    """The denoiser D(x; sigma) = c_skip x + c_out F(c_in x, c_noise) around a network F (Table 1, column "Ours").

    Inputs c_in x of the network and its targets (y - c_skip x) / c_out have unit variance for images y of deviation
    sigma_data and x = y + sigma e.

    Args:
        sigma_data: deviation of the images' values; 0.5 is the paper's, for photographs in [-1, 1].
        p_mean: mean of ln sigma in training.
        p_std: its deviation.

    Raises:
        ValueError: for deviations that are not positive.
    """

    sigma_data: float = 0.5
    p_mean: float = -1.2
    p_std: float = 1.2

    def __post_init__(self) -> None:
        require(self.sigma_data > 0, f"sigma_data={self.sigma_data}: the images' deviation is positive")
        require(self.p_std > 0, f"p_std={self.p_std}: the deviation of ln sigma is positive")

    def c_skip(self, sigma: Tensor) -> Tensor:
        """Weights of the noisy image, of noise levels sigma of any shape."""
        return self.sigma_data**2 / (sigma**2 + self.sigma_data**2)

    def c_out(self, sigma: Tensor) -> Tensor:
        """Weights of the network's output."""
        return sigma * self.sigma_data / (sigma**2 + self.sigma_data**2).sqrt()

    def c_in(self, sigma: Tensor) -> Tensor:
        """Factors of the network's input."""
        return 1 / (sigma**2 + self.sigma_data**2).sqrt()

    def c_noise(self, sigma: Tensor) -> Tensor:
        """Times that the network gets."""
        return sigma.log() / 4

    def weight(self, sigma: Tensor) -> Tensor:
        """The loss's weight lambda of squared errors of the denoiser: 1 / c_out^2."""
        return (sigma**2 + self.sigma_data**2) / (sigma * self.sigma_data) ** 2

    def target(self, images: Tensor, noisy: Tensor, sigma: Tensor) -> Tensor:
        """Outputs [N, ...] of the network by which the denoiser gives the images of noisy images [N, ...] (Eq. 8)."""
        return (images - self.c_skip(sigma) * noisy) / self.c_out(sigma)

    def draw_sigmas(self, count: int, device: torch.device) -> Tensor:
        """Training's noise levels float32 [count], log-normal, from torch's global generator."""
        # "bf16-true" changes the default type
        return (self.p_mean + self.p_std * torch.randn(count, device=device, dtype=torch.float32)).exp()

    def spread_sigmas(self, count: int, generator: torch.Generator) -> Tensor:
        """Noise levels float32 [count] of the same distribution, one in each of as many equally probable parts."""
        places = (torch.arange(count) + torch.rand(count, generator=generator, dtype=torch.float64)) / count
        inside = places.clamp(1e-9, 1 - 1e-9).tolist()
        normal = NormalDist(self.p_mean, self.p_std)
        return torch.tensor([normal.inv_cdf(place) for place in inside]).exp()


def noise_levels(steps: int, sigma_min: float, sigma_max: float, rho: float) -> Tensor:
    """The levels sigma_0 > ... > sigma_N = 0 of N steps, float64 [N + 1] (Eq. 5)."""
    ends = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    levels = torch.linspace(*ends, steps, dtype=torch.float64) ** rho
    return torch.cat([levels, levels.new_zeros(1)])
