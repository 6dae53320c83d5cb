"""`fedgen fit` in a process of its own: a fork of a server that has imported the kit, or a new one that imports it.

A call to a server (`fedgen.cli.fit_server`) is a connection, whose other end is sent with the file that takes the
output. It carries the call, the server's word that it has forked, then the exit status; closed, it ends its training.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import cache
from multiprocessing.connection import Pipe
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

MODULE = "fedgen.cli.fit_server"
TAKEN, REFUSED = b"taken", b"refused"  # what the server says of a call
CHANGING = ("PL_GLOBAL_SEED", "PYTEST_CURRENT_TEST")  # variables that are read in use, never by an import
PATIENCE = 10.0  # seconds for a server to end that has closed its connections
LINES = 5  # of a server's last words in an error


class FitServerCalls:
    """A server and the calls to it, by any number of threads at once."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment  # of the server, all its life: what it imports may depend on it
        self._said = TemporaryFile()  # noqa: SIM115 - closed with the calls; no terminal, so as to buffer as for a log
        self._calls, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-m", MODULE, str(number)]
            self.process = subprocess.Popen(command, pass_fds=[number], stdout=self._said, stderr=subprocess.STDOUT)

    def run(self, arguments: Sequence[str], output: IO[str]) -> int | None:
        """Runs a training; returns its exit status, or None where the server does not take it."""
        varying = {name: os.environ[name] for name in CHANGING if name in os.environ}
        call = {"arguments": list(arguments), "folder": str(Path.cwd()), "environment": varying}
        ours, theirs = Pipe()
        with ours:
            try:
                with theirs:
                    socket.send_fds(self._calls, [b"fit"], [theirs.fileno(), output.fileno()])
                ours.send_bytes(json.dumps(call).encode())
                if ours.recv_bytes() != TAKEN:
                    return None
            except (EOFError, OSError):
                return None
            try:
                return int(ours.recv_bytes())
            except (EOFError, OSError) as error:
                raise ChildProcessError(self._told(arguments)) from error

    def ended(self) -> int | None:
        """The exit status of a server that closed a call, or None."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """Calls no more, and waits for the end of a server that has nothing more to do."""
        self._calls.close()
        self.ended()
        self._said.close()

    def _told(self, arguments: Sequence[str]) -> str:
        text = (
            f"the process that `fedgen fit {' '.join(arguments)}` was forked from (number {self.process.pid}) ended"
            f" with status {self.ended()}, and the training with it; the same command resumes from its last round"
        )
        self._said.seek(0)
        return "\n".join([text, *self._said.read().decode(errors="replace").splitlines()[-LINES:]])


def run_fit(arguments: Sequence[str], output: IO[str]) -> int:
    """Runs `fedgen fit` to its end; returns its exit status as `subprocess` has it: -9 for one that was killed."""
    # a fork of a server has computed nothing: numbers are to the bit those of a new process
    status = _servers.run(arguments, output) if can_fork() else None
    return run_new_fit(arguments, output) if status is None else status


def run_new_fit(arguments: Sequence[str], output: IO[str]) -> int:
    """Runs `fedgen fit` in a new process, which imports all that it needs; returns its exit status."""
    command = [sys.executable, "-m", "fedgen", "fit", *arguments]
    return subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode


@cache
def can_fork() -> bool:
    """Whether a process that has imported PyTorch may be forked on this machine, and the forks train."""
    if sys.platform != "linux":  # macOS's libraries break in forks
        return False
    import torch

    return not torch.cuda.device_count()


class FitServers:
    """Servers of this process's trainings, one for each environment, which are started when they are needed."""

    def __init__(self) -> None:
        self._calls: list[FitServerCalls] = []
        self._lock = threading.Lock()

    def run(self, arguments: Sequence[str], output: IO[str]) -> int | None:
        """Runs a training on the server; returns its exit status, or None where no server takes it."""
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
        """A server of this process's environment, started if there is none."""
        environment = {name: value for name, value in os.environ.items() if name not in CHANGING}
        with self._lock:
            # 0: it ended after a time without trainings, or this process is a fork of the one whose child it is
            for calls in [one for one in self._calls if one.process.poll() == 0]:
                calls.close()
                self._calls.remove(calls)
            serving = [one for one in self._calls if one.environment == environment]
            if not serving:
                serving = [FitServerCalls(environment)]
                self._calls += serving
            return serving[0]

    def close(self) -> None:
        while self._calls:
            self._calls.pop().close()


_servers = FitServers()
atexit.register(_servers.close)
