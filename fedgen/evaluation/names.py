"""The names that records carry: of splits and of aggregates, and notes that distinguish runs."""

import re
from pathlib import Path
from typing import Literal

SELECT, REPORT = "train", "report"
PART_TRAIN, PART_VAL, UNPART = "part_train", "part_val", "unpart"
HELD_OUT = (REPORT, PART_VAL, UNPART)  # of images that no training has seen
AGGREGATES = ("avg", "all", "worst")
POWER = "power-"
PERCENTILES = {f"pct{q}": q for q in (95, 75, 50, 25, 5)}
DISTRIBUTION = ("unweighted", "var", *PERCENTILES)
"""Of the clients' scores, each client once: mean, variance (divisor K), and percentiles that occur ("nearest"), as
section 3 and appendix C of Yuan et al. 2022 (arXiv 2110.14216) have them."""
LOCAL_NOTE = "mixture of local models"
LAST = "last.ckpt"

Peer = Literal["torch-fidelity", "clean-fid"]
"""Whose numbers a comparison with one reference gives."""
NAMES = ("fid", "kid", "fd-dinov2", "cmmd", "is", "fcd")
"""The scores that are presets, in the order of `panels.PRESETS`."""
SUBSET_SIZE = 1000  # images of each of torch-fidelity's subsets
SignalName = Literal["loss", "critic", "likelihood", "distance"]


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
