"""Scoring the checkpoints of a run folder again: all, the likely best with further images, or one on fresh images."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor, nn

from fedgen.clients import FederatedDataModule
from fedgen.clients.client import Roles
from fedgen.data.optional_attributes import optional
from fedgen.evaluation.evaluate import Evaluator
from fedgen.evaluation.image_sampling import ImageSampler, Sample, draw_images, inside, mixture, sampler_of
from fedgen.evaluation.names import LOCAL_NOTE
from fedgen.evaluation.own_models import OwnModels, Personal, SingleClients
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.records import FINE_TUNED, MODEL, ScoreRecord, say_number
from fedgen.evaluation.runs.rebuild import load_weights, local_models, personal_tensors, tensors_in_place
from fedgen.evaluation.runs.run_folder import Run, RunLike
from fedgen.evaluation.runs.scores_file import append_records, keep_records, read_records
from fedgen.evaluation.runs.selection import covariance_of
from fedgen.evaluation.splits import Split
from fedgen.federated import FedAvgStrategy
from fedgen.io.files import atomic_write, read_npz, write_npz
from fedgen.io.tensor_files import hash_tensors
from fedgen.models.ema import averages_of
from fedgen.models.optional_hooks import FederatedModule
from fedgen.progress import track
from fedgen.scores.definition import BY_CLASS, Needs
from fedgen.scores.rankings import best_set
from fedgen.seeds import derive, isolated


@dataclass(frozen=True, eq=False)
class LocalFineTuning:
    """Personalisation as FedAvg users know it: each scored client trains the server's model on its own images first."""

    # clients that never took part in the training do so, too, from the same tensors, so that the two are compared

    data: FederatedDataModule
    iterations: int
    accelerator: str = "cpu"

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"fine_tune={self.iterations}: a client trains for at least one iteration")

    def records(
        self, module: LightningModule, evaluator: Evaluator, path: Path, round: int, optimised_on: Sequence[str]
    ) -> list[ScoreRecord]:
        if local_models(module, load_weights(module, path)):
            raise ValueError(
                f"fine_tune starts from the server's model, and {path} has none: it trained without exchange"
            )
        for network, average in averages_of(module):
            network.load_state_dict(average.network.state_dict())
        singles, everyone = SingleClients(evaluator, evaluator.splits, evaluator.panels), self.data.everyone
        scored = {client.name: number for number, client in enumerate(everyone) if client.name in singles.places}

        def score(trainer: L.Trainer, pl_module: LightningModule) -> None:
            strategy: Any = trainer.strategy
            for turn, client in enumerate(track(scored, "scoring fine-tuned models", len(scored), "clients")):
                with strategy.client_model(turn), torch.no_grad():
                    for network, average in averages_of(pl_module):
                        average.network.load_state_dict(network.state_dict())
                    singles.score(client, pl_module, round)

        scoring = LambdaCallback(on_train_epoch_end=score)
        self._train(module, list(scored.values()), scoring, derive(self.data.seed, "fine-tuning", round))
        details: dict[str, Any] = {"round": round, "checkpoint": path.name, "optimised_on": list(optimised_on)}
        note = f"each client's own model, {self.iterations} iterations from the server's"
        name = f"{FINE_TUNED} {self.iterations}"
        return evaluator.real.records(singles.take(), name, evaluator.num_generated, note=note, **details)

    def _train(self, module: LightningModule, scored: Sequence[int], scoring: L.Callback, seed: int) -> None:
        """One round without exchange, in which each of the clients takes its turn and is scored at the end."""
        strategy = FedAvgStrategy(communication_interval=self.iterations, personal=["*"], seed=seed)
        off = "logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"
        options: dict[str, Any] = {"devices": 1, "max_epochs": 1, "num_sanity_val_steps": 0, "limit_val_batches": 0}
        options |= {"accelerator": self.accelerator, **dict.fromkeys(off, False)}
        trainer = L.Trainer(strategy=strategy, callbacks=[scoring], **options)
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
    whole: dict[Needs, str] = {"points": "density", **dict.fromkeys(BY_CLASS, "images by class"), "model": "losses"}
    evaluator.plan.refuse(whole, "without exchange there is none")


def evaluate_run(
    run: RunLike,
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
    before, records = read_records(run.scores_path), list[ScoreRecord]()
    append_records(run.scores_path, evaluator.floor())
    for round, path in found.items():
        sample, note, personal = checkpoint_sampler(module, path, evaluator)
        optimised_on = _optimised_on(before, module, round)
        details: dict[str, Any] = {"checkpoint": path.name, "optimised_on": optimised_on, "note": note}
        if own := models.check(module, personal):
            found_now = models.evaluate(module, sample, personal, own, round, **details).records
        else:
            found_now = evaluator.evaluate(sample, round, **details, **evaluator.asked_of(module)).records
        if fine_tuning is not None:
            found_now = [*found_now, *fine_tuning.records(module, evaluator, path, round, optimised_on)]
        _drop_pools(run.scores_path, found_now)
        append_records(run.scores_path, found_now)
        records += found_now
    return records


def _optimised_on(records: Sequence[ScoreRecord], module: LightningModule, round: int) -> list[str]:
    """Scores that training used, by the module or by any record of the round."""
    known = [name for one in records if one.round == round for name in one.optimised_on]
    return list(dict.fromkeys([*known, *optional(module, FederatedModule, "optimised_on")]))


def _drop_pools(path: Path, now: Sequence[ScoreRecord]) -> None:
    """Removes the aggregates all, of another model, of scores that have none now, as models are clients' own."""
    pools = {replace(record, aggregate="avg").identity for record in now if record.aggregate == "all"}
    gone = {record.identity for record in now if record.aggregate == "avg"} - pools
    keep_records(path, lambda one: one.aggregate != "all" or replace(one, aggregate="avg").identity not in gone)


# Racing: further images for the checkpoints that may be the best, and for those alone. At each look all contenders have
# the same number of images, twice that of the look before. Those outside of the set that holds the best, at a level of
# alpha over the number of looks, are out for good. So with the level asked for the best is kept, and the width said
# holds, on these real images. Scores must mean the same at all numbers of images: KID, or a corrected FID. A race ends
# with one left, with none left that can be worse than the best by more than `width`, or with `most` images of each. Its
# images are the first of those that scoring draws; they lie in the run's folder, where a stopped race finds them.
LOOKS = 5
WIDTHS = 0.2  # share of each look's error that is spent on how far those left may differ
UNBIASED = ("kid", "kid-rbf", "fidc", "fidj")
FOLDER = "race"  # in a run's folder, with the features of a race that was not finished


@dataclass(frozen=True)
class Race:
    column: str
    looks: list[tuple[int, int]]  # images of each contender, and contenders
    records: list[ScoreRecord]  # of the checkpoints that are left, best first
    width: float  # by how much the worst of these may be worse than the best
    images: int  # drawn in all

    @property
    def words(self) -> str:
        """The outcome and its cost, in a sentence or two."""
        rounds, noun = [str(record.round) for record in self.records], self.records[0].noun
        most, all_ = self.looks[-1][0], self.looks[0][1]
        left = f"round {rounds[0]}" if len(rounds) == 1 else f"one of rounds {', '.join(rounds)}"
        near = "" if len(rounds) == 1 else f", which differ by at most {say_number(self.width)}"
        return (
            f"By {self.column} the best on these real {noun} is {left}{near}. {self.images:,} {noun} were drawn;"
            f" {most:,} of each of the {all_} checkpoints would have been {most * all_:,}."
        )


def race(
    run: RunLike,
    module: LightningModule,
    evaluator: Evaluator,
    level: float = 0.95,
    width: float | None = None,
    most: int = 50_000,
    aggregate: str = "all",
) -> Race:
    """Finds the best of a run's checkpoints with few images, by the evaluator's one score in its one embedding."""
    run = run if isinstance(run, Run) else Run(run)
    found, (_, panel, name) = run.checkpoints_of(None), _decided_by(evaluator)
    if panel.choices[0].kind not in UNBIASED:
        raise ValueError(
            f"{name} means another thing at another number of images, so no race is decided by it; choose by"
            f" {', '.join(UNBIASED)}"
        )
    if len(found) < 3:
        raise ValueError(f"a race is between three checkpoints or more, and there are {len(found)}: score them alike")
    if not 0.5 <= level < 1:
        raise ValueError(f"level={level}: a probability in [0.5, 1), such as 0.95")
    if width is not None and not width > 0:
        raise ValueError(f"width={width}: a difference of scores, above 0")
    if most < 2:
        raise ValueError(f"most={most}: scores need at least 2 images")
    evaluator.real.prepare()
    sizes = [-(-most // 2**step // evaluator.chunk) * evaluator.chunk for step in reversed(range(LOOKS))]
    images, before = 0, read_records(run.scores_path)

    def score(round: int, size: int) -> ScoreRecord:
        nonlocal images
        sample, details = _model(before, module, evaluator, found[round], round)
        features, drawn = _features(run, sample, evaluator, found[round], round, size)
        images += drawn
        return _record(evaluator, features, aggregate, details)

    looks, left, apart = narrow_down(list(found), score, sizes, level, width)
    append_records(run.scores_path, left)
    for path in (run.folder / FOLDER).glob("*.npz"):
        path.unlink()
    return Race(f"{name}_{aggregate}", looks, left, apart, images)


def narrow_down(
    contenders: Sequence[int],
    score: Callable[[int, int], ScoreRecord],
    sizes: Sequence[int],
    level: float = 0.95,
    width: float | None = None,
) -> tuple[list[tuple[int, int]], list[ScoreRecord], float]:
    """The looks of a race: images and contenders of each, whom it leaves, best first, and how far these may differ.

    Args:
        contenders: rounds.
        score: of a round, by that many images.
        sizes: numbers of images to look at, at most five different ones.
        level: the probability with which the best one is kept.
        width: a difference that need not be told apart.
    """
    looks: list[tuple[int, int]] = []
    left, apart = list[ScoreRecord](), 0.0
    for size in dict.fromkeys(sizes):
        looks.append((size, len(contenders)))
        records = [score(round, size) for round in contenders]
        own, alpha = [record.badness for record in records], (1 - level) / LOOKS
        inside = best_set(own, covariance_of(records), 1 - (1 - WIDTHS) * alpha)
        order = sorted(np.flatnonzero(inside).tolist(), key=own.__getitem__)
        contenders, left = [contenders[place] for place in order], [records[place] for place in order]
        apart = _width(left, WIDTHS * alpha)
        if len(left) == 1 or (width is not None and apart <= width):
            break
    return looks, left, apart


def quote(
    run: RunLike, module: LightningModule, evaluator: Evaluator, round: int, aggregate: str = "all"
) -> ScoreRecord:
    """The score of one checkpoint on `num_images` fresh images, which had no part in its choice: the value to quote."""
    run = run if isinstance(run, Run) else Run(run)
    path, (split, panel, _) = run.checkpoints_of([round])[round], _decided_by(evaluator)
    evaluator.real.prepare()
    sample, details = _model(read_records(run.scores_path), module, evaluator, path, round)
    images = draw_images(sample, evaluator.num_images, **evaluator.draws(sample, round, f"{split.stream}, fresh"))
    return _record(evaluator, evaluator.real.embed(panel, images), aggregate, details)


def _record(evaluator: Evaluator, features: Tensor, aggregate: str, details: Mapping[str, Any]) -> ScoreRecord:
    split, panel, _ = _decided_by(evaluator)
    found = {(split.name, panel.embedding.name): evaluator.real.score(split, panel, features)}
    made = evaluator.real.records(found, MODEL, len(features), **details)
    return next(record for record in made if record.aggregate == aggregate)


def _model(
    before: Sequence[ScoreRecord], module: LightningModule, evaluator: Evaluator, path: Path, round: int
) -> tuple[Sample, dict[str, Any]]:
    """A checkpoint's sampler, and what its records say beside the score, as those of `evaluate_run` do."""
    sample, note, personal = checkpoint_sampler(module, path, evaluator)
    if personal:
        raise ValueError(f"{path} has tensors of single clients; give one of models that all clients share")
    details = {"round": round, "checkpoint": path.name, "optimised_on": _optimised_on(before, module, round)}
    return sample, {**details, "note": note, "sampling": dict(ImageSampler.of(sample).sampling)}


def _decided_by(evaluator: Evaluator) -> tuple[Split, Panel, str]:
    (split, panel), *_ = evaluator.plan.places.values()
    names = [choice.name for choice in panel.choices]
    if len(names) != 1 or len(evaluator.panels) != 1:
        raise ValueError(f"give one score in one embedding, not {', '.join(names)}")
    return split, panel, names[0]


def _features(run: Run, sample: Sample, evaluator: Evaluator, path: Path, round: int, size: int) -> tuple[Tensor, int]:
    """The features of a checkpoint's first images [size, D], and how many of these were drawn now."""
    split, panel, _ = _decided_by(evaluator)
    kept, draws = run.folder / FOLDER / path.with_suffix(".npz").name, evaluator.draws(sample, round, split.stream)
    with path.open("rb") as stream:
        weights = hashlib.file_digest(stream, "blake2b").hexdigest()
    how = panel.embedding.fingerprint(), weights, dict(ImageSampler.of(sample).sampling), draws
    key = hash_tensors((), repr(how))
    known = read_npz(kept).get(key) if kept.exists() else None
    before = torch.empty(0) if known is None else torch.from_numpy(known)[:size]
    if len(before) == size:
        return before, 0
    images = draw_images(sample, size, **draws, first=len(before), description=f"sampling, round {round}")
    features = evaluator.real.embed(panel, images).cpu()
    features = torch.cat([before, features]) if len(before) else features
    kept.parent.mkdir(exist_ok=True)
    with atomic_write(kept) as file:
        write_npz(file, {key: features.numpy()})
    return features, len(images)


def _width(records: Sequence[ScoreRecord], alpha: float) -> float:
    """By how much the worst of these may be worse than the best of them, but for a probability of alpha."""
    z = NormalDist().inv_cdf(1 - alpha / max(1, len(records) - 1))
    best = min(records, key=lambda record: record.badness)
    others = [(one, math.hypot(one.generated_error, best.generated_error)) for one in records if one is not best]
    return max((one.badness - best.badness + z * error for one, error in others), default=0.0)
