"""Tables of `distributed_fid_loss`, and what was expected of it."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from fedgen.evaluation.marks import mark_in, say_marks
from fedgen.experiments.engine.aggregate_rankings import expectation
from fedgen.experiments.engine.paired_seeds import change_of, compare_pairs, verdict
from fedgen.experiments.paired.distributed.distributed_digits import ARMS, CONTROL, OPTIMISED
from fedgen.experiments.paired.distributed.distributed_figures import name_of, trained_prefix
from fedgen.experiments.paired.distributed.distributed_toy import OBJECTIVES, OPTIMA

TOLERANCE = 0.1  # of the toy's variances, whose clients are drawn
SAME = 1e-6  # relative difference of values, or gradients, that rounding may make


def toy_table(toy: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return where each objective ends, over seeds."""
    table = Table(
        title=f"Gaussian toy, mean ± standard deviation of {len(toy)} seed(s)",
        caption="what a client sends for FID, once: "
        f"{next(iter(toy.values()))['bytes']} bytes; for KID its points stand beside the generator",
    )
    headings = (
        "objective",
        "optimum of the variance along x",
        "reached",
        "variance along y (1)",
        "mean x (0)",
        "y (0)",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "objective" else "right")
    for name in OBJECTIVES:
        ends = [run["end"][name] for run in toy.values()]
        mean_x, mean_y, along_x, along_y = (mean_and_spread(values) for values in zip(*ends))
        table.add_row(name_of(name), f"{OPTIMA[name]:g}", along_x, along_y, mean_x, mean_y)
    return table


def toy_outcomes(toy: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what was expected of the toy and whether it was seen."""
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
    return [*lines, expectation(text, worst < SAME)]


def digits_table(digits: Mapping[str, Any]) -> Table:
    """Scores and traces by what was trained on, mean and standard deviation over seeds."""
    seeds = len(next(iter(digits["scores"].values()))[CONTROL])
    note = "floor: held-out real images; trace: of the generated covariance, over that of the real pool"
    table = Table(
        title=f"digits, last checkpoint, mean ± standard deviation of {seeds} seed(s); report: held-out images",
        caption="\n".join([note, *say_marks(digits["marks"].values())]),
        caption_justify="left",
    )
    table.add_column("score")
    for name in (*map(name_of, ARMS), "floor"):
        table.add_column(name, justify="right")
    for column, row in digits["scores"].items():
        cells = [mean_and_spread(row[arm]) for arm in ARMS]
        name = f"{column} {digits['marks'][column]}".rstrip()
        table.add_row(name, *cells, f"{digits['floor'][column]:.3g}" if column in digits["floor"] else "-")
    table.add_section()
    for embedding, row in digits["traces"].items():
        real = digits["real traces"][embedding]["pool"]
        cells = [mean_and_spread([value / real for value in row[arm]]) for arm in ARMS]
        within = digits["real traces"][embedding]["within"] / real
        name = f"trace, {embedding} {mark_in(embedding, [OPTIMISED], held_out=False)}".rstrip()
        table.add_row(name, *cells, f"1 (a client: {within:.2f})")
    return table


def difference_table(digits: Mapping[str, Any]) -> Table:
    """Return what each loss changes on held-out images in embeddings that it was not trained on: paired differences."""
    against = digits["against no loss"]
    columns = [name for name, row in next(iter(against.values())).items() if name.startswith("report/")]
    table = Table(title="held-out images, embeddings not trained on: change against no loss, 95 % interval over seeds")
    table.add_column("trained on")
    shown = [name for name in columns if name in digits["scores"] and not digits["marks"][name]]
    for name in shown:
        table.add_column(name.removeprefix("report/"), justify="right")
    for arm, found in against.items():
        cells = [change_of(found[name]) for name in shown]
        table.add_row(name_of(arm), *cells)
    return table


def digits_outcomes(digits: Mapping[str, Any]) -> list[str]:
    """Return what was expected of the digits and whether it was seen."""
    lines = []
    prefix = trained_prefix(digits)
    for how in ("all", "avg"):
        between, within = apart(digits["scores"][f"{prefix}fid_{how}"])
        if within is not None:  # one seed says nothing of others
            text = (
                f"FID-all and FID-avg train other models: of one seed they are {between:.3g} apart in FID-{how}"
                f" on average, two seeds of one of them {within:.3g}"
            )
            lines.append(expectation(text, between > within))
    for how, other in (("all", "avg"), ("avg", "all")):
        row = digits["scores"][f"{prefix}fid_{how}"]
        text = f"FID-{how} in {OPTIMISED} is lower for the model trained on it than for FID-{other}'s"
        lines.append(verdict(text, compare_pairs(row[f"fid_{other}"], row[f"fid_{how}"]), "less"))
    column = f"{prefix}fid_avg"
    own, floor = digits["scores"][column]["fid_avg"], digits["floor"][column]
    reached = statistics.mean(own)
    text = f"trained on FID-avg, images have a lower one, {reached:.3g}, than held-out real ones, {floor:.3g}"
    lines.append(verdict(text, compare_pairs([floor] * len(own), own), "less"))
    real, row = digits["real traces"][OPTIMISED], digits["traces"][OPTIMISED]
    pooled, single = ([value / real["pool"] for value in row[arm]] for arm in ("fid_all", "fid_avg"))
    text = (
        f"FID-avg leaves a lower trace of the generated covariance, {statistics.mean(single):.2f} of the pool's, than"
        f" FID-all, {statistics.mean(pooled):.2f} (within a client: {real['within'] / real['pool']:.2f})"
    )
    lines.append(verdict(text, compare_pairs(pooled, single), "less"))
    sent = digits["messages"]
    worst = max(max(sent[part].values()) for part in ("value", "gradient"))
    sizes = ", ".join(f"{size:,} at D = {dim}" for dim, size in sent["bytes"].items())
    text = f"FID's loss from the clients' messages ({sizes} bytes) is that from their images within {worst:.1e}"
    return [*lines, expectation(text, worst < SAME)]


def apart(row: Mapping[str, Sequence[float]]) -> tuple[float, float | None]:
    """Mean distances of a score: of the models of FID-all and FID-avg of one seed, and of two seeds of one of them.

    The second, None for a single seed, is what a difference of the first kind must exceed to say anything.
    """
    arms = row["fid_all"], row["fid_avg"]
    within = [abs(a - b) for values in arms for a, b in itertools.combinations(values, 2)]
    return statistics.mean(abs(a - b) for a, b in zip(*arms)), statistics.mean(within) if within else None


def mean_and_spread(values: Sequence[float]) -> str:
    """Mean and standard deviation, or the one value there is."""
    if len(values) < 2:
        return f"{values[0]:.3g}"
    return f"{statistics.mean(values):.3g} ± {statistics.stdev(values):.1g}"
