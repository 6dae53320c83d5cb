"""The checkpoints of a run folder by their names."""

import re
from pathlib import Path

LAST = "last.ckpt"


def checkpoint_name(round: int) -> str:
    """The file name of a round's checkpoint: "round=00012.ckpt"."""
    return f"round={round:05d}.ckpt"


def list_checkpoints(folder: str | Path) -> dict[int, Path]:
    """The checkpoints of whole rounds in a folder, by round, ascending; `last.ckpt` is not among them."""
    found = {}
    for path in Path(folder).glob("round=*.ckpt"):
        if match := re.fullmatch(r"round=(\d+)\.ckpt", path.name):
            found[int(match[1])] = path
    return dict(sorted(found.items()))
