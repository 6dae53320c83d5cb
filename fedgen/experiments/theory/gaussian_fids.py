"""FIDs of Gaussians: FD-avg as a distance to one Gaussian, when it is one, and FID of a minibatch as a loss.

The theorem of arXiv 2310.11714, FD-avg(G) = FD(barycentre, G) + constant, needs covariances that commute, the
generator's too; otherwise FD-avg is smaller. Beside it the corrected Proposition 1: two generators with equal FD to
every client, FD-all 0 and 2 t^2; the shift that is printed there does not make the clients' distances equal.

The loss trains a generator N(0, s C) on data N(0, C): s = 1 is perfect. With c_m = E tr sqrt(C_m C) over batches of m
images, E FID_m(s) = s t (1 + 1/m) + t - 2 sqrt(s) c_m, t = tr C, so it is least at s = (c_m / (t (1 + 1/m)))^2 < 1.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from fedgen.experiments.engine.study import Choice, at_least, expectation, make_table, panels
from fedgen.losses import BatchMoments, EMAMoments, FastFIDLoss, FeatureLoss, MMD2Loss, QueueMoments
from fedgen.progress import track
from fedgen.scores import frechet_distance, inversions, theory
from fedgen.seeds import generator
from fedgen.statistics import Gaussian

CASES = {  # what is drawn, and whose eigenvectors are shared: of the clients, of the generators
    "all commute": (True, True),
    "all but the generator's": (True, False),
    "none commute": (False, False),
}
LARGEST, SMALLEST = 2.75, 0.25  # eigenvalues are uniform between them
ROUNDING = 1e-9  # of FD-avg
FEDERATIONS = {"2, D=3": (2, 3), "3, D=6": (3, 6), "10, D=64": (10, 64)}  # clients and D of the counter-example
COLOURS = ("#1f5fa8", "#3a8a3a", "#c4560b")


def barycentre(draws: int = 200, generators: int = 10, clients: int = 3, dim: int = 6, **options: Any) -> None:
    """Draws federations of Gaussians and compares FD-avg with what the theorem makes of it, and so the ranking.

    Args:
        draws: federations of each case; 10 with --quick.
        generators: drawn for each federation, and ranked.
        clients: of each federation.
        dim: features D.
    """
    choice = Choice(**options)
    draws = choice.smaller(draws, 10)
    study = choice.study("barycentre", draws=draws, generators=generators, clients=clients, dim=dim)
    at_least(1, draws=draws)
    at_least(2, generators=generators, clients=clients, dim=dim)
    numbers, sizes, seed = {str(n): n for n in range(draws)}, (generators, clients, dim), choice.seed
    makers = {case: partial(decompose, case, sizes=sizes, seed=seed) for case in CASES}
    found = {case: study.each(case, numbers, make, "draws") for case, make in makers.items()}
    examples = study.each("counter-example", FEDERATIONS, lambda size: compare_shifts(*size, seed), "federations")
    tables: list[Table | str] = [*tables_of(found, examples), *outcomes(found, examples)]
    study.report(tables, draw(found, examples, study.figure))


def decompose(case: str, number: int, sizes: tuple[int, int, int], seed: int) -> dict[str, list[float]]:
    """FD-avg of each generator, the theorem's value for it, and their difference, for one federation."""
    generators, clients, dim = sizes
    random = generator(seed, "barycentre", case, number)
    shared = random_basis(dim, random)
    bases = [shared if same else None for same in CASES[case]]
    federation = [random_gaussian(dim, random, bases[0]) for _ in range(clients)]
    centre = theory.barycentre(federation, "uniform")
    made = [random_gaussian(dim, random, bases[1]) for _ in range(generators)]
    parts = [theory.barycentre_decomposition(federation, generated, "uniform", centre) for generated in made]
    return {
        "avg": [part["avg"] for part in parts],
        "theorem": [part["to_barycentre"] + part["spread"] for part in parts],
        "residual": [part["residual"] for part in parts],
    }


def random_basis(dim: int, random: torch.Generator) -> Tensor:
    """Orthonormal columns [D, D]."""
    return torch.linalg.qr(torch.randn(dim, dim, generator=random, dtype=torch.float64))[0]


def random_gaussian(dim: int, random: torch.Generator, basis: Tensor | None) -> Gaussian:
    """A normal mean, and eigenvalues uniform in [0.25, 2.75] along the columns of a basis, or of a random one."""
    axes = random_basis(dim, random) if basis is None else basis
    mean = torch.randn(dim, generator=random, dtype=torch.float64)
    values = SMALLEST + (LARGEST - SMALLEST) * torch.rand(dim, generator=random, dtype=torch.float64)
    covariance = (axes * values) @ axes.T
    return theory.population_gaussian(mean, (covariance + covariance.T) / 2)


def compare_shifts(clients: int, dim: int, seed: int) -> dict[str, Any]:
    """FD to the clients and to the pool of the pool itself, of the shift that equals it, and of the one printed."""
    random = generator(seed, "counter-example", clients, dim)
    means = torch.randn(clients, dim, generator=random, dtype=torch.float64)
    covariance = random_gaussian(dim, random, None).covariance(ddof=0)
    example = theory.counter_example(means, covariance)
    pool = example.matching
    direction = torch.nn.functional.normalize(example.shifted.mean - pool.mean, dim=0)
    between = float((pool.covariance(ddof=0) - covariance).trace())
    printed = theory.population_gaussian(pool.mean + between**0.5 * direction, covariance)
    found: dict[str, Any] = {"squared shift": example.squared_shift}
    for name, generated in (("pool", pool), ("shifted", example.shifted), ("printed", printed)):
        per_client = [frechet_distance(client, generated, ddof=0)[0] for client in example.clients]
        found[name] = {"clients": per_client, "all": frechet_distance(pool, generated, ddof=0)[0]}
    return found


def residuals(rows: Mapping[str, Mapping[str, list[float]]], relative: bool = False) -> list[float]:
    """FD-avg less the theorem's value, of every generator of every draw; as shares of FD-avg if `relative`."""
    return [r / (a if relative else 1) for row in rows.values() for r, a in zip(row["residual"], row["avg"])]


def misranked(rows: Mapping[str, Mapping[str, list[float]]]) -> tuple[int, int]:
    """Pairs of generators that FD-avg and the distance to the barycentre order differently, and pairs in all."""
    # the theorem's constant is one number for all generators of a draw
    wrong = sum(len(inversions(row["avg"], row["theorem"])) for row in rows.values())
    return wrong, sum(len(row["avg"]) * (len(row["avg"]) - 1) // 2 for row in rows.values())


def unequal(row: Mapping[str, Any], name: str) -> float:
    return max(abs(a - b) for a, b in zip(row["pool"]["clients"], row[name]["clients"]))


def outcomes(found: Mapping[str, Any], examples: Mapping[str, Any]) -> list[str]:
    largest = {case: max(map(abs, residuals(rows, relative=True))) for case, rows in found.items()}
    commute, *others = largest
    above = max(max(residuals(rows, relative=True)) for rows in found.values())
    equal = max(unequal(row, "shifted") / max(row["pool"]["clients"]) for row in examples.values())
    apart = max(abs(row["shifted"]["all"] / (2 * row["squared shift"]) - 1) for row in examples.values())
    printed = min(unequal(row, "printed") for row in examples.values())
    off, rest = largest[commute], " and ".join(f"{largest[case]:.1%} ({case})" for case in others)
    two = f"two generators, each client's FD equal ({equal:.0e}), FD-all 0 and 2 t^2 ({apart:.0e})"
    return [
        expectation(f"the theorem is exact where all commute: off by {off:.1e}", off < ROUNDING),
        expectation(f"it is off where they do not: by up to {rest}", all(largest[case] > ROUNDING for case in others)),
        expectation(f"FD-avg is never above it: at most {above:+.1e} of FD-avg", above < ROUNDING),
        expectation(two, equal < ROUNDING and apart < ROUNDING),
        expectation(f"with the shift as printed the clients' FDs differ, by {printed:.2g} at least", printed > 1e-3),
    ]


def tables_of(found: Mapping[str, Any], examples: Mapping[str, Any]) -> list[Table]:
    lines, more = [], []
    for case, rows in found.items():
        values, (wrong, pairs) = residuals(rows), misranked(rows)
        share = max(map(abs, residuals(rows, relative=True)))
        numbers = (min(values), statistics.median(values), max(values), share)
        lines.append([case, *(f"{value:.2g}" for value in numbers), f"{wrong} of {pairs}"])
    for name, row in examples.items():
        alls = (f"{value:.4f}" for value in (row["pool"]["all"], row["shifted"]["all"], 2 * row["squared shift"]))
        more.append([name, f"{unequal(row, 'shifted'):.0e}", *alls, f"{unequal(row, 'printed'):.3f}"])
    headings = ("covariances", "least", "median", "largest", "most, of FD-avg", "misranked")
    first = make_table("FD-avg less the theorem's FD(barycentre, G) + constant", headings, lines, names=headings[:1])
    headings = ("clients", "clients differ by", "FD-all, pool", "FD-all, shifted", "2 t^2", "as printed")
    title = "two generators of one FD to every client: N(mu, C_pool), N(mu + t b, C)"
    note = "as printed: what the clients' FDs differ by with the shift of the paper's supplement in place of t"
    return [first, make_table(title, headings, more, note, names=headings[:1])]


def draw(found: Mapping[str, Any], examples: Mapping[str, Any], path: Path) -> Path:
    with panels(path, (9.6, 3.9), 1, 2, grid="y") as (_, ((left, right),)):
        for place, (case, colour) in enumerate(zip(found, COLOURS)):
            shares = [100 * value for value in residuals(found[case], relative=True)]
            spread = torch.rand(len(shares), generator=generator(0, case)) * 0.7 - 0.35
            left.plot(place + spread.numpy(), shares, ".", color=colour, markersize=3, alpha=0.5)
            middle = statistics.median(shares)
            left.plot([place - 0.4, place + 0.4], [middle, middle], color="black", linewidth=1.5)
        left.axhline(0, color="0.5", linewidth=1)
        left.set_xticks(range(len(found)), [case.replace(" the", "\nthe") for case in found])
        left.set(xlabel="covariances of clients and generator", ylabel="FD-avg less the theorem, % of FD-avg")
        name, row = list(examples.items())[1]
        ticks = [*(f"client {k}" for k in range(len(row["pool"]["clients"]))), "FD-all"]
        labels = {"pool": "the pool itself", "shifted": "shifted by t", "printed": "shifted as printed"}
        for place, (key, colour) in enumerate(zip(labels, COLOURS)):
            where = [k + 0.26 * (place - 1) for k in range(len(ticks))]
            heights = [*row[key]["clients"], row[key]["all"]]
            right.bar(where, heights, width=0.24, color=colour, label=labels[key])
        right.set_xticks(range(len(ticks)), ticks)
        right.set_ylabel("Fréchet distance")
        right.set_title(f"clients: {name}", fontsize=9)
        right.set_axisbelow(True)
        right.set_ylim(0, 1.35 * right.get_ylim()[1])
        right.legend(fontsize=8, ncols=3, loc="upper center", columnspacing=1)
    return path


FORMS = ("batch", "queue", "ema", "mmd2")
LABELS = {"batch": "FID of the batch", "queue": "FID of a queue", "ema": "FID of an EMA", "mmd2": "MMD², unbiased"}
FORM_COLOURS = {"batch": "#c4560b", "queue": "#1f5fa8", "ema": "#3a8a3a", "mmd2": "#7a4fa0"}
MARKERS = {"batch": "o", "queue": "o", "ema": "s", "mmd2": "^"}
REFERENCES = 4000  # images that MMD^2 compares with
RATE = 0.02  # Adam's, at first
DRAWS = 50  # batches whose mean FID is a perfect generator's score


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
    batch_sizes, steps = choice.smaller(batch_sizes, lambda sizes: sizes[:3]), choice.smaller(steps, 200)
    at_least(1, dim=dim, steps=steps)
    at_least(2, batch_sizes=batch_sizes)
    own = {"dim": dim, "batch_sizes": batch_sizes, "steps": steps, "queue": queue, "decay": decay}
    study = choice.study("minibatch-bias", **own)
    numbers = study.step("scales", lambda: measure(dim, batch_sizes, steps, queue, decay, choice.seed))
    study.report([table_of(numbers)], draw_scales(numbers, study.figure))


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


def draw_scales(numbers: dict[str, dict[str, list[float]]], path: Path) -> Path:
    sizes = numbers["batch_size"]["m"]
    with panels(path, (10, 3.8), 1, 2) as (_, ((left, right),)):
        left.axhline(1, color="0.5", linewidth=1)
        theory = numbers["theory"]["batch"]
        left.plot(sizes, theory, color=FORM_COLOURS["batch"], linestyle="--", label="its minimum in theory")
        for form in FORMS:
            # one that lies upon another shows it through
            look = {"linestyle": "none"} if form == "batch" else {"linewidth": 1.2, "markerfacecolor": "none"}
            look |= {"color": FORM_COLOURS[form], "marker": MARKERS[form], "label": LABELS[form]}
            left.plot(sizes, numbers["scale"][form], **look)
        left.set(ylabel="scale of the generator's covariance", ylim=(0, 1.2))
        left.legend(fontsize=8)
        right.plot(sizes, numbers["perfect"]["batch"], color=FORM_COLOURS["batch"], marker="o")
        right.set(ylabel="FID of a batch, perfect generator", ylim=(0, None))
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [f"{size:.0f}" for size in sizes])
            axes.set_xlabel("images of a batch")
    return path
