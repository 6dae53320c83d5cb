"""A round of many small clients, vectorised over one by one: `VectorisedTurns` on and off.

    python -m benchmarks.vectorised [--device cpu] [--models flow] [--clients 64] [--batches 8 32] [--repeats 1]

The kit's small networks on images of 8 x 8, five local steps a client, fits with and without in turn. Ratios are of the
best rounds; on a CPU they have no limit, as `VectorisedTurns` uses what is faster there, and seconds are the
processor's. Two minutes.
"""

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import lightning as L
import torch

from benchmarks.ddpm import Clock
from benchmarks.device import place
from benchmarks.report import report
from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.data import Examples
from fedgen.federated import FedAvgStrategy, VectorisedTurns
from fedgen.models import DDPM, WGANGP, FlowMatching
from fedgen.models.networks import SmallCritic, SmallGenerator, UNet

CLIENTS, INTERVAL = 64, 5
GOAL = 1 / 8  # of small clients on a GPU
MODELS: dict[str, Callable[[], L.LightningModule]] = {
    "wgan-gp": lambda: WGANGP(SmallGenerator(), SmallCritic()),
    "flow": lambda: FlowMatching(UNet(8, 1, [8], 1, [])),
    "ddpm": lambda: DDPM(UNet(8, 1, [8, 16], 1, [4])),
}
CALLED = {
    "wgan-gp": "WGAN-GP, perceptrons of 54k parameters",
    "flow": "flow matching, a UNet of 11k",
    "ddpm": "DDPM, a UNet of 45k with attention",
}


def make_data(clients: int, batch: int) -> FederatedDataModule:
    """Grey noise of 8 x 8 pixels, two batches a client."""
    draws = torch.Generator().manual_seed(0)
    count = clients * 2 * batch
    images = torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=draws)
    examples = Examples(images, torch.zeros(count, dtype=torch.int64), "noise/train", ("noise",))
    return FederatedDataModule(examples, IID(clients), batch_size=batch, held_out=0.0, seed=0)


def seconds_of_rounds(
    make: Callable[[], L.LightningModule],
    data: FederatedDataModule,
    interval: int,
    rounds: int,
    device: str,
    vectorised: VectorisedTurns | None,
) -> tuple[list[float], float]:
    """Each round's seconds after the first, and a sum of the trained weights."""
    torch.manual_seed(0)
    module, clock = make(), Clock()
    quiet: dict[str, Any] = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    strategy = FedAvgStrategy(interval, seed=0, vectorised_turns=vectorised)
    trainer = L.Trainer(strategy=strategy, max_epochs=rounds + 1, callbacks=[clock], **place(device), **quiet)
    trainer.fit(module, data)
    seconds = [after - before for before, after in pairwise(clock.stamps)]
    return seconds, sum(float(p.detach().double().sum()) for p in module.parameters())


def compare(
    name: str,
    batch: int,
    device: str,
    clients: int = CLIENTS,
    interval: int = INTERVAL,
    rounds: int = 1,
    repeats: int = 1,
) -> bool:
    """Rounds one by one and at once in turn.

    Args:
        name: of the model.
        batch: images of a local step.
        device: "cpu", or "cuda", where the ratio has a limit.
        clients: of a round.
        interval: local steps of a client.
        rounds: of a fit, after a first that is not timed.
        repeats: fits each.

    Returns:
        Whether the ratio is within the limit, if any.
    """
    times: dict[bool, list[float]] = {False: [], True: []}
    sums = {}
    data = make_data(clients, batch)
    for _ in range(repeats):
        for at_once in times:
            settings = VectorisedTurns(clients, always=True) if at_once else None
            found, sums[at_once] = seconds_of_rounds(MODELS[name], data, interval, rounds, device, settings)
            times[at_once] += found
    if abs(sums[True] - sums[False]) > 1e-3 * max(1.0, abs(sums[False])):
        raise AssertionError(f"the two ways disagree: {sums[True]} and {sums[False]}")
    what = f"{CALLED[name]}, {clients} clients x {interval} steps of {batch} images"
    report(f"{what}: a round, one by one", min(times[False]), "s")
    limit = GOAL if device == "cuda" and clients >= CLIENTS else None
    return report(f"{what}: vectorised over one by one", min(times[True]) / min(times[False]), "ratio", limit)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--clients", type=int, nargs="+", default=[CLIENTS])
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--interval", type=int, default=INTERVAL)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lengths = options.interval, options.rounds, options.repeats
    within = [
        compare(name, batch, options.device, clients, *lengths)
        for name in options.models
        for batch in options.batches
        for clients in options.clients
    ]
    return 0 if all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
