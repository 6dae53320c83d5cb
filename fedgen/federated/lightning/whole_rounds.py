"""Trainer settings that end an epoch or a fit after so many batches or steps: no round may be cut by them."""

from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from fedgen.federated.lightning.lightning_internals import forget_training_loader, training_loader


def run_whole_rounds(trainer: Trainer) -> None:
    """Makes `fast_dev_run=N` mean N whole rounds; Lightning means N batches, each a client's turn here.

    Called when fitting starts; validation, test and prediction keep Lightning's N batches.
    """
    if not trainer.fast_dev_run:
        return
    rounds, loop = int(trainer.fast_dev_run), trainer.fit_loop
    trainer.limit_train_batches = 1.0
    loop.epoch_loop.max_steps = -1
    loop.max_epochs = rounds
    forget_training_loader(trainer)  # a `setup` hook may have asked for it, with the limit of before
    rank_zero_info(f"fast_dev_run: {rounds} whole round{'s' if rounds > 1 else ''} of federated averaging")


def check_limits(trainer: Trainer) -> None:
    """Refuses limits that would cut every round, of which nothing would be left; before the first turn.

    `max_time` may cut the last round, which is dropped; `max_steps` counts one client's steps and cuts none.

    Raises:
        MisconfigurationException: naming the setting, its value and the remedy.
    """
    loader = training_loader(trainer)
    lengths = [] if loader is None else [sized_len(part) for part in loader.flattened]
    for turns, limit in zip(lengths, [] if loader is None else loader.limits or []):
        if turns is not None and limit < turns:
            name = "overfit_batches" if trainer.overfit_batches > 0 else "limit_train_batches"
            raise MisconfigurationException(
                f"{name}={getattr(trainer, name)!r}: a batch is a client's whole turn and a round has {turns} of them,"
                f" so that every round would be cut after {limit} and dropped. For fewer clients a round pass"
                f" FedAvgStrategy(cohort_size={limit}), for shorter turns a lower communication_interval, and to try"
                " one whole round Trainer(fast_dev_run=True)"
            )
