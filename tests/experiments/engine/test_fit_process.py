"""Trainings in forks of a server, as they are in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import yaml

from fedgen.evaluation.names import LAST
from fedgen.experiments.engine import fit_process
from fedgen.experiments.engine import fit_process as fit_server_calls
from fedgen.experiments.engine.fit_process import FitServers, can_fork, run_fit, run_new_fit
from fedgen.experiments.engine.trainings import Training, train_all
from fedgen.models.checkpoint_file import read_checkpoint
from tests.experiments.tiny_runs import QUIET, TINY

ROOT = Path(__file__).parents[3]
SECONDS = 20.0  # until something has happened, at the most

pytestmark = pytest.mark.skipif(not can_fork(), reason="trainings are no forks here")


@pytest.fixture
def servers(monkeypatch):
    """Servers that import nothing, and run the code that they are given."""
    monkeypatch.setattr(fit_server_calls, "MODULE", "tests.experiments.engine.bare_server")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    found = FitServers()
    yield found
    found.close()


@pytest.fixture
def run(servers, tmp_path):
    """Runs code on them; gives its status and what it said."""

    def started(code, name="said"):
        with open(tmp_path / name, "a") as output:
            status = servers.run([code], output)
        return status, (tmp_path / name).read_text()

    return started


def wait_for(event):
    """What an event gives once it is true."""
    end = time.monotonic() + SECONDS
    while not (found := event()):
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.02)
    return found


def is_gone(process):
    """Whether a process has ended; one that nobody has waited for yet has, too."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def number_in(path):
    """The number that a file holds, once it is whole."""
    return int(wait_for(lambda: path.exists() and path.read_text().endswith("\n") and path.read_text()))


WRITE_NUMBER = "import os, time; open('number', 'w').write(f'{os.getpid()}\\n')"
INTERRUPTED = f"try: {WRITE_NUMBER}; time.sleep(60)\nexcept KeyboardInterrupt: print('stopped')"
WAITS = f"{WRITE_NUMBER}; time.sleep(60)"


def test_a_fork_is_the_program_that_a_shell_would_have_started(run, servers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("value = 1")
    told = "import own, sys, os; print(sys.argv[1], sys.modules['__main__'].__spec__.name, os.getcwd(), own.value)"
    text = f"fit tests.experiments.engine.given_code {tmp_path}"
    assert run(told) == (0, f"{text} 1\n")
    (tmp_path / "own.py").write_text("value = 22")  # which only forks have imported
    assert run(told)[1].endswith(f"{text} 22\n")
    assert len(servers._calls) == 1
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "own.py").write_text("value = 333")
    monkeypatch.chdir(elsewhere)
    assert run(told)[1].endswith("elsewhere 333\n")
    assert len(servers._calls) == 1


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('wrong')", 1),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os._exit(7)", 7),
    ],
)
def test_statuses_are_those_of_processes(run, code, status):
    found, said = run(code)
    assert found == status
    assert ("ValueError: wrong" in said) == ("wrong" in code)


def test_calls_at_once_are_forks_at_once(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    meet = "import pathlib, time\npathlib.Path('{0}').touch()\nwhile not pathlib.Path('{1}').exists(): time.sleep(0.01)"
    with ThreadPoolExecutor(2) as pool:  # each waits for the other's file
        both = [pool.submit(run, meet.format(*pair), pair[0] + ".log") for pair in (("a", "b"), ("b", "a"))]
        assert [one.result(SECONDS)[0] for one in both] == [0, 0]


@pytest.mark.slow
def test_variables_that_change_are_the_callers_and_another_environment_has_another_server(run, servers, monkeypatch):
    told = "import os; print(os.environ.get('PL_GLOBAL_SEED'), os.environ.get('OMP_NUM_THREADS'), os.getppid())"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PL_GLOBAL_SEED", "5")
    first = run(told)[1].split()
    monkeypatch.delenv("PL_GLOBAL_SEED")
    second = run(told)[1].split()[3:]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    third = run(told)[1].split()[6:]
    assert (first[:2], second[:2], third[:2]) == (["5", "1"], ["None", "1"], ["None", "2"])
    assert first[2] == second[2] != third[2]
    wait_for(lambda: is_gone(first[2]))


@pytest.mark.slow
def test_a_server_without_trainings_ends_and_the_next_training_starts_another(run, servers):
    told = "import os; print(os.getppid())"
    first = int(run(told)[1])
    wait_for(lambda: is_gone(first))
    assert run(told) == (0, f"{first}\n{servers._calls[0].process.pid}\n")


def test_a_server_that_is_killed_is_named_and_its_trainings_end(run, servers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(run, WAITS)
        number = number_in(tmp_path / "number")
        server = servers._calls[0].process
        server.kill()
        with pytest.raises(ChildProcessError, match=rf"forked from \(number {server.pid}\) ended with status -9"):
            training.result(SECONDS)
    wait_for(lambda: is_gone(number))


def test_no_server_takes_a_training_where_none_starts(servers, monkeypatch, tmp_path):
    monkeypatch.setattr(fit_server_calls, "MODULE", "tests.nowhere")
    with open(tmp_path / "said", "w") as output:
        assert servers.run(["pass"], output) is None
        (failed,) = servers._calls
        assert servers.run(["pass"], output) is None
    assert servers._calls == [failed]  # nor is another one tried


def test_where_no_server_takes_it_a_training_has_a_process_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(FitServers, "run", lambda *given: None)
    commands = []

    def start(command, **options):
        commands.append(command)
        return subprocess.CompletedProcess(command, 4)

    monkeypatch.setattr(fit_process.subprocess, "run", start)
    assert run_fit(["--config", "a.yaml"], None) == 4
    assert commands == [[sys.executable, "-m", "fedgen", "fit", "--config", "a.yaml"]]


@pytest.mark.parametrize(("system", "gpus"), [("darwin", 0), ("linux", 1)])
def test_there_are_no_forks_on_other_systems_or_beside_gpus(monkeypatch, system, gpus):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert not can_fork.__wrapped__()


def test_a_fork_of_the_caller_has_servers_of_its_own(run, servers):
    told = "import os; print(os.getppid())"
    server = run(told)[1]
    child = os.fork()
    if not child:
        found = 1, server
        with suppress(BaseException):
            found = run(told, "child")
        os._exit(found[0] or found[1] == server)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(set(run(told)[1].split())) == 1


CALLER = """
import sys
from fedgen.experiments.engine import fit_process as fit_server_calls
from fedgen.experiments.engine.fit_process import FitServers
fit_server_calls.MODULE = "tests.experiments.engine.bare_server"
with open("said", "w") as output:
    FitServers().run([sys.argv[1]], output)
"""


@pytest.fixture
def caller(tmp_path, monkeypatch):
    """Starts a process that calls a server, with code for the fork; gives the process, its server and the fork."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    started = []

    def start(code):
        command = [sys.executable, "-c", CALLER, code]
        process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stderr=subprocess.DEVNULL)
        started.append(process)
        fork = number_in(tmp_path / "number")
        return process, int(Path(f"/proc/{fork}/stat").read_text().rpartition(")")[2].split()[1]), fork

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("deaf", ["", "import signal; signal.signal(15, signal.SIG_IGN); "])
def test_a_caller_that_is_killed_leaves_neither_training_nor_server(caller, deaf):
    process, server, fork = caller(deaf + WAITS)
    process.kill()
    wait_for(lambda: is_gone(fork) and is_gone(server))


def test_ctrl_c_interrupts_the_caller_and_leaves_nothing(caller):
    process, server, fork = caller(INTERRUPTED)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(SECONDS)
    wait_for(lambda: is_gone(fork) and is_gone(server))


def test_ctrl_c_is_the_trainings_and_not_the_servers(run, servers, tmp_path, monkeypatch):
    """In a terminal both get it."""
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(run, INTERRUPTED)
        for number in (number_in(tmp_path / "number"), servers._calls[0].process.pid):
            os.kill(number, signal.SIGINT)
        assert training.result(SECONDS) == (0, "stopped\n")
    server = servers._calls[0].process
    server.send_signal(signal.SIGINT)
    assert run("print('again')") == (0, "stopped\nagain\n")
    assert servers._calls[0].process is server


def own_process(training):
    """Trains in a new process."""
    with open(f"{training.place}.log", "w") as output:
        assert run_new_fit(training._arguments(), output) == 0
    return training.place


def outcome(folder):
    """Weights of a run, and its scores."""
    return read_checkpoint(folder / LAST)["state_dict"], (folder / "scores.jsonl").read_text()


@pytest.mark.slow
def test_a_trainings_numbers_are_those_of_a_process_of_its_own(tmp_path, monkeypatch):
    evaluation = {"every_n_rounds": 2, "num_images": 20, "embeddings": ["pixels"], **QUIET}
    callback = {"class_path": "fedgen.callbacks.FederatedEvaluation", "init_args": evaluation}
    recipe = tmp_path / "tiny.yaml"
    trainer = {**TINY["trainer"], "max_epochs": 2, "callbacks": [callback], "logger": False}
    recipe.write_text(yaml.safe_dump({**TINY, "trainer": trainer}))
    monkeypatch.chdir(tmp_path)
    trainings = [Training(recipe, tmp_path / name, seed) for name, seed in (("a", 0), ("b", 1))]
    folders = train_all(trainings, parallel=2)
    weights, scores = outcome(own_process(Training(recipe, tmp_path / "own", 0, threads=1)))
    for seed, folder in enumerate(folders):
        found, read = outcome(folder)
        assert (read == scores) == (seed == 0)
        assert all(torch.equal(found[key], weights[key]) for key in weights) == (seed == 0)
    said = [(tmp_path / f"{name}.log").read_text().splitlines() for name in ("a", "own")]
    ours, own = ([line.replace("/a", "/own") for line in lines if "rounds done" not in line] for lines in said)
    assert ours == own


KILLED = """
import os
from fedgen.models import WGANGP

class Killed(WGANGP):
    def training_step(self, batch, batch_idx):
        if self.current_epoch == 2:
            print("the end", flush=True)
            os.kill(os.getpid(), 9)
        return super().training_step(batch, batch_idx)
"""


@pytest.mark.slow
def test_a_training_that_is_killed_is_reported_and_goes_on_with_the_code_as_it_is_then(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own_model.py").write_text(KILLED)
    recipe = Path("tiny.yaml")
    saves = {"class_path": "fedgen.callbacks.RoundCheckpoint", "init_args": {"saving_share": 1}}  # each round
    own = {
        "model": {**TINY["model"], "class_path": "own_model.Killed"},
        "trainer": {**TINY["trainer"], "callbacks": [saves], "logger": False},
    }
    recipe.write_text(yaml.safe_dump({**TINY, **own}))
    training = Training(recipe.absolute(), tmp_path / "run", 0)
    with pytest.raises(ChildProcessError, match="failed"):
        training.run()
    Path("own_model.py").write_text(KILLED.replace("os.kill", "print"))
    assert training.run() == tmp_path / "run"
    assert "after round 1 (2 done)" in Path("run.log").read_text()
    assert json.loads(json.dumps(read_checkpoint(training.place / LAST)["epoch"])) == 3
