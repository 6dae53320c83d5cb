"""What a run's folder keeps for its report alone: who the clients are, some of their real images, and versions."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgen import __version__
from fedgen.clients import FederatedDataModule
from fedgen.evaluation.partition_summary import PartitionSummary
from fedgen.evaluation.splits import Split
from fedgen.files import is_count, read_json, write_json
from fedgen.images import save_png, tile

KEPT, REAL = "federation.json", "real.png"
ROWS, COLUMNS, SIDE = 10, 10, 32
LIBRARIES = ("torch", "lightning", "numpy")


@dataclass
class Kept:
    """What `keep` wrote.

    Attributes:
        versions: of Python and libraries, by name.
        classes: the labels' names; empty for data without labels.
        clients: each with "name", "role", "train", "held_out" and, where there are classes, "labels" (counts).
        real: names of the clients whose images are the rows of `real.png`.
    """

    versions: dict[str, str] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    real: list[str] = field(default_factory=list)


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
            content |= PartitionSummary.of(data).to_json()
        except ValueError:  # data whose parts cannot be counted train and are scored all the same
            content |= {"classes": [], "clients": []}
    rows = _real_rows(splits[0]) if splits and pictures else {}
    if rows:
        save_png(Path(folder) / REAL, tile(torch.cat(list(rows.values())), COLUMNS, min_side=SIDE))
    write_json(Path(folder) / KEPT, {**content, "real": list(rows)})


def read_kept(folder: str | Path) -> Kept:
    """What `keep` wrote; nothing if there is no file.

    Raises:
        ValueError: for a damaged file.
    """
    path = Path(folder) / KEPT
    if not path.exists():
        return Kept()
    content = read_json(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: it holds no object; remove it")
    found = Kept(
        content.get("versions", {}), content.get("classes", []), content.get("clients", []), content.get("real", [])
    )
    if not _is_sound(found):
        raise ValueError(f"{path} is damaged: it holds something other than clients and versions; remove it")
    return found


def _is_sound(found: Kept) -> bool:
    texts = [*found.classes, *found.real] if _are_lists(found.classes, found.real, found.clients) else [None]
    if not isinstance(found.versions, dict) or not all(isinstance(v, str) for v in found.versions.values()):
        return False
    return all(isinstance(text, str) for text in texts) and all(
        isinstance(one, dict)
        and isinstance(one.get("name"), str)
        and isinstance(one.get("role", ""), str)
        and is_count(one.get("train"))
        and is_count(one.get("held_out"))
        and isinstance(one.get("labels", []), list)
        and all(map(is_count, one.get("labels", [])))
        for one in found.clients
    )


def _are_lists(*values: Any) -> bool:
    return all(isinstance(value, list) for value in values)


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
