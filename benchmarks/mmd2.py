"""Time and memory of the MMD^2 loss with its gradient at D = 2048 on one thread, beside those of autograd.

The unit of time is the two products that no way around the kernel matrix avoids, [128, 2048] x [2048, 10000] and
[128, 10000] x [10000, 2048], timed before and after in the same precision.

    python -m benchmarks.mmd2 [--repeats 5]
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.frechet import DIM, features, seconds
from benchmarks.report import peak_of, print_peak, report
from fedgen.losses.mmd2 import MMD2Loss
from fedgen.scores import Kernel, PolynomialKernel, RBFKernel

BATCH, REAL = 128, 10_000
LARGE_BATCH, LARGE_REAL = 1024, 20_000  # for memory
KERNELS = {"cubic": PolynomialKernel(), "RBF": RBFKernel()}


def matrix(kernel: Kernel, x: Tensor, y: Tensor) -> Tensor:
    """The kernel matrix as one writes it for autograd."""
    if isinstance(kernel, RBFKernel):
        return torch.exp(-torch.cdist(x, y).square() / (2 * DIM))
    return (x @ y.T / DIM + 1) ** 3


def by_autograd(kernel: Kernel, real: Tensor) -> Callable[[Tensor], Tensor]:
    """MMD^2 less the references' constant, through explicit kernel matrices."""

    def value(x: Tensor) -> Tensor:
        within = matrix(kernel, x, x)
        within = (within.sum() - within.diagonal().sum()) / (len(x) * (len(x) - 1))
        return within - 2 * matrix(kernel, x, real).mean()

    return value


def differentiate(loss: Callable[[Tensor], Tensor], batch: Tensor) -> tuple[Tensor, Tensor]:
    """Value and gradient."""
    x = batch.clone().requires_grad_()
    value = loss(x)
    return value.detach(), torch.autograd.grad(value, x)[0]


def ratio(work: Callable[[], Any], unit: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Median time of the work over that of the unit, timed before and after each, and the median in seconds."""
    work()  # warm up
    ratios, times = [], []
    for _ in range(repeats):
        before = seconds(unit)
        times.append(seconds(work))
        ratios.append(times[-1] / ((before + seconds(unit)) / 2))
    return statistics.median(ratios), statistics.median(times)


def compare(name: str, dtype: torch.dtype, repeats: int, device: str = "cpu", count: int = REAL) -> bool:
    """Reports one kernel in one precision against so many images; whether it is within its limit."""
    kernel, precision = KERNELS[name], str(dtype).removeprefix("torch.")
    real, batch = features(count, 1), features(BATCH, 2, 0.1)
    loss = MMD2Loss(kernel, constant=False, dtype=dtype).set_references([real]).to(device)
    real, batch = real.to(device, dtype), batch.to(device, dtype)
    weights = torch.randn(BATCH, count, dtype=dtype).to(device)

    def products() -> None:
        batch @ real.T
        weights @ real

    autograd = by_autograd(kernel, real)
    cost, time = ratio(lambda: differentiate(loss, batch), products, repeats)
    title = f"MMD² with gradient, {name}, {precision}, {BATCH} against {count}"
    # a GPU takes longer to start kernels than for the products
    kept = report(title, cost, "its two products", 1.3 if device == "cpu" else None)
    report(title, time, "s")
    report(f"{title}, by autograd", ratio(lambda: differentiate(autograd, batch), products, repeats)[0], "the same")
    exact = differentiate(by_autograd(kernel, real.double()), batch.double())[1]
    error = (differentiate(loss, batch)[1] - exact).norm() / exact.norm()
    limit = 1e-6 if dtype == torch.float32 else 1e-12
    kept &= report(f"{title}: relative difference of the gradient to autograd's in float64", float(error), "1", limit)
    return kept


def use_memory(way: str) -> None:
    """The references in float32 and float64, and unless the way is "references" one call on them."""
    batch, real = features(LARGE_BATCH, 2, 0.1).double(), features(LARGE_REAL, 1)
    if way == "closed":
        differentiate(MMD2Loss(constant=False).set_references([real]), batch)
        return
    double = real.double()  # beside `real`, as in the loss
    if way == "autograd":
        differentiate(by_autograd(KERNELS["cubic"], double), batch)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--part", choices=["closed", "autograd", "references"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part:
        use_memory(options.part)
        print_peak()
        return 0
    base = peak_of("mmd2", "references")  # first, as a process starts from the peak of the one that starts it
    title = f"peak memory of MMD² with gradient, {LARGE_BATCH} against {LARGE_REAL}, beyond the references"
    kept = report(title, peak_of("mmd2", "closed") - base, "GB", 0.2)
    report(f"{title}, by autograd", peak_of("mmd2", "autograd") - base, "GB")
    for name in KERNELS:
        for dtype in (torch.float64, torch.float32):
            kept &= compare(name, dtype, options.repeats)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
