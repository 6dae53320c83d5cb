"""The kit: the model as a LightningModule under `FedAvgStrategy`."""

import logging

import lightning as L
import torch
from torch import Tensor

from benchmarks.peers import workload as work
from benchmarks.peers.clock import Clock
from benchmarks.peers.workload import CNN, Workload, make_images, make_model
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import Natural
from fedgen.data import Examples
from fedgen.federated import FedAvgStrategy


class Module(L.LightningModule):
    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.model = make_model(workload)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.model.loss(*batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=work.RATE)


class Rounds(L.Callback):
    """Tells a clock of the rounds' ends."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.clock.tick()


def make_examples() -> Examples:
    """The images, each with the client that it belongs to."""
    images, labels = make_images()
    owners = torch.arange(work.CLIENTS).repeat_interleave(work.PER_CLIENT)
    names = tuple(str(client) for client in range(work.CLIENTS))
    return Examples(images, labels, "noise/train", tuple("0123456789"), owners, names)


def train(workload: Workload, processes: int = 1) -> tuple[list[float], CNN, bool]:
    """Seconds of the rounds, the server's model, and whether this is the process that tells of them."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    module, clock = Module(workload), Clock()
    data = FederatedDataModule(make_examples(), Natural(), batch_size=work.BATCH, held_out=0.0, seed=work.SEED)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    on_gpus = work.place().type == "cuda"
    strategy = FedAvgStrategy(workload.interval, seed=work.SEED, process_group_backend="nccl" if on_gpus else "gloo")
    devices = {"accelerator": "gpu" if on_gpus else "cpu", "devices": processes}
    trainer = L.Trainer(strategy=strategy, max_epochs=workload.rounds, callbacks=[Rounds(clock)], **devices, **quiet)
    trainer.fit(module, data)
    return clock.seconds, module.model, trainer.is_global_zero


def main() -> None:
    seconds, model, tells = train(*work.chosen_workload())
    if tells:
        work.tell(seconds, model.parameters())


if __name__ == "__main__":
    main()
