"""Points of owners, and models of a place some of whose coordinates are a client's own."""

from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor, nn

from fedgen import FederatedDataModule
from fedgen.callbacks import FederatedEvaluation, RoundCheckpoint
from fedgen.clients import ThreeWaySplit
from fedgen.clients.partitions import Natural
from fedgen.data import Examples
from fedgen.federated import FedAvgStrategy
from fedgen.models.ema import EMA
from tests.federated.modules import make_trainer

SCORES = ["kid", "loss"]


def federation(owners: int = 8, images: int = 20, unparticipating: float | None = 0.25) -> FederatedDataModule:
    """Points of owners, each around a place of its own; a quarter of them never train, or None of them."""
    draws = torch.Generator().manual_seed(0)
    places = torch.randn(owners, 2, generator=draws) * 3
    points = (places.repeat_interleave(images, 0) + torch.randn(owners * images, 2, generator=draws)).float()
    own = torch.arange(owners).repeat_interleave(images)
    names = tuple(f"owner {owner}" for owner in range(owners))
    examples = Examples(points, torch.zeros(len(points), dtype=torch.int64), "places", (), own, names)
    split = None if unparticipating is None else ThreeWaySplit(unparticipating=unparticipating)
    return FederatedDataModule(examples, Natural(), batch_size=100, held_out=0.5, seed=3, split=split)


class Place(nn.Module):
    """A point: what is common to all clients and what is a client's own."""

    def __init__(self) -> None:
        super().__init__()
        self.common, self.own = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.zeros(2))

    def forward(self) -> Tensor:
        return self.common + self.own


class Placed(L.LightningModule):
    """It samples around a point, and its loss is the squared distance to that point."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Place()

    @property
    def used(self) -> nn.Module:
        return self.place

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return (batch[0] - self.place()).square().sum(1).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)

    def sample(self, num_images: int, generator: torch.Generator | None = None) -> Tensor:
        return self.used() + torch.randn(num_images, 2, generator=generator) / 10

    def example_losses(self, points: Tensor, labels: Tensor | None = None, seed: int = 0) -> Tensor:
        return (points - self.used()).square().sum(1)


class Averaged(Placed):
    """With a moving average of the point, which is what it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.place_ema = EMA(self.place)

    @property
    def used(self) -> nn.Module:
        return self.place_ema

    def on_round_end(self, iterations: int) -> None:
        self.place_ema.update(self.place, 0.5)


class Criticised(Placed):
    """What is a client's own has a part in the loss alone, as a private critic's weights have."""

    def sample(self, num_images: int, generator: torch.Generator | None = None) -> Tensor:
        return self.place.common + torch.randn(num_images, 2, generator=generator) / 10


class Gated(Placed):
    """What is a client's own has no part in the images until training opens a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) - self.gate

    def sample(self, num_images: int, generator: torch.Generator | None = None) -> Tensor:
        return self.place.common + self.gate * self.place.own + torch.randn(num_images, 2, generator=generator) / 10


def judge(**options: Any) -> FederatedEvaluation:
    """The cheapest evaluation of points."""
    settings = {"every_n_rounds": 2, "embeddings": ["identity"], "num_images": 40, "scores": SCORES, "seed": 3}
    return FederatedEvaluation(**{**settings, "report": False, "page": False, **options})


def fit(
    folder: Any,
    module: L.LightningModule,
    data: FederatedDataModule,
    callbacks: list[Any] | None = None,
    rounds: int = 2,
    **strategy: Any,
) -> L.Trainer:
    """Trains with a place's own part kept by the clients, and evaluates."""
    settings: dict[str, Any] = {"communication_interval": 1, "personal": ["place.own"], "seed": 0, **strategy}
    trainer = make_trainer(
        FedAvgStrategy(**settings),
        rounds,
        callbacks=[judge(), RoundCheckpoint()] if callbacks is None else callbacks,
        default_root_dir=folder,
        enable_checkpointing=any(isinstance(callback, Checkpoint) for callback in callbacks or [RoundCheckpoint()]),
    )
    trainer.fit(module, data)
    return trainer
