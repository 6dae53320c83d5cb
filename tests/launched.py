"""Scripts that start several processes, as tests run them.

`python -m tests.launched DESCRIPTOR` is the process of `Imported`.
"""

import atexit
import functools
import gc
import importlib
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
import traceback
from contextlib import redirect_stdout, suppress
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from select import select
from socket import recv_fds, send_fds, socket, socketpair
from tempfile import TemporaryFile
from typing import NoReturn

import omegaconf  # noqa: F401 - Lightning would import it with each fork's first checkpoint
import torch

ROOT = Path(__file__).parent.parent
BEGUN, ENDED = "the first process has the number", "the first process ended with"


def environment(**variables):
    """That of a script's processes."""
    free = {key: value for key, value in os.environ.items() if not key.startswith(("MASTER_", "PYTEST_"))}
    return {**free, "OMP_NUM_THREADS": "1", **variables}


def start(module, *arguments, **variables):
    """`python -m module arguments` with environment variables, begun; its output is kept."""
    command = [sys.executable, "-W", "ignore", "-m", module, *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=environment(**variables), **options)


def meeting():
    """The variables that say where a job's processes meet, at a port that was free."""
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}


def end(process):
    """What it said; it must have ended well."""
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out[-3000:]
    return out


@cache
def calls_of_server():
    """A socket to a process that imports scripts, which takes seconds, and ends with this one."""
    calls, theirs = socketpair()
    with theirs:
        command = [sys.executable, "-W", "ignore", "-m", __name__, str(theirs.fileno())]
        process = subprocess.Popen(command, cwd=ROOT, env=environment(), pass_fds=[theirs.fileno()])
    for last_first in (calls.close, process.wait, process.terminate):
        atexit.register(last_first)
    return calls


class Imported:
    """A script that is imported once, by one process for all scripts, and run again and again, in forks of that.

    Args:
        module: the script, with a function `run` of its arguments.
        calls: a socket to another process that serves calls.
    """

    def __init__(self, module, calls=None):
        self._module, self._calls = module, calls

    def start(self, *arguments, ranks=1, launches=False, **variables):
        """A run with environment variables, begun.

        Args:
            arguments: the script's.
            ranks: its processes; torchrun would have started them with the same variables.
            launches: whether the first one starts the others, as Lightning does: it gets its own children.
            variables: of the environment.
        """
        output, written = os.pipe()
        told = json.dumps([self._module, ranks, launches, variables, *map(str, arguments)])
        send_fds(self._calls or calls_of_server(), [told.encode()], [written])
        os.close(written)
        return Forks(output)


class Forks:
    """A run's processes, as `end` takes them.

    Args:
        output: descriptor of what they say.
    """

    def __init__(self, output):
        self._output, self._said, self.returncode = output, b"", None

    def number(self):
        """The first process's, which may be sent signals."""
        return int(self.until(rf"^{BEGUN} (\d+)$")[1])

    def until(self, pattern, timeout=180):
        """Waits until something has been said, and returns the match; all of it is still given by `communicate`."""
        end = time.monotonic() + timeout
        while not (found := re.search(pattern, self._said.decode(errors="replace"), re.MULTILINE)):
            assert self._hear(end), self._said.decode()[-3000:]
        return found

    def communicate(self, timeout):
        """What they have said when the last one has ended."""
        end = time.monotonic() + timeout
        while self._hear(end):
            pass
        os.close(self._output)
        said = self._said.decode()
        self.returncode = int(re.search(rf"^{ENDED} (-?\d+)$", said, re.MULTILINE)[1])
        return said, None

    def _hear(self, end):
        """Waits for more to be said; False if all have ended."""
        assert select([self._output], [], [], max(0.0, end - time.monotonic()))[0], self._said.decode()[-3000:]
        part = os.read(self._output, 2**16)
        self._said += part
        return bool(part)


def leave_out_what_takes_time():
    """In this process from now on: what no test is about."""
    os.fsync = lambda _: None  # tests kill processes, and no machine: what is written need not reach the disk
    # Lightning, once it is imported, looks through all installed packages for each Trainer: they do not change in tests
    metadata.entry_points = cache(metadata.entry_points)
    # Adam asks before each step how many GPUs there are, and PyTorch looks for a library: a tenth of small fits
    torch.cuda._device_count_nvml = cache(torch.cuda._device_count_nvml)


def serve(calls):
    """Runs scripts in forks until there are no more calls."""
    leave_out_what_takes_time()
    while True:
        told, descriptors, *_ = recv_fds(calls, 2**16, 1)
        if not told:
            return
        (output,), (module, ranks, launches, variables, *arguments) = descriptors, json.loads(told)
        script = importlib.import_module(module)
        gc.freeze()  # no fork looks for garbage in what is imported
        if not os.fork():
            calls.close()
            become_fork(output)
            os.environ.update(variables)
            fork_ranks(ranks, launches)
            leave_after(partial(run_to_exit, script, arguments))
        os.close(output)


def run_to_exit(script, arguments):
    """Runs a script, and what it has asked for at its end."""
    try:
        script.run(arguments)
    finally:
        atexit._run_exitfuncs()


def become_fork(output):
    """Returns in a fork, which says to a descriptor what it says; this process waits for it and tells how it ended."""
    if child := os.fork():
        os.write(output, f"{BEGUN} {child}\n".encode())
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(output, f"\n{ENDED} {status}\n".encode())
        os._exit(0)
    say_to(output)
    os.close(output)


def say_to(output):
    """From here on this process says to a descriptor what it says."""
    for standard in (1, 2):
        os.dup2(output, standard)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - what was opened for a file would look for its place


def in_fork(work, output):
    """Does some work in a fork of this process, which says to a descriptor what it says.

    Returns:
        Its exit status, which is what the work gives: -9 where it was killed, 1 where it raised an error.
    """
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    say_to(output)
    sys.stderr = sys.stdout  # pytest has put another in its place
    free_locks()
    leave_after(work)


def free_locks():
    """Makes the locks of cached properties anew, as no thread is left that would free those held at a fork."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("fedgen")]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    for value in (value for kind in kinds for value in vars(kind).values()):
        if isinstance(value, functools.cached_property) and hasattr(value, "lock"):  # until Python 3.11
            value.lock = threading.RLock()


def said_in_fork(work):
    """The exit status of some work in a fork of this process, and what it has said."""
    with TemporaryFile("w+", errors="replace") as output:
        status = in_fork(work, output.fileno())
        output.seek(0)
        return status, output.read()


def leave_after(work) -> NoReturn:
    """Ends this process by the status that some work gives: Python would clear for seconds what was imported."""
    status = 1
    try:
        status = work() or 0
    except SystemExit as ended:
        status = ended.code or 0
        if not isinstance(status, int):
            print(status)
            status = 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@cache
def look_at_classes(recipe):
    """Imports what `fedgen fit` imports, and looks at a recipe's classes: each fork would do both, and take seconds."""
    from fedgen.__main__ import main
    from fedgen.cli.fit_server import import_kit

    import_kit()
    with redirect_stdout(io.StringIO()), suppress(SystemExit):
        main(["fit", "--config", str(recipe), "--print_config"])


def fork_ranks(number, launches):
    """Makes this process the first of so many, the others forks of it: nothing is imported again."""
    if number == 1:
        return
    children, variables = [], {"WORLD_SIZE": str(number), "NODE_RANK": "0", "LOCAL_RANK": "0"}
    os.environ.update(meeting())
    for rank in range(1, number):
        if child := os.fork():
            children.append(child)
        else:
            os.environ.update(variables, LOCAL_RANK=str(rank))
            return
    if launches:
        subprocess.Popen = lambda *_, **__: Child(children.pop(0))
    else:
        os.environ.update(variables)


class Child:
    """A child of this process, as `subprocess.Popen` gives one."""

    def __init__(self, number):
        self.pid, self.returncode = number, None

    def poll(self):
        if self.returncode is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if found else None
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)


if __name__ == "__main__":
    leave_after(partial(serve, socket(fileno=int(sys.argv[1]))))
