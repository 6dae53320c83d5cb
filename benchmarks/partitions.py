"""Partitions, a three-way split, cohorts and a round at 10,000 clients, and the semantic partition of 60,000 images.

    python -m benchmarks.partitions [--full] [--part NAME]

Times are the processor's, which other programs hardly change. The semantic partition takes a minute on one core, with
the published settings some ten minutes, which --full adds; its limit is in units of a 2048^3 float64 product, timed
before and after. Its features are pixels, of Fashion-MNIST where it is
installed, else of noise around 300 centres: embedding images is another matter.
"""

import argparse
import logging
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, TypeVar

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.report import peak_memory, peak_of, print_peak, report
from fedgen.clients import FederatedDataModule, ThreeWaySplit, sample_cohort
from fedgen.clients.partitions import IID, BySize, Dirichlet, Natural, Partition, Semantic
from fedgen.data import Examples, FashionMNIST
from fedgen.federated import FedAvgStrategy

T = TypeVar("T")
CLIENTS, FEWER = 10_000, 1_000
EXAMPLES, LABELS = 200_000, 62  # FEMNIST has 62 classes, and 226 images a writer
COHORT = 100
IMAGES, GROUPS = 60_000, 300
# Products of 2048^3: three times a minute, and ten minutes, of a core that takes 0.3 s for one.
LIMITS = {"Semantic": 600.0, "Semantic.paper": 6000.0}


def make_examples() -> Examples:
    """Images of 4 x 4 pixels with labels and 10,000 owners, all random."""
    draws = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (EXAMPLES, 1, 4, 4), dtype=torch.uint8, generator=draws)
    labels = torch.randint(0, LABELS, (EXAMPLES,), generator=draws)
    owners = torch.arange(EXAMPLES) % CLIENTS
    names = tuple(f"writer {owner}" for owner in range(CLIENTS))
    return Examples(images, labels, "noise/train", tuple(map(str, range(LABELS))), owners, names)


def watched(make: Callable[[], T]) -> tuple[T, float, int]:
    """What is made, the seconds of processor time that this takes, and the bytes that it holds."""
    make()  # once without a watch: libraries load
    start = time.process_time()
    make()
    spent = time.process_time() - start
    tracemalloc.start()
    made = make()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return made, spent, held


def deal(examples: Examples, rule: Partition) -> bool:
    """Time and memory of a partition; returns whether both are within their limits.

    Lists of positions are arrays, and an array itself takes more than 100 bytes; whatever else stays is counted too.
    """
    title = f"{type(rule).__name__} of {EXAMPLES:,} examples into {CLIENTS:,} clients"
    clients, spent, held = watched(lambda: rule.assign(examples, 0))
    kept = report(f"{title}: processor time", spent, "s", 2.0)
    beyond = (held - sum(client.nbytes for client in clients)) / len(clients)
    return report(f"{title}: memory a client, beyond its positions", beyond, "B", 256) and kept


def hold_out_clients(examples: Examples) -> bool:
    """Time and memory of who trains and who never does, and the time of all clients' parts; returns whether within.

    The parts are tensors, whose memory `compare_rounds` sees.
    """
    title = f"three-way split of {CLIENTS:,} clients"
    split = ThreeWaySplit(participating=0.5)
    roles, spent, held = watched(lambda: split.assign(CLIENTS, 0))
    kept = report(f"{title}: processor time", spent, "s", 0.1)
    kept &= report(f"{title}: memory a client", held / roles.count, "B", 64)
    data = FederatedDataModule(examples, IID(CLIENTS), held_out=0.2, seed=0, split=ThreeWaySplit(max_examples=12))
    start = time.process_time()
    data.setup("fit")
    spent = time.process_time() - start
    return report(f"{title}: processor time with dealing and holding out images", spent, "s", 3.0) and kept


def draw_cohorts() -> bool:
    """The median time of a cohort, of 100 rounds; returns whether it is within its limit."""
    times = []
    for round in range(100):
        start = time.perf_counter()
        sample_cohort(CLIENTS, COHORT, 0, round)
        times.append(1000 * (time.perf_counter() - start))
    return report(f"cohort of {COHORT} of {CLIENTS:,} clients: median time", float(np.median(times)), "ms", 1.0)


class Tiny(L.LightningModule):
    """Logistic regression: a round's memory is what surrounds the model."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(16, LABELS)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0].flatten(1)), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def train_round(num_clients: int) -> None:
    """A round of a cohort of 100 of so many clients, who share the same examples; a fifth of them never train."""
    split = ThreeWaySplit()
    data = FederatedDataModule(make_examples(), IID(num_clients), batch_size=8, held_out=0.2, seed=0, split=split)
    options: dict[str, Any] = {
        "logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    strategy = FedAvgStrategy(2, cohort_size=COHORT, seed=0)
    L.Trainer(strategy=strategy, accelerator="cpu", devices=1, max_epochs=1, **options).fit(Tiny(), data)


def compare_rounds() -> bool:
    """Peak memory of a round with ten times the clients; returns whether it is about the same."""
    fewer, more = (peak_of("partitions", f"round-{clients}") for clients in (FEWER, CLIENTS))
    title = f"round of {COHORT} clients"
    report(f"{title} of {FEWER:,}: peak memory", fewer, "GB")
    kept = report(f"{title}: peak memory with {CLIENTS:,} over that with {FEWER:,}", more / fewer, "ratio", 1.1)
    each = max(0.0, more - fewer) * 1e9 / (CLIENTS - FEWER)
    return report(f"{title}: peak memory a further client, positions included", each, "B", 1000) and kept


def published_images() -> Examples:
    """60,000 images of ten classes: Fashion-MNIST's, or noise around 300 centres of each class."""
    try:
        return FashionMNIST().load()
    except OSError:  # neither there nor to be downloaded
        draws = torch.Generator().manual_seed(0)
        labels, groups = torch.arange(IMAGES) % 10, torch.arange(IMAGES) // 10 % GROUPS
        centres = torch.randint(60, 196, (10, GROUPS, 1, 28, 28), generator=draws)
        noise = torch.randint(-60, 60, (IMAGES, 1, 28, 28), generator=draws)
        images = (centres[labels, groups] + noise).to(torch.uint8)
        return Examples(images, labels, "centres/train", tuple("0123456789"))


def product() -> float:
    """Processor time of one 2048^3 float64 product in seconds."""
    factors = torch.ones(2, 2048, 2048, dtype=torch.float64)
    start = time.process_time()
    factors[0] @ factors[1]
    return time.process_time() - start


def cluster(full: bool) -> bool:
    """The semantic partition, and with the published settings too; returns whether it is within its limit.

    A bar counts labels where there is a terminal.
    """
    examples, kept = published_images(), True
    rules = {"Semantic": Semantic(GROUPS, "pixels"), "Semantic.paper": Semantic.paper(GROUPS, "pixels")}
    product()  # once without a watch
    for name, rule in rules.items() if full else [*rules.items()][:1]:
        before = product()
        start, clock = time.process_time(), time.perf_counter()
        clients = rule.assign(examples, 0)
        spent, passed = time.process_time() - start, time.perf_counter() - clock
        title = f"{name} of {examples.name}, {len(examples):,} images into {len(clients)} clients"
        report(f"{title}: processor time", spent, "s")
        report(f"{title}: time", passed, "s")
        cost = spent / ((before + product()) / 2)
        kept &= report(f"{title}: processor time", cost, "products of 2048^3", LIMITS[name])
    report(f"semantic partition of {len(examples):,} images: peak memory", peak_memory(), "GB")
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = [f"round-{clients}" for clients in (FEWER, CLIENTS)]
    parser.add_argument("--part", choices=[*parts, "deal", "cohorts", "rounds", "semantic"], help="by default all")
    parser.add_argument("--full", action="store_true", help="the semantic partition with the published settings too")
    options = parser.parse_args()
    part = options.part
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    if part in parts:
        train_round(int(part.removeprefix("round-")))
        print_peak()
        return 0
    kept = True
    if part in (None, "deal"):
        examples = make_examples()
        for rule in (IID(CLIENTS), BySize(CLIENTS), Natural(), Dirichlet(CLIENTS, alpha=10.0)):
            kept &= deal(examples, rule)
        kept &= hold_out_clients(examples)
    if part in (None, "cohorts"):
        kept &= draw_cohorts()
    if part in (None, "rounds"):
        kept &= compare_rounds()
    if part in (None, "semantic"):
        kept &= cluster(options.full)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
