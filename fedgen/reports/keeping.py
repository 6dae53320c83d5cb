"""Writing what a run's folder keeps for its report alone: who the clients are, some of their real images, versions."""

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgen import __version__
from fedgen.clients import FederatedDataModule
from fedgen.evaluation.real.splits import Split
from fedgen.evaluation.tables.partition_summary import PartitionSummary
from fedgen.images import save_png, tile
from fedgen.io.files import write_json
from fedgen.reports.kept import KEPT, REAL

ROWS, COLUMNS, SIDE = 10, 10, 32
LIBRARIES = ("torch", "lightning", "numpy")


def keep(folder: str | Path, data: Any, splits: Sequence[Split], pictures: bool = True) -> None:
    """Writes `federation.json` and, of images, `real.png`, with a row of images of each of up to ten clients.

    Args:
        folder: of the run.
        data: the run's data; of clients on machines of their own nothing is known and nothing written.
        splits: of the evaluation, whose first has the images; none where they are elsewhere.
        pictures: whether to keep real images.
    """
    libraries = {name: version(name) for name in LIBRARIES}
    content: dict[str, Any] = {"versions": {"fedgen": __version__, "python": platform.python_version(), **libraries}}
    if isinstance(data, FederatedDataModule):
        try:
            summary = PartitionSummary.of(data).to_json()
            content |= {"classes": summary["classes"], "clients": summary["clients"]}
        except ValueError:  # data whose parts cannot be counted train and are scored all the same
            content |= {"classes": [], "clients": []}
    rows = _real_rows(splits[0]) if splits and pictures else {}
    if rows:
        save_png(Path(folder) / REAL, tile(torch.cat(list(rows.values())), COLUMNS, min_side=SIDE))
    write_json(Path(folder) / KEPT, {**content, "real": list(rows)})


def _real_rows(split: Split) -> dict[str, Tensor]:
    """Images uint8 [COLUMNS, C, H, W] of some clients, evenly spaced, by name; white where a client has fewer."""
    count = len(split.counts)
    places = sorted({round(place * (count - 1) / max(1, min(ROWS, count) - 1)) for place in range(min(ROWS, count))})
    rows: dict[str, Tensor] = {}
    for place in places:
        images, _ = split.of_one(place).first(COLUMNS)
        if not isinstance(images, Tensor) or images.ndim != 4 or images.shape[1] not in (1, 3):
            return {}
        blank = torch.full((COLUMNS - len(images), *images.shape[1:]), 255, dtype=torch.uint8)
        rows[split.client_names[place] if split.client_names else str(place)] = torch.cat([images, blank])
    return rows
