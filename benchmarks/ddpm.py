"""A diffusion model's training step through the strategy against a bare diffusers loop, and what torch.compile gains.

Run: python -m benchmarks.ddpm. Times are the processor's, of one thread: other work on the machine counts for less.
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from diffusers import DDPMScheduler
from lightning import Callback, LightningModule, Trainer
from torch import Tensor, nn

from benchmarks.device import place, work_seconds
from benchmarks.report import report
from benchmarks.rounds import check_agreement, checksum
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.data import Examples
from fedgen.federated import FedAvgStrategy
from fedgen.images import from_uint8
from fedgen.models import DDPM
from fedgen.models.networks import UNet
from fedgen.seeds import generator, seed_all

DECAY = 0.999


@dataclass(frozen=True)
class Setup:
    """What is trained, on which device and in which of a Trainer's precisions.

    Args:
        side: of the images, as `channels`, `widths`, `layers` and `attention` of the network.
        interval: local steps.
    """

    side: int = 8
    channels: int = 1
    widths: Sequence[int] = (16, 32)
    layers: int = 1
    attention: Sequence[int] = ()
    clients: int = 4
    batch: int = 32
    interval: int = 10
    rounds: int = 4
    device: str = "cpu"
    precision: Any = "32-true"

    @property
    def steps(self) -> int:
        """Local steps of a round, of all clients."""
        return self.clients * self.interval

    @property
    def per_client(self) -> int:
        """Images of each client, as many as it trains on in a round."""
        return self.batch * self.interval


SMALL = Setup()
# the network of Ho et al. 2020, 35.7 million parameters
CIFAR = Setup(32, 3, (128, 256, 256, 256), 2, (16,), clients=2, batch=128, interval=8, rounds=3)


class Clock(Callback):
    """Seconds of work at round ends."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.stamps.append(work_seconds())


def make_model(setup: Setup = SMALL, compile: bool = False) -> DDPM:
    torch.manual_seed(0)
    network = UNet(setup.side, setup.channels, setup.widths, setup.layers, setup.attention)
    return DDPM(network, lr=1e-3, ema_decay=DECAY, ema_warmup=False, compile=compile)


def make_data(setup: Setup = SMALL) -> FederatedDataModule:
    draws = torch.Generator().manual_seed(0)
    count = setup.clients * setup.per_client
    shape = (count, setup.channels, setup.side, setup.side)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draws)
    examples = Examples(images, torch.zeros(count, dtype=torch.int64), "noise/train", ("0",))
    return FederatedDataModule(examples, IID(setup.clients), batch_size=setup.batch, held_out=0.0, seed=0)


def run_strategy(setup: Setup = SMALL, compile: bool = False) -> tuple[list[float], float]:
    """Seconds of each round after the first, and the sum of the weights."""
    module, clock = make_model(setup, compile), Clock()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    options: dict[str, Any] = {**quiet, **place(setup.device), "precision": setup.precision}
    strategy = FedAvgStrategy(setup.interval, seed=0)
    Trainer(strategy=strategy, max_epochs=setup.rounds, callbacks=[clock], **options).fit(module, make_data(setup))
    return [b - a for a, b in pairwise(clock.stamps)], checksum(module.network)


def noise_loss(unet: nn.Module, scheduler: DDPMScheduler, clean: Tensor) -> Tensor:
    """The loss of images [N, C, H, W] in [-1, 1], on their device."""
    timesteps = torch.randint(1000, (len(clean),), device=clean.device)
    noise = torch.randn_like(clean)
    predicted = unet(scheduler.add_noise(clean, noise, timesteps), timesteps, return_dict=False)[0]
    return nn.functional.mse_loss(predicted.float(), noise)


def run_bare(setup: Setup = SMALL) -> tuple[list[float], float]:
    """The plain loop over clients with diffusers' network and scheduler, the same draws, averaging and EMA."""
    module, data = make_model(setup).to(setup.device), make_data(setup)
    unet, average, scheduler = module.network.body.train(), module.averaged, DDPMScheduler(num_train_timesteps=1000)
    owners, images = [client.train for client in data.clients], data.examples.inputs
    half = torch.autocast(setup.device, torch.bfloat16, enabled=setup.precision == "bf16-mixed")
    parameters, kept = list(unet.parameters()), list(average.parameters())
    server = [p.detach().clone() for p in parameters]
    mean = [torch.zeros_like(p) for p in server]
    stamps = []
    for round in range(setup.rounds):
        for client, indices in enumerate(owners):
            with torch.no_grad():
                torch._foreach_copy_(parameters, server)
            optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)
            seed_all(0, "turn", round, client)
            order = torch.randperm(len(indices), generator=generator(0, "batches", round, client))
            for i in range(setup.interval):
                chosen = indices[order[i * setup.batch : (i + 1) * setup.batch]]
                with half:
                    loss = noise_loss(unet, scheduler, from_uint8(images[chosen].to(setup.device)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                if client == 0:
                    torch._foreach_zero_(mean)
                torch._foreach_add_(mean, parameters, alpha=1 / setup.clients)
        server, mean = mean, server
        with torch.no_grad():
            torch._foreach_lerp_(kept, server, 1 - DECAY**setup.interval)
        stamps.append(work_seconds())
    with torch.no_grad():
        torch._foreach_copy_(parameters, server)
    return [b - a for a, b in pairwise(stamps)], checksum(unet)


def compare(name: str, setup: Setup, repeats: int, limit: float | None = None, compiled: bool = True) -> bool:
    """Reports ours beside the bare loop, and compiled if that is wanted; both must compute the same.

    Returns:
        Whether ours over the bare loop is within the limit.
    """
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(repeats):
        times, ours_sum = run_strategy(setup)
        ours += times
        times, bare_sum = run_bare(setup)
        bare += times
    if setup.device != "cpu":  # as in `rounds.compare`
        few = replace(setup, interval=1, rounds=2)
        ours_sum, bare_sum = run_strategy(few)[1], run_bare(few)[1]
    check_agreement(ours_sum, bare_sum, 1e-3 if setup.precision == "32-true" else 1e-2)
    report(f"{name}: milliseconds a step, bare diffusers loop (median round)", median(bare) / setup.steps * 1e3, "ms")
    within = report(
        f"{name}: a step through the strategy over a bare diffusers loop", median(ours) / median(bare), "ratio", limit
    )
    if compiled:
        fast = run_strategy(setup, compile=True)[0]
        report(
            f"{name}: a compiled step over an ordinary one, through the strategy", median(fast) / median(ours), "ratio"
        )
    return within


def main() -> int:
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return 0 if compare("ddpm", SMALL, 6, 1.05) else 1


if __name__ == "__main__":
    sys.exit(main())
