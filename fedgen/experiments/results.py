"""What an experiment leaves: its numbers with the settings and versions that made them, and a figure."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fedgen.files import atomic_write, write_json

RESULTS = "results.json"
LIBRARIES = ("fedgen", "torch", "lightning", "torchmetrics", "numpy", "scipy")


def save_results(folder: str | Path, name: str, settings: dict[str, Any], numbers: dict[str, Any]) -> Path:
    """Writes `results.json` atomically: experiment, settings, versions, every number; returns its path."""
    versions = {"python": platform.python_version()} | {library: version(library) for library in LIBRARIES}
    path = Path(folder) / RESULTS
    write_json(path, {"experiment": name, "settings": settings, "versions": versions, "numbers": numbers})
    return path


def load_results(folder: str | Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The numbers stored in a folder by the same settings; None if there are none."""
    path = Path(folder) / RESULTS
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}); remove it to run the experiment again") from error
    return stored["numbers"] if stored.get("settings") == settings else None


def save_figure(figure: Any, path: str | Path) -> Path:
    """Writes a matplotlib figure as PNG, atomically; returns its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=130)
    return Path(path)
