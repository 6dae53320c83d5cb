"""The figure of `sample_size`: gaps and inverted pairs against the images of a client."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgen.experiments.engine.results import save_figure

SCORES = {"fid": "FID", "fid pca": "FID PCA", "fid infinity": "FID-inf PCA", "kid": "KID"}
COLOURS = {"fid": "#c4560b", "fid pca": "#1f5fa8", "fid infinity": "#7a4fa0", "kid": "#3a8a3a"}


def label(score: str, components: int) -> str:
    """What tables and figures call a score."""
    return SCORES[score].replace("PCA", f"PCA-{components}")


def draw(found: Mapping[str, Any], components: int, path: Path) -> Path:
    """Gaps of three scores against n_i, of classes and IID clients with their range; then the inverted pairs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 7), layout="constrained")
    panels = figure.subplots(2, 2).flatten()
    for axes, score in zip(panels, ("fid", "fid pca", "kid")):
        draw_gaps(axes, found, score)
        axes.set_ylabel(f"{label(score, components)}: avg - all")
    draw_inversions(panels[3], found, components)
    sizes = [int(size) for size in found]
    for axes in panels:
        axes.set_xscale("log")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.set_xlabel("images of a client")
        axes.grid(alpha=0.25)
    return save_figure(figure, path)


def draw_gaps(axes: Any, found: Mapping[str, Any], score: str) -> None:
    """One score's gap by n_i: over classes (full) and IID clients (dashed), with the range over generators."""
    sizes = [int(size) for size in found]
    for name, style in (("one client a class", "-"), ("IID clients", "--")):
        gaps = [row[score]["gap"] if style == "-" else row[score]["control gap"][0] for row in found.values()]
        colour = COLOURS[score] if style == "-" else "0.35"
        axes.fill_between(
            sizes, [g["min"] for g in gaps], [g["max"] for g in gaps], color=colour, alpha=0.18, linewidth=0
        )  # fmt: skip
        axes.plot(sizes, [g["mean"] for g in gaps], style, color=colour, marker="o", markersize=4, label=name)
    axes.axhline(0, color="0.5", linewidth=0.8)
    axes.set_ylim(min(0, axes.get_ylim()[0]), None)
    axes.legend(fontsize=8)


def draw_inversions(axes: Any, found: Mapping[str, Any], components: int) -> None:
    """Pairs ordered differently by n_i and score: over classes (full) and IID clients (dashed)."""
    for score, colour in COLOURS.items():
        rows = {int(size): row[score] for size, row in found.items() if score in row}
        if rows:
            counts = [len(row["inverted"]) for row in rows.values()]
            controls = [statistics.mean(row["control inverted"]) for row in rows.values()]
            axes.plot(list(rows), counts, "-o", color=colour, markersize=4, label=label(score, components))
            axes.plot(list(rows), controls, "--o", color=colour, markersize=4, markerfacecolor="none")
    axes.plot([], [], "--o", color="0.35", markersize=4, markerfacecolor="none", label="over IID clients")
    axes.set_ylim(-0.4, 1.4 * axes.get_ylim()[1])  # room for the legend
    axes.set_ylabel("pairs that avg and all order differently")
    axes.legend(fontsize=8, ncols=2, loc="upper center")
