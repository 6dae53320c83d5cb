"""A client's worker: one process of a node answers a run's messages, and ends with its node, or when they do."""

import json
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

from fedgen.flower.app import apps
from fedgen.flower.client.local_data import is_simulated
from fedgen.flower.client.worker import (
    IDLE,
    WORKER,
    ForwardingApp,
    WorkerError,
    WorkerPlace,
    idle_seconds,
    socket_beside,
)
from tests.flower import echo_worker
from tests.flower.echo_worker import ask, context

ROOT = Path(__file__).parents[2]
ASK = [sys.executable, "-W", "ignore", "-m", "tests.flower.echo_worker", "ask"]  # KIND IDLE


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The folder of Flower's files; the workers that a test leaves are killed."""
    echo_worker.use(monkeypatch, tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT)])
    started, popen = [], subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    yield tmp_path
    for process in started:
        process.kill()
        process.wait()


def there(process):
    """Whether a process runs; one that has ended and is not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(holds, seconds=30):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "not within the time"
        time.sleep(0.05)


@pytest.mark.slow
def test_one_process_answers_a_runs_messages_at_once_too_and_keeps_the_context_and_the_next_run_has_its_own(home):
    found = []
    threads = [threading.Thread(target=lambda: found.append(ask()["process"])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert len(set(found)) == 1
    given = context()
    said = [ask(given=given, task=task) for task in (1, 2, 3)]
    assert said[0]["process"] == found[0]
    assert {one["process"] for one in said}.isdisjoint({os.getpid()})
    assert len({one["process"] for one in said}) == 1
    assert [one["task"] for one in said] == [1, 2, 3]
    assert said[0]["recipe"] == "recipe.yaml"
    assert given.state.metric_records["times"]["count"] == 3
    with pytest.raises(WorkerError, match="no such thing") as caught:
        ask("query.fails", given)
    assert str(type(caught.value)) == "<class 'LookupError'>"  # which Flower tells the server
    assert ask(given=given)["process"] == said[0]["process"]
    second = ask(given=context(run=8), recipe="other.yaml")
    assert second["process"] != said[0]["process"]
    assert second["recipe"] == "other.yaml"
    wait_until(lambda: not there(said[0]["process"]))
    assert there(second["process"])


@pytest.mark.slow
def test_a_worker_that_is_killed_fails_its_message_and_the_next_has_another(home):
    before = ask()["process"]
    with pytest.raises(WorkerError, match="message"):
        ask("query.killed")
    assert ask()["process"] != before
    os.kill(ask()["process"], signal.SIGKILL)  # between two messages nobody notices
    assert ask()["process"] != before


@pytest.mark.slow
def test_a_worker_ends_without_messages(home):
    process = ask(given=context(**{IDLE: 0.1}))["process"]
    wait_until(lambda: not there(process))
    assert ask()["process"] != process


def started(*command):
    """A process that may import the tests; its output is read."""
    options = {"cwd": ROOT, "stdout": subprocess.PIPE, "text": True, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    return subprocess.Popen([*command], **options)


@pytest.mark.slow
def test_a_worker_ends_with_the_process_whose_message_it_answers(home):
    """So that a stopped run is not worked on."""
    process = ask()["process"]
    with started(*ASK, "query.lasts", "60") as caller:
        wait_until((home / "busy").exists)
        caller.kill()
    wait_until(lambda: not there(process))
    assert not Path(WorkerPlace(context()).path.read_text().split("\n")[1]).exists()


@pytest.mark.slow
def test_a_worker_ends_with_its_node(home):
    with started("sh", "-c", f"{shlex.join(ASK)} query 60; sleep 600") as node:
        process = json.loads(node.stdout.readline())["process"]
        assert there(process)
        node.kill()
    wait_until(lambda: not there(process))


def test_the_folder_of_workers_is_this_users_alone(home, tmp_path):
    """One that was there, open to all, stayed so: anybody could put a worker of theirs in."""
    folder = home / "fedgen-workers"
    folder.mkdir()
    folder.chmod(0o777)
    for name in ("a", "planted", "z"):
        (folder / name).mkdir() if name != "planted" else (folder / name).touch()
        if os.geteuid() == 0:
            os.chown(folder / name, 12345, 12345)
    (folder / "own").touch()
    WorkerPlace(context())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / "own").exists()
    assert (folder / "planted").exists() == (os.geteuid() != 0)
    shutil.rmtree(folder)
    folder.symlink_to(tmp_path)
    with pytest.raises(WorkerError, match="FLWR_HOME"):
        WorkerPlace(context())


def test_a_worker_that_does_not_start_says_so(home, monkeypatch):
    monkeypatch.setattr("fedgen.flower.client.worker.MODULE", "tests.flower.no_such_worker")
    with pytest.raises(WorkerError, match="status"):
        ask()


def test_a_worker_is_a_process_of_a_node_also_where_ray_is_used(monkeypatch):
    """So that a run names no folder to it, as it may to nodes that Flower simulates in Ray."""
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.delitem(sys.modules, "flwr.supernode.runtime.run_clientapp", raising=False)
    assert is_simulated()
    monkeypatch.setenv(WORKER, "1")
    assert not is_simulated()


def test_a_node_may_have_no_worker(home, monkeypatch):
    monkeypatch.setattr("fedgen.flower.app.app_sides.client_side", echo_worker.app_of)
    assert ask(given=context(**{IDLE: 0}), recipe=Path("recipe.yaml"))["process"] == os.getpid()
    assert not WorkerPlace(context()).path.exists()


@pytest.mark.parametrize("given", ["long", True, -1, float("nan"), float("inf")])
def test_a_wait_that_is_no_number_of_seconds_is_refused(given):
    with pytest.raises(ValueError, match=f"{IDLE}={given!r} in this node's config"):
        idle_seconds(context(**{IDLE: given}))
    assert idle_seconds(context(**{IDLE: 5})) == 5


def test_a_socket_has_a_path_that_is_short_enough(tmp_path):
    assert socket_beside(Path("/home/me/7")) == Path(f"/home/me/7-{os.getpid()}")
    made = socket_beside(tmp_path / ("x" * 90))
    assert len(str(made)) < 60
    assert made.parent.stat().st_mode & 0o777 == 0o700  # this user's alone
    made.parent.rmdir()


@pytest.mark.slow
def test_a_messages_process_has_no_torch(tmp_path):
    script = (
        "import sys; sys.argv = ['/bin/flwr-clientapp']; from fedgen.flower.app.apps import client_app, server_app;"
        f"app = client_app({str(tmp_path)!r}); server_app({str(tmp_path)!r});"
        "print(type(app).__name__, 'torch' in sys.modules, 'lightning' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ForwardingApp", "False", "False"]


def test_elsewhere_messages_are_answered_in_the_process(tmp_path):
    assert not isinstance(apps.client_app(tmp_path / "recipe.yaml"), ForwardingApp)
