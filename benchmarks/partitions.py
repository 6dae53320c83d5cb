"""Partitions, cohorts and a round at 10,000 clients, and the semantic partition of 60,000 images.

    python -m benchmarks.partitions [--full] [--part NAME]

Times are the processor's, which other programs hardly change. The semantic partition takes a minute on one core, with
the published settings some ten minutes, which --full adds. Its features are pixels, of Fashion-MNIST where it is
installed, else of noise around 300 centres: embedding images is another matter.
"""

import argparse
import logging
import sys
import time
import tracemalloc
from typing import Any

import lightning as L
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.report import peak_memory, peak_of, print_peak, report
from fedgen.clients import FederatedDataModule, sample_cohort
from fedgen.clients.partitions import IID, BySize, Dirichlet, Natural, Partition, Semantic
from fedgen.data import Examples, FashionMNIST
from fedgen.federated import FedAvgStrategy

CLIENTS, FEWER = 10_000, 1_000
EXAMPLES, LABELS = 200_000, 62  # FEMNIST has 62 classes, and 226 images a writer
COHORT = 100


def make_examples() -> Examples:
    """Images of 4 x 4 pixels with labels and 10,000 owners, all random."""
    draws = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (EXAMPLES, 1, 4, 4), dtype=torch.uint8, generator=draws)
    labels = torch.randint(0, LABELS, (EXAMPLES,), generator=draws)
    owners = torch.arange(EXAMPLES) % CLIENTS
    names = tuple(f"writer {owner}" for owner in range(CLIENTS))
    return Examples(images, labels, "noise/train", tuple(map(str, range(LABELS))), owners, names)


def deal(examples: Examples, rule: Partition) -> bool:
    """Time and memory of a partition; returns whether both are within their limits.

    Lists of positions are arrays, and an array itself takes more than 100 bytes; whatever else stays is counted too.
    """
    title = f"{type(rule).__name__} of {EXAMPLES:,} examples into {CLIENTS:,} clients"
    rule.assign(examples, 0)  # once without a watch: libraries load
    start = time.process_time()
    rule.assign(examples, 0)
    kept = report(f"{title}: processor time", time.process_time() - start, "s", 2.0)
    tracemalloc.start()
    clients = rule.assign(examples, 0)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    beyond = (held - sum(client.nbytes for client in clients)) / len(clients)
    return report(f"{title}: memory a client, beyond its positions", beyond, "B", 256) and kept


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
    """A round of a cohort of 100 of so many clients, who share the same examples."""
    data = FederatedDataModule(make_examples(), IID(num_clients), batch_size=8, held_out=0.2, seed=0)
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
    return report(f"{title}: peak memory a further client, positions included", each, "B", 4000) and kept


def published_images() -> Examples:
    """60,000 images of ten classes: Fashion-MNIST's, or noise around 300 centres of each class."""
    try:
        return FashionMNIST().load()
    except OSError:  # neither there nor to be downloaded
        draws = torch.Generator().manual_seed(0)
        labels, groups = torch.arange(60_000) % 10, torch.arange(60_000) // 10 % 300
        centres = torch.randint(60, 196, (10, 300, 1, 28, 28), generator=draws)
        noise = torch.randint(-60, 60, (60_000, 1, 28, 28), generator=draws)
        images = (centres[labels, groups] + noise).to(torch.uint8)
        return Examples(images, labels, "centres/train", tuple("0123456789"))


def cluster(full: bool) -> None:
    """The semantic partition, and with the published settings too; a bar counts labels where there is a terminal."""
    examples = published_images()
    rules = {"Semantic": Semantic(300, "pixels"), "Semantic.paper": Semantic.paper(300, "pixels")}
    for name, rule in rules.items() if full else [*rules.items()][:1]:
        start, clock = time.process_time(), time.perf_counter()
        clients = rule.assign(examples, 0)
        title = f"{name} of {examples.name}, {len(examples):,} images into {len(clients)} clients"
        report(f"{title}: processor time", time.process_time() - start, "s")
        report(f"{title}: time", time.perf_counter() - clock, "s")
    report(f"semantic partition of {len(examples):,} images: peak memory", peak_memory(), "GB")


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
    if part in (None, "cohorts"):
        kept &= draw_cohorts()
    if part in (None, "rounds"):
        kept &= compare_rounds()
    if part in (None, "semantic"):
        cluster(options.full)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
