"""Percentiles of the clients' scores over rounds, seen and unseen clients side by side."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgen.evaluation.record_names import PERCENTILES
from fedgen.evaluation.tables.gap_table import SPLITS
from fedgen.io.files import atomic_write
from fedgen.reports.figures.generalisation import COLOURS


def draw_percentiles(spread: Mapping[str, Mapping[str, Any]], score: str, path: Path) -> Path:
    """A panel a partition: bands from the 5th to the 95th and from the 25th to the 75th percentile, and the median.

    Args:
        spread: partition -> seed -> score -> split -> percentile -> value by evaluation.
        score: which.
        path: of the picture.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(spread) + 0.8, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(spread), squeeze=False, sharey=True)[0]
    for axes, (partition, by_seed) in zip(panels, spread.items()):
        for split in SPLITS[1:]:
            lines = {
                name: [statistics.mean(each) for each in zip(*(one[score][split][name] for one in by_seed.values()))]
                for name in PERCENTILES
            }
            checks = range(1, len(lines["pct50"]) + 1)
            for low, high, alpha in (("pct5", "pct95", 0.15), ("pct25", "pct75", 0.25)):
                axes.fill_between(checks, lines[low], lines[high], color=COLOURS[split], alpha=alpha, linewidth=0)
            axes.plot(checks, lines["pct50"], color=COLOURS[split], label=split)
        axes.set_title(partition, fontsize=10)
        axes.set_xlabel("evaluation")
        axes.set_xticks(checks)
        axes.grid(alpha=0.25)
    panels[0].set_ylabel(f"{score} of single clients")
    panels[0].legend(fontsize=8)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=120)
    return path
