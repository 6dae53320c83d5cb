"""The processes that clients' messages start, and the memory of each, looked at while a federation runs."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

SELF = Path("/proc/self")
WORKER, MESSAGE = "fedgen.flower.app.apps", "flwr-clientapp"
LOOK = 0.3  # seconds


class Watch:
    """Looks at the processes of one federation while a `with` lasts.

    Args:
        home: the folder of Flower's files, which the environment of its processes names.

    Attributes:
        most: by kind of process the most memory that one had of its own, in GB.
        started: by kind the processes that were seen.
    """

    def __init__(self, home: Path) -> None:
        self._mark = f"FLWR_HOME={home}".encode()
        self.most: dict[str, float] = dict.fromkeys((WORKER, MESSAGE), 0.0)
        self.started: dict[str, set[int]] = {WORKER: set(), MESSAGE: set()}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK):
            for process in filter(str.isdecimal, os.listdir("/proc")):
                try:
                    self._look_at(int(process), Path("/proc", process))
                except OSError:  # it has ended
                    continue

    def _look_at(self, process: int, folder: Path) -> None:
        command = folder.joinpath("cmdline").read_bytes()
        kind = next((one for one in self.most if one.encode() in command), None)
        if kind is None or self._mark not in folder.joinpath("environ").read_bytes().split(b"\0"):
            return
        own = own_memory(folder)
        self.started[kind].add(process)
        self.most[kind] = max(self.most[kind], own)


def own_memory(process: Path) -> float:
    """Memory in GB that a process, by its folder in /proc, shares with no other one."""
    lines = process.joinpath("smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024 / 1e9


def memory_of_lightning() -> float:
    """Memory of its own of a process that has imported Lightning and nothing else, in GB."""
    script = "import lightning.pytorch; from benchmarks.deployed import processes as p; print(p.own_memory(p.SELF))"
    return float(subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True).stdout)
