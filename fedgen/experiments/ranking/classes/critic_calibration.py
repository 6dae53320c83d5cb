"""Shares of a known distance that critics and sliced projections find, on images like those that they will score.

A shift of all features by v has W1 = |v|. A Gaussian whose widest axis is made k times as wide has W1 =
(k - 1) s sqrt(2 / pi), s being that axis' deviation: nothing need move along the other axes. The first asks for a
linear critic, the second for one that grows to both sides, which a spectrally normalised ReLU network cannot be.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgen.seeds import generator
from fedgen.statistics import summarize
from fedgen.statistics.eigen import eigh

SHIFTS = (0.25, 0.5, 1.0, 2.0)  # in units of the root of the features' total variance
WIDTHS = (2.0, 4.0)  # of the widest axis

Scorer = Callable[[Tensor, Tensor], float]  # generated [m, D] and real [n, D] to a distance


@dataclass(frozen=True, eq=False)
class Case:
    """Two sets of features whose populations have a known distance.

    Args:
        generated: [m, D].
        real: [n, D].
        distance: W1.
        sliced: the sliced W1, where it is known too; else None.
    """

    generated: Tensor
    real: Tensor
    distance: float
    sliced: float | None


def shifted(features: Tensor, number: int, length: float, draws: torch.Generator) -> Case:
    """`number` of the images moved by `length` in a random direction, against the others.

    Args:
        features: [n, D].
        number: of generated images, less than n.
        length: of the shift, in units of the root of the features' total variance.
        draws: of images and direction.

    Raises:
        ValueError: if no image is left to compare with.
    """
    if not 1 <= number < len(features):
        raise ValueError(f"{number} of {len(features)} images are to be moved; some must stay to compare with")
    order = torch.randperm(len(features), generator=draws)
    direction = torch.randn(features.shape[1], generator=draws, dtype=torch.float64)
    distance = length * float(features.double().var(0).sum().sqrt())
    moved = features[order[:number]] + (direction / direction.norm() * distance).to(features)
    return Case(moved, features[order[number:]], distance, distance * mean_cosine(features.shape[1]))


def widened(features: Tensor, number: int, factor: float, draws: torch.Generator) -> Case:
    """Gaussian draws with the features' moments, the widest axis of `number` of them stretched, against n others.

    Args:
        features: [n, D].
        number: of generated images.
        factor: k > 1, by which the axis' deviation is multiplied.
        draws: of both sides.
    """
    summary = summarize(features)
    values, vectors = eigh(summary.covariance(ddof=1))
    deviations = values.clamp(min=0).sqrt()
    wider = deviations.clone()
    wider[-1] *= factor
    dim = len(deviations)
    sides = [
        (torch.randn(count, dim, generator=draws, dtype=torch.float64) * scale) @ vectors.T + summary.mean
        for count, scale in ((number, wider), (len(features), deviations))
    ]
    distance = (factor - 1) * float(deviations[-1]) * math.sqrt(2 / math.pi)
    return Case(sides[0].to(features), sides[1].to(features), distance, None)


def mean_cosine(dim: int) -> float:
    """E |<theta, e>| for theta uniform on the sphere in `dim` dimensions: what slicing leaves of a shift."""
    return math.exp(math.lgamma(dim / 2) - math.lgamma((dim + 1) / 2)) / math.sqrt(math.pi)


def calibrate(
    features: Tensor,
    number: int,
    scorers: Mapping[str, Scorer],
    seed: int,
    sliced: Sequence[str] = (),
    shifts: Sequence[float] = SHIFTS,
    widths: Sequence[float] = WIDTHS,
) -> dict[str, dict[str, float]]:
    """The share of the known distance that each scorer finds, by case ("shift 0.5", "width 2").

    Args:
        features: real images [n, D].
        number: of generated images.
        scorers: by name.
        seed: of the draws.
        sliced: names of those that measure the sliced distance; they are left out where it is not known.
        shifts: lengths, as in `shifted`.
        widths: factors, as in `widened`.
    """
    makers = {f"shift {size:g}": (shifted, size) for size in shifts} | {f"width {k:g}": (widened, k) for k in widths}
    found: dict[str, dict[str, float]] = {}
    for name, (make, size) in makers.items():
        case = make(features, number, size, generator(seed, "calibration", name))
        found[name] = {}
        for scorer, score in scorers.items():
            known = case.sliced if scorer in sliced else case.distance
            if known is not None:
                found[name][scorer] = score(case.generated, case.real) / known
    return found
