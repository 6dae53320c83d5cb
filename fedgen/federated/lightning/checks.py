"""Settings, Trainers and batches that federated averaging refuses or warns of."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec

from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import Trainer, callbacks
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch.nn import Module

from fedgen.clients.samplers.sampler import CohortSampler
from fedgen.data.optional_attributes import optional
from fedgen.federated.aggregators.mean import Aggregator
from fedgen.federated.algorithms.algorithm import ClientAlgorithm
from fedgen.federated.client_state.exchange import Exchange
from fedgen.federated.compression.compressors import Compressor
from fedgen.federated.lightning.lightning_internals import (
    NormBase,
    forget_training_loader,
    saves_within_epochs,
    training_loader,
    validation_interval,
)
from fedgen.federated.schedules import Schedule
from fedgen.models.optional_hooks import ModulePart, data_module_of
from fedgen.own_code import rank_zero_warn

Given = ParamSpec("Given")


def refuses(faults: Callable[Given, Iterator[str]]) -> Callable[Given, None]:
    """Turn a generator of faults into a check that raises the first as MisconfigurationException."""

    @wraps(faults)
    def check(*args: Given.args, **kwargs: Given.kwargs) -> None:
        if fault := next(faults(*args, **kwargs), None):
            raise MisconfigurationException(fault)

    return check


def check_settings(interval: int, cohort_size: int | None, weights: str, optimizer_state: str, batch_idx: str) -> None:
    for name, value in (("communication_interval", interval), ("cohort_size", cohort_size)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value}: choose 1 or more")
    if weights not in ("examples", "uniform"):
        raise ValueError(f"client_weights={weights!r}: choose 'examples' or 'uniform'")
    if optimizer_state not in ("reset", "keep", "average"):
        raise ValueError(f"optimizer_state={optimizer_state!r}: choose 'reset', 'keep' or 'average'")
    if batch_idx not in ("round", "client"):
        raise ValueError(f"batch_idx={batch_idx!r}: choose 'round' or 'client'")


def refuse_batch(batch: Any) -> None:
    raise MisconfigurationException(
        f"FedAvgStrategy got a batch of type {type(batch).__name__}; train with a FederatedDataModule, whose"
        " loader yields one client's turn at a time"
    )


def warn_unseen_steps(algorithm: ClientAlgorithm, schedule: Schedule | None) -> None:
    """Warn if a client algorithm or schedule should have changed a turn's steps and the turn had none."""
    if schedule is not None or type(algorithm) is not ClientAlgorithm:
        rank_zero_warn(
            "a client took no optimizer step through Lightning in its turn, so the client algorithm and schedule had no"
            " effect; under manual optimisation step the optimizers of `self.optimizers()`, not the raw ones"
        )


def warn_of_remainder(interval: int, iterations: int) -> None:
    """Warn of gradients that a module accumulated by hand and had not used when a turn ended."""
    rank_zero_warn(
        f"the module accumulates gradients by hand, and those of the last {iterations} of {interval} iterations were"
        " dropped when a turn ended, without a step; also step where self.trainer.is_last_batch is true, or make"
        " communication_interval a multiple of the module's number"
    )


@refuses
def check_trainer(trainer: Trainer) -> Iterator[str]:
    """Refuse Trainer settings that would cut a round."""
    # a float is a fraction of the round; an integer (1 too) or a time counts turns or seconds
    interval = validation_interval(trainer)
    if not (isinstance(interval, float) and interval == 1.0):
        yield f"val_check_interval={interval!r} would validate a client's model; use check_val_every_n_epoch (rounds)"
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, callbacks.ModelCheckpoint) and saves_within_epochs(callback):
            yield "ModelCheckpoint would save inside a round; use every_n_epochs, not every_n_train_steps or a time"
    for callback in trainer.callbacks:
        # Lightning's EMAWeightAveraging updates at such steps alone; 0 for none
        late = 10**9 * getattr(callback, "update_every_n_steps", 1)
        averages = isinstance(callback, callbacks.WeightAveraging) and callback.should_update(step_idx=late)
        if averages or isinstance(callback, callbacks.StochasticWeightAveraging):
            yield (
                f"{type(callback).__name__} would average clients' models in the middle of a round; use"
                " EMAWeightAveraging(update_every_n_steps=0, update_starting_at_epoch=0), which averages the server's"
            )
    module, data = trainer.lightning_module, data_module_of(trainer)
    if any(owner is not None and is_overridden("on_before_batch_transfer", owner) for owner in (module, data)):
        yield "on_before_batch_transfer would receive a client's turn, not a batch; override on_after_batch_transfer"
    # Lightning's default would not log any of the few, long turns of a small federation
    trainer.log_every_n_steps = 1


@refuses
def check_finders(trainer: Trainer) -> Iterator[str]:
    """Refuse callbacks such as `Tuner.lr_find` that try one value per batch: a batch is a client's whole turn."""
    for callback in trainer.callbacks:
        if isinstance(callback, (callbacks.LearningRateFinder, callbacks.BatchSizeFinder)):
            method = "lr_find" if isinstance(callback, callbacks.LearningRateFinder) else "scale_batch_size"
            yield (
                f"{type(callback).__name__} (Tuner.{method}) tries one value per batch, and under FedAvgStrategy that"
                f" is a client's whole turn; use it without the strategy, Tuner(Trainer()).{method}(module,"
                " datamodule=data): the same data module then pools the clients"
            )


@refuses
def check_aggregator(
    aggregator: Aggregator,
    client_weights: str,
    optimizer_state: str,
    exchange: Exchange,
    module: Module,
    algorithm: ClientAlgorithm,
) -> Iterator[str]:
    """Refuse settings by which clients' values would escape a private aggregator's noise or a robust one's bounds."""
    name = type(aggregator).__name__
    if aggregator.private:
        alone = f"{name} protects only weights, and"
        if client_weights != "uniform":
            yield f"{name} bounds what one client adds, so clients weigh equally: pass client_weights='uniform'"
        if optimizer_state == "average":
            yield f"{alone} optimizer_state='average' sends clients' optimizer states too: pass 'reset'"
        if optimizer_state == "keep" and exchange.shared:
            yield f"{alone} optimizer_state='keep' leaves states in the run's checkpoints: pass 'reset'"
        if exchange.beside:
            yield f"{alone} the client algorithm sends control variates too: leave it out"
        if algorithm.trains_own:
            yield f"{alone} {type(algorithm).__name__} leaves clients' models in the run's checkpoints: leave it out"
        if any(optional(part, ModulePart, "shares_images") for part in module.modules()):
            yield (
                f"{name} bounds what a client's own update adds, and a loss of the model uses other clients' images,"
                " so every update contains something of every client: give the loss aggregate='own' and let clients"
                " train the generator, or set references that are not secret"
            )
    if aggregator.robust:
        bounds = f"{name} bounds what one client does to the weights, and"
        if optimizer_state == "average":
            yield f"{bounds} optimizer_state='average' takes the plain mean of clients' states: pass 'reset' or 'keep'"
        if exchange.beside:
            yield f"{bounds} the client algorithm sums clients' control variates without bounds: leave it out"


@refuses
def check_counters(exchange: Exchange, module: Module) -> Iterator[str]:
    """Refuse undeclared integer and boolean tensors under masks or noise: their maximum is one client's value."""
    # BatchNorm's counts advance by the interval; tensors of several numbers, such as index tables, are held constant
    norms = {f"{n}.num_batches_tracked".lstrip(".") for n, part in module.named_modules() if isinstance(part, NormBase)}
    exchange.advancing |= norms & exchange.counters.keys() - exchange.declared
    exchange.hold_tables()
    if undeclared := [name for name in exchange.counters if name not in exchange.declared | exchange.advancing]:
        yield (
            f"{', '.join(undeclared[:3])}: the maximum of integer or boolean tensors over clients would show one"
            " client's value, which masks and noise are to hide. Choose another rule:"
            f" FedAvgStrategy(rules={{{undeclared[0]!r}: 'advance'}}) lets a counter grow by the communication interval"
            " each round, 'server' keeps the server's value"
        )
    if largest := [name for name in exchange.counters if name not in exchange.advancing]:
        yield f"{largest[0]} has the rule 'max', which shows one client's value: use 'advance' or 'server'"


@refuses
def check_sampler(sampler: CohortSampler | None, aggregator: Aggregator, client_weights: str) -> Iterator[str]:
    """Refuse samplers that weight clients twice, or whose draws a private aggregator's epsilon does not cover."""
    if sampler is not None and sampler.weighs and client_weights != "uniform":
        yield f"{type(sampler).__name__} draws clients by their examples already: pass client_weights='uniform'"
    if sampler is not None and aggregator.private:
        name = type(aggregator).__name__
        yield f"{name} assumes that clients are drawn uniformly, as {type(sampler).__name__} does not: leave it out"


@refuses
def check_compression(compressor: Compressor | None, aggregator: Aggregator, fixed: bool) -> Iterator[str]:
    """Refuse compressed updates that cannot be summed under masks, or whose remainders are kept without noise."""
    kind = type(compressor).__name__
    if compressor is not None and fixed:
        yield f"compression={kind}: compressed messages cannot be summed under secure aggregation: leave it out"
    if compressor is not None and aggregator.private and compressor.keeps_clients:
        yield (
            f"{type(aggregator).__name__} protects what clients send, and {kind} keeps more of their updates, without"
            " noise, in the run's checkpoints: pass QSGD or error_feedback=False (for PowerSGD also warm_start=False)"
        )


def run_whole_rounds(trainer: Trainer) -> None:
    """Make `fast_dev_run=N` run N whole rounds; Lightning's N batches would be N turns."""
    if not trainer.fast_dev_run:
        return
    rounds, loop = int(trainer.fast_dev_run), trainer.fit_loop
    trainer.limit_train_batches = 1.0
    loop.epoch_loop.max_steps = -1
    loop.max_epochs = rounds
    forget_training_loader(trainer)  # a `setup` hook may have made it, with the limit of before
    rank_zero_info(f"fast_dev_run: {rounds} whole round{'s' if rounds > 1 else ''} of federated averaging")


@refuses
def check_limits(trainer: Trainer) -> Iterator[str]:
    """Refuse, before the first turn, limits that cut every round, so that no round would finish."""
    loader = training_loader(trainer)
    lengths = [] if loader is None else [sized_len(part) for part in loader.flattened]
    for turns, limit in zip(lengths, [] if loader is None else loader.limits or []):
        if turns is not None and limit < turns:
            name = "overfit_batches" if trainer.overfit_batches > 0 else "limit_train_batches"
            yield (
                f"{name}={getattr(trainer, name)!r}: a batch is a client's whole turn and a round has {turns} of them,"
                f" so every round would be cut after {limit} and dropped. For fewer clients per round pass"
                f" FedAvgStrategy(cohort_size={limit}), for shorter turns a lower communication_interval, to try one"
                " whole round Trainer(fast_dev_run=True)"
            )


@refuses
def check_plateaus(trainer: Trainer) -> Iterator[str]:
    """Refuse ReduceLROnPlateau with `interval="step"`, where Lightning is to move it."""
    for config in trainer.lr_scheduler_configs if trainer.lightning_module.automatic_optimization else ():
        if config.reduce_on_plateau and config.interval == "step":
            yield "ReduceLROnPlateau with interval='step' would move after turns; pass 'epoch', which counts rounds"
