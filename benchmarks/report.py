"""One JSON line per figure of a benchmark, and peak memory of a part run in a process of its own."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

PEERS = ("torch-fidelity", "diffusers")


def report(name: str, value: float, unit: str, limit: float | None = None) -> bool:
    """Prints {"benchmark", "name", "value", "unit", "limit", "within"}.

    Args:
        name: of the figure.
        value: rounded to five digits.
        unit: of the value.
        limit: the largest value that is as it should be; None where there is none.

    Returns:
        Whether the value is within its limit, if any.
    """
    within = limit is None or value <= limit
    found = {"name": name, "value": float(f"{value:.5g}"), "unit": unit, "limit": limit, "within": within}
    print(json.dumps({"benchmark": _running(), **found}), flush=True)
    return within


def _running() -> str:
    """The benchmark that runs: `python -m benchmarks.NAME`."""
    spec = sys.modules["__main__"].__spec__
    return spec.name.removeprefix("benchmarks.").removesuffix(".__main__") if spec else "a script"


def peak_of(benchmark: str, part: str) -> float:
    """Peak resident memory in GB of `python -m benchmarks.<benchmark> --part <part>`, which prints it."""
    command = [sys.executable, "-m", f"benchmarks.{benchmark}", "--part", part]
    return float(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def peak_memory() -> float:
    """This process's peak resident memory so far in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9  # kilobytes on Linux


def step_memory(work: Callable[[], Any]) -> float:
    """Peak resident memory in GB of a call beyond what was there before it; Linux resets peaks on demand."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(key: str) -> float:
    """An entry of the process's status, in GB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024 / 1e9


def print_peak() -> None:
    """Prints this process's peak resident memory in GB."""
    print(peak_memory())


def machine() -> dict[str, str]:
    """What the figures depend on: processor, cores, memory, system, and the versions of what computes."""
    from fedgen.benchmark.entry import provenance  # which processes whose memory is measured do without

    made = provenance()
    found = made["machine"]
    return {
        "processor": found["processor"],
        "cores": str(found["cores"]),
        "memory": f"{found['memory'] / 2**30:.0f} GiB",
        "system": found["system"].split()[0],
        "fedgen": made["fedgen"],
        **made["versions"],
        **{name: version(name) for name in PEERS},
    }
