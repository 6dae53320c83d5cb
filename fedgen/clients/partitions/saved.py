"""A partition on disk: written once, used by every run that must see the same clients."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from fedgen.clients.partitions.partition import Partition, check_assignment
from fedgen.data.examples import Examples
from fedgen.io.field_types import conforms
from fedgen.io.files import atomic_write, parse_json, read_npz

VERSION = 2  # 1 had no owners_fingerprint


@dataclass(frozen=True, eq=False)
class PartitionFile:
    """The contents of a partition file.

    Args:
        assignment: one int64 array of positions for each client.
        names: the clients' names.
        data: name of the examples, e.g. "digits/train".
        num_examples: their number.
        fingerprint: `label_fingerprint` of their labels.
        partition: settings of the partition (class name and arguments).
        seed: the seed it was drawn with.
        owners_fingerprint: `owner_fingerprint` of their owners, "" for examples without any; None in files of format 1,
            which do not say.
    """

    assignment: list[np.ndarray]
    names: list[str]
    data: str
    num_examples: int
    fingerprint: str
    partition: dict[str, Any]
    seed: int
    owners_fingerprint: str | None = None


def label_fingerprint(examples: Examples) -> str:
    """A hash of the labels in their order (BLAKE2b, 32 hex digits)."""
    labels = np.ascontiguousarray(examples.labels.numpy(), dtype="<i8")
    return hashlib.blake2b(labels.tobytes(), digest_size=16).hexdigest()


def owner_fingerprint(examples: Examples) -> str:
    """A hash of each example's owner by name (BLAKE2b, 32 hex digits); "" for examples without owners."""
    if examples.owners is None:
        return ""
    names = sorted(examples.owner_names[owner] for owner in examples.owners.unique().tolist())
    places = {name: place for place, name in enumerate(names)}
    ranks = np.array([places.get(name, -1) for name in examples.owner_names], dtype="<i8")
    content = json.dumps(names).encode() + ranks[examples.owners.numpy()].tobytes()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def save_partition(
    path: str | Path,
    partition: Partition,
    examples: Examples,
    seed: int,
    assignment: Sequence[np.ndarray] | None = None,
) -> Path:
    """Writes each client's examples as one .npz, atomically; returns the path.

    The file holds `indices` (all clients one after the other), `offsets` [num_clients + 1] and `settings` (JSON).

    Args:
        path: of the file.
        partition: the rule.
        examples: to assign.
        seed: of the assignment.
        assignment: what the partition gave for these examples and seed, if known: it may be long work.
    """
    names = partition.names(examples)
    assignment = partition.assign(examples, seed) if assignment is None else assignment
    checked = check_assignment(assignment, len(examples), names)
    settings = {
        "version": VERSION,
        "data": examples.name,
        "num_examples": len(examples),
        "fingerprint": label_fingerprint(examples),
        "names": names,
        "partition": partition.settings(),
        "seed": seed,
        "owners_fingerprint": owner_fingerprint(examples),
    }
    offsets = np.cumsum([0, *map(len, checked)])
    with atomic_write(path) as file:
        np.savez_compressed(file, indices=np.concatenate(checked), offsets=offsets, settings=json.dumps(settings))
    return Path(path)


def load_partition(path: str | Path) -> PartitionFile:
    """Read what `save_partition` wrote.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not a partition file, or of a newer version.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"there is no partition file {path}; give the partition.npz of a run's folder")
    arrays = read_npz(path)
    try:
        settings = parse_json(str(arrays["settings"]))
        version = settings.pop("version")
        indices, offsets = arrays["indices"], arrays["offsets"]
    except (KeyError, ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is not a partition file written by save_partition ({error!r})") from error
    if type(version) is not int or version not in range(1, VERSION + 1):
        raise ValueError(f"{path} has partition format {version}, but this fedgen reads 1 to {VERSION}; upgrade fedgen")
    _check_settings(path, settings, version)
    if any(array.ndim != 1 or array.dtype.kind not in "iu" for array in (indices, offsets)) or not len(offsets):
        raise ValueError(f"{path} is damaged: indices and offsets must be lists of whole numbers; save it again")
    if offsets[0] != 0 or offsets[-1] != len(indices):
        raise ValueError(f"{path} is damaged: offsets end at {offsets[-1]} for {len(indices)} positions; save it again")
    if (offsets[1:] < offsets[:-1]).any():
        raise ValueError(f"{path} is damaged: offsets must rise; save it again")
    try:
        assignment = check_assignment(np.split(indices, offsets[1:-1]), settings["num_examples"], settings["names"])
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}; save it again") from error
    return PartitionFile(assignment=assignment, **settings)


def _check_settings(path: str | Path, settings: dict[str, Any], version: int) -> None:
    if version == 1:
        settings.setdefault("owners_fingerprint", None)
    hints = get_type_hints(PartitionFile) | {"seed": Integral, "owners_fingerprint": str if version > 1 else None}
    del hints["assignment"]
    wrong = sorted(settings.keys() ^ hints.keys())
    wrong = wrong or [name for name, hint in hints.items() if not conforms(settings[name], hint)]
    if wrong or not settings["names"]:
        raise ValueError(f"{path} is damaged: {wrong[0] if wrong else 'names'!r} is missing or wrong; save it again")


class SavedPartition(Partition):
    """The clients of a file that `save_partition` wrote, whatever the seed.

    Args:
        path: of the file, such as the `partition.npz` of a run's folder.

    Raises (in `assign` and `names`):
        FileNotFoundError: if there is no such file.
        ValueError: if the examples are not those of the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)

    def assign(self, examples: Examples, seed: int) -> list[np.ndarray]:
        return self._read(examples).assignment

    def names(self, examples: Examples) -> list[str]:
        return self._read(examples).names

    def _read(self, examples: Examples) -> PartitionFile:
        stored = load_partition(self.path)
        if len(examples) != stored.num_examples or label_fingerprint(examples) != stored.fingerprint:
            other = "labels"
        elif stored.owners_fingerprint not in (None, owner_fingerprint(examples)):
            other = "owners"
        else:
            return stored
        raise ValueError(
            f"{self.path} assigns the {stored.num_examples} examples of {stored.data}, but got other {other}: "
            f"{len(examples)} examples of {examples.name}; load the data it was made from, or save a new partition"
        )
