"""A server of trainings: `python -m fedgen.cli.fit_server SOCKET`, started by `fedgen.experiments.engine.fit_process`.

It imports what `fedgen fit` needs, computes nothing, starts no thread, and becomes `python -m fedgen fit ...` in a fork
for each call. (multiprocessing's fork server would import the caller's main module into each.) It ends with its caller.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from multiprocessing.connection import Connection, wait

from fedgen.class_paths import load_classes
from fedgen.experiments.engine.fit_process import CHANGING, REFUSED, TAKEN
from fedgen.pytorch_lightning_alias import alias_if_unused

IDLE = 60.0  # seconds without trainings after which it ends
GRACE = 10.0  # seconds between the two signals that end a training: Lightning heeds the first after a batch
PARENT_DIES = 1  # of prctl(2): the signal that comes with the parent's death


@dataclass(frozen=True)
class Call:
    arguments: list[str]  # of `fedgen fit`
    folder: str  # to work in
    environment: dict[str, str]  # the caller's variables among `CHANGING`
    output: int  # descriptor of the file that takes what it says


class FitServer:
    """Forks for calls, a connection and an output file each from a socket, and sends callers the exit status."""

    def __init__(self, calls: socket.socket) -> None:
        self._calls, self._open = calls, True
        self._children: dict[int, Connection] = {}  # who waits for a fork that trains; closed once they have hung up
        self._ends: dict[int, float] = {}  # when forks are killed that nobody waits for
        self._own, self._libc = os.getpid(), ctypes.CDLL(None)
        self._woken, self._wakes = os.pipe()
        for end in (self._woken, self._wakes):
            os.set_blocking(end, False)
        self._on_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # its forks get Ctrl-C too, and end
        signal.signal(signal.SIGCHLD, lambda *_: None)  # which wakes the loop by the descriptor
        signal.set_wakeup_fd(self._wakes)

    def serve(self) -> Call | None:
        """Takes calls. Returns each in the fork that is to train, and None in this process when all is over."""
        while self._open or self._children:
            lines = {line: number for number, line in self._children.items() if not line.closed}
            soonest = max(0.0, min(self._ends.values(), default=inf) - time.monotonic())
            patience = min(3600.0, soonest) if self._children else IDLE
            ready = wait([self._woken, *([self._calls] if self._open else []), *lines], patience)
            if not ready and not self._children:
                return None
            if self._woken in ready:
                os.read(self._woken, 4096)
            self._reap()
            for line in lines.keys() & set(ready):
                self._stop(lines[line])
            for number, end in self._ends.items():
                if time.monotonic() >= end:
                    os.kill(number, signal.SIGKILL)
                    self._ends[number] = inf
            if self._calls in ready and (call := self._take()) is not None:
                return call
        return None

    def _reap(self) -> None:
        for number in list(self._children):
            ended, status = os.waitpid(number, os.WNOHANG)
            if ended:
                self._ends.pop(number, None)
                with self._children.pop(number) as line:
                    _tell(line, b"%d" % os.waitstatus_to_exitcode(status))

    def _stop(self, number: int) -> None:
        """Ends the fork of a caller that has hung up: callers say no more than the call."""
        if number in self._children:
            self._children[number].close()
            self._ends[number] = time.monotonic() + GRACE
            os.kill(number, signal.SIGTERM)

    def _take(self) -> Call | None:
        """Forks for a call; returns it in the fork, None in this process."""
        _, descriptors, *_ = socket.recv_fds(self._calls, 16, 2)
        if not descriptors:  # the caller has ended, or calls no more
            self._open = False
            return None
        with_line, output = Connection(descriptors[0]), descriptors[1]
        try:
            call = Call(**json.loads(with_line.recv_bytes()), output=output)
        except (EOFError, OSError):
            with_line.close()
            os.close(output)
            return None
        if self._fork(with_line):
            os.close(output)
            return None
        return call

    def _fork(self, line: Connection) -> bool:
        """Forks; returns whether this is still the server."""
        gc.collect()
        gc.freeze()  # so that a fork's collections do not copy what they only look at
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            number = os.fork()
        except OSError:  # no memory or no process left
            number = -1
        if number:
            _tell(line, TAKEN if number > 0 else REFUSED)
            if number > 0:
                self._children[number] = line
            else:
                line.close()
        else:
            self._part(line)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return bool(number)

    def _part(self, line: Connection) -> None:
        """Makes a fork of this process one that a shell might have started, but which does not outlive the server."""
        self._libc.prctl(PARENT_DIES, signal.SIGKILL)
        if os.getppid() != self._own:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, self._on_interrupt)
        self._calls.close()
        for other in (line, *self._children.values()):
            other.close()
        for descriptor in (self._woken, self._wakes):
            os.close(descriptor)


def _tell(line: Connection, what: bytes) -> None:
    with suppress(OSError):  # where whoever called has gone
        line.send_bytes(what)


def become(call: Call, module: str) -> None:
    """Becomes `python -m MODULE fit ...` for a call."""
    for standard in (1, 2):
        os.dup2(call.output, standard)
    os.close(call.output)
    os.chdir(call.folder)
    if not sys.flags.safe_path:
        sys.path[0] = call.folder  # as Python has it for `-m`
    importlib.invalidate_caches()  # of folders whose files may have changed
    for name in CHANGING:
        os.environ.pop(name, None)
    os.environ.update(call.environment)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # as in any new process; Python's own generator does so after a fork
    sys.argv = [module, "fit", *call.arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def import_kit() -> None:
    alias_if_unused()  # before anything imports the other package
    for name in ("fedgen.training.fit", "fedgen.reports.page"):
        importlib.import_module(name)
    load_classes()


def main(prepare: Callable[[], None] = import_kit, module: str = "fedgen") -> None:
    """The command; returns in forks only, which become the program `module`. Before them `prepare` is called, once."""
    calls = socket.socket(fileno=int(sys.argv[1]))
    prepare()
    call = FitServer(calls).serve()
    if call is None:
        os._exit(0)
    become(call, module)


if __name__ == "__main__":
    main()
