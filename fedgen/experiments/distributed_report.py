"""Tables of `distributed_fid_loss`, and what was expected of it."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from fedgen.experiments.comparison import expectation
from fedgen.experiments.distributed_digits import ARMS, CONTROL, OPTIMISED
from fedgen.experiments.distributed_figures import name_of
from fedgen.experiments.distributed_toy import OBJECTIVES, OPTIMA

TOLERANCE = 0.1  # of the toy's variances, whose clients are drawn
SAME = 1e-6  # relative difference of parameters, or gradients, that rounding may make


def toy_table(toy: Mapping[str, Mapping[str, Any]]) -> Table:
    """Where each objective ends, over seeds."""
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
    """What was expected of the toy and whether it was seen."""
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
    seeds = len(digits["parameters"]["kid"])
    table = Table(
        title=f"digits, last checkpoint, mean ± standard deviation of {seeds} seed(s); report: held-out images",
        caption="* the four losses were trained on this embedding: a low value proves little; floor: held-out real"
        " images; trace: of the generated covariance, over that of the real pool",
        caption_justify="left",
    )
    table.add_column("score")
    for name in (*map(name_of, ARMS), "floor"):
        table.add_column(name, justify="right")
    for column, row in digits["scores"].items():
        mark = " *" if column in digits["trained on"] else ""
        cells = [mean_and_spread(row[arm]) for arm in ARMS]
        table.add_row(column + mark, *cells, f"{digits['floor'][column]:.3g}" if column in digits["floor"] else "-")
    table.add_section()
    for embedding, row in digits["traces"].items():
        real = digits["real traces"][embedding]["pool"]
        cells = [mean_and_spread([value / real for value in row[arm]]) for arm in ARMS]
        within = digits["real traces"][embedding]["within"] / real
        table.add_row(f"trace, {embedding}", *cells, f"1 (a client: {within:.2f})")
    return table


def difference_table(digits: Mapping[str, Any]) -> Table:
    """What each loss changes on held-out images in embeddings that it was not trained on: paired differences."""
    against = digits["against no loss"]
    columns = [name for name, row in next(iter(against.values())).items() if name.startswith("report/")]
    table = Table(title="held-out images, embeddings not trained on: change against no loss, 95 % interval over seeds")
    table.add_column("trained on")
    shown = [name for name in columns if name in digits["scores"] and name not in digits["trained on"]]
    for name in shown:
        table.add_column(name.removeprefix("report/"), justify="right")
    for arm, found in against.items():
        cells = ["{:+.3g} ({:+.2g} to {:+.2g})".format(found[n]["difference"], *found[n]["interval"]) for n in shown]
        table.add_row(name_of(arm), *cells)
    return table


def digits_outcomes(digits: Mapping[str, Any]) -> list[str]:
    """What was expected of the digits and whether it was seen."""
    apart = digits["parameters"]
    lines = [
        expectation(
            f"KID-all and KID-avg train the same model: parameters within {max(apart['kid']):.1e} of the largest",
            max(apart["kid"]) < SAME,
        ),
        expectation(f"FID's two do not: {min(apart['fid']):.2g} apart or more", min(apart["fid"]) > 100 * SAME),
    ]
    prefix = next(name for name in digits["trained on"] if name.endswith("fid_all")).removesuffix("fid_all")
    for how, other in (("all", "avg"), ("avg", "all")):
        row = digits["scores"][f"{prefix}fid_{how}"]
        better = sum(a < b for a, b in zip(row[f"fid_{how}"], row[f"fid_{other}"]))
        text = f"FID-{how} in {OPTIMISED} is lower for the model trained on it than for FID-{other}'s"
        lines.append(expectation(f"{text}: {better} of {len(row[CONTROL])} seeds", better == len(row[CONTROL])))
    column = f"{prefix}fid_avg"
    reached, floor = statistics.mean(digits["scores"][column]["fid_avg"]), digits["floor"][column]
    text = f"trained on FID-avg, images have a lower one than real images: {reached:.3g}, held-out ones {floor:.3g}"
    lines.append(expectation(text, reached < floor))
    real, row = digits["real traces"][OPTIMISED], digits["traces"][OPTIMISED]
    shares = {arm: statistics.mean(row[arm]) / real["pool"] for arm in ("fid_all", "fid_avg")}
    text = "the trace of the generated covariance, over the pool's: {:.2f} by FID-all, {:.2f} by FID-avg".format(
        shares["fid_all"], shares["fid_avg"]
    )
    lines.append(
        expectation(
            f"{text} (within a client: {real['within'] / real['pool']:.2f})", shares["fid_avg"] < shares["fid_all"]
        )
    )
    sent = digits["messages"]
    worst = max(max(sent[part].values()) for part in ("value", "gradient"))
    sizes = ", ".join(f"{size:,} at D = {dim}" for dim, size in sent["bytes"].items())
    text = f"FID's loss from the clients' messages ({sizes} bytes) is that from their images within {worst:.1e}"
    return [*lines, expectation(text, worst < SAME)]


def mean_and_spread(values: Sequence[float]) -> str:
    """Mean and standard deviation, or the one value there is."""
    if len(values) < 2:
        return f"{values[0]:.3g}"
    return f"{statistics.mean(values):.3g} ± {statistics.stdev(values):.1g}"
