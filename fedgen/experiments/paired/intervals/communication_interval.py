"""Quality against the communication interval, at equal local iterations, and what avg and all say at each.

The papers train at an interval of 160 local iterations and say that it does not change their conclusions. Here a
WGAN-GP and a DDPM are trained over ten clients of one digit each, at intervals from 1 to 640, beside two controls:
clients that train alone, and ordinary training on their pooled images.

The WGAN-GP is scored with its weights as they are merged: the recipe's moving average moves once a round, so that it
spans many iterations at short intervals and none at long ones, and the interval's effect would be that of averaging.
The DDPM is a smaller one than the recipe's, for the 42 runs to end: 16 maps at one resolution, no attention, batches
of 8. Its moving average stays: it warms up, and spans about a tenth of the iterations so far at any interval.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedgen.embeddings import embed
from fedgen.experiments.engine.image_sources import chosen
from fedgen.experiments.engine.scored_checkpoints import Checkpoint, Scorers, Trained, checkpoints_of
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trained_runs import train_runs
from fedgen.experiments.paired.intervals.interval_report import (
    REFERENCES,
    SIDE,
    compare_intervals,
    draw,
    draw_samples,
    grid_of,
    group_of,
    lines_of,
    quality_of,
    tables_of,
)
from fedgen.experiments.paired.intervals.interval_runs import KINDS, IntervalChoice
from fedgen.images import save_png, tile

Side = Mapping[str, Mapping[str, Scorers]]  # embedding -> reference -> scorers


def communication_interval(output: Path | None = None, **options: Any) -> None:
    """Trains generators of digits by FedAvg at several communication intervals, and their controls; scores checkpoints.

    Controls: --local_only (the mixture of the clients' own models is scored) and --centralised. Finished runs are kept
    and not trained again; stopped ones go on.

    Args:
        output: folder of results.json, communication_interval.png, samples.png and the grids of images in it.
        options: the fields of `IntervalChoice`.
    """
    choice = IntervalChoice(output=output, **options)
    study = Study("communication-interval", output, choice.settings())
    if study.missing("found") or not all(study.path(grid_of(*key)).exists() for key in grids_in(study.numbers)):
        measure(study, choice)
    numbers = study.numbers
    samples = draw_samples(study, grids_in(numbers))
    notes = [f"{KINDS[kind].title}: {KINDS[kind].recipe}, {KINDS[kind].note}" for kind in choice.kinds]
    study.report([*tables_of(numbers), *notes, *lines_of(numbers), f"samples: {samples}"], draw(study))


def measure(study: Study, choice: IntervalChoice) -> None:
    """The steps: trains what is missing, scores the checkpoints, and compares avg with all at every interval."""
    planned, embeddings = choice.planned(), choice.embeddings()  # both refuse what is not there, before any training
    train_runs(planned, choice.plan)
    trained = Trained(planned, embeddings[0], choice.seed, device=choice.device)
    sides = {embedding.name: trained.with_embedding(embedding) for embedding in embeddings}
    scorers = {
        name: {
            reference: Scorers(side.federation(part), choice.dealings, choice.seed)
            for reference, part in REFERENCES.items()
        }
        for name, side in sides.items()
    }
    kept = checkpoints_of(planned)
    count = choice.num_images or len(trained.data.pooled("held_out"))

    def score(checkpoint: Checkpoint) -> dict[str, Any]:
        images = trained.images(checkpoint, count)
        return {name: _score(scorers[name], side, images) for name, side in sides.items()}

    study.step("images", lambda: count)
    study.step(
        "checkpoints",
        lambda: {name: one.described() | {"sampling": trained.sampling(one)} for name, one in kept.items()},
    )
    study.step("real", lambda: measure_real(sides, scorers, count))
    study.each("scores", kept, score, "checkpoints")
    study.step("quality", lambda: quality_of(study.numbers))
    for (kind, group), name in grids_in(study.numbers).items():
        save_png(study.path(grid_of(kind, group)), tile(trained.images(kept[name], SIDE**2), SIDE, min_side=32))
    study.step("found", lambda: compare_intervals(study.numbers))


def _score(scorers: Mapping[str, Scorers], side: Trained, images: Tensor) -> dict[str, Any]:
    """Scores of images by what they are scored against."""
    features = embed(side.embedding, images, description=f"embedding with {side.embedding.name}")
    return {reference: own.score(features) for reference, own in scorers.items()}


def measure_real(sides: Mapping[str, Trained], scorers: Side, count: int) -> dict[str, Any]:
    """By embedding and reference: the scores of `count` of the clients' other images, a perfect generator's."""
    found: dict[str, Any] = {}
    for name, side in sides.items():
        found[name] = {}
        for reference, other in zip(REFERENCES, reversed(REFERENCES.values())):
            whole = side.data.pooled(other)
            positions = chosen(whole, min(count, len(whole)), side.seed, "real", other)
            found[name][reference] = scorers[name][reference].score(side.source.features[positions])["clients"]
    return found


def grids_in(numbers: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """The last checkpoint of the first seed by kind and group, of which a grid of images is kept."""
    about = numbers.get("checkpoints", {})
    first = min((one["seed"] for one in about.values()), default=0)
    return {(one["series"], group_of(one)): name for name, one in about.items() if one["seed"] == first}
