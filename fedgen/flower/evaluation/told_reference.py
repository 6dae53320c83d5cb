"""Clients in one embedding and split, known by what they tell."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor
from torch.linalg import LinAlgError

from fedgen.evaluation.reference import scaled
from fedgen.evaluation.score_choice import ScoreChoice
from fedgen.flower.client.client_statistics import sketch_of
from fedgen.own_code import rank_zero_warn
from fedgen.scores import Density, FederatedScore
from fedgen.scores.definition import ModelAnswers
from fedgen.statistics import FourierSketch, Gaussian
from fedgen.statistics.sketches import FourierMoments, KernelMoments
from fedgen.statistics.statistic_messages import Message

WorkOut = Callable[[Tensor | Gaussian, bool], FederatedScore]  # of generated features, and whether with errors


class ToldReference:
    """Clients in one embedding and split, known by what they tell.

    Args:
        place: split and embedding, for warnings.
        scores: in order, with how each is worked out before its scale; those that clients did not answer are missing.
    """

    def __init__(self, place: tuple[str, str], scores: Sequence[tuple[ScoreChoice, WorkOut]]) -> None:
        self._place, self._scores = place, scores

    def score(
        self,
        generated: Tensor | Gaussian,
        errors: bool = True,
        density: Density | None = None,
        only: Sequence[str] | None = None,
        labels: Tensor | None = None,
        answers: ModelAnswers | None = None,
    ) -> list[FederatedScore]:
        """Score as `Reference.score` does, of the generated images that clients were asked about; without what they
        left out.

        A score that cannot be worked out of what they tell is left out with a warning.
        """
        found = []
        for choice, work_out in self._scores:
            if only is None or choice.name in only:
                score = self._worked_out(choice, work_out, generated, errors)
                if score is not None:
                    found.append(replace(scaled(score, choice.scale), name=choice.name))
        return found

    def _worked_out(
        self, choice: ScoreChoice, work_out: WorkOut, generated: Tensor | Gaussian, errors: bool
    ) -> FederatedScore | None:
        try:
            score = work_out(generated, errors)
            if not all(map(math.isfinite, score.values.values())):
                raise ArithmeticError("it is not finite")
        except (ArithmeticError, LinAlgError) as error:
            rank_zero_warn(
                f"{'/'.join(self._place)}: {choice.name} is left out of this evaluation: it cannot be worked out of"
                f" what clients tell ({str(error).strip()})"
            )
            return None
        return score


def moments_of(choice: ScoreChoice, total: Message, pooled: Gaussian) -> KernelMoments | FourierMoments:
    """Return the kernel means that the sum of the clients' sketches for a score tells.

    Args:
        choice: the score.
        total: the sum.
        pooled: summary of the pool, around whose mean they are.
    """
    sketch = sketch_of(choice, pooled.dim, pooled.mean)
    return sketch.read(total) if isinstance(sketch, FourierSketch) else sketch.read(total, pooled)
