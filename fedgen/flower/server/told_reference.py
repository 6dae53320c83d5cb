"""Clients in one embedding and split, known by what they tell; what each kind of telling makes of it is its own."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from torch.linalg import LinAlgError

from fedgen.evaluation.generation.answers import SeededAnswers
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.plan import EvaluationPlan
from fedgen.evaluation.real.reference import Reference, scaled
from fedgen.evaluation.real.splits import Split
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.flower.client.client_statistics import sketch_of
from fedgen.scores import Density, FederatedScore
from fedgen.statistics import FourierSketch, Gaussian
from fedgen.statistics.fourier import FourierMoments
from fedgen.statistics.sketches import KernelMoments
from fedgen.statistics.statistic_messages import Message


class ToldReference(Reference):
    """A `Reference` without the clients' features.

    Args:
        plan: the evaluation's.
        split: of images elsewhere.
        panel: the embedding and its scores.

    Attributes:
        pooled: summary of the pool.
        sketched: the scores that need sketches.
    """

    pooled: Gaussian

    def __init__(self, plan: EvaluationPlan, split: Split, panel: Panel) -> None:
        self._place = f"{split.name}/{panel.embedding.name}"
        self.choices = tuple(plan.choices(split, panel))
        self.sketched = [choice for choice in self.choices if not choice.is_of_summaries]
        self._moments: dict[str, KernelMoments | FourierMoments] = {}

    @property
    def divisors(self) -> set[float]:
        """The numbers that covariances subtract of the count, over all scores."""
        return {choice.options["ddof"] for choice in self.choices if choice.is_of_summaries}

    def take_sketch(self, choice: ScoreChoice, total: Message) -> None:
        """Reads the sum of the clients' sketches for a score."""
        self._moments[choice.name] = self._read(choice, total)

    def _read(self, choice: ScoreChoice, total: Message) -> KernelMoments | FourierMoments:
        sketch = sketch_of(choice, self.pooled.dim, self.pooled.mean)
        return sketch.read(total) if isinstance(sketch, FourierSketch) else sketch.read(total, self.pooled)

    def score(
        self,
        generated: Tensor | Gaussian,
        errors: bool = True,
        density: Density | None = None,
        only: Sequence[str] | None = None,
        labels: Tensor | None = None,
        answers: SeededAnswers | None = None,
    ) -> list[FederatedScore]:
        """Score as `Reference.score` does, of the generated images that clients were asked about; without what they
        left out.

        A score that cannot be worked out of what they tell is left out with a warning.
        """
        found = []
        for choice in self.choices:
            if only is None or choice.name in only:
                score = self._worked_out(choice, generated, errors)
                if score is not None:
                    found.append(replace(scaled(score, choice.scale), name=choice.name))
        return found

    def _worked_out(self, choice: ScoreChoice, generated: Tensor | Gaussian, errors: bool) -> FederatedScore | None:
        try:
            score = self._of(choice, generated, errors)
            if score is not None and not all(map(math.isfinite, score.values.values())):
                raise ArithmeticError("it is not finite")
        except (ArithmeticError, LinAlgError) as error:
            rank_zero_warn(
                f"{self._place}: {choice.name} is left out of this evaluation: it cannot be worked out of what clients"
                f" tell ({str(error).strip()})"
            )
            return None
        return score

    @abstractmethod
    def _of(self, choice: ScoreChoice, generated: Tensor | Gaussian, errors: bool) -> FederatedScore | None:
        """A score before its scale; None where clients have not told what it needs."""
