"""Trainer settings that end an epoch or a fit after so many batches or steps: no round may be cut by them."""

from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.rank_zero import rank_zero_info


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
    loop._combined_loader = None  # a `setup` hook may have asked for it, with the limit of before
    rank_zero_info(f"fast_dev_run: {rounds} whole round{'s' if rounds > 1 else ''} of federated averaging")


def check_limits(trainer: Trainer, steps: int) -> None:
    """Refuses limits that would cut every round, of which nothing would be left; before the first turn.

    `max_steps` and `max_time` may cut the last round, which is dropped.

    Args:
        trainer: whose training data are set up.
        steps: that `trainer.global_step` counts in a round at least, under automatic optimisation.

    Raises:
        MisconfigurationException: naming the setting, its value and the remedy.
    """
    loader = trainer.fit_loop._combined_loader
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
    counted = trainer.lightning_module.automatic_optimization and trainer.global_step == 0
    if counted and trainer.max_steps != -1 and trainer.max_steps < steps:
        raise MisconfigurationException(_too_few_steps(trainer.max_steps, f"a client's turn takes {steps}"))


def check_first_round(trainer: Trainer) -> None:
    """Refuses to go on where `max_steps` has cut the very first round: the fit would end without having trained.

    Called when a round was cut. `check_limits` finds this before training where the steps of a turn are known; under
    manual optimisation they are the module's own.

    Raises:
        MisconfigurationException: naming the setting, its value and the remedy.
    """
    whole = trainer.fit_loop.epoch_progress.total.completed
    if trainer.max_steps != -1 and whole == 0 and trainer.global_step >= trainer.max_steps:
        raise MisconfigurationException(_too_few_steps(trainer.max_steps, "the first round takes more"))


def _too_few_steps(most: int, needed: str) -> str:
    return (
        f"max_steps={most} optimizer steps, and {needed}, so that no round would be whole and nothing would be trained;"
        " pass a larger max_steps, or max_epochs, which counts rounds"
    )
