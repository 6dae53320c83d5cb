"""Hyperparameters that are objects: what a checkpoint holds of them is not read again, as reading unpickles nothing."""

from lightning.pytorch import Trainer
from lightning.pytorch.core.mixins import HyperparametersMixin

from fedgen.federated.lightning.checkpoint_io import AtomicCheckpointIO, plain
from fedgen.io.tensor_files import objects_in
from fedgen.models.optional_hooks import data_module_of
from fedgen.own_code import rank_zero_warn


def warn_of_objects(trainer: Trainer) -> None:
    """Warns, when fitting starts, of hyperparameters that make the run's checkpoints unreadable.

    Only where checkpoints are written, and by a plugin that reads them without unpickling.
    """
    if not trainer.checkpoint_callbacks or not isinstance(trainer.strategy.checkpoint_io, AtomicCheckpointIO):
        return
    for owner in (trainer.lightning_module, data_module_of(trainer)):
        for name, value in plain(owner.hparams if isinstance(owner, HyperparametersMixin) else {}).items():
            who, kind = type(owner).__name__, f"{type(value).__module__}.{type(value).__qualname__}"
            if objects_in(value):  # Lightning has taken out what cannot be pickled
                rank_zero_warn(
                    f"the hyperparameter {name!r} of {who} is of class {kind}: checkpoints with it are refused when"
                    " they are read, to resume or to evaluate, as reading unpickles no objects; write"
                    f" self.save_hyperparameters(ignore=[{name!r}]) in {who}"
                )
