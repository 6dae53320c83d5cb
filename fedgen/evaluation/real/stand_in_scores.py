"""The scores of real images in a generator's place: the floor, and the controls of three-way splits."""

from torch import Tensor

from fedgen.data.lazy_examples import LazyInputs
from fedgen.evaluation.panels import Panel
from fedgen.evaluation.real.real_side import RealSide
from fedgen.evaluation.real.reference import Found
from fedgen.evaluation.real.splits import Split
from fedgen.scores import FederatedScore
from fedgen.scores.definition import BY_CLASS


def stand_in_scores(real: RealSide, name: str) -> tuple[Found, dict[tuple[str, str], int]]:
    """The scores of one stand-in wherever it stands, and how many images it has there.

    Args:
        real: the clients' side, prepared.
        name: of the stand-in, e.g. "floor".
    """
    found: Found = {}
    counts: dict[tuple[str, str], int] = {}
    for split in real.plan.splits:
        for panel in real.plan.panels:
            if (stand_in := real.stand_in(name, split, panel)) is not None:
                key = split.name, panel.embedding.name
                found[key], counts[key] = _score(real, split, panel, *stand_in, name), len(stand_in[0])
    return found, counts


def _score(
    real: RealSide, split: Split, panel: Panel, features: Tensor | LazyInputs, labels: Tensor | None, name: str
) -> list[FederatedScore]:
    """The scores that the stand-in has images enough, and labels where they are needed, for."""
    possible = [choice for choice in real.plan.choices(split, panel) if choice.definition.has_floor]
    possible = [choice for choice in possible if labels is not None or choice.needs not in BY_CLASS]
    names = [choice.name for choice in possible if not choice.definition.too_few(len(features), f"the {name}")]
    # read where they are on disk, and to the device
    given = real.embed(panel, features) if panel.on_images else features[:]
    return real.score(split, panel, given, only=names, labels=labels, real=True)
