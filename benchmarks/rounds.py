"""A federated round against a bare PyTorch loop that does the same work (run: python -m benchmarks.rounds)."""

import logging
import statistics
import sys
from itertools import pairwise
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from benchmarks.device import place, wall
from benchmarks.report import report
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.data import Examples
from fedgen.federated import FedAvgStrategy
from fedgen.images import from_uint8
from fedgen.seeds import generator, seed_all

CLIENTS, PER_CLIENT, BATCH = 10, 640, 32


class CNN(L.LightningModule):
    """A CNN of 71,058 parameters, the size that federated frameworks are compared with, and any number beside it.

    The extra parameters have a gradient too, so they are copied, stepped and averaged.
    """

    def __init__(self, extra: int = 0) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(576, 88), nn.ReLU(), nn.Linear(88, 10),
        )  # fmt: skip
        self.extra = nn.Parameter(torch.zeros(extra))

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        return loss + self.extra.sum() * 1e-9 if self.extra.numel() else loss

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Clock(L.Callback):
    """Time stamps at round ends."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.stamps.append(wall())

    def rounds(self) -> list[float]:
        return [b - a for a, b in pairwise(self.stamps)]


def make_examples() -> Examples:
    draws = torch.Generator().manual_seed(0)
    count = CLIENTS * PER_CLIENT
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=draws)
    return Examples(images, torch.randint(0, 10, (count,), generator=draws), "noise/train", tuple("0123456789"))


def run_strategy(
    examples: Examples, extra: int, interval: int, rounds: int, device: str = "cpu"
) -> tuple[list[float], float]:
    torch.manual_seed(0)
    module, clock = CNN(extra), Clock()
    data = FederatedDataModule(examples, IID(CLIENTS), batch_size=BATCH, held_out=0.0, seed=0)
    options: dict[str, Any] = {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    trainer = L.Trainer(
        strategy=FedAvgStrategy(interval, seed=0), max_epochs=rounds, callbacks=[clock], **place(device), **options
    )
    trainer.fit(module, data)
    return clock.rounds(), checksum(module)


def run_bare(
    examples: Examples, extra: int, interval: int, rounds: int, device: str = "cpu"
) -> tuple[list[float], float]:
    """The plain loop: copy the server's weights in, train, add the weighted client's weights up."""
    torch.manual_seed(0)
    module = CNN(extra).to(device)
    data = FederatedDataModule(examples, IID(CLIENTS), batch_size=BATCH, held_out=0.0, seed=0)
    owners = [client.train for client in data.clients]
    parameters = list(module.parameters())
    server = [p.detach().clone() for p in parameters]
    mean = [torch.zeros_like(p) for p in server]
    stamps = []
    for round in range(rounds):
        for client, indices in enumerate(owners):
            with torch.no_grad():
                torch._foreach_copy_(parameters, server)
            optimizer = torch.optim.SGD(parameters, lr=0.01)
            seed_all(0, "turn", round, client)
            order = torch.randperm(len(indices), generator=generator(0, "batches", round, client))
            for i in range(interval):
                chosen = indices[order[i * BATCH : (i + 1) * BATCH]]
                images, labels = examples.inputs[chosen].to(device), examples.labels[chosen].to(device)
                loss = module.loss((from_uint8(images), labels))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                if client == 0:
                    torch._foreach_zero_(mean)
                torch._foreach_add_(mean, parameters, alpha=1 / CLIENTS)
        server, mean = mean, server
        stamps.append(wall())
    with torch.no_grad():
        torch._foreach_copy_(parameters, server)
    return [b - a for a, b in pairwise(stamps)], checksum(module)


def checksum(module: nn.Module) -> float:
    return sum(float(p.detach().double().sum()) for p in module.parameters())


def check_agreement(ours: float, bare: float, within: float = 1e-3) -> None:
    """Raises an AssertionError unless the sums of two loops' weights are the same to a share of the second, or of 1."""
    if abs(ours - bare) > within * max(1.0, abs(bare)):
        raise AssertionError(f"the two loops disagree: {ours} and {bare}")


def compare(name: str, limit: float, extra: int, interval: int, rounds: int, repeats: int, device: str = "cpu") -> bool:
    """Ours and the bare loop in turn; the ratio of the best rounds, and that both compute the same.

    Returns whether the ratio is within the limit.
    """
    examples = make_examples()
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(repeats):
        times, ours_sum = run_strategy(examples, extra, interval, rounds, device)
        ours += times
        times, bare_sum = run_bare(examples, extra, interval, rounds, device)
        bare += times
    if device != "cpu":  # a GPU adds up in any order, and what it rounds away grows from step to step
        few = extra, min(interval, 2), 2, device
        ours_sum, bare_sum = run_strategy(examples, *few)[1], run_bare(examples, *few)[1]
    check_agreement(ours_sum, bare_sum)
    report(f"{name}: seconds a round, ours (median)", statistics.median(ours), "s")
    report(f"{name}: seconds a round, bare loop (median)", statistics.median(bare), "s")
    return report(f"{name}: ours over the bare loop (best rounds)", min(ours) / min(bare), "ratio", limit)


def main() -> int:
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    small = compare("round of 10 clients x 20 local steps, 71k parameters", 1.05, 0, 20, 6, 3)
    large = compare("round of 10 clients x 1 local step, 5.1M parameters", 1.10, 5_000_000, 1, 30, 3)
    return 0 if small and large else 1


if __name__ == "__main__":
    sys.exit(main())
