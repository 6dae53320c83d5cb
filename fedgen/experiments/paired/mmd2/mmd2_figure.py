"""Figures of `mmd2_finetune`: scores over images shown, and the same latents before and after."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from fedgen.experiments.engine.arms.arm_curves import REAL, Rows, draw_arm, finish_panels
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.paired.mmd2.mmd2_arms import ARMS, CONTROL, EXACT, LOCAL, MESSAGE
from fedgen.experiments.paired.mmd2.mmd2_choice import Mmd2Choice
from fedgen.experiments.paired.mmd2.mmd2_scores import COVERAGE, FID_SERVER, KID_ALL, KID_AVG, RECALL, TITLES
from fedgen.reports.figures.picture_panels import show_rows

CURVES, GRID = "mmd2_finetune.png", "mmd2_samples.png"
STYLES = {
    CONTROL: {"color": "0.35", "marker": "x"},
    EXACT: {"color": "#1f5fa8", "marker": "o"},
    LOCAL: {"color": "#3a8a3a", "marker": "s"},
    MESSAGE: {"color": "#c4560b", "marker": "^"},
}
PANELS = (KID_AVG, KID_ALL, FID_SERVER, RECALL, COVERAGE)


def draw_curves(
    rows: Rows, floors: Sequence[Mapping[str, Mapping[str, float]]], choice: Mmd2Choice, path: Path
) -> Path:
    """A row an embedding, a panel a score, over thousands of images shown: each seed, and their mean.

    Args:
        rows: by arm and images shown.
        floors: by seed: embedding -> score -> what the clients' own training images score.
        choice: of embeddings.
        path: of the PNG.
    """
    from matplotlib.figure import Figure

    embeddings = (choice.judge, choice.embedding)
    figure = Figure(figsize=(3.2 * len(PANELS), 6.2), layout="constrained")
    panels = figure.subplots(len(embeddings), len(PANELS), sharex=True)
    for line, embedding in zip(panels, embeddings):
        for axes, score in zip(line, PANELS):
            for arm in ARMS:
                draw_arm(axes, rows[arm], (embedding, score), 1000, **STYLES[arm])
            real = statistics.mean(floor[embedding][score] for floor in floors)
            if score == COVERAGE:  # a line so far above all others would leave them flat
                axes.text(0.03, 0.94, f"the clients' training images: {real:.2f}", transform=axes.transAxes, fontsize=8)
                axes.margins(y=0.15)
            elif score != FID_SERVER:  # of a generator that has gone over to the clients: far above all others too
                axes.axhline(real, **REAL, linewidth=1.2)
            axes.set_title(TITLES[score], fontsize=10)
        used = "MMD² minimised in it" if embedding == choice.embedding else "nothing trained on it"
        line[0].set_ylabel(f"{embedding}\n{used}", fontsize=10)
    finish_panels(figure, panels, "thousands of images", STYLES, "the clients' training images")
    figure.suptitle(
        f"{choice.network.stem} towards {choice.clients} clients; scores to their held-out images", fontsize=12
    )
    return save_figure(figure, path)


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
