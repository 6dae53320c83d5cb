"""Cost of the clients beside their pool: avg and all of FID, KID and the four manifold scores in one pass, one thread.

The unit is the cost of the `all` scores alone plus the products that no way around the clients' own scores avoids: the
distances within each client, and its covariance's root against the generated covariance. Time is CPU time, the clients'
side (radii, kernel means, factors) and standard errors included.

    python -m benchmarks.one_pass [--images 10000] [--repeats 1]
"""

import argparse
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.manifold import CLIENTS, DIM, cpu_seconds, features
from benchmarks.report import report
from fedgen.evaluation.reference import Reference

SCORES = ("fid", "kid", "precision", "recall", "density", "coverage")


def score(clients: Sequence[Tensor], made: Tensor) -> dict[str, float]:
    """The `all` values of every score, the clients' scores made along with them."""
    return {found.name: found.values["all"] for found in Reference(clients, SCORES, "examples").score(made)}


def products(clients: Sequence[Tensor], covariance: Tensor) -> None:
    """The clients' own: X_i X_i^T for distances, (X_i C) X_i^T and its eigenvalues' reduction for FID, in float64."""
    for part in clients:
        part @ part.T
        wide = part.double()
        torch.linalg.eigvalsh(wide @ covariance @ wide.T)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000, help="real ones, and as many generated")
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    real, made = features(options.images, 1), features(options.images, 2)
    clients = real.chunk(CLIENTS)
    covariance = made.double().T.cov()
    alone, of_pool = cpu_seconds(lambda: score([real], made), options.repeats)
    both, of_clients = cpu_seconds(lambda: score(clients, made), options.repeats)
    needed, _ = cpu_seconds(lambda: products(clients, covariance), options.repeats)
    name = f"FID, KID and manifold scores, {options.images} against {options.images} of {CLIENTS} clients, D = {DIM}"
    report(f"{name}, all alone", alone, "s")
    report(f"{name}, avg and all", both, "s")
    difference = max(abs(of_clients[key] - value) / max(1, abs(value)) for key, value in of_pool.items())
    kept = report(f"{name}, difference of all", difference, "1", 1e-6)
    kept &= report(f"{name}, avg and all", both / (alone + needed), "all alone and the clients' products", 1.5)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
