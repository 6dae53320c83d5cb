"""Figures of `fid_finetune`: scores along the steps of fine-tuning, and the same images as they change."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.paired.fine_tuning.finetune_arms import ALL, ARMS, BOTH, FIRST
from fedgen.reports.figures.picture_panels import show_rows

CURVES, GRID = "fid_finetune.png", "tracked_images.png"
COLOURS = {ALL: "#1f5fa8", FIRST: "#3a8a3a", BOTH: "#c4560b"}
MARKERS = {ALL: "o", FIRST: "s", BOTH: "^"}
PANELS = {"fid, held out": "FID to held-out images", "coverage": "coverage of held-out images"}


def draw_curves(rows: Mapping[str, Any], floor: Mapping[str, Mapping[str, float]], path: Path) -> Path:
    """For each embedding FID and coverage against the part of the steps taken: each seed, and their mean.

    Args:
        rows: as `fid_finetune.rows_of` gives them.
        floor: embedding -> score -> what real images score.
        path: of the PNG.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    embeddings = list(floor)
    figure = Figure(figsize=(3.4 * len(embeddings), 5.6), layout="constrained")
    panels = figure.subplots(len(PANELS), len(embeddings), sharex=True)
    for line, score in zip(panels, PANELS):
        for axes, embedding in zip(line, embeddings):
            for arm in ARMS:
                _draw_arm(axes, rows[arm], arm, embedding, score)
            axes.axhline(floor[embedding][score], color="black", linestyle=":", linewidth=1.2)
            axes.set_ylim(bottom=0)
            axes.grid(alpha=0.25)
            axes.tick_params(labelsize=9)
    for axes, embedding in zip(panels[0], embeddings):
        used = [arm for arm in ARMS if embedding in ARMS[arm]]
        note = "nothing trained on it" if not used else "all trained on it" if len(used) == len(ARMS) else ""
        axes.set_title(f"{embedding}\n{note or 'trained on: ' + ', '.join(used)}", fontsize=10)
    for axes in panels[-1]:
        axes.set_xlabel("part of the steps", fontsize=10)
    for line, title in zip(panels, PANELS.values()):
        line[0].set_ylabel(title, fontsize=10)
    handles = [
        Line2D([], [], color=COLOURS[arm], marker=MARKERS[arm], markersize=4, label=f"{arm} ({max(rows[arm])} steps)")
        for arm in ARMS
    ]
    handles.append(Line2D([], [], color="black", linestyle=":", label="real images"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=10, frameon=False)
    figure.suptitle("Generators fine-tuned on FID alone", fontsize=12)
    return save_figure(figure, path)


def _draw_arm(axes: Any, states: Mapping[int, Any], arm: str, embedding: str, score: str) -> None:
    last = max(states)
    part = [steps / last for steps in states]
    seeds = list(zip(*([one[embedding][score] for one in states[steps]] for steps in states)))
    for values in seeds:
        axes.plot(part, values, color=COLOURS[arm], alpha=0.3, linewidth=0.8)
    means = [statistics.mean(values) for values in zip(*seeds)]
    dashed = "-" if embedding in ARMS[arm] else "--"
    axes.plot(part, means, dashed, color=COLOURS[arm], marker=MARKERS[arm], markersize=4, linewidth=1.8)


def draw_grid(pictures: Mapping[str, Mapping[int, Tensor]], path: Path) -> Path:
    """Images of the same latents along the steps: a block for each arm, a row for each step, a column for each latent.

    Args:
        pictures: arm -> steps -> uint8 images [columns, C, H, W], of as many steps in each arm.
        path: of the PNG.
    """
    from matplotlib.figure import Figure

    states = next(iter(pictures.values()))
    rows, columns = len(states), len(next(iter(states.values())))
    figure = Figure(figsize=(0.5 * columns + 1.2, len(pictures) * (0.5 * rows + 0.6)), layout="constrained")
    panels = figure.subplots(len(pictures), 1, squeeze=False)[:, 0]
    for axes, (arm, states) in zip(panels, pictures.items()):
        show_rows(axes, {str(steps): images for steps, images in states.items()})
        axes.set_ylabel("steps", fontsize=10)
        axes.set_title(f"{arm}: FID in {' and '.join(ARMS[arm])}", fontsize=11, color=COLOURS[arm], weight="bold")
    return save_figure(figure, path)
