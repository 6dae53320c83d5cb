"""Clients in one embedding and split, known by sums over all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedgen.deploy.statistics import sketch_of
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.plan import Plan
from fedgen.evaluation.reference import Reference, scaled
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.evaluation.scorers import Losses
from fedgen.evaluation.splits import Split
from fedgen.scores import Density, FederatedScore, FrechetReference
from fedgen.scores.federated_fid import fid_from_messages
from fedgen.scores.federated_kid import kid_from_messages
from fedgen.scores.frechet import frechet_distance
from fedgen.seeds import generator
from fedgen.statistics import FourierSketch, Gaussian, gaussian_from_message, summarize
from fedgen.statistics.fourier import FourierMoments
from fedgen.statistics.messages import Message, MessageError
from fedgen.statistics.sketches import KernelMoments

HIDDEN = torch.empty(0, dtype=torch.float64)  # single clients' scores


class SummedReference(Reference):
    """Clients of whom sums are known: avg and all.

    Of errors there are those of FID-all by generated images and by rounding; how real ones vary within each client the
    sums do not say.

    Args:
        plan: the evaluation's.
        split: of images elsewhere.
        panel: the embedding and its scores.
        total: the clients' summed moments, of kind "sums".
        rounding: standard deviation of what rounding adds to entries of its tensors, by name.

    Attributes:
        pooled: summary of the pool.
        sketched: the scores that need sketches.
        told: what clients say together of the present generated images, by score.

    Raises:
        MessageError: for sums over another number of images.
    """

    def __init__(self, plan: Plan, split: Split, panel: Panel, total: Message, rounding: Mapping[str, float]) -> None:
        self.choices = tuple(plan.choices(split, panel))
        self.sketched = [choice for choice in self.choices if choice.kind != "fid"]
        self.told: dict[str, Message] = {}
        self.pooled = gaussian_from_message(total)
        if abs(self.pooled.count - sum(split.counts)) > 0.5:
            raise MessageError(f"the sums are of {self.pooled.count:g} images, clients have {sum(split.counts)}")
        self._moments: dict[str, KernelMoments | FourierMoments] = {}
        divisors = {choice.options["ddof"] for choice in self.choices if choice.kind == "fid"}
        self._frechet = {ddof: FrechetReference.from_summaries([self.pooled], "examples", ddof) for ddof in divisors}
        self._rounded = gaussian_from_message(_shaken(total, rounding)) if divisors else None
        self._errors: dict[float, float] = {}

    def take_sketch(self, choice: ScoreChoice, total: Message) -> None:
        """Reads the sum of the clients' sketches for a score."""
        sketch = sketch_of(choice, self.pooled.dim, self.pooled.mean)
        read = sketch.read(total) if isinstance(sketch, FourierSketch) else sketch.read(total, self.pooled)
        self._moments[choice.name] = read

    def score(
        self,
        generated: Tensor | Gaussian,
        errors: bool = True,
        density: Density | None = None,
        only: Sequence[str] | None = None,
        labels: Tensor | None = None,
        losses: Losses | None = None,
    ) -> list[FederatedScore]:
        """As `Reference.score`, of the generated images that clients were asked about; without what they left out."""
        found = []
        for choice in self.choices:
            if (only is None or choice.name in only) and (choice.kind == "fid" or choice.name in self.told):
                score = self._fid(choice, generated, errors) if choice.kind == "fid" else self._kid(choice)
                found.append(replace(scaled(score, choice.scale), name=choice.name))
        return found

    def _kid(self, choice: ScoreChoice) -> FederatedScore:
        total = kid_from_messages(self.told[choice.name], self._moments[choice.name])
        return FederatedScore(choice.kind, HIDDEN, {"avg": total.avg, "all": total.all})

    def _fid(self, choice: ScoreChoice, generated: Tensor | Gaussian, errors: bool) -> FederatedScore:
        ddof = choice.options["ddof"]
        score = of_pool(self._frechet[ddof].score(generated, errors))
        if choice.name in self.told:
            score = replace(score, values={"avg": fid_from_messages(self.told[choice.name]), **score.values})
        if not errors:
            return score
        rounding = {"quantisation": {"all": self.rounding_error(ddof, generated)}}
        return replace(score, error_parts={**score.error_parts, **rounding})

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
