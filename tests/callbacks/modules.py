"""A small generator of points, and runs of it with the callbacks."""

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from fedgen.callbacks import FederatedEvaluation, RoundCheckpoint
from fedgen.federated import FedAvgStrategy
from tests.federated.modules import make_data, make_trainer


class Points(L.LightningModule):
    """Points [N, 3] from noise by a net with BatchNorm and dropout; training draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        points = batch[0]
        return (self.net(torch.randn_like(points)) - points).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def sample(self, num_images: int, generator: torch.Generator | None = None) -> Tensor:
        return self.net(torch.randn(num_images, 3, generator=generator))


class Validated(Points):
    """With a validation step, so that validation runs in every epoch."""

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self.log("val_loss", batch[0].mean())


def evaluation(**options: Any) -> FederatedEvaluation:
    """The cheapest evaluation there is, which prints nothing, draws no curves and writes no page."""
    quiet = {"report": False, "page": False}
    settings = {"every_n_rounds": 2, "embeddings": ["identity"], "num_images": 40, **quiet, **options}
    return FederatedEvaluation(**settings)


def fit(
    folder: Any,
    rounds: int = 4,
    callbacks: list[Any] | None = None,
    module: L.LightningModule | None = None,
    strategy: dict[str, Any] | None = None,
    ckpt_path: Any = None,
    **options: Any,
) -> L.Trainer:
    """Trains on three clients of points; evaluates every other round unless other callbacks are given."""
    trainer = make_trainer(
        FedAvgStrategy(**{"communication_interval": 2, "seed": 0, **(strategy or {})}),
        rounds,
        callbacks=[evaluation(), RoundCheckpoint()] if callbacks is None else callbacks,
        default_root_dir=folder,
        enable_checkpointing=True,
        **options,
    )
    trainer.fit(module or Points(), make_data(held_out=0.25), ckpt_path=ckpt_path)
    return trainer
