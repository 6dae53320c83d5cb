"""SIGTERM to one of several processes: it ends as by Ctrl-C, and the others notice."""

import logging
import signal
import threading
from types import FrameType

from lightning.fabric.utilities.rank_zero import rank_prefixed_message
from lightning.pytorch import Trainer
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities.exceptions import SIGTERMException


def end_on_sigterm(trainer: Trainer) -> None:
    """Lets SIGTERM end this process of several at once, in place of Lightning's handler, until fitting ends.

    Lightning's tells the others in a broadcast of its own, within the signal: where only one process is told to end, as
    by `kill` or on a machine that is taken away, the others are elsewhere, and all of them wait for one another. Here
    the round is dropped, as rounds cut short are, and the others end with LostRankError. The first process passes the
    signal on to those that it has started. A handler of before the training is called, as by Lightning's. Under SLURM's
    requeueing Lightning's handler stays.

    Args:
        trainer: of several processes, that has begun to train.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone may set handlers
        return
    environment = trainer.strategy.cluster_environment
    if isinstance(environment, SLURMEnvironment) and environment.auto_requeue:
        return
    before = trainer._signal_connector._original_handlers.get(signal.SIGTERM)

    def end(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever is impatient meets no half-made farewell
        said = rank_prefixed_message("told to end (SIGTERM): a round in the middle is dropped", trainer.global_rank)
        logging.getLogger("lightning.pytorch").info(said)
        launcher = trainer.strategy.launcher
        if launcher is not None:
            launcher.kill(signum)
        if callable(before):
            before(signum, frame)
        raise SIGTERMException

    signal.signal(signal.SIGTERM, end)
