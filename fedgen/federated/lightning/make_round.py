"""The federation's rounds for a Trainer that starts to fit: what they need of its module, optimizers and precision."""

from collections.abc import Sequence
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.core.mixins import HyperparametersMixin
from torch.optim import Optimizer

from fedgen.allocator import keep_freed_memory
from fedgen.federated.client_state.exchange import parameters_of
from fedgen.federated.client_state.local_state import LocalState
from fedgen.federated.client_state.memory import ClientMemory
from fedgen.federated.client_state.outside_state import OutsideState
from fedgen.federated.lightning.checkpoint_io import AtomicCheckpointIO, plain
from fedgen.federated.lightning.lazy_parameters import materialise
from fedgen.federated.lightning.lightning_internals import optimizers_of
from fedgen.federated.lightning.plateau import check_plateaus
from fedgen.federated.promises import check_compression, check_privacy, check_robustness
from fedgen.federated.round import Round
from fedgen.federated.schedules import check_rates
from fedgen.federated.server_model import RoundSettings, ServerModel
from fedgen.federated.trainer_patches import LoggedValues, TurnClock
from fedgen.io.tensor_files import objects_in
from fedgen.models.optional_hooks import data_module_of, of_module, scaler_of
from fedgen.own_code import rank_zero_warn
from fedgen.ranks import Ranks


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


def make_round(
    trainer: Trainer,
    settings: RoundSettings,
    memory: ClientMemory,
    clock: TurnClock,
    ranks: Ranks,
    seed: int,
    shares: Sequence[float] | None,
) -> Round:
    """Return the rounds of a federation over a trainer's module, whose optimizers have been made.

    Raises:
        ValueError: for settings that do not suit the module.
        MisconfigurationException: for settings that do not suit each other.
    """
    strategy, module = trainer.strategy, trainer.lightning_module
    aggregator, algorithm = settings.aggregator, settings.client_algorithm
    warn_of_objects(trainer)
    if strategy.root_device.type == "cpu":
        keep_freed_memory()
    check_plateaus(trainer)
    aggregator.check_ranks(ranks)
    check_compression(settings.compression, aggregator, settings.fixed)
    materialise(trainer, seed)
    ranks.copy_first(module.state_dict().values())
    model = ServerModel(module, strategy.optimizers, settings, memory)
    outside = OutsideState(module, model.rules, _managed(trainer), seed)
    # a Python counter of one client's would go around what private and robust rules promise
    outside.exchanges = not (aggregator.private or aggregator.robust or settings.fixed)
    local = LocalState(
        _clients_optimizers(module, strategy.optimizers, model),
        [config.scheduler for config in strategy.lr_scheduler_configs],
        scaler_of(trainer),
        settings.optimizer_state,
        optimizers_of(trainer),
    )
    check_rates(settings.client_schedule, local.optimizers)
    algorithm.start_fit(model.trainable, local.optimizers, shares)
    check_privacy(aggregator, settings.client_weights, settings.optimizer_state, model.exchange, module, algorithm)
    check_robustness(aggregator, settings.optimizer_state, model.exchange)
    logged, data, device = LoggedValues(trainer, clock), data_module_of(trainer), strategy.root_device
    return Round(module, model, settings, memory, local, outside, clock, logged, ranks, device, seed, data)


def _clients_optimizers(
    module: LightningModule, optimizers: Sequence[Optimizer], model: ServerModel
) -> list[Optimizer]:
    """Return the optimizers that are not the server's: some of their parameters are exchanged or personal."""
    served = {optimizers[place] for place in of_module(module).server_optimizers}
    live = {id(tensor) for tensor in model.exchange.live.values()}
    return [o for o in optimizers if o not in served and any(id(p) in live for p in parameters_of(o))]


def _managed(trainer: Trainer) -> list[Any]:
    """Return what a module may hold and is not its state: what Lightning and the strategy look after."""
    strategy = trainer.strategy
    schedulers = [config.scheduler for config in strategy.lr_scheduler_configs]
    data = data_module_of(trainer)
    return [strategy, trainer, data, *strategy.optimizers, *optimizers_of(trainer), *schedulers]
