"""Scores of clients of whom sums over all are known: avg and all.

Of errors there are that of FID-all by generated images, and "quantisation" of every score: the standard error that
rounding entries to whole numbers gives it. How real images vary within each client the sums do not say.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.evaluation.splits import Split
from fedgen.flower.evaluation.told_reference import moments_of
from fedgen.scores import FederatedScore, FrechetReference
from fedgen.scores.frechet.frechet import fid_from_messages, frechet_distance
from fedgen.scores.kernel.federated_kid import kid_from_messages
from fedgen.seeds import generator
from fedgen.statistics import Gaussian, gaussian_from_message, summarize
from fedgen.statistics.statistic_messages import Message, MessageError

QUANTISATION = "quantisation"  # the part of a score's error
HIDDEN = torch.empty(0, dtype=torch.float64)  # single clients' scores


@dataclass(frozen=True, eq=False)
class RoundedSum:
    """A sum over all clients of what each rounds to whole numbers.

    Args:
        total: the sum.
        rounding: standard deviation of what rounding adds to entries of its tensors, by name.
    """

    total: Message
    rounding: Mapping[str, float]

    @cached_property
    def rounded_again(self) -> Message:
        """The sum with other roundings of its entries."""
        draws = generator(0, "rounding")
        tensors = {
            name: tensor
            + self.rounding.get(name, 0.0) * torch.randn(tensor.shape, generator=draws, dtype=torch.float64)
            for name, tensor in sorted(self.total.tensors.items())
        }
        return Message(self.total.kind, tensors, self.total.meta)

    @property
    def mean_error(self) -> dict[str, float]:
        """Standard deviations of what rounding adds to entries of the mean over all images, by name."""
        return {name: value / float(self.total.tensors["count"]) for name, value in self.rounding.items()}


class PooledScore:
    """FID-all of the clients' pool.

    Args:
        pooled: summary of the pool.
        ddof: of the score.
    """

    def __init__(self, pooled: Gaussian, ddof: float) -> None:
        self._reference = FrechetReference.from_summaries([pooled], "examples", ddof)

    def score(self, generated: Tensor | Gaussian, errors: bool) -> FederatedScore:
        """Return all without the others, and its error by generated images."""
        score = self._reference.score(generated, errors)
        return FederatedScore(
            score.name,
            HIDDEN,
            {"all": score.values["all"]},
            terms={term: {"all": values["all"]} for term, values in score.terms.items()},
            error_parts={side: {"all": part["all"]} for side, part in score.error_parts.items() if side == "generated"},
            higher_is_better=score.higher_is_better,
        )


class FIDOfSums:
    """FID of clients whose moments' sum is known.

    Args:
        moments: the sum.
        ddof: of the score.
    """

    def __init__(self, moments: RoundedSum, ddof: float) -> None:
        self._pools = [gaussian_from_message(one) for one in (moments.total, moments.rounded_again)]
        self._ddof, self._score = ddof, PooledScore(self._pools[0], ddof)
        self._rounding_error: float | None = None

    def score(self, told: RoundedSum | None, generated: Tensor | Gaussian, errors: bool) -> FederatedScore:
        """Score a generated set: all, and avg where the sum of the clients' own scores of it is told."""
        score = self._score.score(generated, errors)
        parts = {"all": self.rounding_error(generated)} if errors else {}
        if told is not None:
            score = replace(score, values={"avg": fid_from_messages(told.total), **score.values})
            if errors:
                parts["avg"] = told.mean_error["score"]
        return replace(score, error_parts={**score.error_parts, QUANTISATION: parts}) if errors else score

    def rounding_error(self, generated: Tensor | Gaussian) -> float:
        """By how much other roundings of the sums would move FID-all: of one other, of the first generated images."""
        if self._rounding_error is None:
            made = generated if isinstance(generated, Gaussian) else summarize(generated.cpu())
            values = [frechet_distance(pool, made, self._ddof)[0] for pool in self._pools]
            self._rounding_error = abs(values[0] - values[1])
        return self._rounding_error


class KIDOfSums:
    """KID of clients whose sketches' sum is known.

    Args:
        choice: the score.
        sketch: the sum.
        pooled: summary of the pool.
    """

    def __init__(self, choice: ScoreChoice, sketch: RoundedSum, pooled: Gaussian) -> None:
        self._kind = choice.kind
        self._moments, self._rounded = (moments_of(choice, one, pooled) for one in (sketch.total, sketch.rounded_again))

    def score(self, told: RoundedSum, generated: Tensor | Gaussian, errors: bool) -> FederatedScore:
        """Score the generated set of which the sum of the clients' own scores is told."""
        total = kid_from_messages(told.total, self._moments)
        score = FederatedScore(self._kind, HIDDEN, {"avg": total.avg, "all": total.all})
        if not errors:
            return score
        # all is avg less a constant, whose parts are a sum over clients and what the sketch says of the pool
        other = kid_from_messages(told.total, self._rounded)
        own, within = (told.mean_error[name] for name in ("score", "within"))
        pool = total.constant - other.constant
        return replace(score, error_parts={QUANTISATION: {"avg": own, "all": math.hypot(own, within, pool)}})


def check_pool(pooled: Gaussian, split: Split) -> Gaussian:
    """Return the pool's summary; MessageError if it is over another number of images than clients have."""
    if abs(pooled.count - sum(split.counts)) > 0.5:
        raise MessageError(f"the sums are of {pooled.count:g} images, clients have {sum(split.counts)}")
    return pooled
