"""Who is told of SIGTERM to one of several processes."""

import logging
import signal
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment, SLURMEnvironment
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fedgen.federated.lightning.lightning_internals import tell_of_sigterm
from fedgen.federated.lightning.one_or_many import end_on_sigterm
from tests.trainers import quiet_trainer


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
    assert caplog.messages == ["[rank: 1] told to end (SIGTERM): a round in the middle is dropped"]


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
        tell_of_sigterm(trainer, tells)
        loop._broadcast_sigterm_tensor()
    assert words == [0]
