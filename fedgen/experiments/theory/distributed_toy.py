"""FID and KID as losses of a Gaussian generator over two clients' messages, where the optima are known.

Clients N((-1, 0), I) and N((+1, 0), I), a generator x = mean + sd z in the plane. FID needs the clients' counts,
sums and sums of outer products, once: for "all" their total alone, for "avg" each client's. KID needs a kernel between
each point and each generated one, for which the clients' points stand beside the generator, a simulation.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from fedgen.experiments.engine.arm_panels import REAL, ArmPanel, draw_panels
from fedgen.experiments.engine.paired_seeds import mean_and_spread
from fedgen.experiments.engine.study import Numbers, expectation, make_table
from fedgen.experiments.theory.gaussian_toy import draw_clients
from fedgen.losses import FastFIDLoss, MMD2Loss, QueueMoments
from fedgen.seeds import generator
from fedgen.statistics import Message, add, gaussian_from_message, gaussian_to_sums, summarize

OBJECTIVES = ("fid_all", "fid_avg", "kid_all", "kid_avg")
COLOURS = {"fid_all": "#1f5fa8", "fid_avg": "#c4560b", "kid_all": "#3a8a3a", "kid_avg": "#7a4fa0"}
LINES = {"fid_all": "-", "fid_avg": "-", "kid_all": "-", "kid_avg": (0, (4, 3))}  # KID's two lines are one
OPTIMA = {"fid_all": 2.0, "fid_avg": 1.0, "kid_all": 2.0, "kid_avg": 2.0}  # variance along x: `scores.theory`
TOLERANCE = 0.1  # of these, as clients are drawn
ROUNDING = 1e-6  # relative difference of values, or gradients, that rounding may make
START = (0.5, 0.5, 0.5, 0.5)  # mean x, mean y, sd x, sd y
RATE = 0.02  # Adam's, at first
SHOWN = 120  # points of a trajectory that are kept

Objective = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ToySettings:
    """Options for training the toy's generator."""

    points: int = 50_000  # of each client whose moments are sent
    kernel_points: int = 4000  # of each client that a kernel meets
    batch: int = 512  # generated points of a step
    queue: int = 4096  # generated points whose moments count; one batch alone would shrink the generator
    steps: int = 600  # of Adam, at a rate that falls to zero


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
    """The variance along x on the way by objective, the end's parameters (of the last tenth), and what was sent."""
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


def name_of(objective: str) -> str:
    return objective.upper().replace("_ALL", "-all").replace("_AVG", "-avg")


def toy_table(toy: Numbers) -> Table:
    headings = (
        "objective",
        "optimum of the variance along x",
        "reached",
        "variance along y (1)",
        "mean x (0)",
        "y (0)",
    )
    rows = []
    for name in OBJECTIVES:
        mean_x, mean_y, along_x, along_y = map(mean_and_spread, zip(*(run["end"][name] for run in toy.values())))
        rows.append((name_of(name), f"{OPTIMA[name]:g}", along_x, along_y, mean_x, mean_y))
    sent = next(iter(toy.values()))["bytes"]
    note = f"what a client sends for FID, once: {sent} bytes; for KID its points stand beside the generator"
    title = f"Gaussian toy, mean ± standard deviation of {len(toy)} seed(s)"
    return make_table(title, headings, rows, note)


def toy_outcomes(toy: Numbers) -> list[str]:
    reached = {name: statistics.mean(run["end"][name][2] for run in toy.values()) for name in OBJECTIVES}
    lines = [
        expectation(
            f"{name_of(name)} leads to the variance {reached[name]:.3f}, its optimum is {OPTIMA[name]:g}",
            abs(reached[name] - OPTIMA[name]) < TOLERANCE,
        )
        for name in OBJECTIVES
    ]
    worst = max(run["kid gradients"] for run in toy.values())
    text = f"the mean of the gradients of the clients' own KIDs is that of KID-all, within {worst:.1e}"
    return [*lines, expectation(text, worst < ROUNDING)]


def draw_toy(toy: Numbers, path: Path) -> Path:
    """The generator's variance along x against steps of training: each seed, and their mean; lines at the optima."""
    steps = next(iter(toy.values()))["steps"]
    arms = {
        name_of(name): dict(zip(steps, zip(*(run["variance"][name] for run in toy.values())))) for name in OBJECTIVES
    }
    optima = {
        f"optimum of {', '.join(name_of(name) for name in OBJECTIVES if OPTIMA[name] == optimum)}": [optimum]
        for optimum in sorted(set(OPTIMA.values()))
    }
    panel = ArmPanel(arms, optima, label="variance of the generator along x", bottom=0)
    styles = {name_of(name): {"color": COLOURS[name], "linestyle": LINES[name]} for name in OBJECTIVES}
    title = "Two clients N((±1, 0), I), one Gaussian generator"
    return draw_panels([[panel]], styles | dict.fromkeys(optima, REAL), path, title, "steps of training", (6.4, 4))
