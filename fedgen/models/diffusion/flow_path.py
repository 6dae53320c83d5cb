"""The path of flow matching from noise to images, and which noise belongs to which image."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedgen.models.require import require

Coupling = Literal["independent", "optimal-transport"]
Times = Literal["uniform", "logit-normal"]
TIMESTEPS = 1000.0  # that time 1 is for a network, whose embedding tells whole numbers apart


@dataclass(frozen=True)
class FlowPath:
    """Straight paths x_t = t x_1 + (1 - (1 - sigma_min) t) x_0 of noise x_0 ~ N(0, 1) to an image x_1, t from 0 to 1.

    Lipman et al. 2023 (arXiv 2210.02747), Eq. 20 to 23: x_t given x_1 is N(t x_1, (1 - (1 - sigma_min) t)^2).

    Args:
        sigma_min: deviation of the noise that is left at t = 1.
        coupling: "independent" noise, or noise dealt to the images of a batch by "optimal-transport", see `couple`.
        times: in training: "uniform" in [0, 1), or "logit-normal", the logistic function of N(0, 1), denser around 1/2
            (Esser et al. 2024, arXiv 2403.03206, Eq. 19).

    Raises:
        ValueError: for a sigma_min outside [0, 1), another coupling or other times.
    """

    sigma_min: float = 0.0
    coupling: Coupling = "independent"
    times: Times = "uniform"

    def __post_init__(self) -> None:
        require(0 <= self.sigma_min < 1, f"sigma_min={self.sigma_min}: the noise left at t = 1 lies in [0, 1)")
        for name, kinds in (("coupling", Coupling), ("times", Times)):
            given, known = getattr(self, name), get_args(kinds)
            require(given in known, f"{name}={given!r}: choose {' or '.join(map(repr, known))}")

    def draw_times(self, count: int, device: torch.device) -> Tensor:
        """Times float32 [count] from torch's global generator."""
        # "bf16-true" changes the default type, and would leave 256 times
        draw = torch.rand if self.times == "uniform" else torch.randn
        drawn = draw(count, device=device, dtype=torch.float32)
        return drawn if self.times == "uniform" else drawn.sigmoid()

    def at(self, times: Tensor, images: Tensor, noise: Tensor) -> Tensor:
        """Noisy images [N, ...] at times [N] (Eq. 22)."""
        t = times.view(-1, *[1] * (images.ndim - 1))
        return t * images + (1 - (1 - self.sigma_min) * t) * noise

    def velocity(self, images: Tensor, noise: Tensor) -> Tensor:
        """The time derivatives [N, ...] of `at`, which a network learns (Eq. 23); they are the same at all times."""
        return images - (1 - self.sigma_min) * noise


def couple(images: Tensor, noise: Tensor, labels: Tensor | None = None) -> Tensor:
    """The noise [N, ...] of each image of a batch, so that their squared distances sum to the least possible.

    Minibatch optimal transport (Tong et al. 2024, arXiv 2302.00482, section 3.2), an exact assignment on the CPU: each
    noise goes to one image, so over many batches noise is N(0, 1) and images are the data, whoever's batch it is. With
    labels each label's images share the noise that came with them: dealt over labels, the noise of an image of one
    label would not be N(0, 1) given that label, from which such images are drawn.

    Args:
        images: [N, ...].
        noise: [N, ...].
        labels: int64 [N] of a conditional model.
    """
    places = torch.arange(len(images))
    one_label = torch.zeros_like(places) if labels is None else labels.cpu()
    alike = images.flatten(1).double().cpu() @ noise.flatten(1).double().cpu().T  # least distance is most likeness
    for label in one_label.unique():
        own = (one_label == label).nonzero()[:, 0]
        _, chosen = linear_sum_assignment(alike[own][:, own].numpy(), maximize=True)
        places[own] = own[torch.from_numpy(chosen)]
    return noise[places.to(noise.device)]
