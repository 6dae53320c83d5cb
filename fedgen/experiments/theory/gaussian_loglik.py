"""Log-likelihood of the toy's two clients under Gaussian generators: avg and all are one curve.

Clients N((-1, 0), I) and N((+1, 0), I) (arXiv 2310.11714, supplement, Fig. 16). (a) generators N(0, diag(v, 1)): the
likelihood is greatest at the pool's variance, v = 2, in both aggregates, where FID-avg would choose v = 1. (b)
generators N((m, 0), diag(2, 1)): it is greatest at m = 0. "ref" is the data's own density. Nothing is sampled of the
generators, which are known: only the clients' points vary.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from fedgen.data import GaussianMixture
from fedgen.experiments.engine.aggregate_rankings import expectation
from fedgen.experiments.engine.choice import at_least, quickly, settings_of
from fedgen.experiments.engine.rankings.number_table import number_table
from fedgen.experiments.engine.rankings.ranking_figures import panels
from fedgen.experiments.engine.study import Study
from fedgen.reports.figures.curves import COLOURS
from fedgen.scores import LikelihoodReference
from fedgen.scores.theory import toy_log_likelihood

GRID = 21  # generators of each family
SMALLEST = 0.1  # at v = 0 the likelihood is minus infinity
FAMILIES: dict[str, tuple[str, Callable[[float], tuple[float, float]]]] = {  # axis, and (mean, variance) along x
    "variance": ("variance of the generator along x", lambda value: (0.0, value)),
    "mean": ("mean of the generator along x", lambda value: (value, 2.0)),
}
BEST = {"variance": 2.0, "mean": 0.0}
LARGEST_Z = 4.0
DEPTH = 1.1  # nats below the maximum that the figure shows
FIGURE = "gaussian_loglik.png"


@quickly(points=2_000)
def gaussian_loglik(
    output: Path | None = None, points: int = 50_000, largest: float = 4.0, seed: int = 0, quick: bool = False
) -> None:
    """Scores both families of generators by log-likelihood, and compares each value with its closed form.

    Args:
        output: folder of results.json and gaussian_loglik.png; checkpoints/gaussian-loglik by default.
        points: drawn for each client; 2,000 with --quick.
        largest: variance of family (a). The paper prints an axis from 0 to 40, most likely for 4.
        seed: of the draw.
        quick: takes a second, to see that it runs.
    """
    study = Study("gaussian-loglik", output, settings_of(locals()))
    at_least(10, points=points)
    if not largest > BEST["variance"]:
        raise ValueError(f"largest={largest}: give a variance above {BEST['variance']:g}, the best one")
    numbers = study.step("scores", lambda: measure(points, grids(largest), seed))
    study.report([table_of(numbers), *outcomes(numbers)], draw(numbers, study.path(FIGURE)))


def grids(largest: float) -> dict[str, list[float]]:
    """The values of each family's parameter."""
    # steps of largest / 20, so that 4 gives 0.2, 0.4, ..., with the smallest variance in place of 0
    variances = [SMALLEST, *(round(largest * step / (GRID - 1), 9) for step in range(1, GRID))]
    return {"variance": variances, "mean": [round(-2 + 4 * step / (GRID - 1), 9) for step in range(GRID)]}


def density(mean_x: float, var_x: float) -> Independent:
    """The generator N((mean_x, 0), diag(var_x, 1))."""
    return Independent(Normal(_float64(mean_x, 0.0), _float64(var_x, 1.0).sqrt()), 1)


def data_density() -> MixtureSameFamily:
    """The density that the clients' points have together."""
    means = torch.stack([_float64(-1.0, 0.0), _float64(1.0, 0.0)])
    return MixtureSameFamily(Categorical(_float64(0.5, 0.5)), Independent(Normal(means, torch.ones_like(means)), 1))


def measure(points: int, values: Mapping[str, list[float]], seed: int) -> dict[str, Any]:
    """By family: parameters, avg and all, their errors and closed forms; "ref" by "value", "error", "closed form"."""
    examples = GaussianMixture(points, seed=seed).load("train")
    parts = [examples.inputs[examples.labels == label] for label in range(len(examples.classes))]
    reference = LikelihoodReference.from_points(parts)
    found: dict[str, Any] = {}
    for family, grid in values.items():
        parameters = [FAMILIES[family][1](value) for value in grid]
        scores = [reference.score(density(*pair)) for pair in parameters]
        expected = [float(toy_log_likelihood(var_x, mean_x)["all"]) for mean_x, var_x in parameters]
        rows = {key: [score.values[key] for score in scores] for key in ("avg", "all")}
        found[family] = {"at": grid, **rows, "error": [s.errors["all"] for s in scores], "closed form": expected}
    ref, truth = reference.score(data_density()), float(toy_log_likelihood(2.0)["ref"])
    found["ref"] = {"value": ref.values["all"], "error": ref.errors["all"], "closed form": truth}
    return found


def largest_z(row: Mapping[str, list[float]]) -> float:
    """The largest |drawn - closed form| in standard errors."""
    return max(abs(a - b) / s for a, b, s in zip(row["all"], row["closed form"], row["error"]))


def outcomes(numbers: Mapping[str, Any]) -> list[str]:
    """Return what was expected of the experiment and whether it was seen."""
    rows, ref = {family: numbers[family] for family in FAMILIES}, numbers["ref"]
    worst = max(*map(largest_z, rows.values()), abs(ref["value"] - ref["closed form"]) / ref["error"])
    gap = max(abs(a - b) for row in rows.values() for a, b in zip(row["avg"], row["all"]))
    size = max(abs(value) for row in rows.values() for value in row["all"])
    text = f"every value within Monte-Carlo error of its closed form; largest |z| {worst:.2f}"
    lines = [expectation(text, worst < LARGEST_Z)]
    lines.append(expectation(f"LL-avg = LL-all to rounding: they differ by {gap:.1e} at most", gap < 1e-12 * size))
    for family, row in rows.items():
        best = row["at"][row["all"].index(max(row["all"]))]
        nearest = min(row["at"], key=lambda value: abs(value - BEST[family]))
        text = f"by {family} the likelihood is greatest at {best:g}: {max(row['all']):.5f}"
        lines.append(expectation(text, best == nearest))
    highest = max(max(row["all"]) for row in rows.values())
    text = f"the data's own density has {ref['value']:.5f}, above every Gaussian ({highest:.5f} at most)"
    return [*lines, expectation(text, ref["value"] > highest)]


def table_of(numbers: Mapping[str, Any]) -> Table:
    """Both families side by side: parameter, drawn value and closed form; the data's density below."""
    sides = [list(zip(*(numbers[family][key] for key in ("at", "all", "closed form")))) for family in FAMILIES]
    rows = [[text for at, *pair in both for text in (f"{at:g}", *(f"{v:.5f}" for v in pair))] for both in zip(*sides)]
    ref, largest = numbers["ref"], {family: f"{largest_z(numbers[family]):.2f}" for family in FAMILIES}
    last = [
        ["data (ref)", f"{ref['value']:.5f}", f"{ref['closed form']:.5f}"],
        ["largest |z|", largest["variance"], "", "", largest["mean"]],
    ]
    title = "log-likelihood of the clients' points, nats; LL-avg and LL-all are one number"
    headings = [heading for family in FAMILIES for heading in (family, "LL", "closed form")]
    return number_table(title, headings, [*rows, None, *last])


def draw(numbers: Mapping[str, Any], path: Path) -> Path:
    """A panel for each family: LL-avg (rings) upon LL-all (points), the closed form and the data's own density."""
    with panels(path, (9.6, 3.9), 1, len(FAMILIES)) as (_, grid):
        for axes, family in zip(grid[0], FAMILIES):
            draw_family(axes, family, numbers[family], numbers["ref"]["value"])
    return path


def draw_family(axes: Any, family: str, row: Mapping[str, list[float]], ref: float) -> None:
    """One family's likelihoods by its parameter, beside the data's own."""
    fine = torch.linspace(min(row["at"]), max(row["at"]), 300, dtype=torch.float64)
    pairs = [FAMILIES[family][1](float(value)) for value in fine]
    closed = [float(toy_log_likelihood(v, m)["all"]) for m, v in pairs]
    axes.plot(fine, closed, color="0.4", linewidth=1.2, label="closed form")
    axes.plot(row["at"], row["all"], "o", color=COLOURS["all"], markersize=4, label="LL-all")
    rings = {"markersize": 8, "markerfacecolor": "none", "markeredgewidth": 1.2}
    axes.plot(row["at"], row["avg"], "o", color=COLOURS["avg"], label="LL-avg", **rings)
    axes.axhline(ref, color="0.4", linestyle="--", linewidth=1.2, label="LL-ref (the data)")
    axes.axvline(BEST[family], color="0.6", linestyle=":", linewidth=1)
    cut_low(axes, row)
    axes.set(xlabel=FAMILIES[family][0], ylabel="log-likelihood (higher is better)")
    axes.legend(fontsize=8, loc="lower center" if family == "mean" else "lower right")
    axes.grid(alpha=0.25)


def cut_low(axes: Any, row: Mapping[str, list[float]]) -> None:
    """Leaves out of the picture what would hide the maximum, and says so in it."""
    top = max(row["all"])
    axes.set_ylim(top - DEPTH, top + 0.1 * DEPTH)
    low = [f"{value:.1f} at {at:g}" for at, value in zip(row["at"], row["all"]) if value < top - DEPTH]
    if low:
        axes.text(0.98, 0.5, "below: " + ", ".join(low), transform=axes.transAxes, ha="right", fontsize=8)


def _float64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
