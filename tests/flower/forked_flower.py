"""Flower's commands and clients' workers as forks of one process that has imported all: each takes seconds to import.

`tests.flower.federation.Commands` starts them. Its SuperNodes look for messages twice a second and not every three
seconds: tests wait less. They promise to be heard every 12 seconds in place of 30, after two of which a SuperLink lets
a node that was killed come back.
"""

import json
import os
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path
from socket import socketpair
from tempfile import TemporaryDirectory

from flwr.cli.app import app
from flwr.supercore import heartbeat, telemetry
from flwr.supercore.cli import flower_superexec
from flwr.superlink.cli import flower_superlink, flwr_serverapp
from flwr.superlink.servicer.control import control_handlers
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.cli import flower_supernode, flwr_clientapp

from fedgen.cli.fit_server import import_kit
from fedgen.flower.app import apps
from fedgen.flower.client import worker
from fedgen.flower.client.pinned_apps import looking
from tests.flower.federation import FOLDER, LOG, Commands
from tests.flower.runs import SIZES, learn_types, recipe, write_images
from tests.launched import serve

WORKER = [sys.executable, "-P", "-m", worker.MODULE]
_begin, _attendants = subprocess.Popen, []


def eager():
    heartbeat.HEARTBEAT_DEFAULT_INTERVAL = fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = 12
    start_client_internal._pull_and_store_message = looking(start_client_internal._pull_and_store_message, 0.4)
    flower_supernode()


def register():
    """Has the SuperLink take nodes by their keys."""
    for key in sys.argv[1:]:
        app(["supernode", "register", key, "here"], standalone_mode=False)


def signing():
    """A SuperLink that passes signatures on for any app, as Flower's own does for apps of its hub.

    Its first argument is a file that has in JSON, by an archive's SHA-256, what comes with it.
    """
    plain, told = control_handlers.Fab, json.loads(Path(sys.argv.pop(1)).read_text())
    control_handlers.Fab = lambda sha256, content, given: plain(sha256, content, told.get(sha256, given))
    flower_superlink()


COMMANDS = {
    "signing-superlink": signing,
    "flower-superlink": flower_superlink,
    "flower-supernode": eager,
    "flower-superexec": flower_superexec,
    "flwr-serverapp": flwr_serverapp,
    "flwr-clientapp": flwr_clientapp,
    "flwr": app,
    "register": register,
    "worker": lambda: worker.serve(apps.worker_app),
}
import_kit()
for late in ("flwr.superlink.main", "flwr.supernode.main", "httpcore"):  # which commands import when they have begun
    import_module(late)
with TemporaryDirectory() as folder:
    learn_types(recipe(1), write_images(Path(folder, "clients"), {"a": SIZES["a"]}), Path(folder))


class Attendant(Commands):
    """A fork that a command makes while it has one thread, which starts others in its place."""

    def __init__(self):
        calls, theirs = socketpair()
        super().__init__(calls)
        _attendants.append(self)
        self._number = os.fork()
        if not self._number:
            self._number = os.getpid()
            serve(theirs)
            sys.exit()
        theirs.close()

    def popen(self, command, env=None, **options):
        """What Flower and fedgen call in place of `subprocess.Popen`."""
        if command[: len(WORKER)] == WORKER:  # whose parent would be a process that waits for that of one message
            command = ["worker", *command[len(WORKER) : -1], self._number]
        return self.begin(command, **env or {}) if command[0] in COMMANDS else _begin(command, env=env, **options)


def run(arguments):
    """Runs a command, as its environment says."""
    warnings.simplefilter("default", UserWarning)
    telemetry.FLWR_TELEMETRY_ENABLED = "0"
    os.chdir(os.environ[FOLDER])
    sys.path[:0] = [path for path in os.environ["PYTHONPATH"].split(os.pathsep) if path not in sys.path]
    if log := os.environ.get(LOG):
        with Path(log).open("a") as said:
            for standard in (1, 2):
                os.dup2(said.fileno(), standard)
        if not _attendants:
            os.setsid()
            Attendant()
        subprocess.Popen = _attendants[0].popen
    sys.argv = arguments
    COMMANDS[arguments[0]]()
