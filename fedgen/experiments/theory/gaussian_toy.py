"""The papers' toy in the plane: two Gaussian clients, and generators scored by FID, KID and log-likelihood.

Clients N((-1, 0), I) and N((+1, 0), I), generators N(0, diag(v, 1)) with v from 0.1 to 4 (arXiv 2310.11714, section
5.1 and Fig. 1; supplement, Figs. 15 and 16). FID-avg is least at the clients' variance 1, FID-all at the pool's, 2, and
both aggregates of KID; log-likelihood is greatest at v = 2, and over N((m, 0), diag(2, 1)) at m = 0. "ref" is the pool.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from fedgen.data import GaussianMixture
from fedgen.experiments.engine.features import FeatureFederation, rows_of
from fedgen.experiments.engine.rankings import Rows, agreement_table, column, compare
from fedgen.experiments.engine.study import Choice, at_least, expectation, make_table, panels
from fedgen.reports.figures.aggregate_panels import draw_aggregates
from fedgen.reports.figures.curves import COLOURS
from fedgen.scores import LikelihoodReference
from fedgen.scores.theory import toy_frechet, toy_kernel, toy_log_likelihood
from fedgen.seeds import derive, generator

VARIANCES = (0.1, *(round(0.2 * step, 1) for step in range(1, 21)))  # 21, up to 4
SCORES = {"fid": toy_frechet, "kid": toy_kernel}
LEAST = {"fid": {"avg": 1.0, "all": 2.0}, "kid": {"avg": 2.0, "all": 2.0}}  # where the population's scores are least
LARGEST_Z = 4.0  # the errors of 84 values that share their clients' points
NAMED = {0.1: (6, -3), 1.0: (-32, -3), 2.0: (4, -11), 4.0: (-10, 8)}  # variances in the figure -> places of their names


def gaussian_toy(points: int = 50_000, redraws: int = 20, **options: Any) -> None:
    """Scores the 21 generators by FID and KID over both clients, and compares each value with its closed form.

    Args:
        points: drawn for each client and for each generator; 2,000 with --quick.
        redraws: other draws of the clients, whose spread is the error of what clients alone decide (ref and KID's gap).
    """
    choice = Choice(**options)
    points = choice.smaller(points, 2_000)
    study, seed = choice.study("gaussian-toy", points=points, redraws=redraws), choice.seed
    at_least(10, points=points)
    at_least(2, redraws=redraws)
    clients = draw_clients(points, seed)
    variances = {str(variance): variance for variance in VARIANCES}

    def score_over(name: str, federation: FeatureFederation) -> Rows:
        score = federation.reference(list(SCORES)).score
        return study.each(name, variances, lambda v: rows_of(score(draw_generated(points, v, seed))), "generators")

    rows, controls = score_over("scores", clients), [score_over("IID control", clients.iid(seed))]
    seeds = [seed, *(derive(seed, "gaussian-toy", "redraw", number) for number in range(redraws))]
    found = study.each("ref", {str(n): s for n, s in enumerate(seeds)}, lambda s: reference_values(points, s), "draws")
    checked = study.step("against closed forms", lambda: against_theory(rows, found))
    ranked = study.step("ranking", lambda: {score: compare(rows, controls, score) for score in SCORES})
    tables: list[Table | str] = [
        table_of(rows, found["0"], checked),
        agreement_table({score.upper(): row for score, row in ranked.items()}, "21 generators, two clients"),
        *outcomes(checked, found, ranked),
    ]
    study.report(tables, draw(rows, found["0"], ranked, study.figure))


def draw_clients(points: int, seed: int) -> FeatureFederation:
    examples = GaussianMixture(points, seed=seed).load("train")
    labels = range(len(examples.classes))
    positions = tuple((examples.labels == label).nonzero().flatten() for label in labels)
    return FeatureFederation(examples.inputs, positions, tuple(examples.classes))


def draw_generated(points: int, var_x: float, seed: int) -> Tensor:
    """Points [n, 2] of N(0, diag(var_x, 1)), float32, a draw of its own for every variance."""
    noise = torch.randn(points, 2, generator=generator(seed, "gaussian-toy", "generated", str(var_x)))
    return noise * torch.tensor([math.sqrt(var_x), 1.0])


def reference_values(points: int, seed: int) -> dict[str, float]:
    """FID-ref, KID-ref and the gap of KID (U-statistics), which one draw of the clients decides."""
    clients = draw_clients(points, seed)
    pooled = torch.cat(clients.parts())
    scores = {score.name: score for score in clients.reference(list(SCORES)).score(pooled, errors=False)}
    gap = scores["kid"].values["avg"] - scores["kid"].values["all"]
    return {"fid": scores["fid"].values["avg"], "kid": scores["kid"].values["avg"], "gap": gap}


def against_theory(rows: Rows, found: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Largest |z| of every curve, where each is least, and constant values beside theirs, with errors by redraws."""
    variances = torch.tensor([float(name) for name in rows], dtype=torch.float64)
    curves: dict[str, Any] = {}
    for score, formula in SCORES.items():
        expected = formula(variances)
        for aggregate in ("avg", "all"):
            drawn = column(rows, score, aggregate)
            errors = [row[score]["total errors"][aggregate] for row in rows.values()]
            z = [(d - e) / s for d, e, s in zip(drawn, expected[aggregate].tolist(), errors)]
            least = float(variances[drawn.index(min(drawn))])
            curves[f"{score}_{aggregate}"] = {"z": z, "largest z": max(map(abs, z)), "least at": least}
    constants = {}
    truth = {"fid": float(toy_frechet(1.0)["ref"]), "kid": float(toy_kernel(1.0)["ref"])}
    for name, value in (truth | {"gap": truth["kid"]}).items():
        drawn = [row[name] for row in found.values()]
        error = statistics.stdev(drawn)
        constants[name] = {"value": drawn[0], "closed form": value, "error": error, "z": (drawn[0] - value) / error}
    return {"curves": curves, "constants": constants, "lowest fid avg": min(column(rows, "fid", "avg"))}


def outcomes(checked: Mapping[str, Any], found: Mapping[str, Any], ranked: Mapping[str, Any]) -> list[str]:
    parts = []
    for score, row in ranked.items():
        inverted, pairs, clear = len(row["inverted"]), row["pairs"], row["beyond error"]
        told = f"{inverted} of {pairs} pairs of generators differently, {clear} beyond their errors"
        both = f"{score.upper()}-avg and {score.upper()}-all"
        parts.append(f"{both} order {told}" if inverted else f"{both} order none of the {pairs} pairs differently")
    curves, constants = checked["curves"], checked["constants"]
    worst = max([row["largest z"] for row in curves.values()] + [abs(row["z"]) for row in constants.values()])
    least = {name: row["least at"] for name, row in curves.items()}
    text = f"every value within Monte-Carlo error of its closed form; largest |z| {worst:.2f}"
    lines = [f"{'; '.join(parts)}.", expectation(text, worst < LARGEST_Z)]
    for score, wanted in LEAST.items():
        places = {aggregate: least[f"{score}_{aggregate}"] for aggregate in wanted}
        text = ", ".join(f"{score.upper()}-{aggregate} is least at {place:g}" for aggregate, place in places.items())
        lines.append(expectation(text, places == wanted))
    gap, spread = ranked["kid"]["gap"]["mean"], ranked["kid"]["gap"]["spread"]
    lines.append(expectation(f"KID's gap is one number, {gap:.6f}, with a spread of {spread:.1e}", spread < 1e-9 * gap))
    fid, kid = (len(ranked[score]["inverted"]) for score in SCORES)
    text = f"of {ranked['fid']['pairs']} pairs avg and all order {fid} differently by FID, {kid} by KID"
    lines.append(expectation(text, fid > 0 and kid == 0))
    ref, lowest = found["0"]["fid"], checked["lowest fid avg"]
    text = f"the pool as generator has FID-avg {ref:.4f}, above the least, {lowest:.4f}"
    return [*lines, expectation(text, ref > lowest)]


def table_of(rows: Rows, ref: Mapping[str, float], checked: Mapping[str, Any]) -> Table:
    curves, constants = checked["curves"], checked["constants"]
    sides = [(score, how) for score in SCORES for how in ("avg", "all")]
    drawn = [[name, *(f"{row[score][how]:.4f}" for score, how in sides)] for name, row in rows.items()]
    fid, kid = (constants[score]["closed form"] for score in SCORES)
    last = [
        ["pool (ref)", f"{ref['fid']:.4f}", "", f"{ref['kid']:.4f}", ""],
        ["its closed form", f"{fid:.4f}", "", f"{kid:.4f}", ""],
        ["largest |z|", *(f"{row['largest z']:.2f}" for row in curves.values())],
    ]
    headings = ["variance", *(f"{score.upper()}-{how}" for score, how in sides)]
    title = "drawn values; z: (drawn - closed form) / standard error"
    return make_table(title, headings, [*drawn, None, *last], names=())


def draw(rows: Rows, ref: Mapping[str, float], ranked: Mapping[str, Any], path: Path) -> Path:
    variances = [float(name) for name in rows]
    with panels(path, (9.6, 7.2), 2, 2, height_ratios=(1.25, 1)) as (_, axes):
        for (above, below), score in zip(axes.T, SCORES):
            draw_scores(above, rows, variances, ref[score], score)
            draw_pairs(below, rows, score, ranked[score])
    return path


def draw_scores(axes: Any, rows: Rows, variances: list[float], ref: float, score: str) -> None:
    fine = torch.linspace(min(variances), max(variances), 200, dtype=torch.float64)
    expected = SCORES[score](fine)
    for aggregate, colour in COLOURS.items():
        name = f"{score.upper()}-{aggregate}"
        axes.plot(fine, expected[aggregate], color=colour, linewidth=1.2)
        axes.plot(variances, column(rows, score, aggregate), "o", color=colour, markersize=4, label=name)
        least = LEAST[score][aggregate]
        axes.axvline(least, color=colour, linestyle=":", linewidth=1)
    axes.axhline(ref, color="0.4", linestyle="--", linewidth=1.2, label=f"{score.upper()}-ref (the pool)")
    axes.plot([], [], color="0.4", linewidth=1.2, label="closed forms")
    top = max(column(rows, score, "avg"))
    axes.set_ylim(-0.04 * top, 1.45 * top)  # room for the legend
    axes.set(xlabel="variance of the generator along x", ylabel=f"{score.upper()} (lower is better)")
    axes.legend(fontsize=8, ncols=2, loc="upper center")


def draw_pairs(axes: Any, rows: Rows, score: str, found: Mapping[str, Any]) -> None:
    columns = column(rows, score, "avg"), column(rows, score, "all")
    draw_aggregates(axes, *columns, score.upper())
    axes.plot(*columns, color=COLOURS["all"], linewidth=0.6, alpha=0.5)
    for variance, *place in zip(map(float, rows), *columns):
        if variance in NAMED:
            look = {"textcoords": "offset points", "xytext": NAMED[variance], "fontsize": 8}
            axes.annotate(f"v = {variance:g}", place, **look)
    axes.margins(x=0.14, y=0.12)  # room for the names
    axes.set_title(f"{len(found['inverted'])} of {found['pairs']} pairs are ordered differently", fontsize=9)


GRID = 21  # generators of each family
SMALLEST = 0.1  # at v = 0 the likelihood is minus infinity
FAMILIES: dict[str, tuple[str, Callable[[float], tuple[float, float]]]] = {  # axis, and (mean, variance) along x
    "variance": ("variance of the generator along x", lambda value: (0.0, value)),
    "mean": ("mean of the generator along x", lambda value: (value, 2.0)),
}
BEST = {"variance": 2.0, "mean": 0.0}
DEPTH = 1.1  # nats below the maximum that the figure shows


def gaussian_loglik(points: int = 50_000, largest: float = 4.0, **options: Any) -> None:
    """Scores both families of generators by log-likelihood, and compares each value with its closed form.

    Args:
        points: drawn for each client; 2,000 with --quick.
        largest: variance of family (a). The paper prints an axis from 0 to 40, most likely for 4.
    """
    choice = Choice(**options)
    points = choice.smaller(points, 2_000)
    study = choice.study("gaussian-loglik", points=points, largest=largest)
    at_least(10, points=points)
    if not largest > BEST["variance"]:
        raise ValueError(f"largest={largest}: give a variance above {BEST['variance']:g}, the best one")
    numbers = study.step("scores", lambda: measure(points, grids(largest), choice.seed))
    study.report([loglik_table(numbers), *loglik_outcomes(numbers)], draw_loglik(numbers, study.figure))


def grids(largest: float) -> dict[str, list[float]]:
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
    return max(abs(a - b) / s for a, b, s in zip(row["all"], row["closed form"], row["error"]))


def loglik_outcomes(numbers: Mapping[str, Any]) -> list[str]:
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


def loglik_table(numbers: Mapping[str, Any]) -> Table:
    sides = [list(zip(*(numbers[family][key] for key in ("at", "all", "closed form")))) for family in FAMILIES]
    rows = [[text for at, *pair in both for text in (f"{at:g}", *(f"{v:.5f}" for v in pair))] for both in zip(*sides)]
    ref, largest = numbers["ref"], {family: f"{largest_z(numbers[family]):.2f}" for family in FAMILIES}
    last = [
        ["data (ref)", f"{ref['value']:.5f}", f"{ref['closed form']:.5f}"],
        ["largest |z|", largest["variance"], "", "", largest["mean"]],
    ]
    title = "log-likelihood of the clients' points, nats; LL-avg and LL-all are one number"
    headings = [heading for family in FAMILIES for heading in (family, "LL", "closed form")]
    return make_table(title, headings, [*rows, None, *last], names=())


def draw_loglik(numbers: Mapping[str, Any], path: Path) -> Path:
    rings = {"markersize": 8, "markerfacecolor": "none", "markeredgewidth": 1.2}
    with panels(path, (9.6, 3.9), 1, len(FAMILIES)) as (_, grid):
        for axes, (family, (label, parameters)) in zip(grid[0], FAMILIES.items()):
            row = numbers[family]
            fine = torch.linspace(min(row["at"]), max(row["at"]), 300, dtype=torch.float64)
            closed = [float(toy_log_likelihood(v, m)["all"]) for m, v in map(parameters, fine.tolist())]
            axes.plot(fine, closed, color="0.4", linewidth=1.2, label="closed form")
            axes.plot(row["at"], row["all"], "o", color=COLOURS["all"], markersize=4, label="LL-all")
            axes.plot(row["at"], row["avg"], "o", color=COLOURS["avg"], label="LL-avg", **rings)
            axes.axhline(numbers["ref"]["value"], color="0.4", linestyle="--", linewidth=1.2, label="LL-ref (the data)")
            axes.axvline(BEST[family], color="0.6", linestyle=":", linewidth=1)
            top = max(row["all"])  # far below it lies what would hide the maximum
            axes.set_ylim(top - DEPTH, top + 0.1 * DEPTH)
            low = [f"{value:.1f} at {at:g}" for at, value in zip(row["at"], row["all"]) if value < top - DEPTH]
            if low:
                axes.text(0.98, 0.5, "below: " + ", ".join(low), transform=axes.transAxes, ha="right", fontsize=8)
            axes.set(xlabel=label, ylabel="log-likelihood (higher is better)")
            axes.legend(fontsize=8, loc="lower center" if family == "mean" else "lower right")
    return path


def _float64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)
