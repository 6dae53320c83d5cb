"""Peak memory of the scores at the sizes of full experiments, each in a process of its own.

    python -m benchmarks.memory [--full]

KID needs the same memory for every block of the kernel matrices, so that by default one block in twenty is formed (a
minute on one core); --full forms all of them (some ten minutes).
"""

import argparse
import sys
from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from benchmarks.report import peak_of, print_peak, report
from fedgen.scores import FrechetReference, mmd2
from fedgen.scores.kernel import kernels
from fedgen.statistics import summarize

DIM = 2048
CLIENTS = 100
IMAGES = 50_000
STRIDE = 20


def features(count: int, seed: int) -> Tensor:
    """Features with a decaying spectrum, float32 [count, 2048]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, DIM, generator=generator) * torch.logspace(0, -2, DIM)


def score_clients() -> None:
    """One checkpoint against 100 clients of full rank, with standard errors."""
    reference = FrechetReference.from_features(features(DIM + 64, seed) for seed in range(CLIENTS))
    reference.score(summarize(features(4096, CLIENTS)))


def score_kernels(stride: int) -> None:
    """KID of 50,000 images against 50,000, of whose kernel blocks every `stride`-th is formed."""
    every = kernels.block_pairs

    def some(rows: int, columns: int, symmetric: bool) -> Iterator[tuple[slice, slice]]:
        return islice(every(rows, columns, symmetric), 0, None, stride)

    kernels.block_pairs = some
    mmd2(features(IMAGES, 0), features(IMAGES, 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="form every kernel block")
    parser.add_argument("--part", choices=["clients", "kernels", "all-kernels"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part:
        score_clients() if options.part == "clients" else score_kernels(STRIDE if options.part == "kernels" else 1)
        print_peak()
        return 0
    kept = report(
        f"peak memory, FID to {CLIENTS} full-rank clients, D = {DIM}", peak_of("memory", "clients"), "GB", 6.0
    )
    share = "every block formed" if options.full else f"1 block in {STRIDE} formed"
    name = f"peak memory, KID {IMAGES} against {IMAGES} images, D = {DIM} ({share})"
    kept &= report(name, peak_of("memory", "all-kernels" if options.full else "kernels"), "GB", 4.0)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
