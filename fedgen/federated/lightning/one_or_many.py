"""Lightning's strategy for several processes, with launcher, process group and collectives idle where there is one."""

import logging
import signal
import threading
from types import FrameType
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_prefixed_message
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.nn import Module

from fedgen.federated.lightning.checks import check_finders, warn_of_exchange_in_turn
from fedgen.federated.lightning.lightning_internals import handler_before_fit, tell_of_sigterm
from fedgen.federated.lightning.turn_clock import TurnClock
from fedgen.ranks import Ranks, heard, leave_at_exit


class OneOrManyProcesses(DDPStrategy):
    """One class for a notebook, one GPU and several ranks, each of which trains clients of its own."""

    _clock: TurnClock | None = None

    @property
    def _module(self) -> LightningModule:
        assert self.lightning_module is not None
        return self.lightning_module

    @property
    def _is_alone(self) -> bool:
        return self.num_processes * self.num_nodes == 1

    def _configure_launcher(self) -> None:
        if self._is_alone:
            self._launcher = None
        else:
            super()._configure_launcher()

    def setup_environment(self) -> None:
        if self._module.trainer.state.fn == TrainerFn.FITTING:
            check_finders(self._module.trainer)  # their own `setup` speaks of several processes, and is next
        super().setup_environment()

    def setup_distributed(self) -> None:
        if self._is_alone:
            self.set_world_ranks()
        else:
            super().setup_distributed()
            leave_at_exit()

    barrier = heard()(DDPStrategy.barrier)
    broadcast = heard()(DDPStrategy.broadcast)

    @heard()
    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if self._clock is not None and self._clock.inside:
            # turns differ between processes: an exchange within them would wait for ever
            if not self._is_alone:
                warn_of_exchange_in_turn()
            return tensor
        return super().reduce(tensor, *args, **kwargs)

    def on_train_start(self) -> None:
        super().on_train_start()
        if not self._is_alone:
            trainer = self._module.trainer
            tell_of_sigterm(trainer, tells=not all(Ranks().gather(end_on_sigterm(trainer))))

    def _setup_model(self, model: Module) -> Module:
        return model  # no DistributedDataParallel: gradients stay with the client


def end_on_sigterm(trainer: Trainer) -> bool:
    """Lets SIGTERM end this process of several at once, in place of Lightning's handler, until fitting ends.

    Lightning's tells the others in a broadcast of its own, within the signal: where only one process is told to end, as
    by `kill` or on a machine that is taken away, the others are elsewhere, and all of them wait for one another. Here
    the round is dropped, as rounds cut short are, and the others end with LostRankError. The first process passes the
    signal on to those that it has started. A handler of before the training is called, as by Lightning's. Under SLURM's
    requeueing Lightning's handler stays, and in a thread, which may set none.

    Args:
        trainer: of several processes, that has begun to train.

    Returns:
        Whether it does.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    environment = trainer.strategy.cluster_environment
    if isinstance(environment, SLURMEnvironment) and environment.auto_requeue:
        return False
    before = handler_before_fit(trainer, signal.SIGTERM)

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
    return True
