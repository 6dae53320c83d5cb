"""Time of KID of one generated set with errors, D = 2048, one thread, beside the matrix products that it cannot avoid.

Those are all blocks of the products X Y^T between real and generated images, and the blocks of Y Y^T on and above the
diagonal; the clients' own part is made once for all generated sets, and not timed. Products are in float64, as KID is.

    python -m benchmarks.kernel [--images 8192] [--repeats 3]
"""

import argparse
import sys

import torch
from torch import Tensor

from benchmarks.frechet import DIM, features
from benchmarks.manifold import CLIENTS
from benchmarks.mmd2 import ratio
from benchmarks.report import report
from fedgen.scores import KernelReference
from fedgen.scores.kernel.kernels import block_pairs


def products(x: Tensor, y: Tensor, symmetric: bool = False) -> None:
    """Forms the blocks of X Y^T, one after another."""
    for rows, columns in block_pairs(len(x), len(y), symmetric):
        x[rows] @ y[columns].T


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=8192, help="real ones, and as many generated")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    real, made = features(options.images, 1), features(options.images, 2)
    reference = KernelReference.from_features(real.chunk(CLIENTS))
    x, y = real.double(), made.double()

    def needed() -> None:
        products(x, y)
        products(y, y, symmetric=True)

    name = f"KID with errors, {options.images} against {options.images} of {CLIENTS} clients, D = {DIM}"
    cost, time = ratio(lambda: reference.score(made), needed, options.repeats)
    report(name, time, "s")
    report(name, ratio(lambda: reference.score(made), lambda: products(x, y), 1)[0], "products X Y^T")
    return 0 if report(name, cost, "products X Y^T and half of Y Y^T", 1.3) else 1


if __name__ == "__main__":
    sys.exit(main())
