"""What compiling the local steps gains, and after how many rounds its price is paid back: `CompileSteps` on and off.

    python -m benchmarks.compiled [--device cpu] [--mode default] [--rounds 6] [--repeats 3]

Rounds of ordinary modules through the strategy, fits with and without in turn; of GANs, whose `compile: true` it is,
iterations without the strategy. The price is what the first round takes longer than the later ones, where no program of
an earlier process is on disk. Times are the processor's, of one thread and of the C++ compiler that it calls, so that
other work on the machine counts for less; with a GPU they are the wall clock's. About a quarter of an hour.
"""

import argparse
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch._inductor import config as inductor

from benchmarks.gan import BATCH as GAN_BATCH
from benchmarks.gan import BETAS, LR, Alone, best, make_pair
from benchmarks.gan import make_examples as make_images
from benchmarks.report import report
from benchmarks.rounds import CNN, make_examples
from fedgen.callbacks import CompileSteps
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.data import Examples
from fedgen.federated import FedAvgStrategy
from fedgen.images import from_uint8
from fedgen.models import AdversarialLoss, Hinge, NonSaturating
from fedgen.models.networks import DCGANCritic, SNGANCritic, SNGANGenerator, UNet

CLIENTS, BATCH, INTERVAL = 10, 32, 5


class Denoising(L.LightningModule):
    """A small diffusion network that finds the noise in noisy images, as anybody writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = UNet(32, 3, (16, 32), layers=1, attention=())

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, noise = batch[0], torch.randn_like(batch[0])
        times = torch.randint(1000, (len(images),), device=self.device)
        part = (times / 1000).view(-1, 1, 1, 1)
        return nn.functional.mse_loss(self.net(torch.lerp(images, noise, part), times), noise)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Scoring(L.LightningModule):
    """A DCGAN's critic that tells images from their negatives."""

    def __init__(self) -> None:
        super().__init__()
        self.net = DCGANCritic(32, 3, width=32)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images = batch[0]
        return nn.functional.softplus(torch.cat([-self.net(images), self.net(-images)])).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


MODULES: dict[str, Callable[[], L.LightningModule]] = {
    "CNN, 71k parameters": CNN,
    "DCGAN's critic of width 32": Scoring,
    "UNet of widths 16 and 32": Denoising,
}


class Clock(L.Callback):
    """Seconds of work when training starts and at round ends."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.note(pl_module.device)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.note(pl_module.device)

    def note(self, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            self.stamps.append(time.perf_counter())
        else:
            self.stamps.append(sum(os.times()[:4]))  # of children, too


def seconds_of_rounds(
    make: Callable[[], L.LightningModule], examples: Examples, rounds: int, device: str, mode: str | None
) -> list[float]:
    """Seconds of each round; uncompiled for mode None."""
    torch.manual_seed(0)
    clock = Clock()
    callbacks: list[L.Callback] = [clock] if mode is None else [CompileSteps(mode=mode), clock]
    data = FederatedDataModule(examples, IID(CLIENTS), batch_size=BATCH, held_out=0.0, seed=0)
    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    place = {"accelerator": "gpu" if device == "cuda" else device, "devices": 1}
    trainer = L.Trainer(
        strategy=FedAvgStrategy(INTERVAL, seed=0), max_epochs=rounds, callbacks=callbacks, **place, **quiet
    )
    trainer.fit(make(), data)
    return [b - a for a, b in pairwise(clock.stamps)]


def compare(name: str, make: Callable[[], L.LightningModule], options: argparse.Namespace) -> None:
    """Reports a module's gain, price and break-even."""
    examples = make_examples()
    plain: list[float] = []
    fast: list[float] = []
    prices: list[float] = []
    for _ in range(options.repeats):
        plain += seconds_of_rounds(make, examples, options.rounds, options.device, None)[1:]
        torch.compiler.reset()
        first, *later = seconds_of_rounds(make, examples, options.rounds, options.device, options.mode)
        prices.append(first - statistics.median(later))
        fast += later
    slow, quick, price = statistics.median(plain), statistics.median(fast), statistics.median(prices)
    what = f"{name}, {CLIENTS} clients x {INTERVAL} steps of {BATCH} images"
    report(f"{what}: a round, uncompiled", slow, "s")
    report(f"{what}: a compiled round over an uncompiled one", quick / slow, "ratio")
    report(f"{what}: compiling", price, "s")
    if quick < slow:  # else it is never paid back
        report(f"{what}: rounds after which compiling has paid", price / (slow - quick), "rounds")
        report(f"{what}: local steps after which it has", price / (slow - quick) * CLIENTS * INTERVAL, "steps")


def iteration(generator: nn.Module, critic: nn.Module, loss: AdversarialLoss, compiled: bool) -> Callable[[], None]:
    """A critic's and a generator's step on one batch."""
    module = Alone(generator, critic, loss)
    optimizers = [torch.optim.Adam(n.parameters(), lr=LR, betas=BETAS) for n in (module.generator, module.critic)]
    real = from_uint8(make_images(GAN_BATCH).inputs)
    if compiled:
        module.compile_networks()

    def step() -> None:
        module.critic_step(optimizers[1], real, None)
        module.generator_step(optimizers[0], GAN_BATCH, None)

    return step


def compare_iterations(repeats: int) -> None:
    """Reports what `compile: true` gives both networks of a GAN."""
    pairs: dict[str, Callable[[], tuple[nn.Module, nn.Module, AdversarialLoss]]] = {
        "DCGAN of width 32": lambda: (*make_pair(), NonSaturating()),
        "SNGAN of width 32": lambda: (SNGANGenerator(width=32), SNGANCritic(width=32), Hinge()),
    }
    for name, make in pairs.items():
        plain, fast = best([iteration(*make(), compiled) for compiled in (False, True)], repeats)
        report(f"an iteration of critic and generator, {name} at 32x32, batch {GAN_BATCH}", plain, "s")
        report(f"a compiled iteration over an uncompiled one, {name}", fast / plain, "ratio")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--mode", default="default", help="of torch.compile: reduce-overhead records CUDA graphs")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.compiler.config.force_disable_caches = True
    inductor.compile_threads = 1  # else processes that outlive the fit call the C++ compiler
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for name, make in MODULES.items():
        compare(name, make, options)
    if options.device == "cpu":
        compare_iterations(options.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
