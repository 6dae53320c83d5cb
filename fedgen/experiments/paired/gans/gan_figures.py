"""Figures of `fid_loss_gans`: paired scores of the arms on digits, and samples of the pairs on MNIST."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgen.experiments.engine.image_scores import HELD_OUT
from fedgen.experiments.engine.paired_seeds import mean_of
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.paired.gans.gan_arms import EMA, MINIBATCH, NETWORKS, QUEUE, WITHOUT, Bench
from fedgen.experiments.paired.gans.gan_report import Compared, key_of, name_of
from fedgen.reports.figures.picture_panels import show_picture

SCORES_FIGURE, PICTURES_FIGURE = "fid_loss_gans.png", "fid_loss_gans_samples.png"
COLOURS = {WITHOUT: "0.35", MINIBATCH: "#c4560b", QUEUE: "#3a8a3a", EMA: "#1f5fa8"}
GRID = (10, 5)  # samples across and down
REAL_GRID = (20, 2)
REAL = "real"


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
    for cell, (file, text, colour) in sheets.items():
        show_picture(figure.add_subplot(cell), folder / file, text, fontsize=9, color=colour)
    figure.suptitle(
        f"{bench.title}: FID as a loss in {bench.optimised}; trace of covariance in {unrelated}", fontsize=11
    )
    return save_figure(figure, path)
