"""SIGTERM ends a training within ten seconds, on one process and on several, and the last checkpoint is whole."""

import logging
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fedgen.callbacks import RoundCheckpoint
from fedgen.federated import FedAvgStrategy
from fedgen.federated.lightning.lightning_internals import broadcast_sigterm
from fedgen.federated.lightning.one_or_many import end_on_sigterm
from tests.federated.modules import Quadratic, make_quadratics
from tests.launched import Imported
from tests.trainers import quiet_trainer

SCRIPT = "tests.federated.collective_runs"


@pytest.fixture
def told():
    """What a handler hears that was there before the training."""
    heard = []
    present = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    yield heard
    signal.signal(signal.SIGTERM, present)


def trainer_in(environment):
    """One of several processes in training, as far as is asked of it; `sent` is what others were sent."""
    sent = []
    strategy = SimpleNamespace(cluster_environment=environment, launcher=SimpleNamespace(kill=sent.append))
    handlers = {signal.SIGTERM: signal.getsignal(signal.SIGTERM)}
    connector = SimpleNamespace(_original_handlers=handlers)  # as Lightning keeps those of before the training
    return SimpleNamespace(strategy=strategy, _signal_connector=connector, sent=sent, global_rank=1)


@pytest.mark.parametrize("environment", [LightningEnvironment(), SLURMEnvironment(auto_requeue=False)])
def test_the_process_ends_and_who_listened_before_hears_it_once(environment, told, caplog, monkeypatch):
    logger = logging.getLogger("lightning.pytorch")
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    monkeypatch.setattr(logger, "propagate", False)
    trainer = trainer_in(environment)
    assert end_on_sigterm(trainer)
    with pytest.raises(SIGTERMException):
        signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)  # of somebody impatient
    assert trainer.sent == told == [signal.SIGTERM]
    assert caplog.messages == ["[rank: 1] SIGTERM received: a round in the middle is dropped"]


def test_under_requeueing_the_present_handler_stays(told):
    present = signal.getsignal(signal.SIGTERM)
    assert not end_on_sigterm(trainer_in(SLURMEnvironment(auto_requeue=True)))
    assert signal.getsignal(signal.SIGTERM) is present


def test_in_a_thread_the_present_handler_stays(told):
    present = signal.getsignal(signal.SIGTERM)
    with ThreadPoolExecutor() as pool:
        assert not pool.submit(end_on_sigterm, trainer_in(LightningEnvironment())).result()
    assert signal.getsignal(signal.SIGTERM) is present


def test_processes_tell_each_other_of_it_before_each_batch_where_a_handler_of_lightnings_stays(monkeypatch):
    trainer, words = quiet_trainer(1), []
    monkeypatch.setattr(torch.distributed, "broadcast", lambda tensor, src: words.append(src))
    loop = trainer.fit_loop.epoch_loop
    for tells in (False, True, False):
        broadcast_sigterm(trainer, tells)
        loop._broadcast_sigterm_tensor()
    assert words == [0]


# ---- one process ----


class Signalled(Quadratic):
    """Does something in the second client's turn of the second round."""

    def __init__(self, act):
        super().__init__()
        self.act = act

    def training_step(self, batch, batch_idx):
        if self.current_epoch == 1 and batch[0][0, 0] == 3.0:
            self.act()
        return super().training_step(batch, batch_idx)


def fit(act, folder):
    strategy, checkpoints = FedAvgStrategy(4, seed=0), RoundCheckpoint(folder, every_n_rounds=1)
    trainer = quiet_trainer(3, strategy=strategy, enable_checkpointing=True, callbacks=[checkpoints])
    trainer.fit(Signalled(act), make_quadratics())


def descriptor():
    """Where Python writes the numbers of signals; -1 for nowhere."""
    present = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(present)
    return present


def test_a_round_that_sigterm_interrupts_is_dropped_and_all_is_put_back(told, tmp_path):
    present, watched = signal.getsignal(signal.SIGTERM), []

    def act():
        watched.append(descriptor())
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SIGTERMException):
        fit(act, tmp_path)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    # w = 1, rate 0.1, four steps: towards 0 by a factor 0.9 each, towards 4 by 0.7; the mean of both
    assert saved["state_dict"]["w"].item() == pytest.approx((0.9**4 + 4 - 3 * 0.7**4) / 2)
    assert saved["epoch"] == 0
    assert len(watched) == 1  # the round ended at once
    assert watched[0] != -1
    assert descriptor() == -1
    assert signal.getsignal(signal.SIGTERM) is present
    assert told == [signal.SIGTERM]


def test_a_descriptor_of_an_event_loop_is_left_alone(tmp_path):
    with socket.socket() as loop:
        loop.setblocking(False)
        signal.set_wakeup_fd(loop.fileno())
        seen = []
        try:
            fit(lambda: seen.append(descriptor()), tmp_path)
        finally:
            after = signal.set_wakeup_fd(-1)
        assert {*seen, after} == {loop.fileno()}


@pytest.mark.slow
def test_sigterm_to_a_fork_ends_the_fork_alone(tmp_path):
    ended, descriptors = [], []

    def act():
        reads, writes = os.pipe()
        if not (child := os.fork()):
            os.write(writes, b"forked")
            time.sleep(60)
            os._exit(1)
        os.read(reads, 6)
        os.kill(child, signal.SIGTERM)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        descriptors.append(descriptor())
        os.close(reads)
        os.close(writes)

    fit(act, tmp_path)
    assert set(ended) == {-signal.SIGTERM}
    assert -1 not in descriptors
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["epoch"] == 2


# ---- processes that wait for ever ----


def children(process):
    with open(f"/proc/{process}/task/{process}/children") as file:
        return [int(number) for number in file.read().split()]


# processes, where they wait, who is sent the signal, and the status of the first one; None where it depends on who
# finds out first that another has ended
CASES = [
    (1, "long turn", "first", 0),
    (1, "outside python", "first", 143),
    (2, "long turn", "first", 0),
    (2, "own group", "first", 143),
    (2, "own group", "second", None),
    (2, "own group", "all", None),
    (2, "outside python", "second", None),
]


def signalled(runs):
    """Has runs told to end whose processes all wait.

    Args:
        runs: {case: processes}.

    Returns:
        {case: what they said, the first one's status, and the seconds until all of a run had ended}.
    """
    for (devices, where, _, _), run in runs.items():
        run.until(r"waits(?s:.*waits)" if devices == 2 and where != "own group" else "waits")
    time.sleep(0.5)  # from the word to the wait

    def end(case):
        (_, _, who, _), run = case, runs[case]
        others = children(run.number())
        assert len(others) == case[0] - 1
        for number in {"first": [run.number()], "second": others, "all": [run.number(), *others]}[who]:
            os.kill(number, signal.SIGTERM)
        begun = time.monotonic()
        said, _ = run.communicate(timeout=60)  # until the last one has closed its end
        return case, (said, run.returncode, time.monotonic() - begun)

    killed = [case for case in runs if case[3] == 143 or case[1] == "outside python"]  # which takes seconds and no work
    with ThreadPoolExecutor(len(killed)) as pool:
        found = dict(pool.map(end, killed))
    return found | dict(end(case) for case in runs if case not in killed)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """What came of all cases, which wait at the same time, and the folders of their checkpoints."""
    script, folders = Imported(SCRIPT), {case: tmp_path_factory.mktemp("ends") for case in CASES}
    runs = {case: script.start("ends", case[0], folders[case], case[1], ranks=case[0], launches=True) for case in CASES}
    found = signalled(runs)
    return {case: (*found[case], folders[case]) for case in CASES}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sigterm_ends_every_process_within_ten_seconds(case, ended):
    said, returncode, seconds, folder = ended[case]
    assert seconds < 10
    if (status := case[-1]) is not None:
        assert returncode == status, said[-3000:]
        assert ("still busy: it is killed" in said) == (status == 143)
    assert torch.load(folder / "last.ckpt", weights_only=True)["epoch"] == 0
