"""Settings, Trainers and batches that federated averaging refuses or warns of."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    LearningRateFinder,
    ModelCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch.nn import Module

from fedgen.clients.samplers.sampler import CohortSampler
from fedgen.data.optional_attributes import optional
from fedgen.federated.aggregators.mean import Aggregator
from fedgen.federated.algorithms.algorithm import ClientAlgorithm
from fedgen.federated.client_state.exchange import Exchange
from fedgen.federated.compression.compressor import Compressor
from fedgen.federated.lightning.lightning_internals import (
    NormBase,
    call_module_hook,
    forget_training_loader,
    has_seen_all_batches,
    saves_within_epochs,
    trained_values,
    training_loader,
    validates_after_batch,
    validation_interval,
)
from fedgen.federated.schedules import Schedule
from fedgen.io.files import is_count
from fedgen.models.optional_hooks import ModulePart, data_module_of
from fedgen.own_code import rank_zero_warn


def check_settings(
    interval: int, cohort_size: int | None, client_weights: str, optimizer_state: str, batch_idx: str = "round"
) -> None:
    """Refuses settings of the strategy that are out of range."""
    if interval < 1:
        raise ValueError(f"communication_interval={interval}: a turn has at least one iteration")
    if cohort_size is not None and cohort_size < 1:
        raise ValueError(f"cohort_size={cohort_size}: a round has at least one client")
    if client_weights not in ("examples", "uniform"):
        raise ValueError(f"client_weights={client_weights!r}: choose 'examples' or 'uniform'")
    if optimizer_state not in ("reset", "keep", "average"):
        raise ValueError(f"optimizer_state={optimizer_state!r}: choose 'reset', 'keep' or 'average'")
    if batch_idx not in ("round", "client"):
        raise ValueError(f"batch_idx={batch_idx!r}: choose 'round' or 'client'")


def refuse_batch(batch: Any) -> None:
    """Refuses a batch that is no client's turn."""
    raise MisconfigurationException(
        f"FedAvgStrategy got a batch of type {type(batch).__name__}; train with a FederatedDataModule, whose"
        " loader hands it one client's turn at a time"
    )


def warn_unseen_steps(algorithm: ClientAlgorithm, schedule: Schedule | None) -> None:
    """Warns, if something was to act on the steps of a turn, that none of them came by."""
    if schedule is not None or type(algorithm) is not ClientAlgorithm:
        rank_zero_warn(
            "a client took no optimizer step through Lightning in its turn, so the client algorithm and schedule did"
            " not act on it; under manual optimisation step what `self.optimizers()` gives, not the raw optimizers"
        )


def warn_of_exchange_in_turn() -> None:
    """Warns of values that processes would exchange in the middle of turns, which differ between them."""
    rank_zero_warn(
        "self.log(..., sync_dist=True) in a training_step, or another reduction in it: clients' turns differ between"
        " processes, so within a turn nothing is exchanged; logged values are brought together at the round's end",
        category=ExchangeInTurnWarning,
    )


class ExchangeInTurnWarning(UserWarning):
    """A module asked processes to exchange values within clients' turns."""


def warn_of_remainder(interval: int, iterations: int) -> None:
    """Warns that gradients which a module accumulates by hand were left at a turn's end."""
    rank_zero_warn(
        f"the module accumulates gradients by hand, and those of the last {iterations} of {interval} iterations were"
        " dropped at a turn's end without a step; step where self.trainer.is_last_batch is true, too, or let"
        " communication_interval be a multiple"
    )


def check_trainer(trainer: Trainer) -> None:
    """Refuses Trainer settings that would cut a round."""
    # a float is a fraction of the round; an integer (1 too) or a time means after so many turns or seconds
    interval = validation_interval(trainer)
    if not (isinstance(interval, float) and interval == 1.0):
        raise MisconfigurationException(
            f"val_check_interval={interval!r}: validation inside a round would see a client's model;"
            " use check_val_every_n_epoch, which counts rounds"
        )
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and saves_within_epochs(callback):
            raise MisconfigurationException(
                "ModelCheckpoint(every_n_train_steps=... or train_time_interval=...) would save inside a round; use"
                " every_n_epochs, which counts rounds"
            )
    for callback in trainer.callbacks:
        if isinstance(callback, StochasticWeightAveraging) or _averages_steps(callback):
            raise MisconfigurationException(
                f"{type(callback).__name__} would average clients' models in the middle of a round; use"
                " EMAWeightAveraging(update_every_n_steps=0, update_starting_at_epoch=0), which averages the server's"
            )
    module, data = trainer.lightning_module, data_module_of(trainer)
    if any(owner is not None and is_overridden("on_before_batch_transfer", owner) for owner in (module, data)):
        raise MisconfigurationException(
            "on_before_batch_transfer would receive a client's turn, not a batch; override on_after_batch_transfer"
        )
    # A turn is long: without this, no turn of a small federation would ever be logged.
    trainer.log_every_n_steps = 1


def check_finders(trainer: Trainer) -> None:
    """Refuses what tries a value a batch, `Tuner.lr_find` among it: a batch is a client's whole turn."""
    called = {
        LearningRateFinder: ("LearningRateFinder (Tuner.lr_find)", "lr_find", "learning rate"),
        BatchSizeFinder: ("BatchSizeFinder (Tuner.scale_batch_size)", "scale_batch_size", "batch size"),
    }
    for callback in trainer.callbacks:
        for kind, (name, method, what) in called.items():
            if isinstance(callback, kind):
                raise MisconfigurationException(
                    f"{name} tries another {what} in each batch, and under FedAvgStrategy that is a client's"
                    f" whole turn; look for it without the strategy, Tuner(Trainer()).{method}(module, datamodule=data)"
                    " on the same data module, which then pools the clients, and train federated with what it finds"
                )


def _averages_steps(callback: Callback) -> bool:
    """Whether a weight average would be updated after steps, sooner or later."""
    # Lightning's EMAWeightAveraging updates at such steps alone; 0 for none
    late = 10**9 * getattr(callback, "update_every_n_steps", 1)
    return isinstance(callback, WeightAveraging) and callback.should_update(step_idx=late)


def check_privacy(
    aggregator: Aggregator,
    client_weights: str,
    optimizer_state: str,
    exchange: Exchange,
    module: Module,
    algorithm: ClientAlgorithm,
) -> None:
    """Refuses, under a private aggregator, what would leave clients beside it."""
    if not aggregator.private:
        return
    name = type(aggregator).__name__
    if client_weights != "uniform":
        raise MisconfigurationException(
            f"{name} bounds what one client adds, so clients weigh equally: pass client_weights='uniform'"
        )
    if optimizer_state == "average":
        raise MisconfigurationException(
            f"{name} protects weights alone, and optimizer_state='average' sends clients' optimizer states too: pass"
            " 'reset'"
        )
    if optimizer_state == "keep" and exchange.shared:
        raise MisconfigurationException(
            f"{name} protects weights alone, and optimizer_state='keep' leaves each client's optimizer states, which"
            " have no noise, in the run's checkpoints: pass 'reset'"
        )
    if exchange.beside:
        raise MisconfigurationException(
            f"{name} protects weights alone, and the client algorithm sends control variates too: leave it out"
        )
    if algorithm.trains_own:
        raise MisconfigurationException(
            f"{name} protects weights alone, and {type(algorithm).__name__} leaves a model of each client, which has no"
            " noise, in the run's checkpoints: leave it out"
        )
    if any(optional(part, ModulePart, "shares_images") for part in module.modules()):
        raise MisconfigurationException(
            f"{name} bounds what a client's own update adds, and a loss of the model looks at other clients' images"
            " too, so that a client has a part in every update: give the loss aggregate='own' and let clients train the"
            " generator, or set references that are nobody's secret"
        )


def check_counters(exchange: Exchange, module: Module) -> None:
    """Refuses integer and boolean tensors of which nobody has declared what becomes of them, where what clients send
    is masked or gets noise: their largest value would show one client's. BatchNorm's counts advance by the interval,
    and those of several numbers, such as index tables, are taken for constants, of which each turn is held to it.

    Raises:
        MisconfigurationException: naming them and the remedy.
    """
    norms = {
        f"{name}.num_batches_tracked" if name else "num_batches_tracked"
        for name, part in module.named_modules()
        if isinstance(part, NormBase)
    }
    exchange.advancing |= norms & exchange.counters.keys() - exchange.declared
    exchange.hold_tables()
    if undeclared := [name for name in exchange.counters if name not in exchange.declared | exchange.advancing]:
        raise MisconfigurationException(
            f"{', '.join(undeclared[:3])}: integer or boolean tensors, of which the largest over clients would show one"
            " client's, so that it may not travel beside masks or noise. Declare what becomes of them:"
            f" FedAvgStrategy(rules={{{undeclared[0]!r}: 'advance'}}) lets a counter grow by the communication interval"
            " each round, 'server' keeps the server's value"
        )
    if told := [name for name in exchange.counters if name not in exchange.advancing]:
        raise MisconfigurationException(
            f"{told[0]} has the rule 'max', which would show one client's value beside masks or noise; declare"
            " 'advance' or 'server'"
        )


def check_robustness(aggregator: Aggregator, optimizer_state: str, exchange: Exchange) -> None:
    """Refuses, under an aggregator that no single client can lead astray, what clients send past it."""
    if not aggregator.robust:
        return
    name = type(aggregator).__name__
    if optimizer_state == "average":
        raise MisconfigurationException(
            f"{name} bounds what one client does to the weights, and optimizer_state='average' takes the plain mean of"
            " clients' optimizer states, which one of them may set as it likes: pass 'reset' or 'keep'"
        )
    if exchange.beside:
        raise MisconfigurationException(
            f"{name} bounds what one client does to the weights, and the client algorithm adds up clients' control"
            " variates, which one of them may set as it likes: leave it out"
        )


def check_sampler(sampler: CohortSampler | None, aggregator: Aggregator, client_weights: str) -> None:
    """Refuses samplers that would weigh clients twice, or whose draws a private aggregator does not count."""
    if sampler is None:
        return
    kind = type(sampler).__name__
    if sampler.weighs and client_weights != "uniform":
        raise MisconfigurationException(
            f"sampler={kind} draws clients in proportion to their examples, and client_weights={client_weights!r} would"
            " weigh them by these once more: pass client_weights='uniform'"
        )
    if aggregator.private:
        raise MisconfigurationException(
            f"{type(aggregator).__name__} counts how often each client is drawn uniformly, and {kind} draws otherwise,"
            " so that the logged epsilon would be wrong: leave the sampler out"
        )


def check_compression(compressor: Compressor | None, aggregator: Aggregator, fixed: bool) -> None:
    """Refuses compressed updates where they cannot be added up under masks, or leave clients beside their noise."""
    if compressor is None:
        return
    kind = type(compressor).__name__
    if fixed:
        raise MisconfigurationException(
            f"compression={kind}: under secure aggregation clients' messages are masked and added up, and compressed"
            " ones of different clients do not add: leave compression out"
        )
    if aggregator.private and compressor.keeps_clients:
        raise MisconfigurationException(
            f"{type(aggregator).__name__} protects what clients send, and {kind} leaves what each has not sent, without"
            " noise, in the run's checkpoints: pass a compression that keeps nothing, such as QSGD, or"
            " error_feedback=False (of PowerSGD also warm_start=False)"
        )


def run_whole_rounds(trainer: Trainer) -> None:
    """Makes `fast_dev_run=N` mean N whole rounds; Lightning means N batches, each a client's turn here."""
    if not trainer.fast_dev_run:
        return
    rounds, loop = int(trainer.fast_dev_run), trainer.fit_loop
    trainer.limit_train_batches = 1.0
    loop.epoch_loop.max_steps = -1
    loop.max_epochs = rounds
    forget_training_loader(trainer)  # a `setup` hook may have asked for it, with the limit of before
    rank_zero_info(f"fast_dev_run: {rounds} whole round{'s' if rounds > 1 else ''} of federated averaging")


def check_limits(trainer: Trainer) -> None:
    """Refuses limits that would cut every round, of which nothing would be left; before the first turn."""
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


Update = dict[str, Any]  # "scheduler": its place, "monitor": a name, "round": which, "value": a number, None if unknown


def check_plateaus(trainer: Trainer) -> None:
    """Refuses ReduceLROnPlateau with `interval="step"`, where Lightning is to move it."""
    for config in trainer.lr_scheduler_configs if trainer.lightning_module.automatic_optimization else ():
        if config.reduce_on_plateau and config.interval == "step":
            raise MisconfigurationException(
                f"ReduceLROnPlateau with interval='step' would move after clients' turns, by what one client logged"
                f" ({config.monitor!r}); pass interval='epoch', which counts rounds"
            )


class PlateauUpdates:
    """The updates that a checkpoint was written before."""

    def __init__(self) -> None:
        self._loaded: list[Update] = []

    def state_dict(self, trainer: Trainer) -> list[Update]:
        """Return what Lightning has yet to do with the values of the present round; plain types."""
        if self._loaded:  # of a fit that has not begun
            return self._loaded
        configs = enumerate(trainer.lr_scheduler_configs)
        return [_pending(trainer, place, config) for place, config in configs if _is_due(trainer, config)]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what a federation's state holds of `state_dict`; older ones hold nothing."""
        loaded = state.get("plateau", [])
        if not isinstance(loaded, list) or not all(map(_is_update, loaded)):
            raise ValueError("its federation state is damaged: updates of ReduceLROnPlateau are none")
        self._loaded = loaded

    def apply(self, trainer: Trainer) -> None:
        """Makes the updates that were loaded, as Lightning does, before the first round."""
        loaded, self._loaded = self._loaded, []
        configs, progress = trainer.lr_scheduler_configs, trainer.fit_loop.epoch_loop.scheduler_progress
        for update in loaded:
            place, value = update["scheduler"], update["value"]
            if place >= len(configs) or not configs[place].reduce_on_plateau:
                raise MisconfigurationException(
                    f"the checkpoint has an update of ReduceLROnPlateau by {update['monitor']!r} in store, and the"
                    f" module's scheduler {place} is none; resume with the same schedulers"
                )
            if value is None:
                rank_zero_warn(
                    f"the checkpoint was written before {update['monitor']!r} of round {update['round']} was known:"
                    " ReduceLROnPlateau does without it; save at the ends of rounds, as RoundCheckpoint does"
                )
                continue
            progress.increment_ready()
            metric = torch.tensor(value, dtype=torch.float64)
            call_module_hook(trainer, "lr_scheduler_step", configs[place].scheduler, metric)
            progress.increment_completed()


def _is_update(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and value.keys() == {"scheduler", "monitor", "round", "value"}
        and is_count(value["scheduler"])
        and isinstance(value["monitor"], str)
        and is_count(value["round"])
        and (value["value"] is None or type(value["value"]) is float)
    )


def _is_due(trainer: Trainer, config: LRSchedulerConfig) -> bool:
    """Whether Lightning will update a scheduler with the value of the present round, and has not yet."""
    loop = trainer.fit_loop
    epochs, round = loop.epoch_progress.current, trainer.current_epoch
    return (
        config.reduce_on_plateau
        and trainer.lightning_module.automatic_optimization
        and config.interval == "epoch"
        and (round + 1) % config.frequency == 0
        and not loop.restarting  # then it never will
        and epochs.completed < epochs.started == epochs.ready
        and has_seen_all_batches(trainer)
    )


def _pending(trainer: Trainer, place: int, config: LRSchedulerConfig) -> Update:
    assert config.monitor is not None
    value = _value_of(trainer, config.monitor)
    known = None if value is None else float(value)
    return {"scheduler": place, "monitor": config.monitor, "round": trainer.current_epoch, "value": known}


def _value_of(trainer: Trainer, monitor: str) -> Any:
    """The value that a metric has at the round's end; None if that is not known yet."""
    loop = trainer.fit_loop
    if loop.epoch_progress.current.processed > loop.epoch_progress.current.completed:  # in `on_train_epoch_end`
        return trainer.callback_metrics.get(monitor)
    trained = trained_values(trainer).metrics(on_step=False)["callback"]
    if monitor in trained:
        return trained[monitor]
    batches = loop.epoch_loop.batch_progress.current
    if batches.completed < batches.ready and validates_after_batch(trainer):  # validation is to come
        return None
    return trainer.callback_metrics.get(monitor)
