"""The figure of `fid-loss-artifacts`: samples of the four arms over curves of their FID in two embeddings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.study import Study
from fedgen.experiments.paired.artifacts.artifact_arms import FAMILIES, GAN, OPTIMISED, REMOVED, ArtifactRuns
from fedgen.reports.figures.picture_panels import show_picture

FIGURE = "fid_loss_artifacts.png"
GRID = 8  # images across and down
COLOURS = ("#1f5fa8", "#c4560b")  # control and treated


def grid_of(arm: str) -> str:
    """File name of an arm's samples."""
    return f"{arm.replace(' + ', '-').replace(' ', '-').lower()}.png"


def draw(study: Study, arms: ArtifactRuns, seeds: Sequence[int], embedding: str) -> Path:
    """Columns: the arms. Above: the last samples of the first seed. Below: a family's FID by rounds, in two embeddings.

    Curves are means over seeds, thin lines the seeds, dashes real images.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6.6), layout="constrained")
    rows = figure.subplots(2, 4, height_ratios=(1.25, 1))
    for place, (name, pair) in enumerate(FAMILIES.items()):
        for side, arm in enumerate(pair):
            title = {"fontsize": 10, "color": COLOURS[side], "weight": "bold"}
            show_picture(rows[0][2 * place + side], study.path(grid_of(arm)), f"{name}:\n{arm}", **title)
        for side, where in enumerate((OPTIMISED, embedding)):
            axes = rows[1][2 * place + side]
            _draw_fid(axes, study.numbers[name], pair, seeds, where, arms.lengths.before)
            real = study.numbers[f"floor of {name}"]["scores"][where]["fid, held out"]
            axes.axhline(real, color="black", linestyle="--", linewidth=1, label="real images")
            axes.set_title(where + ("\n(optimised)" if where == OPTIMISED else "\n(unrelated)"), fontsize=9)
            if place == 0:
                axes.axvline(arms.lengths.before, color="0.6", linestyle=":", linewidth=1)
            axes.set_xlabel("rounds", fontsize=9)
            if not side:
                axes.set_ylabel("FID to held-out images", fontsize=9)
    return save_figure(figure, study.path(FIGURE))


def _draw_fid(
    axes: Any, rows: Mapping[str, Any], pair: Sequence[str], seeds: Sequence[int], where: str, parting: int
) -> None:
    for arm, colour in zip(pair, COLOURS):
        curves = [curve_of(rows, arm, seed, where) for seed in seeds]
        if arm == REMOVED:  # they part from the control's curves
            starts = [dict(curve_of(rows, GAN, seed, where))[parting] for seed in seeds]
            curves = [[(parting, start), *curve] for start, curve in zip(starts, curves)]
        for curve in curves:
            axes.plot(*zip(*curve), color=colour, linewidth=0.7, alpha=0.45)
        mean = [(places[0][0], sum(value for _, value in places) / len(places)) for places in zip(*curves)]
        axes.plot(*zip(*mean), color=colour, marker="o", markersize=3.5, linewidth=1.8, label=arm)
    axes.set_yscale("log")
    axes.grid(alpha=0.25, which="both")
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7.5, framealpha=0.85)


def curve_of(rows: Mapping[str, Any], arm: str, seed: int, where: str) -> list[tuple[int, float]]:
    """(rounds, FID to held-out images) of a run's checkpoints, in order."""
    prefix = f"{arm}, seed {seed}, "
    own = {int(key.removeprefix(prefix).split()[0]): row for key, row in rows.items() if key.startswith(prefix)}
    return [(rounds, own[rounds][where]["fid, held out"]) for rounds in sorted(own)]
