"""Ordinary differential equations over [0, 1] for batches, each example on its own."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import torch
from scipy.integrate import RK45
from torch import Tensor

# (times [n], states [n, D], which of all examples they are, int64 [n]) -> their derivatives [n, D]
Field = Callable[[Tensor, Tensor, Tensor], Tensor]

# Dormand & Prince 1980, as scipy keeps them: stages by rows, the fifth order's weights, and the error's
_NODES, _STAGES = RK45.C.tolist(), [row[:number].tolist() for number, row in enumerate(RK45.A)]
_WEIGHTS, _ERRORS = RK45.B.tolist(), RK45.E.tolist()
_SAFETY, _LEAST, _MOST, _ORDER = 0.9, 0.2, 10.0, 4
_SHORTEST = 1e-6  # step: shorter ones are of a field that jumps, or is rounded more coarsely than was asked for


def integrate_fixed(
    field: Field,
    states: Tensor,
    solver: Literal["euler", "heun"],
    times: Sequence[float],
    euler_to_one: bool = False,
) -> Tensor:
    """States [N, D] at the last of the given times by a step from each to the next.

    Args:
        field: the derivatives.
        states: [N, D] at the first time.
        solver: "euler" (first order, a call of the field a step) or "heun" (second order, two calls).
        times: rising or falling.
        euler_to_one: whether a step that ends at 1 is Euler's, so that the field is not called there.
    """
    everyone = torch.arange(len(states), device=states.device)
    for now, after in pairwise(times):
        slope = field(states.new_full((len(states),), now), states, everyone)
        moved = states + (after - now) * slope
        if solver == "heun" and not (euler_to_one and after == 1):
            other = field(states.new_full((len(states),), after), moved, everyone)
            moved = states + (after - now) / 2 * (slope + other)
        states = moved
    return states


def integrate_adaptive(
    field: Field,
    states: Tensor,
    rtol: float,
    atol: float,
    backward: bool = False,
    parts: Sequence[int] | None = None,
) -> Tensor:
    """States [N, D] at the end of [0, 1] by Dormand & Prince's pair of orders 5 and 4; from 1 to 0 if backward.

    Each example takes steps of its own length, by its own error (Hairer, Norsett & Wanner 1993, section II.4), as if it
    were alone: the company that it is in changes nothing but the rounding of the field's batches. An example whose
    derivatives are not finite becomes NaN.

    Args:
        field: the derivatives.
        states: [N, D] at the start.
        rtol: bound of a step's error against the state.
        atol: bound of a step's error besides.
        backward: whether to go from 1 to 0.
        parts: sizes of groups of the D entries; the error is the largest of their root mean squares, so that few
            entries count beside many. One group by default.

    Raises:
        ValueError: if the tolerances would take steps of less than a millionth of the way.
    """
    sizes = list(parts or [states.shape[1]])
    sign = -1.0 if backward else 1.0
    states = states.clone()
    left = torch.arange(len(states), device=states.device)  # who is not at the end
    passed = states.new_zeros(len(states))  # of the way
    start = 1.0 if backward else 0.0

    def slope(at: Tensor, given: Tensor, who: Tensor) -> Tensor:
        return sign * field(start + sign * at, given, who)

    slopes = slope(passed, states, left)
    lengths = _first_lengths(slope, states, slopes, rtol, atol, sizes)
    again = torch.zeros(len(states), dtype=torch.bool, device=states.device)  # whose last step was refused
    while len(left):
        own, at = states[left], passed[left]
        last = lengths[left] >= 1 - at
        length = torch.where(last, 1 - at, lengths[left])
        moved, after, errors = _step(slope, at, own, slopes[left], length, left)
        size = _norm(errors / (atol + rtol * torch.maximum(own.abs(), moved.abs())), sizes)
        ends = ~size.isfinite()
        taken = (size < 1) | ends
        factor = (_SAFETY * size ** (-1 / (_ORDER + 1))).clamp(_LEAST, _MOST)
        factor = torch.where(again[left] | ~taken, factor.clamp(max=1.0), factor)
        who = left[taken]
        states[who] = torch.where(ends[taken, None], torch.nan, moved[taken])
        slopes[who] = after[taken]
        passed[who] = at[taken] + length[taken]
        lengths[left], again[left] = length * factor, ~taken
        _require_length(lengths[left[~taken]], rtol, atol)
        left = left[~(taken & (last | ends))]
    return states


def _step(
    slope: Field, at: Tensor, states: Tensor, first: Tensor, length: Tensor, who: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """States after a step, the slopes there, and the estimated errors, each [n, D]."""
    slopes, wide = [first], length[:, None]
    for node, weights in zip(_NODES[1:], _STAGES[1:]):
        inner = states + wide * _sum(weights, slopes)
        slopes.append(slope(at + node * length, inner, who))
    moved = states + wide * _sum(_WEIGHTS, slopes)
    slopes.append(slope(at + length, moved, who))
    return moved, slopes[-1], wide * _sum(_ERRORS, slopes)


def _sum(weights: Sequence[float], slopes: Sequence[Tensor]) -> Tensor:
    total = torch.zeros_like(slopes[0])
    for weight, one in zip(weights, slopes):
        if weight:
            total.add_(one, alpha=weight)
    return total


def _require_length(lengths: Tensor, rtol: float, atol: float) -> None:
    """Raises ValueError for steps that are too short."""
    if len(lengths) and float(lengths.min()) < _SHORTEST:
        raise ValueError(
            f"rtol={rtol}, atol={atol}: steps fell below {_SHORTEST} of the way, as the velocity jumps or is rounded"
            " more coarsely than that; take larger tolerances, or a solver of fixed steps"
        )


def _first_lengths(slope: Field, states: Tensor, slopes: Tensor, rtol: float, atol: float, sizes: list[int]) -> Tensor:
    """Lengths [N] of the first steps (Hairer, Norsett & Wanner 1993, section II.4)."""
    scale = atol + rtol * states.abs()
    position, speed = _norm(states / scale, sizes), _norm(slopes / scale, sizes)
    small = (position < 1e-5) | (speed < 1e-5)
    guess = torch.where(small, torch.full_like(speed, 1e-6), 0.01 * position / speed).clamp(max=1.0)
    everyone = torch.arange(len(states), device=states.device)
    changed = slope(guess, states + guess[:, None] * slopes, everyone) - slopes
    bend = torch.maximum(speed, _norm(changed / scale, sizes) / guess)
    other = torch.where(bend <= 1e-15, (guess * 1e-3).clamp(min=1e-6), (0.01 / bend) ** (1 / (_ORDER + 1)))
    return torch.minimum(100 * guess, other).clamp(max=1.0).nan_to_num(nan=1.0)


def _norm(values: Tensor, sizes: list[int]) -> Tensor:
    """The largest root mean square of each row's groups: [n] of [n, D]."""
    groups = values.split(sizes, dim=1)
    return torch.stack([group.norm(dim=1) / math.sqrt(group.shape[1]) for group in groups]).amax(0)
