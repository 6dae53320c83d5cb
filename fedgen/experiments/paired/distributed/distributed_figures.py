"""Figures of `distributed_fid_loss`: the toy's trajectories, and what the digits' generators became."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgen.evaluation.marks import SAME
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.paired.distributed.distributed_digits import ARMS, CONTROL, OPTIMISED, UNRELATED
from fedgen.experiments.paired.distributed.distributed_toy import OBJECTIVES, OPTIMA
from fedgen.images import save_png, tile
from fedgen.reports.figures.picture_panels import show_picture

COLOURS = {CONTROL: "0.45", "fid_all": "#1f5fa8", "fid_avg": "#c4560b", "kid_all": "#3a8a3a", "kid_avg": "#7a4fa0"}
MARKERS = {CONTROL: "s", "fid_all": "o", "fid_avg": "o", "kid_all": "^"}
STYLES = {"fid_all": "-", "fid_avg": "-", "kid_all": "-", "kid_avg": (0, (4, 3))}  # KID's two lines are one
SIDE = 6  # pictures of a grid's side


def name_of(arm: str) -> str:
    """Return an arm's name."""
    return "no loss" if arm == CONTROL else arm.upper().replace("_ALL", "-all").replace("_AVG", "-avg")


def save_samples(images: Mapping[str, Tensor | Sequence[Tensor]], paths: Mapping[str, Path]) -> None:
    """Writes a grid of some images of each side; of several clients' images, of each client as many."""
    for name, path in paths.items():
        side = images[name]
        if not isinstance(side, Tensor):
            each = -(-SIDE * SIDE // len(side))
            side = torch.stack([part[:each] for part in side], dim=1).flatten(0, 1)
        save_png(path, tile(side[: SIDE * SIDE], SIDE, min_side=32))


def draw_toy(toy: Mapping[str, Mapping[str, Any]], path: Path) -> Path:
    """The generator's variance along x against steps of training: mean over seeds, and their range."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    steps = next(iter(toy.values()))["steps"]
    for name in OBJECTIVES:
        runs = list(zip(*(run["variance"][name] for run in toy.values())))
        means = [statistics.mean(values) for values in runs]
        axes.plot(steps, means, color=COLOURS[name], linestyle=STYLES[name], linewidth=2, label=name_of(name))
        if not name.startswith("kid"):
            low, high = [min(values) for values in runs], [max(values) for values in runs]
            axes.fill_between(steps, low, high, color=COLOURS[name], alpha=0.2, linewidth=0)
    for optimum in sorted(set(OPTIMA.values())):
        text = ", ".join(name_of(name) for name in OBJECTIVES if OPTIMA[name] == optimum)
        axes.axhline(optimum, color="black", linestyle="--", linewidth=1)
        axes.annotate(
            f"optimum of {text}",
            (steps[-1], optimum),
            textcoords="offset points",
            xytext=(0, 8),
            ha="right",
            fontsize=9,
        )
    axes.set_ylim(0, 2.5)
    axes.set_xlabel("steps of training")
    axes.set_ylabel("variance of the generator along x")
    axes.set_title("Two clients N((±1, 0), I), one Gaussian generator", fontsize=10)
    axes.legend(loc="lower right", fontsize=9, ncols=2)
    axes.grid(alpha=0.25)
    return save_figure(figure, path)


def draw_digits(digits: Mapping[str, Any], samples: Mapping[str, Path], path: Path) -> Path:
    """Above: FID-avg against FID-all where it was trained on and where not, the covariance's trace; below: images."""
    from matplotlib.figure import Figure

    embeddings = list(digits["traces"])
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.65, 1))
    upper, lower = parts
    panels = upper.subplots(1, len(embeddings) + 1)
    for axes, (prefix, title) in zip(panels, _columns(digits).items()):
        _draw_pairs(axes, digits, prefix, title)
    _draw_traces(panels[-1], digits)
    upper.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(ARMS) + 1, fontsize=9)
    _draw_samples(lower.subplots(1, len(samples)), samples)
    return save_figure(figure, path)


def trained_prefix(digits: Mapping[str, Any]) -> str:
    """Return what stands before "fid_all" in the column of the images and the embedding that losses were trained on."""
    trained = (name for name, mark in digits["marks"].items() if mark == SAME and name.endswith("fid_all"))
    return next(trained).removesuffix("fid_all")


def _columns(digits: Mapping[str, Any]) -> dict[str, str]:
    """Prefix of the columns that are shown -> title: the embedding trained on, then another on held-out images."""
    found = {trained_prefix(digits): f"{OPTIMISED}, training images\n(trained on)"}
    if UNRELATED in digits["traces"]:
        found["report/"] = f"{UNRELATED},\nheld-out images"
    return found


def _draw_pairs(axes: Any, digits: Mapping[str, Any], prefix: str, title: str) -> None:
    """FID-avg against FID-all, a point a run."""
    avg, pooled = (digits["scores"][f"{prefix}fid_{how}"] for how in ("avg", "all"))
    for arm in ARMS:
        axes.scatter(avg[arm], pooled[arm], color=COLOURS[arm], marker=MARKERS[arm], s=42, label=name_of(arm))
    floor = digits["floor"]
    if f"{prefix}fid_all" in floor:
        point = [floor[f"{prefix}fid_avg"]], [floor[f"{prefix}fid_all"]]
        axes.scatter(*point, color="black", marker="*", s=80, label="held-out real images")
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("FID-avg")
    axes.set_ylabel("FID-all")
    axes.margins(0.12)
    axes.grid(alpha=0.25)


def _draw_traces(axes: Any, digits: Mapping[str, Any]) -> None:
    """The trace of each run's generated covariance over the real pool's, in the embedding trained on."""
    real = digits["real traces"][OPTIMISED]
    for place, arm in enumerate(ARMS):
        values = [value / real["pool"] for value in digits["traces"][OPTIMISED][arm]]
        axes.bar(place, statistics.mean(values), color=COLOURS[arm], alpha=0.45, width=0.7)
        axes.scatter([place] * len(values), values, color=COLOURS[arm], marker=MARKERS[arm], s=22, zorder=3)
    for share, text in ((1.0, "real pool"), (real["within"] / real["pool"], "a client's own")):
        axes.axhline(share, color="black", linestyle="--", linewidth=1)
        end = (len(ARMS) - 0.5, share)
        box = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1}  # it may lie over a bar
        axes.annotate(text, end, textcoords="offset points", xytext=(0, 4), ha="right", fontsize=8, bbox=box)
    axes.set_xticks(range(len(ARMS)), [name_of(arm) for arm in ARMS], rotation=30, fontsize=9)
    axes.set_ylim(0, 1.25)
    axes.set_ylabel("trace of the covariance / real pool's")
    axes.set_title(f"{OPTIMISED}, generated images", fontsize=10)


def _draw_samples(panels: Any, samples: Mapping[str, Path]) -> None:
    """Pictures of the first seed's generators, and real ones."""
    for axes, (arm, file) in zip(panels, samples.items()):
        show_picture(axes, file, "real digits" if arm == "real" else name_of(arm), fontsize=10)
