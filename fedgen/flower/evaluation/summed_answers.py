"""Sums over all clients' answers, which secure aggregation reveals alone: avg and all, of no client its own.

FID-all comes from summed moments. FID-avg and KID are each client's own score, in which the generated images are
public, summed. All numbers of an evaluation go in one exchange; moments once when training starts, and where there is a
KID, sketches around their mean in a second exchange.

Of errors there are that of FID-all by generated images, and "quantisation" of every score: the standard error that
rounding entries to whole numbers gives it. How real images vary within each client the sums do not say.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from fedgen.evaluation.plan import EvaluationPlan
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.evaluation.splits import Split
from fedgen.flower.client.client_statistics import conventions_of, shared_key
from fedgen.flower.evaluation.client_answers import (
    ClientAnswers,
    DimOf,
    Key,
    Scorer,
    Wanted,
    hide_clients,
    is_frechet,
    moments_of,
)
from fedgen.flower.secure_aggregation.secure_sums import fixed_point
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.flower.wire.answer_forms import RANGES, Largest, name_of, range_key
from fedgen.flower.wire.messages import Asked, Item
from fedgen.own_code import rank_zero_warn
from fedgen.scores import FederatedScore, FrechetReference
from fedgen.scores.frechet.corrected import Bias
from fedgen.scores.frechet.frechet import CorrectedFrechetScore, fid_from_messages, frechet_distance
from fedgen.scores.kernel.federated_kid import kid_from_messages
from fedgen.seeds import generator
from fedgen.statistics import Gaussian, gaussian_from_message, summarize
from fedgen.statistics.statistic_messages import Message, MessageError

QUANTISATION = "quantisation"  # the part of a score's error
HIDDEN = torch.empty(0, dtype=torch.float64)  # single clients' scores


@dataclass(frozen=True, eq=False)
class RoundedSum:
    """A sum over all clients of whole numbers, and by tensor the deviation that rounding adds to its entries."""

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
    """FID-all of the clients' pool."""

    def __init__(self, pooled: Gaussian, ddof: float, bias: Bias = "plug-in") -> None:
        self._reference = FrechetReference.from_summaries([pooled], "examples", ddof, bias)

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
            notes=score.notes,
        )


class FIDOfSums:
    """FID of clients whose moments' sum is known; covariances subtract `ddof` of the count."""

    def __init__(self, moments: RoundedSum, ddof: float, bias: Bias = "plug-in") -> None:
        self._pools = [gaussian_from_message(one) for one in (moments.total, moments.rounded_again)]
        self._conventions, self._score = (ddof, bias), PooledScore(self._pools[0], ddof, bias)
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
            values = [frechet_distance(pool, made, *self._conventions)[0] for pool in self._pools]
            self._rounding_error = abs(values[0] - values[1])
        return self._rounding_error


class KIDOfSums:
    """KID of clients whose sketches' sum is known."""

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


Remarks = dict[tuple[Key, str], list[str]]  # by place and score


@dataclass(frozen=True)
class _AskedSum:
    """An item, whose it is, the largest entries of what a client answers, and how many answer."""

    key: Key
    item: Item
    largest: Largest
    clients: int

    def statistics(self) -> dict[str, str]:
        """By tensor the name of its statistic, of those that have ranges."""
        return {tensor: name for tensor in self.largest if (name := name_of(self.item.ask, tensor)) in RANGES}

    def steps(self) -> dict[str, float]:
        """By tensor the step of the whole numbers that a client's entries are rounded to."""
        bits = fixed_point(self.largest, self.clients).bits
        assert isinstance(bits, Mapping)
        return {name: 2.0 ** -bits[name] for name in self.largest}

    def rounding(self) -> dict[str, float]:
        """By tensor the deviation that rounding by all clients adds to a sum: each has a variance of step^2 / 12."""
        return {name: step * (self.clients / 12) ** 0.5 for name, step in self.steps().items()}


class SummedAnswers(ClientAnswers):
    """Clients of whom sums over all are told."""

    moments, of_summaries = "sums", "fid"

    def __init__(self, data: RemoteClients, plan: EvaluationPlan, dim_of: DimOf) -> None:
        super().__init__(plan, dim_of, data)
        for choice in (one for panel in plan.panels for one in panel.choices if one.needs == "summaries"):
            if not (is_frechet(choice) or type(choice.definition) is CorrectedFrechetScore):
                raise ValueError(
                    f"score {choice.name} is made of single clients' summaries, which secure aggregation hides: leave"
                    " it out of the recipe's evaluation; there is fid"
                )
        hide_clients(plan, ("avg", "all"), "secure aggregation hides")
        self._lasting: Remarks = {}  # of what was told once
        self._present: Remarks = {}  # and of the present generated images

    def look(self, features: Mapping[Key, Tensor]) -> None:
        """Chooses ranges by the present generated images' features."""
        ranges = self._data.connection.ranges
        self._ranges = {key: ranges.for_features(part) for key, part in features.items()}

    def remarks(self, place: Key, score: str) -> list[str]:
        return [*self._lasting.get((place, score), []), *self._present.get((place, score), [])]

    def prepare(self) -> None:
        if not self._scorers:
            self._say_steps()
        super().prepare()

    def _ask_once(self, asked: Sequence[Wanted], tensors: Mapping[str, Tensor]) -> list[RoundedSum]:
        return self._sums(asked, tensors, self._lasting)

    def _ask_now(self, asked: Sequence[Wanted], features: Mapping[Key, Tensor]) -> list[RoundedSum]:
        self._present = {}
        sums = self._sums(asked, _generated(asked, features), self._present)
        for (key, _), total in zip(asked, sums, strict=True):
            count = float(total.total.tensors["count"])
            if abs(count - sum(self.places[key][0].counts)) > 0.5:
                raise MessageError(f"the sums are of {count:g} images")
        return sums

    def _fit(self, key: Key, told: RoundedSum) -> tuple[Gaussian, dict[str, Scorer]]:
        pooled = check_pool(gaussian_from_message(told.total), self.places[key][0])
        choices = [choice for choice in self._choices(key) if choice.needs == "summaries"]
        return pooled, {choice.name: FIDOfSums(told, *conventions_of(choice)).score for choice in choices}

    def _fit_kernel(self, key: Key, choice: ScoreChoice, told: RoundedSum, pooled: Gaussian) -> Scorer:
        return KIDOfSums(choice, told, pooled).score

    def _asked(self, key: Key, item: Item) -> _AskedSum:
        counts = self.places[key][0].counts
        return _AskedSum(key, item, self._largest(key, item, max(counts)), len(counts))

    def _sums(self, wanted: Sequence[Wanted], tensors: Mapping[str, Tensor], remarks: Remarks) -> list[RoundedSum]:
        """The clients' sums, one an item; of what was cut off remarks are noted by score, and a warning is given."""
        if not wanted:
            return []
        asked = [self._asked(*one) for one in wanted]
        sums = self._data.add_up([one.item for one in asked], tensors, [one.largest for one in asked])
        for one, total in zip(asked, sums, strict=True):
            for name, share in total.cut.items():
                said = self._of_cut(one, name, share)
                remedy = "; raise it in the run's config" if name in one.statistics() else ""
                rank_zero_warn(f"{'/'.join(one.key)}: {said}{remedy}")
                for score in [one.item.score] if one.item.score else [c.name for c in self._choices(one.key)]:
                    remarks.setdefault((one.key, score), []).append(said)
        return [RoundedSum(total.total, one.rounding()) for one, total in zip(asked, sums, strict=True)]

    def _of_cut(self, one: _AskedSum, tensor: str, share: float) -> str:
        name = name_of(one.item.ask, tensor)
        if name in RANGES:
            bound = f"{range_key(name)}={self._ranges[one.key][name]:g}"
        else:
            bound = f"{one.largest[tensor]:g}, which no client's are,"
        return f"{share:.2%} of the clients' entries of {name} were beyond {bound} and cut off"

    def _say_steps(self) -> None:
        for key in self.places:
            items = [self._item("sums", key)]
            for choice in self._choices(key):
                kernel = choice.definition.kernel
                asks: tuple[Asked, ...] = ("fid",) if kernel is None else () if kernel.is_bounded else ("sketch", "kid")
                items += [self._item(ask, key, choice) for ask in asks]
            asked = [self._asked(key, item) for item in items]
            said = {name: self._said(one, tensor, name) for one in asked for tensor, name in one.statistics().items()}
            rank_zero_info(f"secure aggregation, {'/'.join(key)}: clients' {', '.join(said.values())}")

    def _said(self, one: _AskedSum, tensor: str, name: str) -> str:
        """A statistic's range and step, as of a mean over the images of the largest client."""
        step = one.steps()[tensor] / one.largest["count"]
        return f"{name} in ±{self._ranges[one.key][name]:.3g} (steps of {step:.1g})"


def _generated(asked: Sequence[Wanted], features: Mapping[Key, Tensor]) -> dict[str, Tensor]:
    """Return what clients must know of generated images: features, or for fid alone the summary where it is smaller."""
    found: dict[str, Tensor] = {}
    needed = {key for key, item in asked if item.ask == "kid"}
    for key, item in asked:
        name, part = shared_key(item), features[key]
        if key in needed or len(part) <= part.shape[1]:
            found[name] = part
            continue
        if f"{name}/mean" not in found:
            summary = summarize(part.cpu())
            assert summary.scatter is not None  # there are more images than features
            count = torch.tensor([summary.count], dtype=torch.float64)
            found |= {f"{name}/count": count, f"{name}/mean": summary.mean, f"{name}/scatter": summary.scatter}
    return found
