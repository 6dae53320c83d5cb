"""Flower's simulation engine on this machine: a local SuperLink, and commands that run apps on it."""

import os
import signal
import subprocess
from contextlib import contextmanager

from tests.flower.federation import BIN, answers, environment_in, free_port, wait_for


@contextmanager
def superlink(folder, *packages):
    """The local SuperLink that `flwr run` would start and leave running, with a port of its own.

    Args:
        folder: for its log and Flower's own files.
        packages: folders of Ray and what it needs, where it is not installed beside Flower.

    Yields:
        The environment of commands that are to run apps on it.
    """
    port = free_port()
    own = {"FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port), "RAY_USAGE_STATS_ENABLED": "0"}
    environment = environment_in(folder, *packages) | own
    command = [str(BIN / "flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with (folder / "superlink.log").open("w") as log:
        options = {"env": environment, "cwd": folder, "stdout": log, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        wait_for(lambda: process.poll() is not None or answers(port), 120)
        yield environment
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ended(command, folder, environment):
    """What a command in a folder printed; it must have ended well."""
    options = {"env": environment, "cwd": folder, "capture_output": True, "text": True, "timeout": 500}
    done = subprocess.run([str(BIN / command[0]), *command[1:]], **options)
    log = folder / "superlink.log"
    said = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{log.read_text()[-3000:] if log.exists() else ''}"
    assert done.returncode == 0, said
    return said
