"""Peak memory of scores of 100,000 clients of two images against 5,000 generated ones, each in a process of its own.

    python -m benchmarks.many_clients [--full]

How many pairs of the clients' own images are compared changes the time alone: by default it is one block in twenty
(seven minutes on one core); --full takes all.
"""

import argparse
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.report import peak_of, print_peak, report
from fedgen.scores import AuthenticityReference, KernelReference, ManifoldReference, SlicedReference
from fedgen.scores.kernel import kernels
from fedgen.scores.manifold import neighbours

CLIENTS, IMAGES, GENERATED, DIM = 100_000, 2, 5000, 8
STRIDE = 20
LIMIT = 4.0
SCORES: dict[
    str, Callable[[list[Tensor]], KernelReference | ManifoldReference | AuthenticityReference | SlicedReference]
]
SCORES = {
    "KID": KernelReference.from_features,
    "PRDC": lambda clients: ManifoldReference.from_features(clients, k=1),
    "authenticity": AuthenticityReference.from_features,
    "sw1": lambda clients: SlicedReference.from_features(clients, p=1, projections=4),
}


def leave_out_pairs() -> None:
    """Form one in twenty blocks of pairs of the clients' own images, and those of images of one client."""
    every = kernels.block_pairs

    def some(rows: int, columns: int, symmetric: bool) -> Iterator[tuple[slice, slice]]:
        for number, pair in enumerate(every(rows, columns, symmetric)):
            if not symmetric or pair[0] == pair[1] or number % STRIDE == 0:
                yield pair

    kernels.block_pairs = neighbours.block_pairs = some


def score(name: str) -> None:
    """One generated set, with standard errors."""
    features = torch.randn(CLIENTS * IMAGES + GENERATED, DIM, generator=torch.Generator().manual_seed(0))
    *clients, made = features.split([IMAGES] * CLIENTS + [GENERATED])
    SCORES[name](clients).score(made)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="compare all pairs of the clients' images")
    parser.add_argument("--part", choices=[*SCORES, *(f"{name}-all" for name in SCORES)], help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part:
        if not options.part.endswith("-all"):
            leave_out_pairs()
        score(options.part.removesuffix("-all"))
        print_peak()
        return 0
    kept = True
    for name in SCORES:
        peak = peak_of("many_clients", f"{name}-all" if options.full else name)
        what = f"peak memory, {name} with errors, {CLIENTS} clients, {GENERATED} generated images"
        kept &= report(what, peak, "GB", LIMIT)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
