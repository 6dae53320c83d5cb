"""A client's worker: a process of the node that answers a run's messages, one after the other.

Flower's SuperNode starts a process for each message, which would import torch and Lightning each time, some seconds of
a processor. That process hands its message to the run's worker (`ForwardingApp`), and starts it where there is none:
`python -m fedgen.flower.app.apps RECIPE PLACE RUN IDLE PARENT`. So nothing here imports torch.

A worker trains for each message a module that no other has trained. Its socket lies in a folder that only its user can
open.
"""

import fcntl
import gc
import json
import logging
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.serde import context_from_proto, context_to_proto, message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Context as ContextProto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.supercore.task_identity import TaskIdentity
from flwr.supercore.utils import get_flwr_home

IDLE, SECONDS = "worker-idle", 600.0  # key of a node's config, and its default
WORKER = "FEDGEN_WORKER"  # set in the environment of a worker, a process of a SuperNode
MODULE = "fedgen.flower.app.apps"
START, LOOK = 300.0, 0.02  # seconds that a worker has to start, and between two looks whether it has
TAKEN, ANSWERED, RAISED = b"taken", b"answered", b"raised"  # what a worker says
WATCH = 0.5  # seconds between a worker's looks at the time and at its parent
LONGEST = 90  # characters of a socket's path; systems allow about a hundred

_log = logging.getLogger("flwr")
App = Callable[[Message, Context], Message]


class WorkerError(RuntimeError):
    """A worker that does not start, or ends in the middle of a message."""


class ForwardingApp(ClientApp):
    """A client's app whose messages the run's worker at this node answers; `make` makes it for a node without one."""

    def __init__(self, recipe: Path, make: Callable[[Path], App]) -> None:
        super().__init__()
        self._recipe, self._make = recipe, make

    def __call__(self, message: Message, context: Context) -> Message:
        """Return the worker's answer, its state in the context; WorkerError without one, or what the app raised."""
        idle = idle_seconds(context)
        if not idle:
            return self._make(self._recipe)(message, context)
        sent = [message_to_proto(message).SerializeToString(), context_to_proto(context).SerializeToString()]
        who = json.dumps([TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id])
        with WorkerPlace(context).worker(self._recipe, idle) as line:
            try:
                for part in (who.encode(), *sent):
                    line.send_bytes(part)
                status, answer, rest = (line.recv_bytes() for _ in range(3))
            except (EOFError, OSError) as error:
                raise WorkerError(
                    "this client's worker ended in the middle of a message; the next message starts another one"
                ) from error
        if status == RAISED:
            module, name, text = json.loads(answer)  # of an error, as Flower sends them to the server
            raise type(name, (WorkerError,), {"__module__": module})(text)
        context.state = context_from_proto(ContextProto.FromString(rest)).state
        return message_from_proto(MessageProto.FromString(answer))


def idle_seconds(context: Context) -> float:
    """Seconds that a worker waits for its next message before it ends, 0 for no worker; ValueError if misconfigured."""
    given = context.node_config.get(IDLE, SECONDS)
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < float("inf"):
        raise ValueError(
            f"{IDLE}={given!r} in this node's config: give seconds from 0, without quotes; 0 for no worker"
        )
    return float(given)


class WorkerPlace:
    """The file that says which run's worker listens at a node, and where; a worker ends when another has its place."""

    def __init__(self, context: Context) -> None:
        folder = _own_folder(get_flwr_home() / "fedgen-workers")
        self.path, self._run = folder / str(context.node_id), str(context.run_id)

    @contextmanager
    def worker(self, recipe: Path, idle: float) -> Iterator[Connection]:
        """Open a connection to the run's worker, which takes a message; it is started where none listens."""
        with self.path.with_suffix(".lock").open("w") as lock:  # of two messages at once one starts it
            fcntl.flock(lock, fcntl.LOCK_EX)
            line = self._call()
            if line is None:
                self._start(recipe, idle)
                line = self._call()
        if line is None:
            raise WorkerError("this client's worker ended as it started; the node's log says why")
        with line:
            yield line

    def _call(self) -> Connection | None:
        """A connection to the run's worker; None where none listens."""
        try:
            run, address = self.path.read_text().split("\n")
        except FileNotFoundError:
            return None
        if run != self._run:
            return None
        try:
            line = Client(address, family="AF_UNIX")
            line.recv_bytes()  # it takes the message; before that it may end for want of any
        except (EOFError, OSError):  # it has ended
            Path(address).unlink(missing_ok=True)
            return None
        return line

    def _start(self, recipe: Path, idle: float) -> None:
        """Starts the run's worker, and waits until it listens. It lives as long as this process's parent."""
        self.path.unlink(missing_ok=True)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), WORKER: "1"}
        told = [recipe, self.path, self._run, idle, os.getppid()]
        command = [sys.executable, "-P", "-m", MODULE, *map(str, told)]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
        end = time.monotonic() + START
        while not self.path.exists():
            if process.poll() is not None:
                raise WorkerError(
                    f"this client's worker ended with status {process.returncode}; the node's log says why"
                )
            if time.monotonic() > end:
                process.kill()
                raise WorkerError(f"this client's worker has not started within {START:g} s")
            time.sleep(LOOK)


def _own_folder(path: Path) -> Path:
    """The folder, made if needed, which this user alone can enter; what others left while they could is removed."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = path.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid():
        raise WorkerError(f"{path} is a link or another user's: remove it, or set FLWR_HOME to a folder of your own")
    if state.st_mode & 0o077:
        path.chmod(0o700)
        for one in path.iterdir():
            left = one.lstat()
            if left.st_uid != state.st_uid and not stat.S_ISDIR(left.st_mode):  # nothing reads one
                one.unlink()
    return path


class Worker:
    """Answers messages by an app, until none comes for `idle` seconds, its parent ends, or another has its place."""

    def __init__(self, app: App, place: Path, run: str, idle: float, parent: int) -> None:
        self._app, self._place, self._idle, self._parent = app, place, idle, parent
        self._address = str(socket_beside(place))
        self._entry = f"{run}\n{self._address}"
        self._busy, self._last = False, time.monotonic()

    def serve(self) -> None:
        """Answers messages until the process ends."""
        from fedgen.io.files import atomic_write  # which a message's own process does without

        with Listener(self._address, family="AF_UNIX") as listener:
            with atomic_write(self._place) as file:
                file.write(self._entry.encode())
            threading.Thread(target=self._watch, daemon=True).start()
            _log.info("a worker answers this client's messages of the run (process %d)", os.getpid())
            while True:
                with listener.accept() as line:
                    self._busy = True
                    try:
                        self._take(line)
                    except (EOFError, OSError):  # whoever called has gone, and hears no answer
                        _log.warning("a message's process ended before it had its answer")
                self._busy, self._last = False, time.monotonic()
                gc.collect()  # modules and trainers refer to one another in circles
                if not gc.get_freeze_count():
                    gc.freeze()  # what the first message imported is not looked through again after each

    def _take(self, line: Connection) -> None:
        """Answers one message."""
        line.send_bytes(TAKEN)
        who, message, context = (line.recv_bytes() for _ in range(3))
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = json.loads(who)
        given = context_from_proto(ContextProto.FromString(context))
        waiting = threading.Event()
        threading.Thread(target=self._end_with, args=(line, waiting), daemon=True).start()
        try:
            answer = self._app(message_from_proto(MessageProto.FromString(message)), given)
            made = message_to_proto(answer).SerializeToString(), context_to_proto(given).SerializeToString()
            parts = ANSWERED, *made
        except Exception as error:
            _log.error("the client's app raised an exception", exc_info=error)
            parts = RAISED, json.dumps([type(error).__module__, type(error).__qualname__, str(error)]).encode(), b""
        waiting.set()
        for part in parts:
            line.send_bytes(part)

    def _end_with(self, line: Connection, answered: threading.Event) -> None:
        """Ends this process with the one that called, which says no more: a stopped task is not worked on."""
        wait([line])
        if not answered.is_set():
            self._end()

    def _watch(self) -> None:
        """Ends this process where its node has gone, or no message comes, as after the run."""
        while True:
            time.sleep(WATCH)
            if not _is_there(self._parent) or (not self._busy and self._is_over()):
                self._end()

    def _is_over(self) -> bool:
        if time.monotonic() - self._last > self._idle:
            return True
        try:
            return self._place.read_text() != self._entry
        except FileNotFoundError:  # another run's worker starts
            return True

    def _end(self) -> None:
        Path(self._address).unlink(missing_ok=True)
        os._exit(0)  # also from the middle of a turn, as when the process is killed


def socket_beside(place: Path) -> Path:
    """The path of this process's socket: beside its place, or where that is too long for one in a new folder."""
    beside = place.with_name(f"{place.name}-{os.getpid()}")
    if len(str(beside)) <= LONGEST:
        return beside
    return Path(tempfile.mkdtemp(prefix="fedgen-", dir="/tmp")) / "socket"


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user, and there
        return True
    return True


def serve(make: Callable[[Path], App]) -> None:
    """Answers messages by the app of the command's recipe."""
    recipe, place, run, idle, parent = sys.argv[1:]
    Worker(make(Path(recipe)), Path(place), run, float(idle), int(parent)).serve()
