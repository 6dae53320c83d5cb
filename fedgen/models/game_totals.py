"""What is logged of a game between generator and critic: means over a round."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedgen.models.adversarial import CriticTerms


class GameTotals:
    """Sums over a round's iterations, kept on the losses' device and read once."""

    def __init__(self) -> None:
        self._critic: Tensor | None = None  # loss, gap, steps
        self._generator: Tensor | None = None  # loss, steps

    def add_critic(self, terms: CriticTerms) -> None:
        """Adds a step of the critic."""
        new = torch.stack([terms.loss.detach(), terms.gap, torch.ones_like(terms.gap)]).float()
        self._critic = new if self._critic is None else self._critic.add_(new)

    def add_generator(self, loss: Tensor) -> None:
        """Adds a step of the generator by its loss, detached."""
        new = torch.stack([loss, torch.ones_like(loss)]).float()
        self._generator = new if self._generator is None else self._generator.add_(new)

    def take(self, reduce: Callable[[Tensor], Tensor], device: torch.device) -> dict[str, float]:
        """Means since the last call: "critic_loss", "critic_gap" and "generator_loss", those that there are.

        Args:
            reduce: sums a tensor over processes.
            device: of the sums where this process has none.
        """
        critic = torch.zeros(3, device=device) if self._critic is None else self._critic
        generator = torch.zeros(2, device=device) if self._generator is None else self._generator
        loss, gap, steps, generator_loss, generator_steps = reduce(torch.cat([critic, generator])).tolist()
        self._critic = self._generator = None
        means = {"critic_loss": loss / steps, "critic_gap": gap / steps} if steps else {}
        return means | ({"generator_loss": generator_loss / generator_steps} if generator_steps else {})
