"""Clients in one embedding and split, known by sums over all of them."""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedgen.evaluation.panels import Panel
from fedgen.evaluation.plan import EvaluationPlan
from fedgen.evaluation.real.splits import Split
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.flower.server.told_reference import ToldReference
from fedgen.scores import FederatedScore, FrechetReference
from fedgen.scores.frechet.federated_fid import fid_from_messages
from fedgen.scores.frechet.frechet import frechet_distance
from fedgen.scores.kernel.federated_kid import kid_from_messages
from fedgen.seeds import generator
from fedgen.statistics import Gaussian, gaussian_from_message, summarize
from fedgen.statistics.fourier import FourierMoments
from fedgen.statistics.sketches import KernelMoments
from fedgen.statistics.statistic_messages import Message, MessageError

QUANTISATION = "quantisation"  # the part of a score's error
HIDDEN = torch.empty(0, dtype=torch.float64)  # single clients' scores


class SummedReference(ToldReference):
    """Clients of whom sums are known: avg and all.

    Of errors there are that of FID-all by generated images, and "quantisation" of every score: the standard error that
    rounding entries to whole numbers gives it. How real images vary within each client the sums do not say.

    Args:
        plan: the evaluation's.
        split: of images elsewhere.
        panel: the embedding and its scores.
        total: the clients' summed moments, of kind "sums".
        rounding: standard deviation of what rounding adds to entries of its tensors, by name.

    Attributes:
        told: what clients say together of the present generated images, by score, and the standard deviation of what
            rounding adds to entries of its tensors, by name.

    Raises:
        MessageError: for sums over another number of images.
    """

    def __init__(
        self, plan: EvaluationPlan, split: Split, panel: Panel, total: Message, rounding: Mapping[str, float]
    ) -> None:
        super().__init__(plan, split, panel)
        self.told: dict[str, tuple[Message, Mapping[str, float]]] = {}
        self.pooled = gaussian_from_message(total)
        if abs(self.pooled.count - sum(split.counts)) > 0.5:
            raise MessageError(f"the sums are of {self.pooled.count:g} images, clients have {sum(split.counts)}")
        self._frechet = {
            ddof: FrechetReference.from_summaries([self.pooled], "examples", ddof) for ddof in self.divisors
        }
        self._rounded = gaussian_from_message(_shaken(total, rounding)) if self.divisors else None
        self._errors: dict[float, float] = {}
        self._rounded_moments: dict[str, KernelMoments | FourierMoments] = {}

    def take_rounded_sketch(self, choice: ScoreChoice, total: Message, rounding: Mapping[str, float]) -> None:
        """Take a sketch as `take_sketch` does, with the standard deviation of what rounding adds to entries of the
        sum's tensors.
        """
        self.take_sketch(choice, total)
        self._rounded_moments[choice.name] = self._read(choice, _shaken(total, rounding))

    def _of(self, choice: ScoreChoice, generated: Tensor | Gaussian, errors: bool) -> FederatedScore | None:
        if choice.is_of_summaries:
            return self._fid(choice, generated, errors)
        return self._kid(choice, errors) if choice.name in self.told else None

    def _kid(self, choice: ScoreChoice, errors: bool) -> FederatedScore:
        told, rounding = self.told[choice.name]
        total = kid_from_messages(told, self._moments[choice.name])
        score = FederatedScore(choice.kind, HIDDEN, {"avg": total.avg, "all": total.all})
        if not errors:
            return score
        # all is avg less a constant, whose parts are a sum over clients and what the sketch says of the pool
        other = kid_from_messages(told, self._rounded_moments[choice.name])
        own, within = (rounding[name] / float(told.tensors["count"]) for name in ("score", "within"))
        pool = total.constant - other.constant
        return replace(score, error_parts={QUANTISATION: {"avg": own, "all": math.hypot(own, within, pool)}})

    def _fid(self, choice: ScoreChoice, generated: Tensor | Gaussian, errors: bool) -> FederatedScore:
        ddof = choice.options["ddof"]
        score = of_pool(self._frechet[ddof].score(generated, errors))
        parts = {"all": self.rounding_error(ddof, generated)} if errors else {}
        if choice.name in self.told:
            told, rounding = self.told[choice.name]
            score = replace(score, values={"avg": fid_from_messages(told), **score.values})
            if errors:
                parts["avg"] = rounding["score"] / float(told.tensors["count"])
        return replace(score, error_parts={**score.error_parts, QUANTISATION: parts}) if errors else score

    def rounding_error(self, ddof: float, generated: Tensor | Gaussian) -> float:
        """By how much other roundings of the sums would move FID-all: of one other, of the first generated images."""
        if ddof not in self._errors:
            assert self._rounded is not None
            made = generated if isinstance(generated, Gaussian) else summarize(generated.cpu())
            values = [frechet_distance(pooled, made, ddof)[0] for pooled in (self.pooled, self._rounded)]
            self._errors[ddof] = abs(values[0] - values[1])
        return self._errors[ddof]


def of_pool(score: FederatedScore) -> FederatedScore:
    """A score against the pool as if it were one client: all without the others, and its error by generated images."""
    return FederatedScore(
        score.name,
        HIDDEN,
        {"all": score.values["all"]},
        terms={term: {"all": values["all"]} for term, values in score.terms.items()},
        error_parts={side: {"all": part["all"]} for side, part in score.error_parts.items() if side == "generated"},
        higher_is_better=score.higher_is_better,
    )


def _shaken(total: Message, rounding: Mapping[str, float]) -> Message:
    """The sums with other roundings of their entries."""
    draws = generator(0, "rounding")
    tensors = {
        name: tensor + rounding.get(name, 0.0) * torch.randn(tensor.shape, generator=draws, dtype=torch.float64)
        for name, tensor in sorted(total.tensors.items())
    }
    return Message(total.kind, tensors, total.meta)
