"""Benchmarks one after the other, the machine's line first: `python -m benchmarks [--once] [NAME ...]`, all by default.

On machines that others share, one measurement differs from the next by as much as a tenth. A benchmark with a figure
beyond its limit is therefore run twice more, and each of its figures is then the median of three; "runs" says so. With
`--once` it is not: for `benchmarks.page`, which shows the spread of several runs of all.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.page import Line, lines_of
from benchmarks.report import machine

NAMES = (
    "frechet", "fastfid", "mmd2", "kernel", "manifold", "one_pass", "rounds", "ddpm", "gan", "stylegan2", "memory",
    "many_clients", "partitions", "lazy_data", "messages", "evaluation", "stored_scores", "long_run", "start",
)  # fmt: skip
AGAIN = 2


class Measured(NamedTuple):
    """What a benchmark's run left: its exit status, and its figures."""

    status: int
    figures: list[Line]

    @property
    def within(self) -> bool:
        """Whether no figure is beyond its limit."""
        return all(line["within"] for line in self.figures)


def measure(name: str) -> Measured:
    """Run a benchmark in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", f"benchmarks.{name}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    return Measured(done.returncode, lines_of(done.stdout))


def settle(name: str, measure: Callable[[str], Measured] = measure) -> Measured:
    """Measure a benchmark, three times where a figure is beyond its limit; the status is 0 if none is in the end.

    Args:
        name: of the benchmark.
        measure: runs it.
    """
    first = measure(name)
    if first.within:  # with another status than 0 it has failed
        return first
    runs = [first, *(measure(name) for _ in range(AGAIN))]
    found = Measured(0, [_median(lines) for lines in zip(*(run.figures for run in runs))])
    whole = len({len(run.figures) for run in runs}) == 1
    # one that fails behind a figure beyond its limit has the same status: a run that came through tells them apart
    came_through = any(not run.status for run in runs) and not any(run.status for run in runs if run.within)
    return found._replace(status=int(not (whole and came_through and found.within)))


def _median(lines: Sequence[Line]) -> Line:
    """The same figure of several runs."""
    value, limit = statistics.median(line["value"] for line in lines), lines[0]["limit"]
    return {**lines[0], "value": value, "within": limit is None or value <= limit, "runs": len(lines)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help=", ".join(NAMES))
    parser.add_argument("--once", action="store_true", help="not again where a figure is beyond its limit")
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in NAMES]:
        print(f"no benchmark {unknown[0]!r}; known: {', '.join(NAMES)}", file=sys.stderr)
        return 2
    print(json.dumps({"machine": machine()}), flush=True)
    failed = []
    for name in asked.names or NAMES:
        status, figures = measure(name) if asked.once else settle(name)
        for line in figures:
            print(json.dumps(line), flush=True)
        if status:
            failed.append(name)
    if failed:
        print(f"failed, or beyond a limit: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
