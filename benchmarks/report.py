"""One JSON line per figure of a benchmark, and peak memory of a part run in a process of its own."""

import json
import resource
import subprocess
import sys


def report(name: str, value: float, unit: str, limit: float | None = None) -> bool:
    """Prints {"name", "value", "unit", "limit", "within"}; returns whether the value is within its limit, if any."""
    within = limit is None or value <= limit
    print(
        json.dumps({"name": name, "value": float(f"{value:.5g}"), "unit": unit, "limit": limit, "within": within}),
        flush=True,
    )
    return within


def peak_of(benchmark: str, part: str) -> float:
    """Peak resident memory in GB of `python -m benchmarks.<benchmark> --part <part>`, which ends with `print_peak`."""
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", "--part", part]
    return float(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def peak_memory() -> float:
    """This process's peak resident memory so far in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9  # kilobytes on Linux


def print_peak() -> None:
    """Prints this process's peak resident memory in GB."""
    print(peak_memory())
