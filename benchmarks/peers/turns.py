"""Runs sides in processes of their own that take turns, a round each."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.peers.clock import ADDRESS, NAME
from benchmarks.peers.environments import python_of
from benchmarks.peers.workload import DEVICE, WORKLOADS

ROOT = Path(__file__).parents[2]
MODULES = {"bare": "bare", "ours": "ours", "pfl": "with_pfl", "flower": "with_flower"}
ALONE = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PFL_PYTORCH_DEVICE": "cpu",
}
# all sides keep freed memory, as the kit does by itself; each as it comes, it is chance for the whole of a run, and by
# up to 40 %, which of the others fault the same pages in again with every gradient
ALIKE = ALONE | {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}
ON_GPUS = {DEVICE: "cuda", "PFL_PYTORCH_DEVICE": "cuda"}  # added to the environment of every side
STARTING = 300  # seconds in which every side has done its first round


@dataclass(frozen=True)
class Side:
    """A framework, by its key in MODULES, on a number of processes."""

    name: str
    processes: int

    @property
    def command(self) -> list[str]:
        """How it is started: the kit and Flower start further processes themselves."""
        start = [sys.executable if self.name in ("bare", "ours") else python_of(self.name), "-W", "ignore", "-m"]
        if self.processes > 1 and self.name in ("bare", "pfl"):
            start += ["torch.distributed.run", "--standalone", f"--nproc_per_node={self.processes}", "-m"]
        return [*start, f"benchmarks.peers.{MODULES[self.name]}"]

    @property
    def clocks(self) -> int:
        """Processes that tell of their rounds' ends; of Flower the server alone."""
        return 1 if self.name == "flower" else self.processes


class _Run:
    """A side's training of a workload: its process, what it writes and its clocks."""

    def __init__(self, side: Side, workload: str, variables: Mapping[str, str], number: int, folder: Path) -> None:
        self.side, self.clocks = side, list[socket.socket]()
        self._out, self._err, self._weights = (folder / f"{number}.{kind}" for kind in ("out", "err", "pt"))
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        own = {"PYTHONPATH": paths, ADDRESS: str(folder / "turns"), NAME: str(number)}
        command = [*side.command, workload, str(side.processes), str(self._weights)]
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=err, cwd=ROOT, env={**os.environ, **variables, **own}
            )

    def go(self) -> None:
        for clock in self.clocks:
            clock.sendall(b".")

    def hear(self) -> None:
        """Waits until all its clocks have ticked."""
        for clock in self.clocks:
            if not clock.recv(1):
                raise self.failed()

    def failed(self) -> RuntimeError:
        return RuntimeError(f"{self.side} failed:\n{self._err.read_text()[-3000:]}")

    def result(self) -> tuple[list[float], list[Tensor]]:
        if self.process.wait():
            raise self.failed()
        return json.loads(self._out.read_text().splitlines()[-1]), torch.load(self._weights)


def take_turns(
    sides: Sequence[Side], workload: str, variables: Mapping[str, str] = ALONE
) -> list[tuple[list[float], list[Tensor]]]:
    """Every side's training of a workload: seconds of its rounds but the first, and its final weights.

    The first rounds are done at once, each later one while the other sides wait.

    Args:
        sides: one after another in each round.
        workload: its key.
        variables: added to every side's environment.

    Raises:
        RuntimeError: with the end of what it printed, if a side fails.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(str(folder / "turns"))
        server.listen()
        server.settimeout(1)
        runs = []
        for number, side in enumerate(sides):
            runs.append(_Run(side, workload, variables, number, folder))
            stack.callback(runs[-1].process.kill)
        _collect_clocks(server, runs)
        for _ in range(WORKLOADS[workload].rounds - 1):
            for run in runs:
                run.go()
                run.hear()
        for run in runs:
            run.go()
        return [run.result() for run in runs]


def _collect_clocks(server: socket.socket, runs: Sequence[_Run]) -> None:
    """Waits until all processes of all runs are at the end of their first round."""
    for _ in range(STARTING):
        if all(len(run.clocks) == run.side.clocks for run in runs):
            return
        for run in runs:
            if run.process.poll() is not None:
                raise run.failed()
        try:
            while True:
                clock, _ = server.accept()
                runs[int(clock.recv(8))].clocks.append(clock)
        except TimeoutError:
            continue
    raise RuntimeError(f"after {STARTING} s not every one of {[run.side for run in runs]} has done its first round")
