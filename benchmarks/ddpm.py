"""A diffusion model's training step through the strategy against a bare diffusers loop, and what torch.compile gains.

Run: python -m benchmarks.ddpm. Times are the processor's, of one thread: other work on the machine counts for less.
"""

import logging
import sys
import time
from itertools import pairwise
from typing import Any

import torch
from diffusers import DDPMScheduler
from lightning import Callback, LightningModule, Trainer
from torch import nn

from benchmarks.report import report
from benchmarks.rounds import checksum
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.data import Examples
from fedgen.federated import FedAvgStrategy
from fedgen.images import from_uint8
from fedgen.models import DDPM
from fedgen.models.networks import UNet
from fedgen.seeds import generator, seed_all

CLIENTS, PER_CLIENT, BATCH, INTERVAL, ROUNDS, DECAY = 4, 320, 32, 10, 4, 0.999


class Clock(Callback):
    """Processor time at round ends."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.stamps.append(time.process_time())


def make_model(compile: bool = False) -> DDPM:
    torch.manual_seed(0)
    network = UNet(8, 1, (16, 32), layers=1, attention=())
    return DDPM(network, lr=1e-3, ema_decay=DECAY, ema_warmup=False, compile=compile)


def make_data() -> FederatedDataModule:
    draws = torch.Generator().manual_seed(0)
    count = CLIENTS * PER_CLIENT
    images = torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=draws)
    examples = Examples(images, torch.zeros(count, dtype=torch.int64), "noise/train", ("0",))
    return FederatedDataModule(examples, IID(CLIENTS), batch_size=BATCH, held_out=0.0, seed=0)


def run_strategy(rounds: int, compile: bool = False) -> tuple[list[float], float]:
    """Seconds of each round after the first, and the sum of the weights."""
    module, clock = make_model(compile), Clock()
    options: dict[str, Any] = {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    strategy = FedAvgStrategy(INTERVAL, seed=0)
    Trainer(
        strategy=strategy, accelerator="cpu", devices=1, max_epochs=rounds, callbacks=[clock], **options
    ).fit(module, make_data())  # fmt: skip
    return [b - a for a, b in pairwise(clock.stamps)], checksum(module.network)


def run_bare(rounds: int) -> tuple[list[float], float]:
    """The plain loop over clients with diffusers' network and scheduler, the same draws, averaging and EMA."""
    module = make_model()
    unet, average, scheduler = module.network.body.train(), module.averaged, DDPMScheduler(num_train_timesteps=1000)
    owners, images = [client.train for client in make_data().clients], make_data().examples.inputs
    parameters, kept = list(unet.parameters()), list(average.parameters())
    server = [p.detach().clone() for p in parameters]
    mean = [torch.zeros_like(p) for p in server]
    stamps = []
    for round in range(rounds):
        for client, indices in enumerate(owners):
            with torch.no_grad():
                torch._foreach_copy_(parameters, server)
            optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)
            seed_all(0, "turn", round, client)
            order = torch.randperm(len(indices), generator=generator(0, "batches", round, client))
            for i in range(INTERVAL):
                clean = from_uint8(images[indices[order[i * BATCH : (i + 1) * BATCH]]])
                timesteps, noise = torch.randint(1000, (BATCH,)), torch.randn_like(clean)
                predicted = unet(scheduler.add_noise(clean, noise, timesteps), timesteps, return_dict=False)[0]
                loss = nn.functional.mse_loss(predicted, noise)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                if client == 0:
                    torch._foreach_zero_(mean)
                torch._foreach_add_(mean, parameters, alpha=1 / CLIENTS)
        server, mean = mean, server
        with torch.no_grad():
            torch._foreach_lerp_(kept, server, 1 - DECAY**INTERVAL)
        stamps.append(time.process_time())
    with torch.no_grad():
        torch._foreach_copy_(parameters, server)
    return [b - a for a, b in pairwise(stamps)], checksum(unet)


def main() -> int:
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(6):
        times, ours_sum = run_strategy(ROUNDS)
        ours += times
        times, bare_sum = run_bare(ROUNDS)
        bare += times
    if abs(ours_sum - bare_sum) > 1e-3 * max(1.0, abs(bare_sum)):
        raise AssertionError(f"the two loops disagree: {ours_sum} and {bare_sum}")
    steps = CLIENTS * INTERVAL
    report("ddpm: milliseconds a step, bare diffusers loop (best round)", min(bare) / steps * 1e3, "ms")
    within = report(
        "ddpm: a step through the strategy over a bare diffusers loop", min(ours) / min(bare), "ratio", 1.05
    )
    compiled = run_strategy(ROUNDS, compile=True)[0]
    report("ddpm: a compiled step over an ordinary one, through the strategy", min(compiled) / min(ours), "ratio")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
