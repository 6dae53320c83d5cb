"""Features and statistics of stored sets as .npz files, which are stored sets again."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedgen.evaluation.stored.array_choice import Kind
from fedgen.evaluation.stored.stored_evaluation import StoredEvaluation
from fedgen.io.files import atomic_write
from fedgen.statistics import save_npz, summarize

STATISTICS_OF: tuple[Kind, ...] = ("images", "features")
FEATURES_OF: tuple[Kind, ...] = ("images",)


def files_in(evaluation: StoredEvaluation, folder: str | Path, kinds: Sequence[Kind]) -> list[tuple[int, Path]]:
    """The place of each set of some kinds with its file in a folder; ValueError if two sets or files are one."""
    found: dict[Path, int] = {}
    inputs = {stored.path.resolve() for stored in evaluation.sets}
    for place, stored in enumerate(evaluation.sets):
        path = Path(folder) / f"{stored.name.replace('/', '_')}.npz"
        other = evaluation.sets[found.setdefault(path, place)]
        if other.path.absolute() != stored.path.absolute():
            raise ValueError(f"several sets would be written to {path.name}; rename their folders")
        if path.resolve() in inputs and stored.kind in kinds:
            raise ValueError(f"{path} is one of the sets to score and would be overwritten; choose another folder")
    return [(place, path) for path, place in found.items() if evaluation.sets[place].kind in kinds]


def save_statistics(evaluation: StoredEvaluation, folder: str | Path) -> list[Path]:
    """Writes mu and sigma of every set that is not statistics already, with their embedding; returns the paths.

    pytorch-fid reads the files as they are; with `counts` in them they are stored sets again.
    """
    identity, paths = evaluation.identity, []
    for place, path in files_in(evaluation, folder, STATISTICS_OF):
        value = evaluation.values()[place]
        summary = summarize(value) if isinstance(value, Tensor) else value
        paths.append(save_npz(path, summary, identity.name, identity.fingerprint, identity.resize))
    return paths


def save_features(evaluation: StoredEvaluation, folder: str | Path) -> list[Path]:
    """Writes the features [N, D] of every set of images under "features", with their embedding; returns the paths."""
    identity, paths = evaluation.identity, []
    said = {"embedding": identity.name, "weights": identity.fingerprint, "resize": identity.resize}
    words: dict[str, Any] = {key: np.asarray(value) for key, value in said.items()}
    for place, path in files_in(evaluation, folder, FEATURES_OF):
        value = evaluation.values()[place]
        assert isinstance(value, Tensor)  # images have features
        with atomic_write(path) as file:
            np.savez(file, features=value.numpy(), **words)
        paths.append(path)
    return paths
