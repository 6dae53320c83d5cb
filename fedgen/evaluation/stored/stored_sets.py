"""Stored sets to score: a folder of samples, or an .npz or .npy file of samples, features or statistics.

Everything is looked at when a set is opened and nothing is embedded, so that a mistake costs no work.
"""

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedgen.data.formats.image_files import SUFFIXES
from fedgen.embeddings import Embedding, Pixels, load_embedding
from fedgen.embeddings.base import say_example, say_samples
from fedgen.evaluation.panels import require_device
from fedgen.evaluation.splits import LEAST
from fedgen.evaluation.stored.stored_images import (
    ArrayImages,
    FloatArrays,
    FolderImages,
    Images,
    Reading,
    TextLines,
    UnreadableFilesError,
)
from fedgen.foreign_text import listed, printable
from fedgen.io.files import Header, read_headers, read_npz
from fedgen.statistics import Gaussian, Provenance, load_npz
from fedgen.statistics.gaussian import check_features, is_covariance
from fedgen.statistics.npz import NAMES, read_provenance

Kind = Literal["images", "features", "statistics"]  # "images": samples of any kind, to be embedded
Shapes = Mapping[str, tuple[int, ...]]
STATISTICS_OF: tuple[Kind, ...] = ("images", "features")
FEATURES_OF: tuple[Kind, ...] = ("images",)
Named = str | nn.Module
DEFAULT = "efficientnet-lite0"  # its weights install with the kit
FITTED = "images fitted to"
ARRAYS = (".npz", ".npy", ".zip")  # suffixes in any case; a .zip of arrays is an .npz
TEXTS = (".txt", ".smi")  # a text a line
UNKNOWN = "unknown"
SLACK = 1e-3  # of a matrix's largest entry, for rounding
# a word in the name of an array [N, D] that says what else it is
OTHERS = "zs?|ws?|latents?|codes?|noise|eps|seeds?|ys?|labels?|classes|targets?|(one)?hot|images?|imgs?|pixels?"
OTHER = re.compile(rf"(?i)(?!.*(feat|embed)).*(?<![a-z])({OTHERS})(?![a-z])")
REMEDIES = {
    (4, False): "images are one array of uint8: store floats of [0, 1] as (255 * x).round().astype('uint8')",
    (3, False): "grey images [N, H, W] need a channel: x[..., None]",
    (2, False): "store rows of pixels as x.reshape(N, H, W, C), features as x.astype('float32')",
    (2, True): "if an array holds features, not latents, labels or pixels, store it as 'features'",
}


def choose_arrays(path: Path, headers: Mapping[str, Header]) -> tuple[Kind, tuple[str, ...], str]:
    """The images, else 'features', else mean and covariance of any names, else the only floats [N, D], or samples."""
    pictures = [key for key, header in headers.items() if len(header.shape) == 4 and header.dtype == np.uint8]
    floats = {key: h.shape for key, h in headers.items() if h.dtype.kind == "f" and 0 not in h.shape}
    rows = [key for key, shape in floats.items() if len(shape) == 2 and not OTHER.match(key)]
    samples = [key for key, shape in floats.items() if len(shape) not in (1, 2, 4) and not OTHER.match(key)]
    kind: Kind = "features"
    if len(pictures) == 1:
        kind, keys = "images", tuple(pictures)
    elif "features" in rows:
        keys = ("features",)
    elif statistics := NAMES if set(NAMES) <= set(headers) else _find_statistics(path, floats):
        kind, keys = "statistics", statistics
    elif len(rows) == 1:
        _check_features(path, rows[0], floats)
        keys = (rows[0],)
    elif len(samples) == 1:
        kind, keys = "images", (samples[0],)
    else:
        held = listed(f"{printable(key)} {header.dtype} {list(header.shape)}" for key, header in headers.items())
        forms = dict.fromkeys((len(h.shape), len(h.shape) == 2 and h.dtype.kind == "f") for h in headers.values())
        raise ValueError(
            f"{path} holds neither features [N, D] (floats, under 'features' or alone), nor images (uint8, four axes),"
            " nor series [N, C, T] or volumes [N, C, D, H, W] (floats),"
            f" nor statistics ([D] beside a covariance [D, D]), but {held or 'nothing'}"
            + "".join(f"; {REMEDIES[form]}" for form in forms if form in REMEDIES)
        )
    unread = [key for key, header in headers.items() if key not in keys and header.shape]
    remark = f"{kind} from {_quoted(keys)}" + (f", not read: {_quoted(unread)}" if unread else "")
    return kind, keys, remark if unread or (kind == "statistics" and keys != NAMES) else ""


def _find_statistics(path: Path, floats: Shapes) -> tuple[str, ...]:
    """Names of the mean [D] and the covariance [D, D] that a file holds; none if it holds none."""
    pairs = [
        (mean, key)
        for key, shape in floats.items()
        if (means := [mean for mean, other in floats.items() if other * 2 == shape and len(shape) == 2])
        and is_covariance(torch.from_numpy(read_npz(path, [key])[key].astype(np.float64)), SLACK)
        for mean in means
    ]
    if len(pairs) > 1:
        found = "; ".join(map(_quoted, pairs))
        raise ValueError(f"{path} stores several means beside covariances: {found}; name one pair 'mu' and 'sigma'")
    return pairs[0] if pairs else ()


def _check_features(path: Path, key: str, floats: Shapes) -> None:
    """Raise ValueError for floats [N, D] that may be something else, unless they are named as features."""
    rows, reason = read_npz(path, [key])[key], ""
    if means := [mean for mean, shape in floats.items() if shape * 2 == floats[key]]:
        reason = f"is a square matrix beside {_quoted(means)}, but not a covariance"
    elif len(rows) == rows.shape[1] and np.abs(rows - rows.T).max() <= SLACK * np.abs(rows).max():
        reason = "is a symmetric matrix, like a covariance without its mean"
    elif ((rows[:1000] == 0) | (rows[:1000] == 1)).all() and (rows[:1000].sum(axis=1) == 1).all():
        reason = "has one-hot rows, like labels"
    if reason:
        raise ValueError(f"{path}: '{printable(key)}' {reason}; name features 'features', statistics 'mu' and 'sigma'")


def _quoted(names: Iterable[str]) -> str:
    return listed(f"'{printable(name)}'" for name in names)


@dataclass(frozen=True, eq=False)
class StoredSet:
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
        # without any number no result depends on it, and 2 stands for it
        count = None if self.provenance.count > 0 else self.count or 2.0
        return load_npz(self.path, count, names=(self.keys[0], self.keys[1]))[0]


def open_sets(
    paths: Sequence[str | Path], reading: Reading, counts: Mapping[str, float] | None = None, clients: bool = False
) -> list[StoredSet]:
    """The sets of paths; the first may come again as a client, and the others are `clients` or none."""
    places, found, problems = [Path(path) for path in paths], list[StoredSet](), list[str]()
    firsts: dict[Path, Path] = {}
    for path in places[1:]:
        first = firsts.setdefault(path.resolve(), path)
        if first is not path:
            both = str(path) if str(first) == str(path) else f"{path}, which is {first},"
            raise ValueError(f"{both} is given twice; a client counts once")
    for name, path in zip(short_names(places), places):
        try:
            found.append(_open(name, path, reading, clients and bool(found or problems)))
        except (OSError, ValueError) as error:
            problems.append(str(error))
    if problems:
        raise ValueError("\n".join(problems))
    folders = [stored.images for stored in found if isinstance(stored.images, FolderImages)]
    broken = [reason for folder in folders for reason in folder.skipped]
    if broken and not reading.skip_unreadable:
        raise UnreadableFilesError(broken, sum(folder.found for folder in folders))
    return _checked(found, dict(counts or {}), reading)


def short_names(paths: Sequence[Path]) -> list[str]:
    """A name for each path: its last part, or as many of them as distinguish all paths; "a/train", "b/train"."""
    parts = [(path.with_suffix("") if path.suffix.lower() in ARRAYS else path).absolute().parts for path in paths]
    different = len({path.absolute() for path in paths})
    for length in range(1, max(len(part) for part in parts) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == different:
            return names
    return [str(path) for path in paths]  # a folder beside a file of the same name


def _open(name: str, path: Path, reading: Reading, is_client: bool) -> StoredSet:
    if path.is_dir():
        folder = FolderImages(path, reading)
        if not folder.found and any(path.glob("*.npy")):
            try:
                arrays = FloatArrays(path)
            except ValueError as error:
                raise ValueError(f"{error}{_inside(path, is_client)}") from error
            return StoredSet(name, path, "images", len(arrays), arrays)
        if not folder.found:
            raise ValueError(f"{path} has no images ({', '.join(sorted(SUFFIXES))}){_inside(path, is_client)}")
        return StoredSet(name, path, "images", len(folder), folder)
    if not path.exists():
        hint = " (a pattern that matched nothing?)" if set("*?[") & set(str(path)) else ""
        raise FileNotFoundError(f"there is no {path}{hint}; give folders of images or .npz or .npy files")
    if path.suffix.lower() in TEXTS:
        lines = TextLines(path)
        return StoredSet(name, path, "images", len(lines), lines)
    if path.suffix.lower() not in ARRAYS:
        raise ValueError(
            f"{path} is neither a folder of images, nor an .npz or .npy file, nor texts (.txt, .smi); give a folder, or"
            " store arrays by np.save"
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
            pictured = header.dtype == np.uint8
            images = ArrayImages(path, keys[0], header, reading) if pictured else FloatArrays(path, keys[0])
        except ValueError as error:
            raise ValueError(f"{path}, array {keys[0]!r}: {error}") from error
        return StoredSet(name, path, kind, len(images), images, remark=remark)
    # other tools' arrays of these names have axes
    said = Provenance(**read_provenance(path, {key: held for key, held in headers.items() if not held.shape}))
    dim = math.prod(header.shape[-1:])
    count = header.shape[0] if kind == "features" else said.count or None
    return StoredSet(name, path, kind, count, None, keys, dim, said, remark)


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


def _checked(sets: list[StoredSet], counts: dict[str, float], reading: Reading) -> list[StoredSet]:
    """The sets with the numbers of images that are given; ValueError where they contradict files, or are too few."""
    names = [stored.name for stored in sets]
    if unknown := sorted(counts.keys() - set(names)):
        raise ValueError(f"counts of {unknown}, but the sets are {names}")
    counted = []
    for stored in sets:
        count = counts.get(stored.name, stored.count)
        if count is not None and stored.count is not None and count != stored.count:
            raise ValueError(f"{stored.path} holds {stored.count:.12g} images, not {count:.12g}; omit its count")
        if count is not None and count < LEAST:
            few = f"{stored.path} has {count:g} image(s), but a score needs {LEAST}, better thousands"
            raise ValueError(f"{few}: give it more{' or leave it out' * (stored is not sets[0])}")
        sizes = stored.images.sizes if stored.images else {}
        if len(sizes) > 1 and not reading.mixed_sizes:
            raise ValueError(f"the images of {stored.path} have {len(sizes)} sizes: {say_sizes(sizes)}")
        counted.append(replace(stored, count=count))
    return counted


def say_sizes(sizes: Mapping[tuple[int, int], str]) -> str:
    """Sizes that should be one, with an example of each and the remedy."""
    some = ", ".join(f"{h} x {w} ({example})" for (h, w), example in list(sizes.items())[:5])
    more = f", and {len(sizes) - 5} more" if len(sizes) > 5 else ""
    return f"{some}{more}; with a resize (--resize N) all are fitted to N x N"


@dataclass(frozen=True)
class EmbeddingIdentity:
    """The facts of an embedding; "unknown" where files do not say."""

    name: str = UNKNOWN
    fingerprint: str = UNKNOWN
    resize: str = UNKNOWN
    source: str = ""
    settings: dict[str, Any] = field(default_factory=dict)


def settle_embedding(
    sets: Sequence[StoredSet],
    embedding: Named | None,
    weights: str | Path | None,
    default: str,
    device: str,
    resize: int | None,
) -> tuple[EmbeddingIdentity, Embedding | None]:
    """The embedding that all sets share, and the network where a set has images, which is loaded only then."""
    loaded, source = None, "the embedding asked for"
    if any(stored.kind == "images" for stored in sets):
        loaded = load_embedding(default if embedding is None else embedding, weights).to(require_device(device))
        how = f"{loaded.settings.get('resize', 'none')}" + (f"; {FITTED} {resize}" if resize else "")
        identity = EmbeddingIdentity(loaded.name, loaded.fingerprint(), how, source, dict(loaded.settings))
    elif weights is not None:
        raise ValueError(f"weights={str(weights)!r} are not used: no set has images to embed")
    elif isinstance(embedding, nn.Module):
        # embeddings have a name, a custom module may
        identity = EmbeddingIdentity(str(getattr(embedding, "name", type(embedding).__name__)), source=source)
    else:
        identity = EmbeddingIdentity(embedding or UNKNOWN, source="" if embedding is None else source)
    for stored in sets:
        said, merged = stored.provenance, list[str]()
        facts = (identity.name, said.embedding), (identity.fingerprint, said.weights), (identity.resize, said.resize)
        for what, (ours, theirs) in zip(("embedding", "weights (hash)", "resize"), facts):
            if UNKNOWN not in (ours, theirs) and ours != theirs:
                raise ValueError(
                    f"{stored.path} was made with {what} {theirs!r}, but {identity.source} has {ours!r}; features are"
                    " comparable within one embedding only: make them again, or choose the file's embedding"
                )
            merged.append(theirs if ours == UNKNOWN else ours)
        known = identity.source or ("" if stored.says_nothing else str(stored.path))
        identity = EmbeddingIdentity(merged[0], merged[1], merged[2], known, identity.settings)
    return identity, loaded


def check_images(embedding: Embedding, sets: Sequence[StoredSet]) -> int:
    """The channels with which images are read; ValueError if the embedding does not take all images."""
    for stored in sets:
        if stored.images and not embedding.takes(stored.images.kind):
            raise ValueError(
                f"{stored.path} holds {(kind := stored.images.kind)}, and embedding {embedding.name} takes"
                f" {say_samples(embedding.kind)}: choose another by --embedding, such as {say_example(kind)}"
            )
        if isinstance(stored.images, FloatArrays):
            embedding.check(stored.images.shape)
    images = [stored.images for stored in sets if stored.images]
    channels = embedding.channels or (1 if all(part.grey for part in images) else 3)
    sizes = {size: example for part in images for size, example in part.sizes.items()}
    for size in sizes:
        embedding.check((2, channels, *size))
    if len(sizes) > 1 and isinstance(embedding, Pixels):
        raise ValueError(f"embedding pixels does not resize, so all images must have one size, got {say_sizes(sizes)}")
    return channels


def check_dims(dims: Mapping[Path, int]) -> None:
    for path, dim in dims.items():
        first, length = next(iter(dims.items()))
        if dim != length:
            lengths = f"{path} has features of length {dim}, {first} of length {length}"
            raise ValueError(f"{lengths}; use one embedding for all")
