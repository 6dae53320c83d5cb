"""A federation of images on disk: its memory, and what its reading costs beside a plain DataLoader.

    python -m benchmarks.lazy_data [--images 200000] [--workers 2]  # five minutes, and 1 GB of disk

A folder of JPEGs of 64 pixels is made, a hundred classes of which are dealt to ten clients. Reading is compared at full
speed, nobody training, in turns by turns with torch's DataLoader of the same items, collate function and workers.
Memory is that of the process and its workers together, pages that they share counted once, while a small model trains.
"""

import argparse
import logging
import os
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.report import report
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import ByClass
from fedgen.data import ImageFolder
from fedgen.federated import FedAvgStrategy

CLASSES, CLIENTS, SIDE, BATCH, INTERVAL = 100, 10, 64, 64, 40


def write_images(root: Path, count: int) -> None:
    """So many different JPEGs of noise over a gradient, about 2.5 kB each, in a folder for each class."""
    draws = np.random.default_rng(0)
    gradient = np.linspace(0, 200, SIDE)[None, :, None] * np.ones((SIDE, 1, 3))
    for number in range(count):
        folder = root / f"{number % CLASSES:03d}"
        if number < CLASSES:
            folder.mkdir(parents=True)
        noise = np.kron(draws.integers(0, 56, (SIDE // 4, SIDE // 4, 3)), np.ones((4, 4, 1)))
        Image.fromarray((gradient + noise).astype(np.uint8)).save(folder / f"{number:06d}.jpg", quality=85)


def federation(root: Path, workers: int) -> FederatedDataModule:
    data = ImageFolder(root, size=SIDE, in_memory=False)
    partition = ByClass(CLASSES // CLIENTS)
    return FederatedDataModule(data, partition, batch_size=BATCH, held_out=0.0, seed=0, num_workers=workers)


def turns(module: FederatedDataModule) -> Iterator[Any]:
    """The batches of one round after another."""
    trainer: Any = SimpleNamespace(strategy=FedAvgStrategy(INTERVAL, seed=0), current_epoch=0, max_epochs=-1)
    module.trainer = trainer
    loader: Any = module.train_dataloader()
    while True:
        for turn in loader.turns:
            yield from turn.batches(INTERVAL)
        trainer.current_epoch += 1


def plain(module: FederatedDataModule, workers: int) -> Iterator[Any]:
    """The batches of torch's DataLoader, one epoch after another."""
    part = module.examples.items.parts[0]  # type: ignore[attr-defined]
    dataset: Dataset[Any] = part.dataset
    loader = DataLoader(
        dataset, BATCH, shuffle=True, num_workers=workers, collate_fn=part.collate, persistent_workers=True
    )
    while True:
        yield from loader


def seconds_of(batches: Iterator[Any], count: int) -> float:
    """Seconds a batch of so many."""
    start = time.perf_counter()
    for _ in range(count):
        next(batches)
    return (time.perf_counter() - start) / count


def compare_reading(root: Path, workers: int, count: int, repeats: int) -> bool:
    """Ours and torch's in turn, many times: what else the machine does meets both alike."""
    module = federation(root, workers)
    pair = turns(module), plain(module, workers)
    found: list[list[float]] = [[], []]
    for batches in pair:  # the workers start
        seconds_of(batches, 4 * workers)
    for repeat in range(repeats):
        for place in (0, 1) if repeat % 2 else (1, 0):
            seconds_of(pair[place], 2 * workers)  # those that were read while the other one had its turn
            found[place].append(seconds_of(pair[place], count))
    module.teardown("fit")
    ours, theirs = found
    what = f"reading JPEGs of {SIDE} pixels, {workers} workers"
    report(f"{what}: images a second in turns", BATCH / statistics.median(ours), "1/s")
    report(f"{what}: images a second of a plain DataLoader", BATCH / statistics.median(theirs), "1/s")
    ratio = statistics.median(one / other for one, other in zip(ours, theirs))
    return report(f"{what}: turns over a plain DataLoader (median of {repeats} pairs)", ratio, "ratio", 1.10)


class Small(L.LightningModule):
    """A small autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 4))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Memory(threading.Thread):
    """The largest memory of this process and its children so far in GB, pages that they share counted once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.over = 0.0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.5):
            self.peak = max(self.peak, sum(map(proportional_memory, with_children(os.getpid()))))


def with_children(process: int) -> list[int]:
    """A process and those that it has started, by Linux's /proc."""
    started = Path(f"/proc/{process}/task").glob("*/children")
    return [process, *(int(child) for file in started for child in file.read_text().split())]


def proportional_memory(process: int) -> float:
    """Memory of a process in GB, of pages that it shares with others its part; 0 where it has ended meanwhile."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e9


def train(root: Path, workers: int, rounds: int) -> float:
    """Trains so many rounds; the largest memory in GB."""
    memory = Memory()
    memory.start()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    strategy = FedAvgStrategy(INTERVAL, seed=0)
    trainer = L.Trainer(max_epochs=rounds, strategy=strategy, accelerator="cpu", devices=1, **quiet)  # type: ignore[arg-type]
    trainer.fit(Small(), federation(root, workers))
    memory.over.set()
    memory.join()
    return memory.peak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=30, help="measurements of reading, of 20 batches each")
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "images"
        start = time.perf_counter()
        write_images(root, given.images)
        print(f"{given.images} images written in {time.perf_counter() - start:.0f} s", file=sys.stderr)
        peak = train(root, given.workers, given.rounds)
        small = report(f"a federation of {given.images} JPEGs, {given.workers} workers: memory in all", peak, "GB", 3)
        quick = compare_reading(root, given.workers, 20, given.pairs)
    return 0 if small and quick else 1


if __name__ == "__main__":
    sys.exit(main())
