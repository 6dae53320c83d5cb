"""Time to write and to read what travels beside weights, over torch.save and torch.load: 20 MB of averaged Adam states.

    python -m benchmarks.messages [--repeats 9]

Medians of calls that take turns, on one thread: what else the machine does meets both alike. The messages' reader also
looks for NaN, which `torch.load` does not.
"""

import argparse
import io
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.report import report
from fedgen.flower.wire.serialization import from_bytes, to_bytes

PARAMETERS, NUMBERS = 40, 62_500  # two float32 moments each: 20 MB


def state() -> dict[str, Any]:
    """What a client tells of an averaged optimizer: by parameter and name tensors, and plain types beside them."""
    numbers = torch.Generator().manual_seed(0)
    names = ("exp_avg", "exp_avg_sq")
    sums = {(i, name): torch.randn(NUMBERS, generator=numbers) for i in range(PARAMETERS) for name in names}
    weights = {key: torch.tensor(16.0, dtype=torch.float64) for key in sums}
    return {"told": [sums, weights, (3, [], {})], "examples": 16, "metrics": {"loss": 0.5}}


def medians(repeats: int, *works: Callable[[], Any]) -> list[float]:
    """Median seconds of each piece of work, taking turns."""
    found: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for times, work in zip(found, works):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in found]


def torch_bytes(value: Any) -> bytes:
    """By torch.save."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    value = state()
    own, other = to_bytes(value), torch_bytes(value)
    report("size of 20 MB of tensors as a message", len(own) / 1e6, "MB")
    write, save = medians(repeats, lambda: to_bytes(value), lambda: torch_bytes(value))
    read, load = medians(repeats, lambda: from_bytes(own, "it"), lambda: torch.load(io.BytesIO(other)))
    report("writing a message of 20 MB", write, "s")
    report("reading a message of 20 MB", read, "s")
    kept = report("writing a message, over torch.save", write / save, "ratio", 1.5)
    kept &= report("reading a message, over torch.load", read / load, "ratio", 1.0)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
