"""The ODE of a flow from noise to images: solvers, drawing along it, and densities."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from scipy.integrate import RK45
from torch import Tensor

from fedgen.models.diffusion.diffusion_process import Predict
from fedgen.models.require import require
from fedgen.models.sampling import batches_of
from fedgen.progress import track
from fedgen.seeds import generator

# (times [n], states [n, D], which of all examples they are, int64 [n]) -> their derivatives [n, D]
Field = Callable[[Tensor, Tensor, Tensor], Tensor]

# Dormand & Prince 1980, as scipy keeps them: stages by rows, the fifth order's weights, and the error's
_NODES, _STAGES = RK45.C.tolist(), [row[:number].tolist() for number, row in enumerate(RK45.A)]
_WEIGHTS, _ERRORS = RK45.B.tolist(), RK45.E.tolist()
_SAFETY, _LEAST, _MOST, _ORDER = 0.9, 0.2, 10.0, 4
_SHORTEST = 1e-6  # step: shorter ones are of a field that jumps, or is rounded more coarsely than was asked for


def integrate_fixed(
    field: Field, states: Tensor, solver: Literal["euler", "heun"], times: Sequence[float], euler_to_one: bool = False
) -> Tensor:
    """States [N, D] at the last of the given times by a step from each to the next."""
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
    field: Field, states: Tensor, rtol: float, atol: float, backward: bool = False, parts: Sequence[int] | None = None
) -> Tensor:
    """States [N, D] at the end of [0, 1], or from 1 to 0, by Dormand & Prince's pair; NaN where not finite."""
    # each example takes steps by its own error (Hairer, Norsett & Wanner 1993, section II.4): the largest root mean
    # square of groups of entries, of the sizes in `parts`, so that few entries count beside many
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
        refused = lengths[left[~taken]]
        if len(refused) and float(refused.min()) < _SHORTEST:
            raise ValueError(
                f"rtol={rtol}, atol={atol}: steps fell below {_SHORTEST} of the way, as the velocity jumps or is"
                " rounded more coarsely than that; take larger tolerances, or a solver of fixed steps"
            )
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


TIMESTEPS = 1000.0  # that time 1 is for a network, whose embedding tells whole numbers apart

FlowSolver = Literal["euler", "heun", "dopri5"]
STEPS: dict[str, int | None] = {"euler": 50, "heun": 25, "dopri5": None}


@dataclass(frozen=True)
class FlowSampler:
    """Options for following a flow from noise to images.

    Args:
        solver: "euler" (first order), "heun" (second order) or "dopri5" (Dormand & Prince, orders 5 and 4), whose steps
            are as long as the tolerances let them, for each image by itself. All are deterministic.
        steps: how many; 50 and 25 by default. Heun's evaluates the network twice. None for "dopri5".
        rtol: relative tolerance of a step of "dopri5".
        atol: absolute tolerance of a step of "dopri5".
        guidance: scale w of classifier-free guidance: velocities are any + w (class - any).
        denoise: whether the last step of "heun" is Euler's, which leads to the mean of the images that the network
            expects, as the last one of Algorithm 1 of Karras et al. 2022 does. At t = 1 itself a network of short
            training has velocities of noise alone. "euler" does so anyway, "dopri5" cannot.
        shift: how much shorter steps are near noise than near images: the noise left after each is
            shift s / (1 + (shift - 1) s) for s of equal steps (Esser et al. 2024, arXiv 2403.03206, Eq. 23, where it is
            sqrt(m / n)). 1 makes all steps of one length; not for "dopri5".

    Raises:
        ValueError: for an unknown solver or one that takes no such option, or numbers that are not positive.
    """

    solver: FlowSolver = "heun"
    steps: int | None = None
    rtol: float = 1e-5
    atol: float = 1e-5
    guidance: float = 1.0
    denoise: bool = False
    shift: float = 1.0

    def __post_init__(self) -> None:
        require(self.solver in STEPS, f"solver={self.solver!r}: choose {', '.join(map(repr, STEPS))}")
        require(self.steps is None or self.steps >= 1, f"steps={self.steps}: an image takes at least one step")
        require(
            self.steps is None or self.solver != "dopri5",
            f"steps={self.steps}: 'dopri5' chooses its own; set rtol and atol, or another solver",
        )
        require(
            not self.denoise or self.solver != "dopri5",
            "denoise=True: 'dopri5' ends by its own steps; choose 'heun', or leave denoise out",
        )
        require(
            0 < self.shift < math.inf, f"shift={self.shift}: it is positive and finite; 1 makes steps of one length"
        )
        require(
            self.shift == 1 or self.solver != "dopri5",
            f"shift={self.shift}: 'dopri5' chooses its own steps; leave shift out, or choose another solver",
        )
        require(min(self.rtol, self.atol) > 0, f"rtol={self.rtol}, atol={self.atol}: tolerances are positive")

    def changed(
        self,
        solver: FlowSolver | None = None,
        steps: int | None = None,
        guidance: float | None = None,
        rtol: float | None = None,
        atol: float | None = None,
        denoise: bool | None = None,
        shift: float | None = None,
    ) -> "FlowSampler":
        """This one with what is not None in its place; another solver brings its own number of steps."""
        kept = self.steps if solver in (None, self.solver) else None
        if solver == "dopri5":  # which has neither, unless it is told to and refuses
            denoise, shift = denoise or False, 1.0 if shift is None else shift
        given = {"solver": solver, "guidance": guidance, "rtol": rtol, "atol": atol, "denoise": denoise, "shift": shift}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return replace(self, steps=kept if steps is None else steps, **changes)

    def require_tolerances(self, dtype: torch.dtype) -> None:
        """Raises ValueError for tolerances of "dopri5" that rounding in a dtype exceeds."""
        least = torch.finfo(dtype).eps
        require(
            self.solver != "dopri5" or max(self.rtol, self.atol) >= least,
            f"rtol={self.rtol}, atol={self.atol}: {str(dtype).removeprefix('torch.')} rounds more coarsely; give one of"
            f" at least {least:.1e}, or ask a copy of the module in float64 for likelihoods (model.double())",
        )

    @property
    def num_steps(self) -> int:
        """Steps of a solver of fixed ones."""
        return self.steps or STEPS[self.solver] or 0

    @property
    def times(self) -> list[float]:
        """Times at which steps of a solver of fixed ones begin, from 0, and 1 at the end."""
        equal = torch.linspace(0, 1, self.num_steps + 1, dtype=torch.float64)[:-1].tolist()
        return [*(time / (self.shift - (self.shift - 1) * time) for time in equal), 1.0]

    def solve(self, field: Field, states: Tensor, backward: bool = False, parts: tuple[int, ...] = ()) -> Tensor:
        """States [N, D] at t = 1 of those at t = 0, or the other way; in groups of `parts` entries."""
        if self.solver == "dopri5":
            return integrate_adaptive(field, states, self.rtol, self.atol, backward, parts or None)
        times = self.times[::-1] if backward else self.times
        return integrate_fixed(field, states, self.solver, times, self.denoise)


def flow_field(predict: Predict, shape: tuple[int, ...], first: int) -> Field:
    """The velocities of flattened images [n, D] by a network that is asked at 1000 t."""

    def field(times: Tensor, states: Tensor, who: Tensor) -> Tensor:
        return predict(states.unflatten(1, shape), TIMESTEPS * times, first + who).flatten(1).to(states)

    return field


def in_parts(points: Tensor, batch_size: int, work: Callable[[slice], Tensor], words: str) -> Tensor:
    """The results [N, ...] of slices of points [N, ...], in order."""
    slices = batches_of(len(points), batch_size)
    return torch.cat([work(part) for part in track(slices, words, total=len(slices), unit="batches")])


@torch.no_grad()
def follow(predict: Predict, latents: Tensor, sampler: FlowSampler, batch_size: int) -> Tensor:
    """Images or points [N, ...] at t = 1 of noise [N, ...] at t = 0; batches change nothing but rounding."""
    shape = tuple(latents.shape[1:])

    def solve(part: slice) -> Tensor:
        return sampler.solve(flow_field(predict, shape, part.start), latents[part].flatten(1))

    return in_parts(latents, batch_size, solve, "following the flow").unflatten(1, shape)


class LogDensity(NamedTuple):
    """Natural logarithms of densities, and what the draws of their estimate leave open."""

    value: Tensor  # float64 [N] on the CPU
    error: Tensor  # their standard errors over the probes, float64 [N]; 0 of an exact divergence


def draw_probes(count: int, probes: int, dim: int, seed: int, first: int = 0) -> Tensor:
    """Random signs float32 [count, probes, dim], those of example i by (seed, i)."""
    rows = [
        torch.randint(0, 2, (probes, dim), generator=generator(seed, "probes", first + place)) for place in range(count)
    ]
    return torch.stack(rows).float() * 2 - 1


def log_density(field: Field, points: Tensor, sampler: FlowSampler, probes: Tensor | None) -> LogDensity:
    """Log-densities of points [N, D] at t = 1 under a flow of standard normal points at t = 0; probes are [N, P, D]."""
    # log p_1(x_1) = log N(x_0) - the integral of div v(x_t, t), solved backwards together with x_t (Chen et al. 2018,
    # arXiv 1806.07366, Eq. 8); the divergence is Hutchinson's e^T (dv/dx) e, with the same probes e at all times
    # (Grathwohl et al. 2019, arXiv 1810.01367), or without probes exact: a derivative for each dimension
    dim, extra = points.shape[1], 1 if probes is None else probes.shape[1]
    start = torch.cat([points, points.new_zeros(len(points), extra)], dim=1)
    end = sampler.solve(_with_divergence(field, dim, probes), start, backward=True, parts=(dim, extra))
    normal = -(end[:, :dim].double().square().sum(1) + dim * math.log(2 * math.pi)) / 2
    found = normal[:, None] + end[:, dim:].double()
    error = torch.zeros_like(normal) if probes is None else found.std(1) / math.sqrt(extra)
    return LogDensity(found.mean(1).cpu(), error.cpu())


def _with_divergence(field: Field, dim: int, probes: Tensor | None) -> Field:
    """Velocities and divergences [n, D + P] of states [n, D + P]."""

    def both(times: Tensor, states: Tensor, who: Tensor) -> Tensor:
        with torch.enable_grad():
            points = states[:, :dim].detach().requires_grad_()
            velocity = field(times, points, who)
            traces = _exact(velocity, points) if probes is None else _estimated(velocity, points, probes[who])
        return torch.cat([velocity.detach(), traces], dim=1)

    return both


def _exact(velocity: Tensor, points: Tensor) -> Tensor:
    """Traces [n, 1] of the derivatives of velocities [n, D]."""
    dim = points.shape[1]
    rows = [torch.autograd.grad(velocity[:, k].sum(), points, retain_graph=k < dim - 1)[0][:, k] for k in range(dim)]
    return torch.stack(rows).sum(0)[:, None]


def _estimated(velocity: Tensor, points: Tensor, probes: Tensor) -> Tensor:
    """Estimates [n, P] of the same by probes [n, P, D]."""
    found = []
    for place, probe in enumerate(probes.to(velocity).unbind(1)):
        last = place == probes.shape[1] - 1
        found.append((torch.autograd.grad(velocity, points, probe, retain_graph=not last)[0] * probe).sum(1))
    return torch.stack(found, dim=1)
