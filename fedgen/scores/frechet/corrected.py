"""The Fréchet distance without the bias of few images: populations' trace of sqrt(C_1 C_2) from sample covariances.

FID of n images in D dimensions is too large where n is not far above D, at a client more than at the pool. Tiomoko and
Couillet (2019, "Random Matrix-Improved Estimation of the Wasserstein Distance between two Centered Gaussian
Distributions", arXiv 1903.03447) estimate the trace consistently as D and n grow together. With l the r positive
eigenvalues of C_1 C_2, N_a = n_a - 1 and
    psi_a(z) = 1 - (1 / N_a) sum_i l_i / (l_i - z),    S(z) = sqrt(z psi_2(z) / psi_1(z)),
their integral, once by parts, is
    T = -(2 N_2 / 2 pi i) contour integral of S psi_2' / psi_2 dz,
around all l and all zeros of psi_a, and with it the distance
    |mu_1 - mu_2|^2 + (1 - 1 / n_1) tr C_1 + (1 - 1 / n_2) tr C_2 - 2 T.
The contour is z = exp(a + b cos t + 2i sin t), whose real range begins at l_min (1 - r / min(N_1, N_2)) / 2, below all
zeros: 100 points of its upper half give ten digits. Where r >= min(N_1, N_2) there is none: n >= r + 2 is needed.

It assumes x = C^(1/2) z with independent z, and independent sets: copies of training images among the generated ones
lower it. Of real images that occur twice the effective number 1 / sum_j v_j^2 of their shares v counts. A generator's
images are draws, and all count: one that repeats itself is far from the clients, and not a small sample of another.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from fedgen.scores.aggregate import FederatedScore
from fedgen.seeds import generator
from fedgen.statistics.gaussian import CHUNK, Gaussian

Bias = Literal["plug-in", "corrected"]
POINTS = 200  # of the whole contour
CELLS = 2**21  # of points and eigenvalues held at once, complex
ALIKE = 1e-5  # of a standard deviation: an image embedded in two batches differs by rounding


def check_bias(bias: str, ddof: float) -> None:
    """Raise ValueError for another word, or a corrected distance with another divisor than n - 1."""
    if bias not in get_args(Bias):
        raise ValueError(f"bias must be one of {', '.join(get_args(Bias))}, got {bias!r}")
    if bias == "corrected" and ddof != 1:
        raise ValueError(f"the corrected distance is of covariances with divisor n - 1: leave ddof={ddof!r} out")


@dataclass(frozen=True, eq=False)
class ImageCounts:
    """The numbers of images of two sides of distances: n, and of these effectively different ones.

    Args:
        counts: n of each distribution, of which covariances are n / (n - 1) times those of the images.
        different: the number that counts of them: the effective one of different images.
        other: both of the other side; a generator's images all count.
        names: of the distributions, for messages; that of the other side is the last.
        unlike: how many of the other side's images are different, for a note.
    """

    counts: Sequence[float]
    different: Sequence[float]
    other: tuple[float, float]
    names: Sequence[str]
    unlike: float = math.inf

    def traces(self, members: Sequence[int], values: Tensor, slopes: bool = False) -> tuple[Tensor, Tensor]:
        """T float64 [k] of some distributions, and the slopes dT / dl [k, r] if asked for.

        Args:
            members: places of the distributions.
            values: eigenvalues l of C_i C, ascending float64 [k, r].
            slopes: whether they are asked for.

        Raises:
            FewImagesError: for a set of fewer than r + 2 images, r of l being positive.
        """
        counted = torch.where(values > values[:, -1:] * values.shape[1] * torch.finfo(values.dtype).eps, values, 0.0)
        ranks = (counted > 0).sum(1).tolist()
        first = [
            _used(self.counts[member], self.different[member], rank, self.names[member])
            for member, rank in zip(members, ranks)
        ]
        second = _used(*self.other, max(ranks, default=0), self.names[-1])
        factors = [
            _factor(self.counts[member], used) * _factor(self.other[0], second) for member, used in zip(members, first)
        ]
        scale = torch.tensor(factors, dtype=values.dtype).unsqueeze(1)
        traces, found = corrected_traces(
            counted * scale, torch.tensor(first, dtype=values.dtype) - 1, second - 1, slopes
        )
        return traces, found * scale

    def terms(
        self, members: Sequence[int], traces: Tensor, shifts: Tensor, spreads: Tensor, other: Tensor
    ) -> dict[str, Tensor]:
        """The terms [k] {"mean", "covariance"} of corrected distances, of traces T, and those of covariances."""
        few = [1 / max(self.different[member] - 1, 1.0) for member in members]
        mean = shifts - spreads * torch.tensor(few, dtype=shifts.dtype) - other / max(self.other[1] - 1, 1.0)
        return {"mean": mean, "covariance": shifts + spreads + other - 2 * traces - mean}

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each side whose images occur twice."""
        clients = len(self.names) - 2  # beside the pool and the other side
        twice = sum(different < count - 0.5 for count, different in zip(self.counts[:clients], self.different))
        found = [f"images of {twice} of {clients} clients occur twice, and count once"] if twice else []
        if self.unlike < self.other[0] - 0.5:
            found.append(f"of {self.other[0]:,.0f} generated images about {self.unlike:,.0f} are different")
        return tuple(found)


class FewImagesError(ValueError):
    """A set has fewer images than the corrected distance needs.

    Args:
        name: of the set.
        count: its images.
        rank: r, the directions in which the features vary.
        client: its number, of a client's.
        least: the images that it needs; r + 2 by default.
    """

    def __init__(self, name: str, count: float, rank: int, client: int | None = None, least: int | None = None) -> None:
        super().__init__(name, count, rank, client, least)  # all of them, so that it can be sent to another process

    def of_client(self, names: Sequence[str], numbers: Sequence[int] | None = None) -> "FewImagesError":
        """The same with the client's name, and its number among more clients if these are given."""
        name, count, rank, client, least = self.args
        if client is None:
            return self
        named = f"{names[client]}{name.removeprefix(f'client {client}')}"
        return FewImagesError(named, count, rank, numbers[client] if numbers else client, least)

    def __str__(self) -> str:
        name, count, rank, _, least = self.args
        least = least or rank + 2
        fewer = ", in a run score fidc_d64 (in 64 directions)" if rank > 64 else ""
        return (
            f"{name} has {count:,.12g} images, and the distance corrected for few images needs at least {least:,} in"
            f" {rank:,} directions of features, better {max(least, math.ceil(1.2 * rank)):,}: take more images{fewer},"
            " or score kid"
        )


def _used(count: float, different: float, rank: int, name: str) -> float:
    """The number of images that stands for a set's: of different ones, but r + 2 where these are fewer."""
    if count < rank + 2:
        raise FewImagesError(name, count, rank)
    return max(different, rank + 2.0)


def check_client(summary: Gaussian, client: int, without: str = "") -> None:
    """Raise FewImagesError for a client that no generated set can be compared with."""
    if summary.count >= summary.dim + 2:
        return
    rows = summary.deviations
    values = torch.linalg.eigvalsh(summary.covariance() if rows is None else rows @ rows.T)
    rank = int((values > values[-1].clamp(min=0) * len(values) * torch.finfo(values.dtype).eps).sum())
    if summary.count < rank + 2:  # more images would vary in more directions, up to D
        raise FewImagesError(f"client {client}{without}", summary.count, summary.dim, client)


def _factor(count: float, used: float) -> float:
    """The factor that makes a covariance with divisor n - 1 one of so many images."""
    return (count - 1) / count * used / (used - 1)


def with_alarm(score: FederatedScore) -> FederatedScore:
    """The score with a note if a value is so far below 0 that chance does not explain it."""
    far = [f"{score.name}_{how}" for how in ("avg", "all") if score.values[how] < -2 * score.errors.get(how, math.inf)]
    if not far:
        return score
    said = f"{' and '.join(far)} below 0 by more than 2 errors: generated images may be copies of these real ones"
    return replace(score, notes=(*score.notes, f"{said}, as membership audits tell (fedgen audit)"))


def corrected_traces(values: Tensor, first: Tensor, second: float, slopes: bool = False) -> tuple[Tensor, Tensor]:
    """T float64 [k], and dT / dl float64 [k, r], which is 1 / (2 sqrt(l)) where there is no bias; zeros if not asked.

    Args:
        values: the eigenvalues of C_i C float64 [k, r], 0 for those that are none.
        first: N_i float64 [k], each above the number of positive eigenvalues in its row.
        second: N of the other side, likewise.
        slopes: whether they are asked for.
    """
    traces, found = torch.zeros_like(first), torch.zeros_like(values)
    some = (values > 0).any(1).nonzero().squeeze(1)
    for rows in some.split(max(1, CELLS // (POINTS * max(values.shape[1], 1)))) if len(some) else ():
        traces[rows], found[rows] = _around(values[rows], first[rows], second, slopes)
    return traces, found


def _around(values: Tensor, first: Tensor, second: float, slopes: bool) -> tuple[Tensor, Tensor]:
    """The integrals along the upper half of the contour; the lower half is its mirror image."""
    counted = values > 0
    ranks, highest = counted.sum(1), values.amax(1)
    lowest = torch.where(counted, values, highest.unsqueeze(1)).amin(1)
    low = lowest * (1 - ranks / first.clamp(max=second)) / 2
    centre, reach = (1.5 * highest * low).log() / 2, (1.5 * highest / low).log() / 2
    angles = (torch.arange(POINTS // 2, dtype=values.dtype) + 0.5) * (2 * math.pi / POINTS)
    logs = torch.complex(
        centre.unsqueeze(1) + reach.unsqueeze(1) * angles.cos(), 2 * angles.sin().expand(len(values), -1)
    )
    steps = torch.complex(-reach.unsqueeze(1) * angles.sin(), 2 * angles.cos().expand(len(values), -1))
    points = logs.exp()  # [k, p]
    moves = points * steps * (2 * math.pi / POINTS)  # dz
    away = 1 / (values.unsqueeze(1) - points.unsqueeze(2))  # [k, p, r]
    sums = (values.unsqueeze(1) * away).sum(2)
    falls = -(values.unsqueeze(1) * away.square()).sum(2)
    one, other = 1 - sums / first.unsqueeze(1), 1 - sums / second  # psi_1, psi_2
    fall = falls / second / other  # psi_2' / psi_2
    ratio = other / one
    turns = torch.diff(ratio.angle(), prepend=torch.zeros_like(centre).unsqueeze(1))
    phase = (turns - 2 * math.pi * (turns / (2 * math.pi)).round()).cumsum(1)  # goes on from 0 at the right end
    roots = torch.polar((points * ratio).abs().sqrt(), (logs.imag + phase) / 2)  # S
    traces = -(2 * second / math.pi) * (roots * fall * moves).imag.sum(1)
    if not slopes:
        return traces, torch.zeros_like(values)
    inner = fall / (first.unsqueeze(1) * one) + (1 / points - falls / first.unsqueeze(1) / one) / (second * other)
    parts = (roots * inner * moves * points).unsqueeze(2) * away.square()
    return traces, torch.where(counted, (second / math.pi) * parts.imag.sum(1), 0.0)


def effective_count(marks: Tensor, shares: Tensor | None = None) -> float:
    """1 / sum_j v_j^2 of the shares v_j of different images: n if none occurs twice.

    Args:
        marks: of the images [n, 3]; see `marks_of`.
        shares: of the images [n], summing to 1; 1 / n each by default.
    """
    if shares is None:
        shares = torch.full((len(marks),), 1 / len(marks), dtype=torch.float64)
    return 1 / float(torch.bincount(first_places(marks), weights=shares).square().sum())


def first_places(marks: Tensor) -> Tensor:
    """The place of each image's first occurrence, int64 [n]: 0 .. n - 1 if none occurs twice; of marks [n, 3]."""
    order = marks[:, 0].argsort()
    gaps = (marks[order].diff(dim=0).abs() > ALIKE * marks.std(0, correction=0)).any(1)
    groups = torch.cat([gaps.new_zeros(1), gaps]).cumsum(0)
    firsts = torch.full((len(marks),), len(marks)).scatter_reduce(0, groups, order, "amin")
    return torch.empty_like(order).scatter(0, order, firsts[groups])


def marks_of(features: Tensor) -> Tensor:
    """Three numbers of each image, float64 [n, 3], by which those that occur twice are found: in random directions."""
    directions = torch.randn(features.shape[1], 3, generator=generator(0, "marks"), dtype=torch.float64)
    return torch.cat([part.detach().cpu().double() @ directions for part in features.split(CHUNK)])


def few_images(name: str, dim: int, generated: float | None, clients: Sequence[float | None]) -> str:
    """A line that says which sets have fewer images than features; "" if none has."""
    known = [count for count in clients if count is not None]
    few = [count for count in known if count < dim]
    parts = []
    if few:
        several = f"{len(few):,} of {len(clients):,} clients (the smallest has {min(few):,.12g})"
        parts.append(f"{few[0]:,.12g} real" if len(clients) == 1 else several)
    if few and 1 < len(known) == len(clients) and sum(known) < dim:
        parts.append(f"their pool of {sum(known):,.12g}")
    if generated is not None and generated < dim:
        parts.append(f"{generated:,.12g} generated")
    if not parts:
        return ""
    return (
        f"{name} is biased upwards, as there are fewer samples than features ({dim:,}): {', '.join(parts)}. Compare by"
        " kid, or at equal numbers of samples"
    )
