"""A long federation with all that users have beside it: memory and open files must not grow with the rounds.

    python -m benchmarks.long_run [--rounds 2000]  # three minutes

A small GAN on ten clients of digits, an iteration a turn; each round is logged to TensorBoard and saved, each hundredth
scored on every client. What is reported grew from a quarter of the rounds on, when allocators have settled; of memory
the median of a hundred rounds, as an allocator may still give back a great piece at once, which would hide a growth.
"""

import argparse
import gc
import logging
import os
import statistics
import sys
import tempfile
import warnings
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.loggers import TensorBoardLogger

from benchmarks.report import report
from fedgen.callbacks import FederatedEvaluation, RoundCheckpoint
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import ByClass
from fedgen.data import Digits
from fedgen.federated import FedAvgStrategy
from fedgen.models import WGANGP
from fedgen.models.networks import SmallCritic, SmallGenerator

EVERY = 100  # rounds between evaluations
MEGABYTE = 1e6


class Usage(L.Callback):
    """Resident memory of its own in bytes, and open file descriptors, after each evaluation.

    Pages of mapped files are not counted: the system drops those of libraries as it likes, which could hide a growth.
    """

    def __init__(self) -> None:
        self.memory: dict[int, int] = {}
        self.files: dict[int, int] = {}

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if (done := trainer.current_epoch) and done % EVERY == 0:
            self.note(done)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.note(trainer.max_epochs)

    def note(self, done: int) -> None:
        gc.collect()  # cycles wait for a collection, whose moment is chance
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:"))
        self.memory[done] = int(line.split()[1]) * 1024
        self.files[done] = len(os.listdir("/proc/self/fd"))
        print(f"round {done}: {self.memory[done] / MEGABYTE:.1f} MB, {self.files[done]} open files", file=sys.stderr)


def train(folder: str, rounds: int) -> Usage:
    """The federation, with its checkpoints, scores and logs in a folder."""
    L.seed_everything(0, verbose=False)
    usage = Usage()
    evaluation = FederatedEvaluation(EVERY, embeddings=["pixels"], num_images=500)
    trainer = L.Trainer(
        strategy=FedAvgStrategy(1, optimizer_state="average"),
        accelerator="cpu",
        devices=1,
        max_epochs=rounds,
        callbacks=[evaluation, RoundCheckpoint(saving_share=1), usage],
        logger=TensorBoardLogger(folder, name="", version="logs"),
        log_every_n_steps=1,
        default_root_dir=folder,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = WGANGP(SmallGenerator(), SmallCritic(), n_critic=2, ema_decay=0.995)
    trainer.fit(model, FederatedDataModule(Digits(), ByClass(), batch_size=32))
    return usage


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    # scores and tables go elsewhere: what is printed is the figures
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        usage = train(folder, rounds)
    first = rounds // 4
    noted = [memory / MEGABYTE for done, memory in sorted(usage.memory.items()) if done >= first]
    grown = statistics.median(after - before for before, after in pairwise(noted))
    opened = usage.files[rounds] - usage.files[first]
    what = f"10 clients, {rounds} rounds, {rounds // EVERY} evaluations: from round {first} on"
    report(f"10 clients, {rounds} rounds: resident memory in the end", usage.memory[rounds] / MEGABYTE, "MB")
    kept = report(f"{what}, resident memory grew in {EVERY} rounds by", grown, "MB", 0.2)
    kept &= report(f"{what}, open files grew by", opened, "1", 0)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
