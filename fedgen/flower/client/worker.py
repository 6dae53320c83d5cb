"""A client's worker: `python -m fedgen.flower.client.worker RECIPE PLACE RUN IDLE PARENT`, started by `worker_calls`.

It answers messages of one run at one node, one after the other, each with a module to train that no other has trained.
Its socket lies in a folder that only its user can open.
"""

import gc
import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path

from flwr.app import Context, Message
from flwr.common.serde import context_from_proto, context_to_proto, message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Context as ContextProto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.supercore.task_identity import TaskIdentity

from fedgen.flower.client.worker_calls import ANSWERED, RAISED, TAKEN
from fedgen.io.files import atomic_write

LOOK = 0.5  # seconds between two looks at the time and at the parent
LONGEST = 90  # characters of a socket's path; systems allow about a hundred

_log = logging.getLogger("flwr")
App = Callable[[Message, Context], Message]


class Worker:
    """Answers messages by an app.

    Args:
        app: the client's.
        place: file that says which run's worker listens, and where; it ends when that says another.
        run: the run's number.
        idle: seconds without a message after which it ends.
        parent: process without which it ends.
    """

    def __init__(self, app: App, place: Path, run: str, idle: float, parent: int) -> None:
        self._app, self._place, self._idle, self._parent = app, place, idle, parent
        self._address = str(socket_beside(place))
        self._entry = f"{run}\n{self._address}"
        self._busy, self._last = False, time.monotonic()

    def serve(self) -> None:
        """Answers messages until the process ends."""
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
            parts = (
                ANSWERED,
                *(one.SerializeToString() for one in (message_to_proto(answer), context_to_proto(given))),
            )
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
            time.sleep(LOOK)
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


def main() -> None:
    """The command."""
    from fedgen.flower.app.app_sides import client_side

    serve(client_side)


if __name__ == "__main__":
    main()
