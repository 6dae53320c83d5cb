"""The scores of a federation of which the server learns sums over all clients alone: avg and all, of no client its own.

FID-all comes from summed moments. FID-avg and KID are each client's own score, in which the generated images are
public, summed. All numbers of an evaluation go in one exchange; moments once when training starts, and where there is a
KID, sketches around their mean in a second exchange.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor

from fedgen.evaluation import ScoreRecord
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.plan import EvaluationPlan
from fedgen.evaluation.real.splits import Split
from fedgen.evaluation.record_names import AGGREGATES
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.flower.client.client_statistics import shared_key
from fedgen.flower.secure_aggregation.secure_sums import fixed_point
from fedgen.flower.secure_aggregation.summed_reference import SummedReference
from fedgen.flower.server.remote_data import RemoteClients
from fedgen.flower.server.remote_evaluator import Key, RemoteEvaluator, RemoteSide, item_of
from fedgen.flower.wire.messages import Asked, Item
from fedgen.flower.wire.ranges import RANGES, Largest, name_of, range_key
from fedgen.scores import FederatedScore
from fedgen.statistics import summarize
from fedgen.statistics.statistic_messages import Message, MessageError


class SecureEvaluator(RemoteEvaluator):
    """A `RemoteEvaluator` that is told sums; arguments as for it.

    Raises:
        ValueError: for aggregates of single clients' scores, or a client with too few images.
    """

    _side: "SecureSide"

    def __init__(self, data: RemoteClients, **settings: Any) -> None:
        super().__init__(data, **settings)
        hide_clients(self.plan, ("avg", "all"), "secure aggregation hides")
        check_images(self.plan)

    def _make_side(self, data: RemoteClients, batch_size: int) -> "SecureSide":
        for choice in (choice for panel in self.panels for choice in panel.choices):
            if choice.is_of_summaries and choice.kind != "fid":
                raise ValueError(
                    f"score {choice.name} is made of single clients' summaries, which secure aggregation hides: leave"
                    " it out of the recipe's evaluation; there is fid"
                )
        return SecureSide(self.plan, self.seed, data, batch_size, self.device)

    def _told_counts(self, split: Split) -> Sequence[float]:
        """The number of all clients' images together: single clients are hidden."""
        return [sum(split.counts)]

    def _records(
        self, scores: Sequence[FederatedScore], panel: Panel, client_names: Sequence[str], details: Mapping[str, Any]
    ) -> list[ScoreRecord]:
        return [
            replace(
                record,
                note="; ".join(filter(None, [record.note, *self._side.remarks(record.split, panel, record.score)])),
            )
            for record in super()._records(scores, panel, client_names, details)
        ]


def hide_clients(plan: EvaluationPlan, shown: Sequence[str], why: str) -> None:
    """Leaves aggregates that need single clients' scores out of a plan, and says so.

    Args:
        plan: of an evaluation.
        shown: the aggregates that stay.
        why: clause that says what hides the others.

    Raises:
        ValueError: for some that were asked for.
    """
    left_out = [name for name in plan.aggregates if name not in shown]
    if asked := [name for name in left_out if name not in AGGREGATES]:
        raise ValueError(
            f"aggregate {asked[0]} needs single clients' scores, which {why}: leave it out of the evaluation's"
            f" `aggregates`; there are {' and '.join(shown)}"
        )
    plan.aggregates = tuple(shown)
    rank_zero_info(f"{' and '.join(left_out)} are left out: they need single clients' scores, which {why}")


def check_images(plan: EvaluationPlan) -> None:
    """Raises ValueError if a client has too few images for its covariance."""
    for split in plan.splits:
        for panel in plan.panels:
            for choice in plan.choices(split, panel):
                for count, name in zip(split.counts, split.client_names):
                    if count <= choice.options.get("ddof", 0):
                        raise ValueError(
                            f"client {name!r} has {count} image(s), too few for {choice.name}: leave it out"
                        )


@dataclass(frozen=True)
class _Asked:
    """An item, whose it is, and the largest entries of what clients answer."""

    key: Key
    item: Item
    largest: Largest

    def statistics(self) -> dict[str, str]:
        """By tensor the name of its statistic, of those that have ranges."""
        return {tensor: name for tensor in self.largest if (name := name_of(self.item.ask, tensor)) in RANGES}


class SecureSide(RemoteSide):
    """The clients' side of scores, by sums."""

    def __init__(
        self, plan: EvaluationPlan, seed: int, data: RemoteClients, batch_size: int, device: torch.device | str | None
    ) -> None:
        super().__init__(plan, seed, data, batch_size, device)
        self._summed: dict[Key, SummedReference] = {}
        self._lasting: dict[tuple[Key, str], list[str]] = {}  # remarks on a score, of what was told once
        self._present: dict[tuple[Key, str], list[str]] = {}  # and of the present generated images

    def look(self, features: Mapping[Key, Tensor]) -> None:
        """Chooses ranges by the present generated images' features [m, D]."""
        assert self._data.transport is not None
        ranges = self._data.transport.statistics.ranges
        self._ranges = {key: ranges.for_features(part) for key, part in features.items()}

    def remarks(self, split: str, panel: Panel, score: str) -> list[str]:
        """Return what a reader of a score must know of its statistics."""
        place = (split, panel.embedding.name), score
        return [*self._lasting.get(place, []), *self._present.get(place, [])]

    def prepare(self) -> None:
        if self._references:
            return
        self._say_steps()
        places = self.places()
        asked = [self._asked("sums", key) for key in places]
        summed = {}
        for one, total in zip(asked, self._sums(asked, {}, self._lasting), strict=True):
            split, panel = places[one.key]
            summed[one.key] = SummedReference(self.plan, split, panel, total, self._rounding(one))
        wanted = [(key, choice) for key, one in summed.items() for choice in one.sketched]
        asked = [self._asked("sketch", key, choice) for key, choice in wanted]
        centres = {str(place): summed[key].pooled.mean for place, (key, _) in enumerate(wanted)}
        for one, (key, choice), total in zip(asked, wanted, self._sums(asked, centres, self._lasting), strict=True):
            summed[key].take_rounded_sketch(choice, total, self._rounding(one))
        self._summed, self._references = summed, dict(summed)

    def ask_scores(self, features: Mapping[Key, Tensor]) -> None:
        """Asks for the sums of the clients' own scores; where a client does not answer, those are left out."""
        wanted = [(key, choice) for key, one in self._summed.items() for choice in one.choices]
        asked = [self._asked("fid" if choice.is_of_summaries else "kid", key, choice) for key, choice in wanted]
        for reference in self._summed.values():
            reference.told = {}
        self._present = {}
        try:
            sums = self._sums(asked, _generated(asked, features), self._present)
            for one, (key, choice), total in zip(asked, wanted, sums, strict=True):
                split, _ = self.places()[key]
                if abs(float(total.tensors["count"]) - sum(split.counts)) > 0.5:
                    raise MessageError(f"the sums are of {float(total.tensors['count']):g} images")
                self._summed[key].told[choice.name] = total, self._rounding(one)
        except MessageError as error:
            self._leave_out({f"{c.name}_avg" if c.is_of_summaries else c.name for _, c in wanted}, error)

    def _asked(self, ask: Asked, key: Key, choice: ScoreChoice | None = None) -> _Asked:
        split, panel = self.places()[key]
        item = item_of(ask, split, panel, choice)
        return _Asked(key, item, self._largest(key, item, max(split.counts)))

    def _sums(
        self, asked: Sequence[_Asked], tensors: Mapping[str, Tensor], remarks: dict[tuple[Key, str], list[str]]
    ) -> list[Message]:
        """The clients' sums, one an item; of what was cut off remarks are noted by score, and a warning is given."""
        if not asked:
            return []
        sums = self._data.add_up([one.item for one in asked], tensors, [one.largest for one in asked])
        for one, total in zip(asked, sums, strict=True):
            for name, share in total.cut.items():
                said = self._of_cut(one, name, share)
                remedy = "; raise it in the run's config" if name in one.statistics() else ""
                rank_zero_warn(f"{'/'.join(one.key)}: {said}{remedy}")
                split, panel = self.places()[one.key]
                scores = [one.item.score] if one.item.score else [c.name for c in self.plan.choices(split, panel)]
                for score in scores:
                    remarks.setdefault((one.key, score), []).append(said)
        return [total.total for total in sums]

    def _of_cut(self, one: _Asked, tensor: str, share: float) -> str:
        name = name_of(one.item.ask, tensor)
        if name in RANGES:
            bound = f"{range_key(name)}={self._ranges[one.key][name]:g}"
        else:
            bound = f"{one.largest[tensor]:g}, which no client's are,"
        return f"{share:.2%} of the clients' entries of {name} were beyond {bound} and cut off"

    def _steps(self, one: _Asked) -> dict[str, float]:
        """By tensor the step of the whole numbers that a client's entries are rounded to."""
        split, _ = self.places()[one.key]
        bits = fixed_point(one.largest, len(split.counts)).bits
        assert isinstance(bits, Mapping)
        return {name: 2.0 ** -bits[name] for name in one.largest}

    def _rounding(self, one: _Asked) -> dict[str, float]:
        """By tensor the standard deviation of what all clients' rounding adds to an entry of the sum.

        Each of K clients rounds to the nearest whole number, with a variance of a twelfth of a step squared.
        """
        split, _ = self.places()[one.key]
        return {name: step * (len(split.counts) / 12) ** 0.5 for name, step in self._steps(one).items()}

    def _say_steps(self) -> None:
        for key, (split, panel) in self.places().items():
            asked = [self._asked("sums", key)]
            for choice in self.plan.choices(split, panel):
                kernel = choice.definition.kernel
                asks: tuple[Asked, ...] = ("fid",) if kernel is None else () if kernel.is_bounded else ("sketch", "kid")
                asked += [self._asked(ask, key, choice) for ask in asks]
            said = {name: self._said(one, tensor, name) for one in asked for tensor, name in one.statistics().items()}
            rank_zero_info(f"secure aggregation, {'/'.join(key)}: clients' {', '.join(said.values())}")

    def _said(self, one: _Asked, tensor: str, name: str) -> str:
        """A statistic's range and step, as of a mean over the images of the largest client."""
        step = self._steps(one)[tensor] / one.largest["count"]
        return f"{name} in ±{self._ranges[one.key][name]:.3g} (steps of {step:.1g})"


def _generated(asked: Sequence[_Asked], features: Mapping[Key, Tensor]) -> dict[str, Tensor]:
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
