"""Stored sets to score: a folder of images, or an .npz or .npy file of images, features or statistics.

Everything is looked at when a set is opened and nothing is embedded, so that a mistake costs no work.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedgen.data.formats.image_files import SUFFIXES
from fedgen.evaluation.real.splits import LEAST
from fedgen.evaluation.stored.array_choice import Kind, choose_arrays
from fedgen.evaluation.stored.stored_images import (
    ArrayImages,
    FolderImages,
    Images,
    Reading,
    UnreadableFilesError,
)
from fedgen.io.files import read_headers, read_npz
from fedgen.statistics import Gaussian, Provenance, load_npz
from fedgen.statistics.gaussian import check_features
from fedgen.statistics.npz import read_provenance

ARRAYS = (".npz", ".npy", ".zip")  # suffixes in any case; a .zip of arrays is an .npz
UNKNOWN = "unknown"
UNCOUNTED = 2.0  # stands for the number of images of statistics where no result depends on it


@dataclass(frozen=True, eq=False)
class StoredSet:
    """One set of images, features or statistics on disk.

    Args:
        name: a client's name; the shortest end of the path that tells it from the others.
        path: where it lies.
        kind: what it holds.
        count: number of images; None for statistics that do not say.
        images: to be embedded, for kind "images".
        keys: the array of features, or those of mean and covariance.
        dim: length of a feature vector, where no embedding decides it.
        provenance: what the file says of its embedding.
        remark: which arrays were taken and which were not, where a reader must know.
    """

    name: str
    path: Path
    kind: Kind
    count: float | None
    images: Images | None = None
    keys: tuple[str, ...] = ()
    dim: int | None = None
    provenance: Provenance = field(default_factory=Provenance)
    remark: str = ""

    @property
    def says_nothing(self) -> bool:
        """Whether the file does not name its embedding."""
        return self.provenance.embedding == UNKNOWN

    def load(self) -> Tensor | Gaussian:
        """The stored features [N, D], floating, or the summary; ValueError for NaN or infinity, naming the file."""
        if self.kind == "features":
            (rows,) = read_npz(self.path, self.keys).values()
            wide = np.float32 if rows.itemsize <= 4 else np.float64  # in this machine's byte order, too
            features = torch.from_numpy(rows.astype(wide, copy=False))
            check_features(features, f"features of {self.path}")
            return features
        count = None if self.provenance.count > 0 else self.count or UNCOUNTED
        return load_npz(self.path, count, names=(self.keys[0], self.keys[1]))[0]


def open_sets(
    paths: Sequence[str | Path], reading: Reading, counts: Mapping[str, float] | None = None, clients: bool = False
) -> list[StoredSet]:
    """The sets of paths; the first may come again as a client, and the others are `clients` or none.

    Raises:
        ValueError: for everything that is wrong with any path, all at once.
        UnreadableFilesError: for image files whose headers cannot be read, all of them.
    """
    _check_distinct([Path(path) for path in paths[1:]])
    names = short_names([Path(path) for path in paths])
    found: list[StoredSet] = []
    problems = []
    for place, (name, path) in enumerate(zip(names, paths)):
        try:
            found.append(_open(name, Path(path), reading, clients and place > 0))
        except (OSError, ValueError) as error:
            problems.append(str(error))
    if problems:
        raise ValueError("\n".join(problems))
    images = [(stored, stored.images) for stored in found if isinstance(stored.images, FolderImages)]
    broken = [reason for _, folder in images for reason in folder.skipped]
    if broken and not reading.skip_unreadable:
        raise UnreadableFilesError(broken, sum(folder.found for _, folder in images))
    found = _counted(found, dict(counts or {}))
    _check(found, reading)
    return found


def short_names(paths: Sequence[Path]) -> list[str]:
    """A name for each path: its last part, or as many of them as tell all paths apart; "a/train", "b/train"."""
    parts = [(path.with_suffix("") if path.suffix.lower() in ARRAYS else path).absolute().parts for path in paths]
    different = len({path.absolute() for path in paths})
    for length in range(1, max(len(part) for part in parts) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == different:
            return names
    return [str(path) for path in paths]  # a folder beside a file of the same name


def _check_distinct(clients: Sequence[Path]) -> None:
    places: dict[Path, Path] = {}
    for path in clients:
        first = places.setdefault(path.resolve(), path)
        if first is not path:
            both = str(path) if str(first) == str(path) else f"{path}, which is {first},"
            raise ValueError(f"{both} is given twice; a client counts once")


def _open(name: str, path: Path, reading: Reading, is_client: bool) -> StoredSet:
    if path.is_dir():
        return _open_folder(name, path, reading, is_client)
    if not path.exists():
        hint = " (a pattern that matched nothing?)" if set("*?[") & set(str(path)) else ""
        raise FileNotFoundError(f"there is no {path}{hint}; give folders of images or .npz or .npy files")
    if path.suffix.lower() not in ARRAYS:
        raise ValueError(
            f"{path} is neither a folder of images nor an .npz or .npy file; give a folder, or store arrays by np.save"
        )
    try:
        headers = read_headers(path)
    except ValueError as error:
        if path.suffix.lower() != ".zip":
            raise
        unpack = f"unzip {shlex.quote(str(path))} -d {shlex.quote(str(path.with_suffix('')))}"
        raise ValueError(f"{error}; unpack an archive of images and give the folder: {unpack}") from error
    kind, keys, remark = choose_arrays(path, headers)
    header = headers[keys[0]]
    if kind == "images":
        try:
            images = ArrayImages(path, keys[0], header, reading)
        except ValueError as error:
            raise ValueError(f"{path}, array {keys[0]!r}: {error}") from error
        return StoredSet(name, path, kind, len(images), images, remark=remark)
    # other tools' arrays of these names have axes
    said = Provenance(**read_provenance(path, {key: held for key, held in headers.items() if not held.shape}))
    dim = math.prod(header.shape[-1:])
    count = header.shape[0] if kind == "features" else said.count or None
    return StoredSet(name, path, kind, count, None, keys, dim, said, remark)


def _open_folder(name: str, path: Path, reading: Reading, is_client: bool) -> StoredSet:
    images = FolderImages(path, reading)
    if not images.found:
        raise ValueError(f"{path} has no images ({', '.join(sorted(SUFFIXES))}){_inside(path, is_client)}")
    return StoredSet(name, path, "images", len(images), images=images)


def _inside(path: Path, is_client: bool) -> str:
    """Return what a folder without images has in place of them, and what to give then."""
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    folders = [entry.name for entry in entries if entry.is_dir()]
    sets = [*folders, *(entry.name for entry in entries if entry.suffix.lower() in ARRAYS)]
    if is_client and len(sets) > 1:
        return (
            f"; it has {len(sets)} sets such as {sets[0]}: if each is a client, give {path}/* (--recursive would pool"
            " them into one client, whose avg and all are one number)"
        )
    apart = f" (to score each as a client: --clients {path}/*)" if len(folders) > 1 else ""
    return f"; it has folders such as {folders[0]}, which --recursive includes{apart}" if folders else ""


def _counted(sets: list[StoredSet], counts: dict[str, float]) -> list[StoredSet]:
    unknown = sorted(counts.keys() - {stored.name for stored in sets})
    if unknown:
        raise ValueError(f"counts of {unknown}, but the sets are {[stored.name for stored in sets]}")
    for stored in sets:
        given = counts.get(stored.name)
        if given is not None and stored.count is not None and given != stored.count:
            raise ValueError(f"{stored.path} holds {stored.count:.12g} images, not {given:.12g}; leave its count out")
    return [replace(stored, count=counts.get(stored.name, stored.count)) for stored in sets]


def _check(sets: Sequence[StoredSet], reading: Reading) -> None:
    for stored in sets:
        if stored.count is not None and stored.count < LEAST:
            raise ValueError(
                f"{stored.path} has {stored.count:g} image(s) and a score needs {LEAST}, better thousands: give it more"
                " or leave it out"
            )
        sizes = stored.images.sizes if stored.images else {}
        if len(sizes) > 1 and not reading.mixed_sizes:
            raise ValueError(f"the images of {stored.path} have {len(sizes)} sizes: {say_sizes(sizes)}")


def say_sizes(sizes: Mapping[tuple[int, int], str]) -> str:
    """Sizes that should be one, with an example of each and the remedy."""
    listed = ", ".join(f"{h} x {w} ({example})" for (h, w), example in list(sizes.items())[:5])
    more = f", and {len(sizes) - 5} more" if len(sizes) > 5 else ""
    return f"{listed}{more}; with a resize (--resize N) all are fitted to N x N"
