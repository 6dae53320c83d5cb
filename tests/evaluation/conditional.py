"""Labelled clients of bright columns, and class-conditional models of them, good and bad."""

from typing import Any

import torch
from torch import Tensor, nn

from fedgen.data import Examples

CLASSES = ("a", "b", "c")


def columns_of(labels: Tensor, draws: torch.Generator, noise: float = 0.15) -> Tensor:
    """Images float [N, 1, 6, 6] in [-1, 1], a bright pair of columns for each class."""
    images = torch.full((len(labels), 1, 6, 6), -0.6)
    for offset in (0, 1):
        images[torch.arange(len(labels)), 0, :, labels * 2 + offset] = 0.6
    return (images + noise * torch.randn(images.shape, generator=draws)).clamp(-1, 1)


def client(count: int, seed: int, shares: tuple[float, ...] = (0.5, 0.3, 0.2)) -> Examples:
    """Labelled images of one client."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.multinomial(torch.tensor(shares), count, replacement=True, generator=draws)
    images = ((columns_of(labels, draws) + 1) * 127.5).to(torch.uint8)
    return Examples(images, labels, "columns/train", CLASSES)


TRAINED = [client(60, 1), client(90, 2)]
HELD_OUT = [client(40, 3), client(50, 4)]
CLIENTS = {"train": TRAINED, "report": HELD_OUT}


class Conditional(nn.Module):
    """Draws columns of the asked classes; of its own ones, drawn alike, where none are asked for."""

    def __init__(self, num_classes: int | None = 3, wrong: bool = False) -> None:
        super().__init__()
        self.num_classes, self.wrong = num_classes, wrong
        self.asked: list[Tensor | None] = []
        self._sampling: dict[str, Any] = {"solver": "fast", "steps": 25}

    @property
    def sampling(self) -> dict[str, Any]:
        """How it samples; assigning a dictionary changes the settings that it names."""
        return self._sampling

    @sampling.setter
    def sampling(self, settings: dict[str, Any]) -> None:
        self._sampling = {**self._sampling, **settings}

    def sample(self, num_images: int, generator: torch.Generator | None = None, labels: Tensor | None = None) -> Tensor:
        draws = generator or torch.Generator()
        self.asked.append(labels)
        labels = torch.randint(3, (num_images,), generator=draws) if labels is None else labels
        return columns_of((labels + 1) % 3 if self.wrong else labels, draws)
