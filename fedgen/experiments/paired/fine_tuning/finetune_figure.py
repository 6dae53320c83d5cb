"""Figures of `fid_finetune`: scores along the steps of fine-tuning, and the same images as they change."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from fedgen.experiments.engine.arms.arm_curves import REAL, Rows, draw_arm, finish_panels
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.paired.fine_tuning.finetune_arms import ALL, ARMS, BOTH, FIRST
from fedgen.reports.figures.picture_panels import show_rows

CURVES, GRID = "fid_finetune.png", "tracked_images.png"
STYLES = {
    ALL: {"color": "#1f5fa8", "marker": "o"},
    FIRST: {"color": "#3a8a3a", "marker": "s"},
    BOTH: {"color": "#c4560b", "marker": "^"},
}
PANELS = {"fid, held out": "FID to held-out images", "coverage": "coverage of held-out images"}


def draw_curves(rows: Rows, floor: Mapping[str, Mapping[str, float]], path: Path) -> Path:
    """For each embedding FID and coverage against the part of the steps taken: each seed, and their mean.

    Args:
        rows: by arm and steps.
        floor: embedding -> score -> what real images score.
        path: of the PNG.
    """
    from matplotlib.figure import Figure

    embeddings = list(floor)
    figure = Figure(figsize=(3.4 * len(embeddings), 5.6), layout="constrained")
    panels = figure.subplots(len(PANELS), len(embeddings), sharex=True)
    for line, score in zip(panels, PANELS):
        for axes, embedding in zip(line, embeddings):
            for arm in ARMS:
                line_of = "-" if embedding in ARMS[arm] else "--"
                draw_arm(axes, rows[arm], (embedding, score), max(rows[arm]), linestyle=line_of, **STYLES[arm])
            axes.axhline(floor[embedding][score], **REAL, linewidth=1.2)
            axes.set_ylim(bottom=0)
    for axes, embedding in zip(panels[0], embeddings):
        used = [arm for arm in ARMS if embedding in ARMS[arm]]
        note = "nothing trained on it" if not used else "all trained on it" if len(used) == len(ARMS) else ""
        axes.set_title(f"{embedding}\n{note or 'trained on: ' + ', '.join(used)}", fontsize=10)
    for line, title in zip(panels, PANELS.values()):
        line[0].set_ylabel(title, fontsize=10)
    named = {f"{arm} ({max(rows[arm])} steps)": STYLES[arm] for arm in ARMS}
    finish_panels(figure, panels, "part of the steps", named, "real images")
    figure.suptitle("Generators fine-tuned on FID alone", fontsize=12)
    return save_figure(figure, path)


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
        title = {"fontsize": 11, "color": STYLES[arm]["color"], "weight": "bold"}
        axes.set_title(f"{arm}: FID in {' and '.join(ARMS[arm])}", **title)
    return save_figure(figure, path)
