"""Reading what a run's folder keeps for its report alone: who the clients are, whose real images, versions."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgen.io.files import is_count, read_json

KEPT, REAL = "federation.json", "real.png"
CONCLUSIONS = "conclusions.txt"  # of an experiment, a line each


@dataclass
class Kept:
    """The contents that `keeping.keep` wrote.

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


def read_kept(folder: str | Path) -> Kept:
    """Read what `keeping.keep` wrote; nothing if there is no file.

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
