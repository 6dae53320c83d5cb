"""Drawing images along the velocities of a flow."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedgen.models.diffusion.diffusion_sampling import Predict
from fedgen.models.diffusion.flow_path import TIMESTEPS
from fedgen.models.diffusion.ode import Field, integrate_adaptive, integrate_fixed
from fedgen.models.require import require
from fedgen.models.sampling import require_batch_size
from fedgen.progress import track

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
        ValueError: for an unknown solver, fewer than one step, steps, `denoise` or `shift` of "dopri5", or tolerances
            or a shift that are not positive.
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
        """States [N, D] at t = 1 of those at t = 0, or the other way; see `ode`."""
        if self.solver == "dopri5":
            return integrate_adaptive(field, states, self.rtol, self.atol, backward, parts or None)
        times = self.times[::-1] if backward else self.times
        return integrate_fixed(field, states, self.solver, times, self.denoise)


def flow_field(predict: Predict, shape: tuple[int, ...], first: int) -> Field:
    """The velocities of flattened images [n, D] by a network that is asked at 1000 t.

    Args:
        predict: the network.
        shape: of an image.
        first: the place among all images of the first that is asked about.
    """

    def field(times: Tensor, states: Tensor, who: Tensor) -> Tensor:
        return predict(states.unflatten(1, shape), TIMESTEPS * times, first + who).flatten(1).to(states)

    return field


def in_parts(points: Tensor, batch_size: int, work: Callable[[slice], Tensor], words: str) -> Tensor:
    """The results [N, ...] of slices of points [N, ...], in order.

    Raises:
        ValueError: for a batch size below 1.
    """
    require_batch_size(batch_size)
    slices = [slice(start, start + batch_size) for start in range(0, len(points), batch_size)]
    return torch.cat([work(part) for part in track(slices, words, total=len(slices), unit="batches")])


@torch.no_grad()
def follow(predict: Predict, latents: Tensor, sampler: FlowSampler, batch_size: int) -> Tensor:
    """Images or points [N, ...] at t = 1 of noise [N, ...] at t = 0.

    No image depends on another: `batch_size` changes nothing but the rounding of the network's batches, which may tip
    "dopri5" to other steps: its images are then as far apart as its error is large.

    Args:
        predict: the network.
        latents: standard normal, on the network's device.
        sampler: the solver.
        batch_size: images that the network gets at once.
    """
    shape = tuple(latents.shape[1:])

    def solve(part: slice) -> Tensor:
        return sampler.solve(flow_field(predict, shape, part.start), latents[part].flatten(1))

    return in_parts(latents, batch_size, solve, "following the flow").unflatten(1, shape)
