"""A Gaussian generator under each aggregate, trained on what clients send instead of their points.

Clients N((-1, 0), I) and N((+1, 0), I), a generator x = mean + sd z in the plane. FID needs the clients' counts, sums
and sums of outer products, once: for "all" their total alone, for "avg" each client's. KID needs a kernel between each
point and each generated one. Here the clients' points stand beside the generator for it, which is a simulation. That
KID-avg is here the mean of the scores that each client would compute for itself makes its gradient a check of theory:
it must be that of KID-all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgen.experiments.theory.gaussian_clients import draw_clients
from fedgen.losses import FastFIDLoss, MMD2Loss, QueueMoments
from fedgen.seeds import generator
from fedgen.statistics import Message, add, gaussian_from_message, gaussian_to_sums, summarize

OBJECTIVES = ("fid_all", "fid_avg", "kid_all", "kid_avg")
OPTIMA = {"fid_all": 2.0, "fid_avg": 1.0, "kid_all": 2.0, "kid_avg": 2.0}  # variance along x: `scores.theory`
START = (0.5, 0.5, 0.5, 0.5)  # mean x, mean y, sd x, sd y
RATE = 0.02  # Adam's, at first
SHOWN = 120  # points of a trajectory that are kept

Objective = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ToySettings:
    """Options for training the toy's generator.

    Args:
        points: of each client whose moments are sent.
        kernel_points: of each client that a kernel meets.
        batch: generated points of a step.
        queue: generated points whose moments count; one batch alone would shrink the generator.
        steps: of Adam, at a rate that falls to zero.
    """

    points: int = 50_000
    kernel_points: int = 4000
    batch: int = 512
    queue: int = 4096
    steps: int = 600


def sent(points: Sequence[Tensor]) -> list[bytes]:
    """Return what clients send for FID: one message each, its count, sum and sum of outer products."""
    return [gaussian_to_sums(summarize(part)).to_bytes() for part in points]


def frechet_objective(messages: Sequence[bytes], aggregate: str, queue: int) -> FastFIDLoss:
    """The server's FID loss, from messages: for "all" it looks at their sum alone."""
    received = [Message.from_bytes(message, "sums") for message in messages]
    known = [add(*received)] if aggregate == "all" else received
    loss = FastFIDLoss(QueueMoments(queue), "all" if aggregate == "all" else "avg")
    return loss.set_references([gaussian_from_message(message) for message in known])


def kernel_objective(points: Sequence[Tensor], aggregate: str) -> Objective:
    """KID to the pool, or the mean of the clients' own scores by their numbers of points, each computed by itself."""
    if aggregate == "all":
        return MMD2Loss(constant=False).set_references(list(points))
    singles = [MMD2Loss(constant=False).set_references([part]) for part in points]
    total = sum(map(len, points))

    def mean(generated: Tensor) -> Tensor:
        scores = [single(generated) * (len(part) / total) for single, part in zip(singles, points)]
        return torch.stack(scores).sum()

    return mean


def objectives(settings: ToySettings, seed: int) -> tuple[dict[str, Objective], int]:
    """The four objectives over one draw of the clients, and the bytes of a client's message."""
    points = [part.double() for part in draw_clients(settings.points, seed).parts()]
    messages = sent(points)
    few = [part[: settings.kernel_points] for part in points]
    made: dict[str, Objective] = {f"fid_{a}": frechet_objective(messages, a, settings.queue) for a in ("all", "avg")}
    return made | {f"kid_{a}": kernel_objective(few, a) for a in ("all", "avg")}, len(messages[0])


def train_toy(settings: ToySettings, seed: int) -> dict[str, Any]:
    """The variance along x on the way by objective, the end's parameters, and what was sent.

    Keys: "steps" (those that "variance" shows), "variance" (objective -> values), "end" (objective -> [mean x, mean y,
    variance x, variance y], means of the last tenth), "kid gradients" (largest relative difference of KID-avg's to
    KID-all's, at points of KID-all's path), "bytes" (a client's message).
    """
    found, size = objectives(settings, seed)
    paths = {name: descend(objective, settings, seed) for name, objective in found.items()}
    tail, every = max(1, settings.steps // 10), max(1, settings.steps // SHOWN)
    return {
        "steps": list(range(0, settings.steps + 1, every)),
        "variance": {name: path[::every, 2].tolist() for name, path in paths.items()},
        "end": {name: path[-tail:].mean(0).tolist() for name, path in paths.items()},
        "kid gradients": gradient_difference(found["kid_all"], found["kid_avg"], paths["kid_all"], settings, seed),
        "bytes": size,
    }


def descend(objective: Objective, settings: ToySettings, seed: int) -> Tensor:
    """Means and variances [steps + 1, 4] on the way; the same noise for every objective."""
    parameters = torch.tensor(START, dtype=torch.float64)
    parameters[2:] = parameters[2:].log()
    parameters.requires_grad_()
    optimizer = torch.optim.Adam([parameters], lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, settings.steps)
    draws = generator(seed, "distributed-toy", "noise")
    path = [_moments(parameters)]
    for _ in range(settings.steps):
        noise = torch.randn(settings.batch, 2, generator=draws, dtype=torch.float64)
        optimizer.zero_grad()
        objective(parameters[:2] + parameters[2:].exp() * noise).backward()
        optimizer.step()
        schedule.step()
        path.append(_moments(parameters))
    return torch.stack(path)


def gradient_difference(one: Objective, other: Objective, path: Tensor, settings: ToySettings, seed: int) -> float:
    """The largest relative difference of two objectives' gradients at ten generators of a path."""
    draws, worst = generator(seed, "distributed-toy", "gradients"), 0.0
    for moments in path[:: max(1, len(path) // 10)]:
        noise = torch.randn(settings.batch, 2, generator=draws, dtype=torch.float64)
        points = (moments[:2] + moments[2:].sqrt() * noise).requires_grad_()
        first, second = (torch.autograd.grad(objective(points), points)[0] for objective in (one, other))
        worst = max(worst, float((first - second).norm() / first.norm()))
    return worst


def _moments(parameters: Tensor) -> Tensor:
    mean, log_deviation = parameters.detach().split(2)
    return torch.cat([mean, (2 * log_deviation).exp()])
