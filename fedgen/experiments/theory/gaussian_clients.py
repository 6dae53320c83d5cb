"""The papers' toy in the plane: two Gaussian clients and generators of every variance, drawn and in closed form.

Clients N((-1, 0), I) and N((+1, 0), I), generators N(0, diag(v, 1)) with v from 0.1 to 4 (arXiv 2310.11714, section
5.1 and Fig. 1; supplement, Fig. 15). The points are their own features. FID-avg is least at the clients' variance 1 and
FID-all at the pool's, 2; both aggregates of KID are least at 2. "ref" is the pool itself scored as the generator.
"""

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from fedgen.data import GaussianMixture
from fedgen.experiments.engine.aggregate_rankings import Rows, agreement_table, column, compare, expectation
from fedgen.experiments.engine.choice import at_least, quickly, settings_of
from fedgen.experiments.engine.feature_federation import FeatureFederation, rows_of
from fedgen.experiments.engine.rankings.number_table import number_table
from fedgen.experiments.engine.rankings.ranking_figures import panels
from fedgen.experiments.engine.study import Study
from fedgen.reports.figures.aggregate_panels import draw_aggregates
from fedgen.reports.figures.curves import COLOURS
from fedgen.scores.theory import toy_frechet, toy_kernel
from fedgen.seeds import derive, generator

VARIANCES = (0.1, *(round(0.2 * step, 1) for step in range(1, 21)))  # 21, up to 4
SCORES = {"fid": toy_frechet, "kid": toy_kernel}
LEAST = {"fid": {"avg": 1.0, "all": 2.0}, "kid": {"avg": 2.0, "all": 2.0}}  # where the population's scores are least
LARGEST_Z = 4.0  # the errors of 84 values that share their clients' points
NAMED = {
    0.1: (6, -3),
    1.0: (-32, -3),
    2.0: (4, -11),
    4.0: (-10, 8),
}  # variances in the figure, and where their names go
FIGURE = "gaussian_toy.png"


@quickly(points=2_000)
def gaussian_toy(
    output: Path | None = None, points: int = 50_000, redraws: int = 20, seed: int = 0, quick: bool = False
) -> None:
    """Scores the 21 generators by FID and KID over both clients, and compares each value with its closed form.

    Args:
        output: folder of results.json and gaussian_toy.png; checkpoints/gaussian-toy by default.
        points: drawn for each client and for each generator; 2,000 with --quick.
        redraws: other draws of the clients, whose spread is the error of what clients alone decide (ref and KID's gap).
        seed: of all draws.
        quick: takes seconds, to see that it runs.
    """
    study = Study("gaussian-toy", output, settings_of(locals()))
    at_least(10, points=points)
    at_least(2, redraws=redraws)
    clients = draw_clients(points, seed)
    for name, federation in (("scores", clients), ("IID control", clients.iid(seed))):
        score_all(study, name, federation, points, seed)
    seeds = [seed, *(derive(seed, "gaussian-toy", "redraw", number) for number in range(redraws))]
    found = study.each("ref", {str(n): s for n, s in enumerate(seeds)}, lambda s: reference_values(points, s), "draws")
    rows, controls = study.numbers["scores"], [study.numbers["IID control"]]
    checked = study.step("against closed forms", lambda: against_theory(rows, found))
    ranked = study.step("ranking", lambda: {score: compare(rows, controls, score) for score in SCORES})
    tables: list[Table | str] = [
        table_of(rows, found["0"], checked),
        agreement_table({score.upper(): row for score, row in ranked.items()}, "21 generators, two clients"),
        in_words(ranked),
        *outcomes(checked, found, ranked),
    ]
    study.report(tables, draw(rows, found["0"], ranked, study.path(FIGURE)))


def score_all(study: Study, name: str, federation: FeatureFederation, points: int, seed: int) -> None:
    """A step: every generator against a federation."""
    reference = federation.reference(list(SCORES))
    variances = {str(variance): variance for variance in VARIANCES}
    study.each(name, variances, lambda v: rows_of(reference.score(draw_generated(points, v, seed))), unit="generators")


def draw_clients(points: int, seed: int) -> FeatureFederation:
    """The two clients, one a component of the mixture."""
    examples = GaussianMixture(points, seed=seed).load("train")
    labels = range(len(examples.classes))
    positions = tuple((examples.labels == label).nonzero().flatten() for label in labels)
    return FeatureFederation(examples.inputs, positions, tuple(examples.classes))


def draw_generated(points: int, var_x: float, seed: int) -> Tensor:
    """Points [n, 2] of N(0, diag(var_x, 1)), float32, a draw of its own for every variance."""
    noise = torch.randn(points, 2, generator=generator(seed, "gaussian-toy", "generated", str(var_x)))
    return noise * torch.tensor([math.sqrt(var_x), 1.0])


def reference_values(points: int, seed: int) -> dict[str, float]:
    """Return what one draw of the clients decides: FID-ref, KID-ref and the gap of KID (U-statistics)."""
    clients = draw_clients(points, seed)
    pooled = torch.cat(clients.parts())
    scores = {score.name: score for score in clients.reference(list(SCORES)).score(pooled, errors=False)}
    gap = scores["kid"].values["avg"] - scores["kid"].values["all"]
    return {"fid": scores["fid"].values["avg"], "kid": scores["kid"].values["avg"], "gap": gap}


def against_theory(rows: Rows, found: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Largest |z| of every curve, with z = (drawn - closed form) / its standard error, where each is least, and the
    constant values beside theirs, with the standard deviation over the redraws as their error."""
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


def in_words(ranked: Mapping[str, Any]) -> str:
    """Return the toy's conclusion: how many pairs of generators each score's aggregates order differently."""
    parts = []
    for score, row in ranked.items():
        inverted, pairs, clear = len(row["inverted"]), row["pairs"], row["beyond error"]
        told = f"{inverted} of {pairs} pairs of generators differently, {clear} beyond their errors"
        both = f"{score.upper()}-avg and {score.upper()}-all"
        parts.append(f"{both} order {told}" if inverted else f"{both} order none of the {pairs} pairs differently")
    return f"{'; '.join(parts)}."


def outcomes(checked: Mapping[str, Any], found: Mapping[str, Any], ranked: Mapping[str, Any]) -> list[str]:
    """Return what was expected of the experiment and whether it was seen."""
    curves, constants = checked["curves"], checked["constants"]
    worst = max([row["largest z"] for row in curves.values()] + [abs(row["z"]) for row in constants.values()])
    least = {name: row["least at"] for name, row in curves.items()}
    lines = [
        expectation(
            f"every value within Monte-Carlo error of its closed form; largest |z| {worst:.2f}", worst < LARGEST_Z
        )
    ]
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
    lines.append(
        expectation(f"the pool as generator has FID-avg {ref:.4f}, above the least, {lowest:.4f}", ref > lowest)
    )
    return lines


def table_of(rows: Rows, ref: Mapping[str, float], checked: Mapping[str, Any]) -> Table:
    """The drawn values of both scores by variance, ref below, with the closed forms of ref and the largest |z|."""
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
    return number_table(title, headings, [*drawn, None, *last])


def draw(rows: Rows, ref: Mapping[str, float], ranked: Mapping[str, Any], path: Path) -> Path:
    """Above: FID and KID against the variance, drawn (points) and in closed form (lines); below: avg against all."""
    variances = [float(name) for name in rows]
    with panels(path, (9.6, 7.2), 2, 2, height_ratios=(1.25, 1)) as (_, axes):
        for (above, below), score in zip(axes.T, SCORES):
            draw_scores(above, rows, variances, ref[score], score)
            draw_pairs(below, rows, score)
            inverted, pairs = len(ranked[score]["inverted"]), ranked[score]["pairs"]
            below.set_title(f"{inverted} of {pairs} pairs are ordered differently", fontsize=9)
    return path


def draw_scores(axes: Any, rows: Rows, variances: list[float], ref: float, score: str) -> None:
    """One score's avg, all and ref against the generator's variance."""
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
    axes.grid(alpha=0.25)


def draw_pairs(axes: Any, rows: Rows, score: str) -> None:
    """One score's avg against its all, some generators named by their variance."""
    columns = column(rows, score, "avg"), column(rows, score, "all")
    draw_aggregates(axes, *columns, score.upper())
    axes.plot(*columns, color=COLOURS["all"], linewidth=0.6, alpha=0.5)
    for name, x, y in zip(rows, *columns):
        if float(name) in NAMED:
            axes.annotate(
                f"v = {float(name):g}", (x, y), textcoords="offset points", xytext=NAMED[float(name)], fontsize=8
            )
    axes.margins(x=0.14, y=0.12)  # room for the names
