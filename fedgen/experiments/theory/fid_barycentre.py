"""FD-avg as a distance to one Gaussian, when it is one, and that no function of the clients' FIDs gives FD-all.

The theorem of arXiv 2310.11714, FD-avg(G) = FD(barycentre, G) + constant, needs covariances that commute, the
generator's too; otherwise FD-avg is smaller. Beside it the corrected Proposition 1: two generators with equal FD to
every client, FD-all 0 and 2 t^2; the shift that is printed there does not make the clients' distances equal.
"""

import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from fedgen.experiments.engine.study import Choice, at_least, expectation, make_table, panels, quickly
from fedgen.scores import frechet_distance, inversions, theory
from fedgen.scores.theory import barycentre_decomposition, counter_example, population_gaussian
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


@quickly(draws=10)
def barycentre(draws: int = 200, generators: int = 10, clients: int = 3, dim: int = 6, **options: Any) -> None:
    """Draws federations of Gaussians and compares FD-avg with what the theorem makes of it, and so the ranking.

    Args:
        draws: federations of each case; 10 with --quick.
        generators: drawn for each federation, and ranked.
        clients: of each federation.
        dim: features D.
    """
    choice = Choice(**options)
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
    parts = [barycentre_decomposition(federation, generated, "uniform", centre) for generated in made]
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
    return population_gaussian(mean, (covariance + covariance.T) / 2)


def compare_shifts(clients: int, dim: int, seed: int) -> dict[str, Any]:
    """FD to the clients and to the pool of the pool itself, of the shift that equals it, and of the one printed."""
    random = generator(seed, "counter-example", clients, dim)
    means = torch.randn(clients, dim, generator=random, dtype=torch.float64)
    covariance = random_gaussian(dim, random, None).covariance(ddof=0)
    example = counter_example(means, covariance)
    pool = example.matching
    direction = torch.nn.functional.normalize(example.shifted.mean - pool.mean, dim=0)
    between = float((pool.covariance(ddof=0) - covariance).trace())
    printed = population_gaussian(pool.mean + between**0.5 * direction, covariance)
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
