"""Weights of an extra loss beside the adversarial one."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from fedgen.losses.feature_loss import KeepsPrecision


class Weight(KeepsPrecision, ABC):
    """The factor of an extra loss; its state, if any, stays with the client.

    It changes in training mode with gradients enabled; in evaluation the factor is that which training would have had.

    Examples:
        >>> import torch
        >>> from fedgen.losses import Weight
        >>> class Half(Weight):
        ...     def forward(self, value, adversarial):
        ...         return torch.full_like(value, 0.5)
        >>> Half()(torch.tensor(4.0), None)
        tensor(0.5000)
    """

    exchanged = "personal"

    @abstractmethod
    def forward(self, value: Tensor, adversarial: Tensor | None) -> Tensor:
        """The factor, a scalar without gradient, of the extra loss and the adversarial one (None outside a game)."""


class FixedWeight(Weight):
    """The same factor at every step.

    Args:
        factor: at least 0.

    Examples:
        >>> import torch
        >>> from fedgen.losses import FixedWeight
        >>> FixedWeight(0.5)(torch.tensor(4.0), adversarial=None)
        tensor(0.5000)
    """

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        if not factor >= 0:
            raise ValueError(f"factor={factor}: the weight of a loss is at least 0")
        self.factor = factor

    def forward(self, value: Tensor, adversarial: Tensor | None) -> Tensor:
        return torch.full_like(value.detach(), self.factor)


class AdaptiveWeight(Weight):
    """|L_adv| / |L_extra|, so that the extra loss always weighs as much as the adversarial one.

    Eq. 10 of "Backpropagating through Fréchet Inception Distance" (arXiv 2009.14075) takes both at the present step
    (`decay=0`). A Wasserstein game's loss has no fixed sign, and at the step where it crosses zero that ratio switches
    the extra loss off; an unbiased MMD^2 may cross zero too, and there the ratio explodes. So magnitudes are running
    means over the client's steps, and the adversarial one has a floor. Where the extra loss's magnitude is zero, so is
    the factor.

    Args:
        strength: a factor on the ratio, at least 0; the paper halves it for SAGAN.
        decay: of both running means, a step, in [0, 1); 0 is the present step alone.
        floor: the least magnitude of the adversarial loss that counts, at least 0.

    Examples:
        >>> import torch
        >>> from fedgen.losses import AdaptiveWeight
        >>> weight = AdaptiveWeight(decay=0.0)
        >>> weight(torch.tensor(4.0), adversarial=torch.tensor(-2.0))  # |-2| / |4|
        tensor(0.5000)
    """

    def __init__(self, strength: float = 1.0, decay: float = 0.9, floor: float = 0.1) -> None:
        super().__init__()
        for name, value in (("strength", strength), ("floor", floor)):
            if not value >= 0:
                raise ValueError(f"{name}={value}: must be at least 0")
        if not 0 <= decay < 1:
            raise ValueError(f"decay={decay}: must lie in [0, 1)")
        self.strength, self.decay, self.floor = strength, decay, floor
        self.magnitudes: Tensor  # running means of |adversarial| and |value|, uncorrected
        self.mass: Tensor  # sum of the means' weights: 1 - decay^steps
        self.register_buffer("magnitudes", torch.zeros(2))
        self.register_buffer("mass", torch.zeros(()))

    def forward(self, value: Tensor, adversarial: Tensor | None) -> Tensor:
        if adversarial is None:
            raise ValueError("an AdaptiveWeight needs the adversarial loss beside the images; use a FixedWeight")
        sizes = torch.stack([adversarial.detach().to(self.mass), value.detach().to(self.mass)]).abs()
        magnitudes, mass = running_mean(self, (self.magnitudes, self.mass), sizes, self.decay)
        game, extra = (magnitudes / mass).unbind()
        ratio = self.strength * game.clamp(min=self.floor) / extra
        return torch.where(extra > 0, ratio.clamp(max=torch.finfo(ratio.dtype).max), 0).to(value.detach())


def running_mean(module: nn.Module, state: tuple[Tensor, Tensor], sizes: Tensor, decay: float) -> tuple[Tensor, Tensor]:
    """The uncorrected running mean with these sizes in it, and its mass 1 - decay^steps."""
    mean, mass = state if module.training and torch.is_grad_enabled() else (part.clone() for part in state)
    return mean.mul_(decay).add_(sizes, alpha=1 - decay), mass.mul_(decay).add_(1 - decay)
