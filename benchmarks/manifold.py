"""Time and memory of precision, recall, density and coverage on one thread, beside prdc's.

Time is the process's CPU time, as prdc starts eight threads of its own. Everything is measured in fresh processes; ours
includes the reference's radii and the standard errors.

    python -m benchmarks.manifold [--images 10000] [--repeats 3]
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from prdc import compute_prdc
from torch import Tensor

from benchmarks.report import peak_memory, report
from fedgen.scores import ManifoldReference

DIM = 1280
CLIENTS = 10
K = 5
WAYS = ("inputs", "prdc", "pool", "clients")


def features(count: int, seed: int) -> Tensor:
    """Features with a decaying spectrum away from the origin, float32 [count, 1280]; nothing else is allocated."""
    generator = torch.Generator().manual_seed(seed)
    return torch.empty(count, DIM).normal_(generator=generator).mul_(torch.logspace(0, -1, DIM)).add_(1)


def cpu_seconds(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Median CPU time of the work, and its last answer."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        answer = work()
        times.append(time.process_time() - start)
    return statistics.median(times), answer


def score(real: tuple[Tensor, ...], made: Tensor) -> dict[str, float]:
    """The scores against the pool."""
    scores = ManifoldReference.from_features(real, k=K, strict=True).score(made)
    return {name: found.values["all"] for name, found in scores.items()}


def peer(real: Tensor, made: Tensor) -> dict[str, float]:
    """The scores of prdc, which prints the sizes."""
    with contextlib.redirect_stdout(sys.stderr):
        return {name: float(value) for name, value in compute_prdc(real.numpy(), made.numpy(), K).items()}


def products(clients: tuple[Tensor, ...]) -> None:
    """Those that no way around the distances within clients avoids."""
    for part in clients:
        part @ part.T


def measure(way: str, images: int, repeats: int) -> dict[str, Any]:
    """CPU seconds, scores, seconds of the clients' products, and peak memory in GB of this process."""
    real, made = features(images, 1), features(images, 2)
    clients = real.chunk(CLIENTS)
    found: dict[str, Any] = {}
    if way == "prdc":
        found["seconds"], found["scores"] = cpu_seconds(lambda: peer(real, made), 1)
    elif way != "inputs":
        parts = clients if way == "clients" else (real,)
        found["seconds"], found["scores"] = cpu_seconds(lambda: score(parts, made), repeats)
        found["peak"] = peak_memory()  # before other work
        found["products"] = cpu_seconds(lambda: products(clients), repeats)[0]
    return {"peak": peak_memory(), **found}


def in_fresh_process(way: str, images: int, repeats: int) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.manifold", "--part", way]
    command += ["--images", str(images), "--repeats", str(repeats)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, env=environment)
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000, help="real ones, and as many generated")
    parser.add_argument("--repeats", type=int, default=3, help="of ours; prdc runs once")
    parser.add_argument("--part", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        torch.set_num_threads(1)
        print(json.dumps(measure(options.part, options.images, options.repeats)))
        return 0
    found = {way: in_fresh_process(way, options.images, options.repeats) for way in WAYS}
    title = f"precision, recall, density and coverage, {options.images} against {options.images}, D = {DIM}"
    memory = {way: found[way]["peak"] - found["inputs"]["peak"] for way in WAYS}
    pool, clients, other = found["pool"], found["clients"], found["prdc"]
    report(title, pool["seconds"], "s")
    report(f"{title}, by prdc", other["seconds"], "s")
    kept = report(f"{title}, time", pool["seconds"] / other["seconds"], "prdc's", 1 / 3)
    report(f"{title}, peak memory beyond the features", memory["pool"], "GB")
    kept &= report(f"{title}, peak memory beyond the features", memory["pool"] / memory["prdc"], "prdc's", 0.2)
    difference = max(abs(pool["scores"][name] - value) for name, value in other["scores"].items())
    kept &= report(f"{title}, difference to prdc, which compares in float32", difference, "1", 2.5 / options.images)
    unit = clients["products"] + pool["seconds"]
    name = f"the same to {CLIENTS} clients and their pool, avg and all"
    kept &= report(name, clients["seconds"] / unit, "all alone and the clients' products", 1.5)
    report(name, clients["seconds"] / pool["seconds"], "all alone")
    report(f"{name}, peak memory beyond the features", memory["clients"], "GB")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
