"""FID of a minibatch as a loss: a Gaussian generator with one parameter, the scale of its covariance.

The generator is N(0, s C), the data N(0, C): s = 1 is perfect. With c_m = E tr sqrt(C_m C) over batches of m images,
E FID_m(s) = s t (1 + 1/m) + t - 2 sqrt(s) c_m, t = tr C, so minibatch FID is least at s = (c_m / (t (1 + 1/m)))^2 < 1.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from fedgen.experiments.engine.study import Choice, at_least, make_table, panels, quickly
from fedgen.losses import BatchMoments, EMAMoments, FastFIDLoss, FeatureLoss, MMD2Loss, QueueMoments
from fedgen.progress import track
from fedgen.seeds import generator
from fedgen.statistics import Gaussian

FORMS = ("batch", "queue", "ema", "mmd2")
LABELS = {"batch": "FID of the batch", "queue": "FID of a queue", "ema": "FID of an EMA", "mmd2": "MMD², unbiased"}
COLOURS = {"batch": "#c4560b", "queue": "#1f5fa8", "ema": "#3a8a3a", "mmd2": "#7a4fa0"}
MARKERS = {"batch": "o", "queue": "o", "ema": "s", "mmd2": "^"}
REFERENCES = 4000  # images that MMD^2 compares with
RATE = 0.02  # Adam's, at first
DRAWS = 50  # batches whose mean FID is a perfect generator's score


@quickly(batch_sizes=lambda sizes: sizes[:3], steps=200)
def minibatch_bias(
    dim: int = 64,
    batch_sizes: tuple[int, ...] = (16, 32, 64, 128, 256, 512),
    steps: int = 1500,
    queue: int = 2000,
    decay: float = 0.98,
    **options: Any,
) -> None:
    """Trains the scale by each form of the loss and batch size; prints where it ends and what theory says of the first.

    Args:
        dim: features D; the covariance's spectrum falls as 1 / k.
        batch_sizes: images of a batch; the first three with --quick.
        steps: gradient steps; at most 200 with --quick.
        queue: images of the queue.
        decay: of the EMA, a step.
    """
    choice = Choice(**options)
    at_least(1, dim=dim, steps=steps)
    at_least(2, batch_sizes=batch_sizes)
    own = {"dim": dim, "batch_sizes": batch_sizes, "steps": steps, "queue": queue, "decay": decay}
    study = choice.study("minibatch-bias", **own)
    numbers = study.step("scales", lambda: measure(dim, batch_sizes, steps, queue, decay, choice.seed))
    study.report([table_of(numbers)], draw(numbers, study.figure))


def measure(
    dim: int, batch_sizes: tuple[int, ...], steps: int, queue: int, decay: float, seed: int
) -> dict[str, dict[str, list[float]]]:
    deviations = torch.arange(1, dim + 1, dtype=torch.float64).rsqrt()
    found: dict[str, dict[str, list[float]]] = {"scale": {form: [] for form in FORMS}}
    found |= {"theory": {"batch": []}, "perfect": {"batch": []}, "batch_size": {"m": list(map(float, batch_sizes))}}
    jobs = [(size, form) for size in batch_sizes for form in FORMS]
    for size, form in track(jobs, "training a scale", total=len(jobs), unit="runs"):
        draws = generator(seed, "minibatch-bias", size)  # the same images for every form
        loss = make_loss(form, deviations, queue, decay, seed)
        found["scale"][form].append(train_scale(loss, deviations, size, steps, draws))
        if form == "batch":
            with torch.no_grad():
                shape = size, dim
                batches = (torch.randn(*shape, generator=draws, dtype=torch.float64) for _ in range(DRAWS))
                perfect = sum(float(loss(batch * deviations)) for batch in batches) / DRAWS
            found["perfect"]["batch"].append(perfect)
            found["theory"]["batch"].append(least_scale(perfect, float(deviations.square().sum()), size))
    return found


def make_loss(form: str, deviations: Tensor, queue: int, decay: float, seed: int) -> FeatureLoss:
    """One form of the loss against N(0, diag(deviations^2)): exactly for FID, by a sample for MMD^2."""
    dim = len(deviations)
    if form == "mmd2":
        sample = torch.randn(REFERENCES, dim, generator=generator(seed, "references"), dtype=torch.float64)
        return MMD2Loss().set_references([sample * deviations])
    moments = {"batch": BatchMoments, "queue": lambda: QueueMoments(queue), "ema": lambda: EMAMoments(decay)}[form]()
    count = 10.0 * dim  # any: the scatter is made for the loss's divisor, so that the covariance is C
    scatter = (count - 1) * deviations.square().diag()
    data = Gaussian(count, torch.zeros(dim, dtype=torch.float64), scatter=scatter)
    return FastFIDLoss(moments).set_references([data])


def descend(parameters: Tensor, steps: int, loss: Callable[[], Tensor]) -> Iterator[None]:
    """Takes steps of Adam, one an item."""
    optimizer = torch.optim.Adam([parameters], lr=RATE)
    # falling to 0, as the moments of a queue lag behind by its length: at a constant rate the scale swings around
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        schedule.step()
        yield


def train_scale(loss: FeatureLoss, deviations: Tensor, size: int, steps: int, draws: torch.Generator) -> float:
    """The scale s of the generator N(0, s C) that Adam reaches from s = 1 / 2: its mean over the last tenth."""
    log_scale = torch.tensor(math.log(0.5), dtype=torch.float64, requires_grad=True)

    def value() -> Tensor:
        noise = torch.randn(size, len(deviations), generator=draws, dtype=torch.float64)
        return loss((log_scale / 2).exp() * noise * deviations)

    reached = [float(log_scale.detach().exp()) for _ in descend(log_scale, steps, value)]
    last = reached[-max(1, steps // 10) :]
    return sum(last) / len(last)


def least_scale(perfect: float, trace: float, size: int) -> float:
    """The scale s where E FID_m(s) is least, from its value at s = 1, t (2 + 1/m) - 2 c_m."""
    root = (trace * (2 + 1 / size) - perfect) / 2
    return (root / (trace * (1 + 1 / size))) ** 2


def table_of(numbers: dict[str, dict[str, list[float]]]) -> Table:
    columns = [numbers["theory"]["batch"], *(numbers["scale"][form] for form in FORMS), numbers["perfect"]["batch"]]
    sizes = (f"{size:.0f}" for size in numbers["batch_size"]["m"])
    rows = [[size, *(f"{cell:.3f}" for cell in cells)] for size, *cells in zip(sizes, *columns)]
    headings = ["m", "theory, batch", *(LABELS[form] for form in FORMS), "FID_m of a perfect generator"]
    title = "scale of the generator's covariance that each loss leads to; 1 is right"
    return make_table(title, headings, rows, names=())


def draw(numbers: dict[str, dict[str, list[float]]], path: Path) -> Path:
    sizes = numbers["batch_size"]["m"]
    with panels(path, (10, 3.8), 1, 2) as (_, ((left, right),)):
        left.axhline(1, color="0.5", linewidth=1)
        theory = numbers["theory"]["batch"]
        left.plot(sizes, theory, color=COLOURS["batch"], linestyle="--", label="its minimum in theory")
        for form in FORMS:
            # one that lies upon another shows it through
            look = {"linestyle": "none"} if form == "batch" else {"linewidth": 1.2, "markerfacecolor": "none"}
            look |= {"color": COLOURS[form], "marker": MARKERS[form], "label": LABELS[form]}
            left.plot(sizes, numbers["scale"][form], **look)
        left.set(ylabel="scale of the generator's covariance", ylim=(0, 1.2))
        left.legend(fontsize=8)
        right.plot(sizes, numbers["perfect"]["batch"], color=COLOURS["batch"], marker="o")
        right.set(ylabel="FID of a batch, perfect generator", ylim=(0, None))
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [f"{size:.0f}" for size in sizes])
            axes.set_xlabel("images of a batch")
    return path
