"""The benchmark's number: how many times the floor a generator's score is, over embeddings and both aggregates.

With s the score (FID) of generated images and f that of as many real ones in their place, both against the clients'
held-out images, the number of one run is exp of the mean of log(s / f) over embeddings and over avg and all, the
geometric mean of all these ratios. 1 is as good as real images. The number over seeds is the geometric mean over runs.

Its interval joins two parts as if they were independent, on the logarithm: Student's t over seeds, in which the draws
of generated images and of the floor's show, and 1.96 standard errors of real images, which do not get smaller with more
seeds, as all of them share the images scored against. It is rather too wide. The floor's images are drawn anew for each
seed, and their errors are in both parts; errors of embeddings and aggregates, which share images, count as fully
dependent; those of score and floor from the images scored against, which both share, are added and may cancel.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedgen.evaluation.records import ScoreRecord
from fedgen.experiments.engine.paired_seeds import half_width
from fedgen.scores.rankings import Z

AGGREGATES = ("avg", "all")


@dataclass(frozen=True)
class Ratio:
    """A score of a run beside its floor.

    Args:
        score: of generated images.
        floor: of real images in their place.
    """

    score: ScoreRecord
    floor: ScoreRecord

    @property
    def log(self) -> float | None:
        """The logarithm of score / floor; None where one is not finite or not above 0."""
        values = self.score.value, self.floor.value
        return math.log(values[0] / values[1]) if all(0 < value < math.inf for value in values) else None

    @property
    def error(self) -> float:
        """The standard error of `log` from real images: those scored against, and those of the floor."""
        score = self.score.error_parts.get("real", self.score.standard_error or 0.0) / self.score.value
        return math.hypot(score, (self.floor.standard_error or 0.0) / self.floor.value)


@dataclass(frozen=True)
class Number:
    """The number of a cell.

    Args:
        value: over all seeds, embeddings and both aggregates; None if a run has a score that is not finite.
        low: of the 95 percent interval; None with one seed, which cannot tell how much seeds differ.
        high: likewise.
        parts: aggregate -> the number in this one alone; empty without a value.
    """

    value: float | None
    low: float | None
    high: float | None
    parts: Mapping[str, float]


def ratios_of(records: Sequence[ScoreRecord]) -> list[Ratio]:
    """The scores of one run in avg and all beside their floors.

    Args:
        records: of one score, a model's and the floor's in every embedding.

    Raises:
        ValueError: for one without its floor or its other aggregate, naming it.
    """
    models = {(r.embedding, r.aggregate): r for r in records if r.is_model}
    floors = {(r.embedding, r.aggregate): r for r in records if r.is_floor}
    wanted = {(embedding, name) for embedding, _ in {*models, *floors} for name in AGGREGATES}
    for kind, found in (("score", models), ("floor", floors)):
        if lacking := sorted(wanted - found.keys()):
            raise ValueError(f"it has no {kind} in {' '.join(lacking[0])}")
    return [Ratio(models[key], floors[key]) for key in sorted(wanted)]


def number_of(runs: Sequence[Sequence[Ratio]]) -> Number:
    """The number over runs, with its interval.

    Args:
        runs: the ratios of each seed, at least one.
    """
    logs = [[ratio.log for ratio in run] for run in runs]
    known = [[value for value in run if value is not None] for run in logs]
    if any(len(own) < len(run) for own, run in zip(known, logs)):
        return Number(None, None, None, {})
    means = [statistics.mean(run) for run in known]
    centre, parts = statistics.mean(means), {}
    for name in AGGREGATES:
        own = [
            log for run, values in zip(runs, known) for ratio, log in zip(run, values) if ratio.score.aggregate == name
        ]
        parts[name] = math.exp(statistics.mean(own))
    half = _half_width(means, statistics.mean(ratio.error for run in runs for ratio in run))
    low, high = (None, None) if half is None else (math.exp(centre - half), math.exp(centre + half))
    return Number(math.exp(centre), low, high, parts)


def _half_width(means: Sequence[float], error: float) -> float | None:
    """Half of the interval of a mean over seeds.

    Args:
        means: of each seed.
        error: standard error of real images, taken as one that all seeds share.
    """
    return math.hypot(half_width(means), Z * error) if len(means) > 1 else None
