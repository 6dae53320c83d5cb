"""Calls to a server of trainings: `fedgen.cli.fit_server`, which forks for each.

A call is a connection of its own, whose other end is sent to the server with the file that takes the training's output.
It carries the call, then the server's word that it has forked, then the exit status. A call that is closed ends its
training: a caller that is killed leaves none behind.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

MODULE = "fedgen.cli.fit_server"
TAKEN, REFUSED = b"taken", b"refused"  # what the server says of a call
CHANGING = ("PL_GLOBAL_SEED", "PYTEST_CURRENT_TEST")  # variables that are read in use, never by an import
PATIENCE = 10.0  # seconds for a server to end that has closed its connections
LINES = 5  # of a server's last words in an error


def environment_of_imports() -> dict[str, str]:
    """The environment, on which what a process imports may depend; a server serves trainings of one."""
    return {name: value for name, value in os.environ.items() if name not in CHANGING}


class FitServerCalls:
    """A server and the calls to it, by any number of threads at once.

    Attributes:
        environment: what it was started with.
        process: the server's.
    """

    def __init__(self) -> None:
        self.environment = environment_of_imports()
        self._said = TemporaryFile()  # noqa: SIM115 - closed with the calls; no terminal, so as to buffer as for a log
        self._calls, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            command = [sys.executable, "-m", MODULE, str(number)]
            self.process = subprocess.Popen(command, pass_fds=[number], stdout=self._said, stderr=subprocess.STDOUT)

    def run(self, arguments: Sequence[str], output: IO[str]) -> int | None:
        """Runs a training; returns its exit status, or None where the server does not take it.

        Args:
            arguments: of `fedgen fit`.
            output: file that takes what it says.

        Raises:
            ChildProcessError: if the server ends in the middle of it.
        """
        ours, theirs = Pipe()
        with ours:
            if not self._is_taken(ours, theirs, arguments, output):
                return None
            try:
                return int(ours.recv_bytes())
            except (EOFError, OSError) as error:
                raise ChildProcessError(self._told(arguments)) from error

    def _is_taken(self, ours: Connection, theirs: Connection, arguments: Sequence[str], output: IO[str]) -> bool:
        varying = {name: os.environ[name] for name in CHANGING if name in os.environ}
        call = {"arguments": list(arguments), "folder": str(Path.cwd()), "environment": varying}
        try:
            with theirs:
                socket.send_fds(self._calls, [b"fit"], [theirs.fileno(), output.fileno()])
            ours.send_bytes(json.dumps(call).encode())
            return ours.recv_bytes() == TAKEN
        except (EOFError, OSError):
            return False

    def ended(self) -> int | None:
        """The exit status of a server that closed a call; None where it goes on."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return None

    def hang_up(self) -> None:
        """Calls no more: the server ends after the trainings that it has begun."""
        self._calls.close()

    def close(self) -> None:
        """Waits for the end of a server that has nothing more to do."""
        self.hang_up()
        self.ended()
        self._said.close()

    def _told(self, arguments: Sequence[str]) -> str:
        status = self.ended()
        self._said.seek(0)
        last = self._said.read().decode(errors="replace").splitlines()[-LINES:]
        return "\n".join(
            [
                f"the process that `fedgen fit {' '.join(arguments)}` was forked from (number {self.process.pid}) ended"
                f" with status {status}, and the training with it; the same command goes on from its last round",
                *last,
            ]
        )
