"""Figures of `mmd2_finetune`: scores over images shown, and the same latents before and after."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.paired.mmd2.mmd2_arms import ARMS, CONTROL, EXACT, LOCAL, MESSAGE
from fedgen.experiments.paired.mmd2.mmd2_choice import Mmd2Choice
from fedgen.experiments.paired.mmd2.mmd2_scores import COVERAGE, FID_SERVER, KID_ALL, KID_AVG, RECALL, TITLES
from fedgen.reports.figures.picture_panels import show_rows

CURVES, GRID = "mmd2_finetune.png", "mmd2_samples.png"
COLOURS = {CONTROL: "0.35", EXACT: "#1f5fa8", LOCAL: "#3a8a3a", MESSAGE: "#c4560b"}
MARKERS = {CONTROL: "x", EXACT: "o", LOCAL: "s", MESSAGE: "^"}
PANELS = (KID_AVG, KID_ALL, FID_SERVER, RECALL, COVERAGE)


def draw_curves(
    rows: Mapping[str, Any], floors: Sequence[Mapping[str, Mapping[str, float]]], choice: Mmd2Choice, path: Path
) -> Path:
    """A row an embedding, a panel a score, over thousands of images shown: each seed, and their mean.

    Args:
        rows: as `mmd2_finetune.rows_of` gives them.
        floors: by seed: embedding -> score -> what the clients' own training images score.
        choice: of embeddings.
        path: of the PNG.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    embeddings = (choice.judge, choice.embedding)
    figure = Figure(figsize=(3.2 * len(PANELS), 6.2), layout="constrained")
    panels = figure.subplots(len(embeddings), len(PANELS), sharex=True)
    for line, embedding in zip(panels, embeddings):
        for axes, score in zip(line, PANELS):
            for arm in ARMS:
                _draw_arm(axes, rows[arm], arm, embedding, score)
            real = statistics.mean(floor[embedding][score] for floor in floors)
            if score == COVERAGE:  # a line so far above all others would leave them flat
                axes.text(0.03, 0.94, f"the clients' training images: {real:.2f}", transform=axes.transAxes, fontsize=8)
                axes.margins(y=0.15)
            elif score != FID_SERVER:  # of a generator that has gone over to the clients: far above all others too
                axes.axhline(real, color="black", linestyle=":", linewidth=1.2)
            axes.set_title(TITLES[score], fontsize=10)
            axes.grid(alpha=0.25)
            axes.tick_params(labelsize=9)
        used = "MMD² minimised in it" if embedding == choice.embedding else "nothing trained on it"
        line[0].set_ylabel(f"{embedding}\n{used}", fontsize=10)
    for axes in panels[-1]:
        axes.set_xlabel("thousands of images", fontsize=10)
    handles = [Line2D([], [], color=COLOURS[arm], marker=MARKERS[arm], markersize=4, label=arm) for arm in ARMS]
    handles.append(Line2D([], [], color="black", linestyle=":", label="the clients' training images"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=10, frameon=False)
    figure.suptitle(
        f"{choice.network.stem} towards {choice.clients} clients; scores to their held-out images", fontsize=12
    )
    return save_figure(figure, path)


def _draw_arm(axes: Any, states: Mapping[int, Any], arm: str, embedding: str, score: str) -> None:
    shown = [images / 1000 for images in states]
    seeds = list(zip(*([one[embedding][score] for one in state] for state in states.values())))
    for values in seeds:
        axes.plot(shown, values, color=COLOURS[arm], alpha=0.25, linewidth=0.8)
    means = [statistics.mean(values) for values in zip(*seeds)]
    axes.plot(shown, means, color=COLOURS[arm], marker=MARKERS[arm], markersize=4, linewidth=1.8)


def draw_grid(rows: Mapping[str, Tensor], path: Path) -> Path:
    """Rows of images, uint8 [columns, C, H, W], what a row is at its left.

    Args:
        rows: by what to call them.
        path: of the PNG.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    columns = len(next(iter(rows.values())))
    layout = ConstrainedLayoutEngine(w_pad=0.2)  # labels reach beyond what the layout reserves
    figure = Figure(figsize=(0.62 * columns + 1.4, 0.62 * len(rows) + 0.3), layout=layout)
    axes = figure.subplots()
    show_rows(axes, rows)
    axes.set_title("one client image of each client in turn; then one latent a column", fontsize=10)
    return save_figure(figure, path)
