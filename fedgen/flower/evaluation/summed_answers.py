"""Sums over all clients' answers, which secure aggregation reveals alone: avg and all, of no client its own.

FID-all comes from summed moments. FID-avg and KID are each client's own score, in which the generated images are
public, summed. All numbers of an evaluation go in one exchange; moments once when training starts, and where there is a
KID, sketches around their mean in a second exchange.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from fedgen.evaluation.plan import EvaluationPlan
from fedgen.evaluation.reference import FittedScores
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.flower.client.client_statistics import shared_key
from fedgen.flower.evaluation.client_answers import ClientAnswers, DimOf, Key, hide_clients, is_frechet
from fedgen.flower.evaluation.summed_scores import FIDOfSums, KIDOfSums, RoundedSum, check_pool
from fedgen.flower.evaluation.told_reference import ToldReference, WorkOut
from fedgen.flower.secure_aggregation.secure_sums import fixed_point
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.flower.wire.messages import Asked, Item
from fedgen.flower.wire.ranges import RANGES, Largest, name_of, range_key
from fedgen.own_code import rank_zero_warn
from fedgen.scores import FederatedScore
from fedgen.statistics import Gaussian, gaussian_from_message, summarize
from fedgen.statistics.statistic_messages import MessageError

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
        """By tensor the standard deviation of what all clients' rounding adds to an entry of the sum.

        Each of K clients rounds to the nearest whole number, with a variance of a twelfth of a step squared.
        """
        return {name: step * (self.clients / 12) ** 0.5 for name, step in self.steps().items()}


class SummedAnswers(ClientAnswers):
    """Clients of whom sums over all are told.

    Args:
        data: as for `ClientAnswers`.
        plan: likewise.
        dim_of: likewise.

    Raises:
        ValueError: for scores of single clients' summaries, aggregates of single clients' scores, or a client with too
            few images.
    """

    shows_clients = False

    def __init__(self, data: RemoteClients, plan: EvaluationPlan, dim_of: DimOf) -> None:
        super().__init__(plan, dim_of, data)
        for choice in (choice for panel in plan.panels for choice in panel.choices):
            if choice.is_of_summaries and not is_frechet(choice):
                raise ValueError(
                    f"score {choice.name} is made of single clients' summaries, which secure aggregation hides: leave"
                    " it out of the recipe's evaluation; there is fid"
                )
        hide_clients(plan, ("avg", "all"), "secure aggregation hides")
        self._scores: dict[tuple[Key, str], FIDOfSums | KIDOfSums] = {}
        self._lasting: Remarks = {}  # of what was told once
        self._present: Remarks = {}  # and of the present generated images

    def look(self, features: Mapping[Key, Tensor]) -> None:
        """Chooses ranges by the present generated images' features."""
        ranges = self._data.connection.statistics.ranges
        self._ranges = {key: ranges.for_features(part) for key, part in features.items()}

    def remarks(self, place: Key, score: str) -> list[str]:
        return [*self._lasting.get((place, score), []), *self._present.get((place, score), [])]

    def prepare(self) -> None:
        if self._scores:
            return
        self._say_steps()
        moments = self._sums([self._asked("sums", key) for key in self.places], {}, self._lasting)
        pooled: dict[Key, Gaussian] = {}
        scores: dict[tuple[Key, str], FIDOfSums | KIDOfSums] = {}
        for key, total in zip(self.places, moments, strict=True):
            pooled[key] = check_pool(gaussian_from_message(total.total), self.places[key][0])
            fitted = {ddof: FIDOfSums(total, ddof) for ddof in self._divisors(key)}
            of_moments = [choice for choice in self._choices(key) if choice.is_of_summaries]
            scores |= {(key, choice.name): fitted[choice.options["ddof"]] for choice in of_moments}
        wanted = [(key, choice) for key in self.places for choice in self._choices(key) if not choice.is_of_summaries]
        asked = [self._asked("sketch", key, choice) for key, choice in wanted]
        centres = {str(place): pooled[key].mean for place, (key, _) in enumerate(wanted)}
        sketches = self._sums(asked, centres, self._lasting)
        self._scores = scores | {
            (key, choice.name): KIDOfSums(choice, sketch, pooled[key])
            for (key, choice), sketch in zip(wanted, sketches, strict=True)
        }

    def _divisors(self, key: Key) -> set[float]:
        """The numbers that a place's covariances subtract of the count, over all scores."""
        return {choice.options["ddof"] for choice in self._choices(key) if choice.is_of_summaries}

    def ask(self, features: Mapping[Key, Tensor]) -> dict[Key, FittedScores]:
        """Ask for the sums of the clients' own scores; where a client does not answer, those are left out."""
        wanted = [(key, choice) for key in self.places for choice in self._choices(key)]
        asked = [self._asked("fid" if choice.is_of_summaries else "kid", key, choice) for key, choice in wanted]
        told: dict[tuple[Key, str], RoundedSum] = {}
        self._present = {}
        try:
            sums = self._sums(asked, _generated(asked, features), self._present)
            for (key, choice), total in zip(wanted, sums, strict=True):
                count = float(total.total.tensors["count"])
                if abs(count - sum(self.places[key][0].counts)) > 0.5:
                    raise MessageError(f"the sums are of {count:g} images")
                told[key, choice.name] = total
        except MessageError as error:
            self._leave_out({f"{c.name}_avg" if c.is_of_summaries else c.name for _, c in wanted}, error)
        return {key: ToldReference(key, self._worked_out(key, told)) for key in self.places}

    def _worked_out(self, key: Key, told: Mapping[tuple[Key, str], RoundedSum]) -> list[tuple[ScoreChoice, WorkOut]]:
        found: list[tuple[ScoreChoice, WorkOut]] = []
        for choice in self._choices(key):
            score, total = self._scores[key, choice.name], told.get((key, choice.name))
            work_out: Callable[..., FederatedScore] = score.score
            if total is not None or isinstance(score, FIDOfSums):  # all of FID needs the moments alone
                found.append((choice, partial(work_out, total)))
        return found

    def _asked(self, ask: Asked, key: Key, choice: ScoreChoice | None = None) -> _AskedSum:
        item, counts = self._item(ask, key, choice), self.places[key][0].counts
        return _AskedSum(key, item, self._largest(key, item, max(counts)), len(counts))

    def _sums(self, asked: Sequence[_AskedSum], tensors: Mapping[str, Tensor], remarks: Remarks) -> list[RoundedSum]:
        """The clients' sums, one an item; of what was cut off remarks are noted by score, and a warning is given."""
        if not asked:
            return []
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
            asked = [self._asked("sums", key)]
            for choice in self._choices(key):
                kernel = choice.definition.kernel
                asks: tuple[Asked, ...] = ("fid",) if kernel is None else () if kernel.is_bounded else ("sketch", "kid")
                asked += [self._asked(ask, key, choice) for ask in asks]
            said = {name: self._said(one, tensor, name) for one in asked for tensor, name in one.statistics().items()}
            rank_zero_info(f"secure aggregation, {'/'.join(key)}: clients' {', '.join(said.values())}")

    def _said(self, one: _AskedSum, tensor: str, name: str) -> str:
        """A statistic's range and step, as of a mean over the images of the largest client."""
        step = one.steps()[tensor] / one.largest["count"]
        return f"{name} in ±{self._ranges[one.key][name]:.3g} (steps of {step:.1g})"


def _generated(asked: Sequence[_AskedSum], features: Mapping[Key, Tensor]) -> dict[str, Tensor]:
    """Return what clients must know of the generated images: features, or for fid alone the summary where it is
    smaller.
    """
    found: dict[str, Tensor] = {}
    needed = {one.key for one in asked if one.item.ask == "kid"}
    for one in asked:
        name, part = shared_key(one.item), features[one.key]
        if one.key in needed or len(part) <= part.shape[1]:
            found[name] = part
            continue
        if f"{name}/mean" not in found:
            summary = summarize(part.cpu())
            assert summary.scatter is not None  # there are more images than features
            count = torch.tensor([summary.count], dtype=torch.float64)
            found |= {f"{name}/count": count, f"{name}/mean": summary.mean, f"{name}/scatter": summary.scatter}
    return found
