"""Time of Fréchet distances at D = 2048 on one thread, in units of one 2048^3 float64 product timed beside each.

python -m benchmarks.frechet [--repeats 3]
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_fidelity.metric_fid import fid_statistics_to_metric

from benchmarks.device import wall
from benchmarks.report import report
from fedgen.scores import FrechetReference
from fedgen.statistics import Gaussian, summarize

DIM = 2048


def features(count: int, seed: int, shift: float = 0.0) -> Tensor:
    """Correlated features with a spectrum that decays as those of Inception do, float32 [count, 2048]."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, -2, DIM).unsqueeze(1)
    return torch.randn(count, DIM, generator=generator) @ mixing / DIM**0.5 + shift


def seconds(work: Callable[[], Any]) -> float:
    start = wall()
    work()
    return wall() - start


def in_products(work: Callable[[], Any], repeats: int, device: str = "cpu") -> tuple[float, float]:
    """Median time of the work over that of one product, timed before and after each, and the median in seconds."""
    left, right = (torch.randn(DIM, DIM, dtype=torch.float64).to(device) for _ in range(2))
    ratios, times = [], []
    for _ in range(repeats):
        before = seconds(lambda: left @ right)
        times.append(seconds(work))
        after = seconds(lambda: left @ right)
        ratios.append(times[-1] / ((before + after) / 2))
    return statistics.median(ratios), statistics.median(times)


def peer(client: Gaussian, generated: Gaussian) -> float:
    sides = [{"mu": side.mean.numpy(), "sigma": side.covariance().numpy()} for side in (client, generated)]
    return fid_statistics_to_metric(*sides, verbose=False)["frechet_inception_distance"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    torch.randn(DIM, DIM, dtype=torch.float64).matmul(torch.ones(DIM, DIM, dtype=torch.float64))  # warm up
    client, generated = features(6000, 1), summarize(features(6000, 2, 0.1))
    large = FrechetReference.from_features([client])
    small = FrechetReference.from_features([features(21, seed) for seed in range(3, 103)])
    unit = "products of 2048^3"
    cost, time_ = in_products(lambda: large.score(generated, errors=False), repeats)
    kept = report("FID, one full-rank client with cached factor", cost, unit, 4.0)
    report("FID, one full-rank client with cached factor", time_, "s")
    cost = in_products(lambda: large.score(generated), 1)[0]
    report("FID, one full-rank client with cached factor, with standard errors", cost, unit)
    cost, time_ = in_products(lambda: small.per_client(generated), repeats)
    kept &= report("FID, 100 clients of 21 images", cost, unit, 2.0)
    report("FID, 100 clients of 21 images", time_, "s")
    cost = in_products(lambda: small.score(generated, errors=False), repeats)[0]
    report("FID, 100 clients of 21 images and their pool of 2100", cost, unit)
    cost = in_products(lambda: small.score(generated), 1)[0]
    report("FID, 100 clients of 21 images and their pool of 2100, with standard errors", cost, unit)
    summary = summarize(client)
    report("torch-fidelity, one client", in_products(lambda: peer(summary, generated), 1)[0], unit)
    ours = large.score(generated, errors=False).values["all"]
    kept &= report("relative difference to torch-fidelity", abs(ours / peer(summary, generated) - 1), "1", 1e-6)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
