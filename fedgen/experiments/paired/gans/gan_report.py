"""Tables and figures of `fid_loss_gans`: what FID as a loss changes over paired seeds, and whether it was expected."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.evaluation.marks import RELATED, SAME, say_marks
from fedgen.experiments.engine.image_scores import (
    HELD_OUT,
    HIGHER,
    SCORES,
    Scored,
    badness,
    compare_scores,
    mark_of,
    scores_table,
)
from fedgen.experiments.engine.paired_seeds import CELL, by_chance, cell, change_of, compare_pairs, mean_of, verdict
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.paired.gans.gan_arms import EMA, MINIBATCH, NETWORKS, QUEUE, WITHOUT, Bench
from fedgen.reports.figures.picture_panels import show_picture

Compared = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""key of an arm -> embedding -> score -> as `compare_pairs` gives it"""

HEADINGS = {"fid": "FID", HELD_OUT: "FID, held out", "recall": "recall", "coverage": "coverage", "trace": "trace"}
SCORES_FIGURE, PICTURES_FIGURE = "fid_loss_gans.png", "fid_loss_gans_samples.png"
COLOURS = {WITHOUT: "0.35", MINIBATCH: "#c4560b", QUEUE: "#3a8a3a", EMA: "#1f5fa8"}
GRID = (10, 5)  # samples across and down
REAL_GRID = (20, 2)
REAL = "real"


def key_of(network: str, arm: str, seed: int | None = None) -> str:
    """Return the key of an arm, or a run of it, in results.json: "sngan, ema", "sngan, ema, seed 0"."""
    return f"{network}, {arm}" + ("" if seed is None else f", seed {seed}")


def name_of(arm: str) -> str:
    """Return an arm's name."""
    return "EMA" if arm == EMA else arm


def compare(scores: Mapping[str, Scored], network: str, arm: str, seeds: Sequence[int]) -> dict[str, Any]:
    """Embedding -> score -> an arm beside that without a loss, by seed (see `compare_pairs`).

    Args:
        scores: of runs, by `key_of`.
        network: whose arm.
        arm: that without a loss has its "values" alone.
        seeds: of the runs.
    """
    control, own = ([scores[key_of(network, one, seed)] for seed in seeds] for one in (WITHOUT, arm))
    return compare_scores(None if arm == WITHOUT else control, own)


def table_of(
    compared: Compared,
    floor: Mapping[str, Mapping[str, float]],
    bench: Bench,
    embedding: str,
    networks: Sequence[str],
    arms: Sequence[str],
) -> Table:
    """Scores in one embedding by network and arm: means, differences from the control, and real images beside."""
    count = len(compared[key_of(networks[0], arms[0])][embedding]["fid"]["values"])
    own = embedding == bench.optimised
    lines = [
        "FID: FID-all, to the images trained on and to held-out ones; recall and coverage: of held-out ones; trace: of"
        " the covariance, over that of the images trained on; real images: those trained on, as if generated",
        *([f"{CELL}, beside without"] if count > 1 else []),
    ]
    used = "in which FID was a loss" if own else "which no loss used"
    title = f"{bench.title}, {embedding}, {used}: mean of {count} seed{'s' * (count > 1)}"
    lines += say_marks({SAME, RELATED} if own else ())
    table = scores_table(title, lines, ["network", "FID as a loss"], HEADINGS.values())
    table.add_row("real images", "", *(f"{floor[embedding][score]:.3g}" for score in SCORES))
    for network in networks:
        table.add_section()
        for arm in arms:
            rows, trained_on = compared[key_of(network, arm)][embedding], () if arm == WITHOUT else (bench.optimised,)
            cells = (cell(rows[score], mark_of(score, embedding, trained_on)) for score in SCORES)
            table.add_row(NETWORKS[network].title if arm == arms[0] else "", name_of(arm), *cells)
    return table


def outcomes(
    compared: Compared, bench: Bench, unrelated: str, networks: Sequence[str], arms: Sequence[str]
) -> list[str]:
    """Return what was expected of the arms with a loss, and whether it is so beyond the interval of paired seeds."""
    lines = []
    for network in networks:
        forms = [arm for arm in arms if arm != WITHOUT]
        for arm in forms:
            name, rows = f"{NETWORKS[network].title}, {name_of(arm)}", compared[key_of(network, arm)]
            text = (
                f"{name}: FID to held-out images falls in {unrelated}, which no loss used (in {bench.optimised},"
                f" optimised: {change_of(rows[bench.optimised][HELD_OUT])})"
            )
            lines.append(verdict(text, rows[unrelated][HELD_OUT], "less"))
            for score in HIGHER:
                text = f"{name}: {score} does not fall in {unrelated}"
                lines.append(verdict(text, rows[unrelated][score], "not less"))
        lines += _traces(compared, bench, network, forms)
    return [*lines, by_chance(len(lines))]


def _traces(compared: Compared, bench: Bench, network: str, forms: Sequence[str]) -> list[str]:
    """Say what a batch's bias does to the spread of images, and a longer memory not."""
    if MINIBATCH not in forms:
        return []
    title = NETWORKS[network].title
    rows = {arm: compared[key_of(network, arm)][bench.optimised]["trace"] for arm in (WITHOUT, *forms)}
    least, usual = (mean_of(rows[arm]) for arm in (MINIBATCH, WITHOUT))
    what = f"trace in {bench.optimised} {least:.3g} beside {usual:.3g}"
    text = f"{title}, minibatch: images spread less than without, {what}"
    lines = [verdict(text, rows[MINIBATCH], "less")]
    far = {arm: list(map(badness("trace"), row["values"])) for arm, row in rows.items()}
    for arm in forms:
        if arm != MINIBATCH:
            text = f"{title}, {name_of(arm)}: trace {mean_of(rows[arm]):.3g} is nearer to the data's than minibatch's"
            lines.append(verdict(text, compare_pairs(far[MINIBATCH], far[arm]), "less"))
    return lines


def pair_outcomes(compared: Compared, bench: Bench, unrelated: str, networks: Sequence[str], arm: str) -> list[str]:
    """Say of one pair of each network what FID in the embedding that no loss used does."""
    lines = []
    for network in networks:
        before, after = (compared[key_of(network, one)][unrelated][HELD_OUT] for one in (WITHOUT, arm))
        text = (
            f"{NETWORKS[network].title}, {name_of(arm)}, {bench.title}: FID to held-out images falls in {unrelated},"
            f" which no loss used, {mean_of(before):.3g} to {mean_of(after):.3g}"
        )
        lines.append(verdict(text, after, "less"))
    return lines


def grid_of(network: str, arm: str = "") -> str:
    """File name of an arm's samples, or of real images."""
    return f"samples-{network}-{arm}.png" if arm else f"samples-{network}.png"


def draw_scores(
    compared: Compared,
    floor: Mapping[str, Mapping[str, float]],
    bench: Bench,
    unrelated: str,
    networks: Sequence[str],
    arms: Sequence[str],
    path: Path,
) -> Path:
    """A column for each network: FID-all to held-out images in both embeddings, and the trace where it was optimised.

    A point is a run; thin lines join the runs of a seed, bars are means, dashes are what real images score.
    """
    from matplotlib.figure import Figure

    rows = [
        (unrelated, HELD_OUT, f"FID-all, held-out images\n{unrelated}\n(no loss used it)"),
        (bench.optimised, HELD_OUT, f"FID-all, held-out images\n{bench.optimised}\n(optimised)"),
        (bench.optimised, "trace", f"trace of covariance /\nthe data's, {bench.optimised}\n(optimised)"),
    ]
    figure = Figure(figsize=(max(5.0, 2.9 * len(networks) + 0.6), 7.8), layout="constrained")
    panels = figure.subplots(len(rows), len(networks), squeeze=False, sharex=True)
    for line, (embedding, score, title) in zip(panels, rows):
        for axes, network in zip(line, networks):
            runs = [compared[key_of(network, arm)][embedding][score]["values"] for arm in arms]
            real = 1.0 if score == "trace" else floor[embedding][score]
            axes.axhline(real, color="black", linestyle="--", linewidth=1)
            _draw_pairs(axes, runs, arms)
            axes.set_ylim(bottom=0)
        line[0].set_ylabel(title, fontsize=10)
    for axes, network in zip(panels[0], networks):
        axes.set_title(NETWORKS[network].title, fontsize=12, weight="bold")
    for axes in panels[-1]:
        axes.set_xticks(range(len(arms)), [name_of(arm) for arm in arms], fontsize=10, rotation=20)
    figure.suptitle(f"GANs of {bench.title} without and with FID as a loss\ndashed: real images", fontsize=11)
    return save_figure(figure, path)


def _draw_pairs(axes: Any, runs: Sequence[Sequence[float]], arms: Sequence[str]) -> None:
    """The values of every arm, those of a seed joined, and their means."""
    places = range(len(arms))
    for one_seed in zip(*runs):
        axes.plot(places, one_seed, color="0.7", linewidth=0.8, zorder=1)
    for place, arm, values in zip(places, arms, runs):
        axes.scatter([place] * len(values), values, color=COLOURS[arm], s=22, alpha=0.85, linewidths=0, zorder=2)
        axes.plot([place - 0.25, place + 0.25], [statistics.mean(values)] * 2, color=COLOURS[arm], linewidth=2.5)
    axes.set_xlim(-0.5, len(arms) - 0.5)
    axes.grid(alpha=0.25, axis="y")
    axes.tick_params(labelsize=9)


def draw_pictures(
    compared: Compared, bench: Bench, unrelated: str, networks: Sequence[str], folder: Path, path: Path
) -> Path:
    """A row for each network: samples of the first seed without and with the loss, and their scores; real ones below.

    Args:
        compared: of the pairs.
        bench: what they were trained on.
        unrelated: the embedding that no loss used.
        networks: in order.
        folder: that holds `grid_of` each.
        path: of the PNG.
    """
    from matplotlib.figure import Figure

    arms = (WITHOUT, EMA)
    figure = Figure(figsize=(9.4, 2.75 * len(networks) + 1.3), layout="constrained")
    cells = figure.add_gridspec(len(networks) + 1, 2, height_ratios=[*[1.0] * len(networks), 0.4])
    sheets = {cells[len(networks), :]: (grid_of(REAL), f"real images of {bench.title}", "black")}
    for row, network in enumerate(networks):
        for column, arm in enumerate(arms):
            title = f"{NETWORKS[network].title}, {'without' if arm == WITHOUT else f'with FID ({name_of(arm)})'}"
            rows = compared[key_of(network, arm)]
            fids = (f"{mean_of(rows[name][HELD_OUT]):.3g} in {name}" for name in (unrelated, bench.optimised))
            trace = mean_of(rows[unrelated]["trace"])
            text = f"{title}\nFID-all, held out: {', '.join(fids)}; trace {trace:.2f}"
            sheets[cells[row, column]] = (grid_of(network, arm), text, COLOURS[arm])
    for place, (file, text, colour) in sheets.items():
        show_picture(figure.add_subplot(place), folder / file, text, fontsize=9, color=colour)
    figure.suptitle(
        f"{bench.title}: FID as a loss in {bench.optimised}; trace of covariance in {unrelated}", fontsize=11
    )
    return save_figure(figure, path)
