"""Scoring the checkpoints of a run folder again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor, nn

from fedgen.clients import FederatedDataModule
from fedgen.clients.client import Roles
from fedgen.data.optional_attributes import optional
from fedgen.evaluation.evaluate import Evaluator
from fedgen.evaluation.image_sampling import ImageSampler, Sample, inside, mixture, sampler_of
from fedgen.evaluation.names import LOCAL_NOTE
from fedgen.evaluation.own_models import OwnModels, Personal, SingleClients
from fedgen.evaluation.records import FINE_TUNED, ScoreRecord
from fedgen.evaluation.runs.rebuild import load_weights, local_models, personal_tensors, tensors_in_place
from fedgen.evaluation.runs.run_folder import Run
from fedgen.evaluation.runs.scores_file import append_records, keep_records, read_records
from fedgen.federated import FedAvgStrategy
from fedgen.models.ema import averages_of
from fedgen.models.optional_hooks import FederatedModule
from fedgen.progress import track
from fedgen.scores.definition import BY_CLASS, Needs
from fedgen.seeds import derive, isolated


@dataclass(frozen=True, eq=False)
class LocalFineTuning:
    """A stated local fine-tuning, as a client's turn in a training that begins with the scored model.

    Personalisation as FedAvg users know it: each scored client, whether it took part in the training or not, trains the
    server's model on its own training images, and what its own model then makes is scored against its own images. All
    start from the server's tensors, as clients that never took part must, so that the two are compared.
    """

    data: FederatedDataModule
    iterations: int
    accelerator: str = "cpu"

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"fine_tune={self.iterations}: a client trains for at least one iteration")

    def records(
        self, module: LightningModule, evaluator: Evaluator, path: Path, round: int, optimised_on: Sequence[str]
    ) -> list[ScoreRecord]:
        """The scores of a checkpoint's model after each scored client has fine-tuned it."""
        if local_models(module, load_weights(module, path)):
            raise ValueError(
                f"fine_tune starts from the server's model, and {path} has none: it trained without exchange"
            )
        for network, average in averages_of(module):
            network.load_state_dict(average.network.state_dict())
        singles, everyone = SingleClients(evaluator, evaluator.splits, evaluator.panels), self.data.everyone
        scored = {client.name: number for number, client in enumerate(everyone) if client.name in singles.places}

        def score(trainer: L.Trainer, pl_module: LightningModule) -> None:
            """Scores every client's model at the end of the one round."""
            strategy: Any = trainer.strategy
            for turn, client in enumerate(track(scored, "scoring fine-tuned models", len(scored), "clients")):
                with strategy.client_model(turn), torch.no_grad():
                    for network, average in averages_of(pl_module):
                        average.network.load_state_dict(network.state_dict())
                    singles.score(client, pl_module, round)

        scoring = LambdaCallback(on_train_epoch_end=score)
        self._train(module, list(scored.values()), scoring, derive(self.data.seed, "fine-tuning", round))
        details = {"round": round, "checkpoint": path.name, "optimised_on": list(optimised_on)}
        note = f"each client's own model, {self.iterations} iterations from the server's"
        name = f"{FINE_TUNED} {self.iterations}"
        return evaluator.real.records(singles.take(), name, evaluator.num_generated, note=note, **details)

    def _train(self, module: LightningModule, scored: Sequence[int], scoring: L.Callback, seed: int) -> None:
        """One round without exchange, in which each of the clients takes its turn and is scored at the end."""
        strategy = FedAvgStrategy(communication_interval=self.iterations, personal=["*"], seed=seed)
        quiet: dict[str, Any] = dict.fromkeys(
            ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
        )
        trainer = L.Trainer(
            strategy=strategy,
            callbacks=[scoring],
            accelerator=self.accelerator,
            devices=1,
            max_epochs=1,
            num_sanity_val_steps=0,
            limit_val_batches=0,
            **quiet,
        )
        others = sorted(set(range(len(self.data.everyone))) - set(scored))
        with isolated():
            trainer.fit(module, self.data.with_roles(Roles(tuple(scored), (), tuple(others))))


def checkpoint_sampler(module: nn.Module, path: str | Path, evaluator: Evaluator) -> tuple[Sample, str, Personal]:
    """The sampler of a checkpoint, loaded into the module, a note, and the tensors that its clients keep."""
    checkpoint = load_weights(module, path)
    if own := local_models(module, checkpoint):
        refuse_mixture(evaluator)
        return mixture_of_local(module, own, evaluator.client_weights()), LOCAL_NOTE, {}
    return evaluator.sampler_of(module), "", personal_tensors(module, checkpoint)


def mixture_of_local(module: nn.Module, own: Mapping[int, Mapping[str, Tensor]], weights: Tensor) -> ImageSampler:
    """The sampler of the mixture of the clients' own models; a client without one has the module as it is."""
    places = [partial(tensors_in_place, module, own.get(k, {})) for k in range(len(weights))]
    return mixture([inside(place, sampler_of(module)) for place in places], weights)


def refuse_mixture(evaluator: Evaluator) -> None:
    """Raise ValueError if a score needs one model where there are only the clients' own."""
    whole: dict[Needs, str] = {"points": "density", **dict.fromkeys(BY_CLASS, "images by class"), "model": "losses"}
    evaluator.plan.refuse(whole, "without exchange there is none")


def evaluate_run(
    run: Run | str | Path,
    module: LightningModule,
    evaluator: Evaluator,
    rounds: Sequence[int] | None = None,
    fine_tuning: LocalFineTuning | None = None,
) -> list[ScoreRecord]:
    """Scores a run's checkpoints (again), appends the records to its scores and returns them.

    Where clients keep tensors of their own, those that took part are scored with their own models: see `own_models`.
    Records of the same round, column and conditions are replaced; others stay: a second embedding adds columns, another
    number of images, seed, weights or sampling a second kind of scores beside the first, see `Run`.

    Args:
        run: the run or its folder.
        module: a model of the run's kind; it is left with the last checkpoint's weights.
        evaluator: clients, embeddings and number of images.
        rounds: which checkpoints; all by default.
        fine_tuning: also score what each scored client makes of the model by training it further, of that length.

    Raises:
        FileNotFoundError: if the folder has no checkpoint, or not those of `rounds`.
        ValueError: before any long work, if the first is another model's, or its images are not of the clients' shape,
            or are each client's own where a score needs one model's.
        TypeError: for a model without `sample`, `log_prob` or `example_losses` where a score needs it.
    """
    run = run if isinstance(run, Run) else Run(run)
    found = run.checkpoints_of(rounds)
    models = OwnModels(evaluator)
    sample, _, personal = checkpoint_sampler(module, next(iter(found.values())), evaluator)
    evaluator.try_out(sample, **evaluator.asked_of(module))
    models.check(module, personal)
    known = {record.round: record.optimised_on for record in read_records(run.scores_path)}
    append_records(run.scores_path, evaluator.floor())
    records = []
    for round, path in found.items():
        sample, note, personal = checkpoint_sampler(module, path, evaluator)
        optimised_on = list(dict.fromkeys([*known.get(round, ()), *optional(module, FederatedModule, "optimised_on")]))
        details = round, path.name, optimised_on, note
        if own := models.check(module, personal):
            found_now = models.evaluate(module, sample, personal, own, *details).records
        else:
            found_now = evaluator.evaluate(sample, *details, **evaluator.asked_of(module)).records
        if fine_tuning is not None:
            found_now = [*found_now, *fine_tuning.records(module, evaluator, path, round, optimised_on)]
        _drop_pools(run.scores_path, found_now)
        append_records(run.scores_path, found_now)
        records += found_now
    return records


def _drop_pools(path: Path, now: Sequence[ScoreRecord]) -> None:
    """Removes the aggregates all, of another model, of scores that have none now, as models are clients' own."""
    pools = {replace(record, aggregate="avg").identity for record in now if record.aggregate == "all"}
    gone = {record.identity for record in now if record.aggregate == "avg"} - pools
    keep_records(path, lambda one: one.aggregate != "all" or replace(one, aggregate="avg").identity not in gone)
