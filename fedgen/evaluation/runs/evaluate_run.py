"""Scoring the checkpoints of a run folder again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fedgen.data.optional_attributes import optional
from fedgen.evaluation.evaluate import Evaluator
from fedgen.evaluation.generation.image_sampling import ImageSampler, Sample, inside, mixture, sampler_of
from fedgen.evaluation.personal.fine_tuned import LocalFineTuning
from fedgen.evaluation.personal.own_models import OwnModels, Personal
from fedgen.evaluation.record_names import LOCAL_NOTE
from fedgen.evaluation.records import ScoreRecord
from fedgen.evaluation.runs.checkpoints import load_weights, local_models, personal_tensors, tensors_in_place
from fedgen.evaluation.runs.run_folder import Run
from fedgen.evaluation.runs.scores_file import append_records, keep_records, read_records
from fedgen.models.optional_hooks import FederatedModule
from fedgen.scores.definition import BY_CLASS, Needs


def checkpoint_sampler(module: nn.Module, path: str | Path, evaluator: Evaluator) -> tuple[Sample, str, Personal]:
    """The sampler of a checkpoint, loaded into the module, a note, and the tensors that its clients keep.

    Training without exchange gives the mixture of the clients' own models, by the evaluation's weights, and no tensors.
    """
    checkpoint = load_weights(module, path)
    own = local_models(module, checkpoint)
    if not own:
        return evaluator.sampler_of(module), "", personal_tensors(module, checkpoint)
    refuse_mixture(evaluator)
    return mixture_of_local(module, own, evaluator.client_weights()), LOCAL_NOTE, {}


def mixture_of_local(module: nn.Module, own: Mapping[int, Mapping[str, Tensor]], weights: Tensor) -> ImageSampler:
    """The sampler of the mixture of the clients' own models; a client without one has the module as it is."""
    sample = sampler_of(module)
    return mixture(
        [inside(partial(tensors_in_place, module, own.get(k, {})), sample) for k in range(len(weights))], weights
    )


def refuse_mixture(evaluator: Evaluator) -> None:
    """Raise ValueError if a score needs one model where there are only the clients' own.

    A mixture of them has no density that they know, and it is not said which of them to ask for an image of a class.
    """
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
        found_now = models.evaluate(module, sample, personal, round, path.name, optimised_on, note).records
        if fine_tuning is not None:
            found_now = [*found_now, *fine_tuning.records(module, evaluator, path, round, optimised_on)]
        _drop_pools(run.scores_path, found_now)
        append_records(run.scores_path, found_now)
        records += found_now
    return records


def _drop_pools(path: Path, now: Sequence[ScoreRecord]) -> None:
    """Removes the aggregates all, of another model, of scores that have none now, as models are clients' own."""
    averages = {record.identity for record in now if record.aggregate == "avg"}
    pools = {replace(record, aggregate="avg").identity for record in now if record.aggregate == "all"}
    gone = averages - pools
    keep_records(path, lambda one: one.aggregate != "all" or replace(one, aggregate="avg").identity not in gone)
