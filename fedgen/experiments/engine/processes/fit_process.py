"""`fedgen fit` in a process of its own: a fork of one that has imported the kit, or a new one that imports it."""

import atexit
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from typing import IO

from fedgen.experiments.engine.processes.fit_server_calls import FitServerCalls, environment_of_imports


def run_fit(arguments: Sequence[str], output: IO[str]) -> int:
    """Runs `fedgen fit` to its end, and returns its exit status as `subprocess` has it: -9 for one that was killed.

    The process has this one's working directory, environment and standard input. On Linux it is a fork of a server
    (`fedgen.cli.fit_server`), which has imported what a training needs and computed nothing, so that of many trainings
    only the first waits for that, some six seconds of a processor. Recipes' own modules are imported in each. The
    numbers are to the bit those of a new process; its peak memory is smaller, as only those pages of libraries count
    that it uses itself. Limits of resources and priorities are this process's as the server starts, which ends with
    this process or after a minute without trainings.

    A new process is started for each training on other systems, of which macOS's libraries break in forks, and where
    there are GPUs, as a fork cannot use one that its parent has looked at.

    Args:
        arguments: behind `fedgen fit`.
        output: file that takes what the process says.

    Raises:
        ChildProcessError: if the server ends in the middle of the training, which then ends too.
    """
    status = _servers.run(arguments, output) if can_fork() else None
    return run_new_fit(arguments, output) if status is None else status


def run_new_fit(arguments: Sequence[str], output: IO[str]) -> int:
    """Runs `fedgen fit` in a new process, which imports all that it needs; returns its exit status.

    Args:
        arguments: behind `fedgen fit`.
        output: file that takes what the process says.
    """
    command = [sys.executable, "-m", "fedgen", "fit", *arguments]
    return subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode


@cache
def can_fork() -> bool:
    """Whether a process that has imported PyTorch may be forked on this machine, and the forks train."""
    if sys.platform != "linux":
        return False
    import torch

    return not torch.cuda.device_count()


class FitServers:
    """The server of this process's trainings, which is started when it is needed, and those of other environments."""

    def __init__(self) -> None:
        self._calls: list[FitServerCalls] = []
        self._lock = threading.Lock()

    def run(self, arguments: Sequence[str], output: IO[str]) -> int | None:
        """Runs a training on the server; returns its exit status, or None where no server takes it.

        Raises:
            ChildProcessError: if the server ends in the middle of it.
        """
        while True:
            calls = self._current()
            status = calls.run(arguments, output)
            if status is not None:
                return status
            ended = calls.ended()
            if ended == -signal.SIGINT:  # Ctrl-C as it imported: of the training, too
                return ended
            if ended != 0:  # otherwise it had nothing to do for long, and ended as this training came
                return None

    def _current(self) -> FitServerCalls:
        """A server of this process's environment; those of others end after their trainings."""
        with self._lock:
            environment = environment_of_imports()
            for calls in [one for one in self._calls if one.environment != environment or one.process.poll() == 0]:
                calls.hang_up()
                if calls.process.poll() is not None:
                    calls.close()
                    self._calls.remove(calls)
            serving = [one for one in self._calls if one.environment == environment]
            if not serving:
                serving = [FitServerCalls()]
                self._calls += serving
            return serving[0]

    def hang_up(self) -> None:
        """Calls no more: servers end after their trainings."""
        for calls in self._calls:
            calls.hang_up()

    def close(self) -> None:
        """Lets all servers end, and waits for it."""
        self.hang_up()
        while self._calls:
            self._calls.pop().close()


_servers = FitServers()
_of_parents: list[FitServers] = []  # kept, as a process warns of those of its servers that it forgets


def _part() -> None:
    """Gives a fork of this process servers of its own."""
    global _servers
    _servers.hang_up()  # for this process alone
    _of_parents.append(_servers)
    _servers = FitServers()


os.register_at_fork(after_in_child=_part)
atexit.register(lambda: _servers.close())
