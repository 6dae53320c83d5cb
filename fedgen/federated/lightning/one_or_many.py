"""Lightning's strategy for several processes, with launcher, process group and collectives idle where there is one."""

import ctypes
import logging
import os
import platform
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_prefixed_message
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import MisconfigurationException, SIGTERMException
from torch.nn import Module

from fedgen.federated.lightning.checks import check_finders
from fedgen.federated.lightning.lightning_internals import broadcast_sigterm, end_process, handler_before_fit
from fedgen.own_code import rank_zero_warn
from fedgen.ranks import Ranks, heard, is_alone, leave_at_exit, share_out

_watches: dict[DDPStrategy, Callable[[], None]] = {}  # by strategy that trains: ends the watch over this process


class OneOrManyProcesses(DDPStrategy):
    """One class for a notebook, one GPU and several ranks, each of which trains its part of the clients."""

    @property
    def _module(self) -> LightningModule:
        assert self.lightning_module is not None
        return self.lightning_module

    @property
    def _is_one(self) -> bool:
        return self.num_processes * self.num_nodes == 1

    @property
    def world_size(self) -> int:
        return 1 if is_alone() else super().world_size

    @property
    def global_rank(self) -> int:
        return 0 if is_alone() else super().global_rank

    def _configure_launcher(self) -> None:
        if self._is_one:
            self._launcher = None
        else:
            super()._configure_launcher()

    def setup_environment(self) -> None:
        trainer = self._module.trainer
        if trainer.state.fn == TrainerFn.FITTING:
            check_finders(trainer)  # before their own `setup`, whose error is about several processes
        super().setup_environment()

    def setup_distributed(self) -> None:
        if self._is_one:
            self.set_world_ranks()
        else:
            super().setup_distributed()
            leave_at_exit()

    @heard()
    def barrier(self, name: str | None = None) -> None:
        # by then Lightning has set its handlers
        if name == "run-stage" and (trainer := self._module.trainer).state.fn == TrainerFn.FITTING:
            if ends := end_on_sigterm(trainer):
                watch_for_sigterm(self)
            broadcast_sigterm(trainer, exchanges=not all(Ranks().gather(ends)))
        super().barrier(name)

    broadcast = heard()(DDPStrategy.broadcast)

    @heard()
    def reduce(self, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if is_alone():
            rank_zero_warn(
                "self.log(..., sync_dist=True) in a training_step, or another reduction in it: clients' turns differ"
                " between processes, so within a turn nothing is exchanged; logged values are merged at the round's end"
            )
        return super().reduce(tensor, *args, **kwargs)

    def _setup_model(self, model: Module) -> Module:
        return model  # no DistributedDataParallel: gradients stay with the client

    def teardown(self) -> None:
        if end := _watches.pop(self, None):
            end()
        super().teardown()


def end_on_sigterm(trainer: Trainer) -> bool:
    """Let SIGTERM end this process at once until fitting ends; False where Lightning's handler stays."""
    environment, launcher, rank = trainer.strategy.cluster_environment, trainer.strategy.launcher, trainer.global_rank
    requeues = isinstance(environment, SLURMEnvironment) and environment.auto_requeue
    if requeues or threading.current_thread() is not threading.main_thread():
        return False
    before = handler_before_fit(trainer, signal.SIGTERM)

    def end(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt the end
        message = rank_prefixed_message("SIGTERM received: a round in the middle is dropped", rank)
        logging.getLogger("lightning.pytorch").info(message)
        if launcher is not None:
            launcher.kill(signum)
        if callable(before):
            before(signum, frame)
        raise SIGTERMException

    signal.signal(signal.SIGTERM, end)
    return True


def watch_for_sigterm(strategy: DDPStrategy) -> None:
    """Kill this process, and those that it started, if it trains on after SIGTERM: no handler runs in a collective."""
    if (other := signal.set_wakeup_fd(-1)) != -1:
        signal.set_wakeup_fd(other)  # of an event loop, or of a training around this one
        return
    (reads, writes), over, launcher = os.pipe(), threading.Event(), strategy.launcher
    # the first process may be writing; after those that it has started Lightning looks every five seconds
    grace = 3.0 if strategy.global_rank else 8.0

    def watch() -> None:
        sent = iter(partial(os.read, reads, 1), b"")
        if any(number[0] == signal.SIGTERM for number in sent) and not over.wait(grace):
            said = f"SIGTERM received {grace:.0f} seconds ago, and this process is still busy: it is killed\n"
            os.write(2, rank_prefixed_message(said, strategy.global_rank).encode())  # the busy thread may hold a lock
            if launcher is not None:
                launcher.kill(signal.SIGKILL)
            end_process(128 + signal.SIGTERM)
        os.close(reads)

    def end() -> None:
        over.set()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.close(writes)

    os.set_blocking(writes, False)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    _watches[strategy] = end
    threading.Thread(target=watch, daemon=True).start()


# a fork has the descriptor and the handler, too, and is not the training
os.register_at_fork(after_in_child=lambda: [_watches.popitem()[1]() for _ in list(_watches)])


class RankShares:
    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.owners: dict[int, int] = {}  # ranks by client

    def share(self, cohort: Sequence[int], sizes: Sequence[int], keeps_clients: bool, most: int) -> list[int | None]:
        """Return the clients of a round that train on this rank, in the cohort's order, balanced by examples."""
        size, rank = self.ranks.size, self.ranks.rank
        if size == 1:
            return [*cohort, *[None] * (most - len(cohort))]
        if keeps_clients:
            if not self.owners:
                assigned = share_out(sizes, size)
                self.owners = {client: owner for owner, clients in enumerate(assigned) for client in clients}
            mine = [client for client in cohort if self.owners[client] == rank]
            longest = min(most, -(-len(sizes) // size))
        else:
            assigned = share_out([sizes[client] for client in cohort], size)
            mine, longest = [cohort[place] for place in assigned[rank]], -(-most // size)
        return [*mine, *[None] * (longest - len(mine))]

    def check_is_here(self, client: int) -> None:
        """Refuse to read the personal model of a client of another process."""
        if (owner := self.owners.get(client, self.ranks.rank)) != self.ranks.rank:
            raise MisconfigurationException(
                f"the model of client {client} is on rank {owner}, not here: pass Trainer(devices=1, num_nodes=1)"
            )


def keep_freed_memory() -> bool:
    """Let up to 256 MB of freed memory stay with this process, for as long as it lives; glibc on Linux alone."""
    chosen = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if chosen or platform.libc_ver()[0] != "glibc":
        return False
    trim_threshold, mmap_threshold = -1, -3  # of mallopt(3)
    library = ctypes.CDLL(None)
    # blocks up to 32 MB come from the heap: where glibc's own threshold ends when it adapts
    return bool(library.mallopt(trim_threshold, 256 * 2**20) and library.mallopt(mmap_threshold, 32 * 2**20))
