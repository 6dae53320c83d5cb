"""A module that writes down what Lightning tells it, iteration by iteration."""

from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.foreign.optimisation import Batch

Entry = tuple[str, dict[str, Any]]


class Witness(L.LightningModule):
    """Notes epoch, step, batch and rate in each hook around an iteration, in a list that is not its own.

    Args:
        notes: taken on by every copy; no state of the module.
        manual: whether it steps two optimizers by hand.
    """

    def __init__(self, notes: list[Entry], manual: bool = False) -> None:
        super().__init__()
        self.automatic_optimization = not manual
        self.net, self.head = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.ReLU()), nn.Linear(4, 3)
        self.note = notes.append  # a method, which nobody copies with the module

    def _note(self, hook: str, batch: Batch, batch_idx: int) -> None:
        trainer = self.trainer
        seen = {
            "epoch": self.current_epoch,
            "step": trainer.global_step,
            "batch": batch_idx,
            "last": trainer.is_last_batch,
            "batches": trainer.num_training_batches,
            "steps": trainer.estimated_stepping_batches,
            "rates": [g["lr"] for o in trainer.optimizers for g in o.param_groups],
            "data": float(batch[0].double().sum()),
        }
        self.note((hook, seen))

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        self._note("start", batch, batch_idx)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        self._note("step", batch, batch_idx)
        loss = F.cross_entropy(self.head(self.net(batch[0])), batch[1])
        if self.automatic_optimization:
            return loss
        self.manual_backward(loss)
        for optimizer, schedule in zip(self.optimizers(), self.lr_schedulers(), strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        return None

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        self._note("end", batch, batch_idx)

    def configure_optimizers(self) -> Any:
        self.note(("configure", {"steps": self.trainer.estimated_stepping_batches}))
        parts = (self,) if self.automatic_optimization else (self.net, self.head)
        optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in parts]
        schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)) for o in optimizers]
        return optimizers, [{"scheduler": schedule, "interval": "step"} for schedule in schedules]
