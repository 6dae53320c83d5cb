"""Text as tokens, the bytes of its UTF-8, and data sets of texts whose owners are known.

The King James Version of 1611 comes with Debian's `bible-kjv-text` in one file (`EC02Compressed Data File`, of Chip
Chapin's bible program): a header, the places of windows of 65,536 characters, and each window compressed by itself. The
text is a line a verse, "Ge1:1 In the beginning ...", after a line with its title.

MOSES (Polykovskiy et al. 2020, arXiv 1811.12823), molecules of ZINC, comes with the Python package molsets (MIT):
1,584,663 to train on, 176,074 to test on, and 176,225 whose scaffolds, the rings of a molecule and what joins them, are
in neither of the others.
"""

import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.extras import need_rdkit
from fedgen.io.regular_files import check_unpacked, read_gzip, read_regular
from fedgen.progress import track
from fedgen.seeds import subset

VOCABULARY = 256
"""Tokens that there are: bytes."""


def encode(text: str) -> Tensor:
    """The tokens int64 [T] of a text, one a byte of its UTF-8: one a character where that is ASCII."""
    return torch.from_numpy(np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64))


def decode(tokens: Tensor) -> str:
    """The text of tokens int64 [T] in 0 .. 255; bytes that are no UTF-8 become the replacement character."""
    return bytes(tokens.tolist()).decode(errors="replace")


def encode_all(texts: Sequence[str]) -> Tensor:
    """The tokens int64 [N, T] of strings, T those of the longest; shorter ones end in zeros. TypeError for others.

    Examples:
        >>> from fedgen.data.text import decode_all, encode_all
        >>> decode_all(encode_all(["CCO", "c1ccccc1"]))
        ['CCO', 'c1ccccc1']
    """
    wrong = next((place for place, text in enumerate(texts) if not isinstance(text, str)), None)
    if wrong is not None:
        raise TypeError(f"text {wrong} is a {type(texts[wrong]).__name__}; texts are strings")
    data = [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]
    rows = np.zeros((len(data), max(map(len, data), default=0) or 1), dtype=np.int64)
    for row, text in zip(rows, data):
        row[: len(text)] = text
    return torch.from_numpy(rows)


def decode_all(rows: Tensor) -> list[str]:
    """The texts of tokens int64 [N, T]: what is before the zeros at the end of each row."""
    data = rows.cpu().numpy().astype(np.uint8)
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in data]


def widened(rows: Tensor, width: int) -> Tensor:
    """Tokens [N, T] with zeros at the end of each row, so that T is at least a width."""
    return rows if rows.shape[1] >= width else torch.nn.functional.pad(rows, (0, width - rows.shape[1]))


def cut_windows(tokens: Tensor, length: int) -> Tensor:
    """The windows int64 [n, length + 1] of tokens int64 [T] without overlap; the rest at the end is dropped."""
    count = len(tokens) // (length + 1)
    return tokens[: count * (length + 1)].view(count, length + 1)


def windows_of(texts: Mapping[str, str], length: int, name: str, kinds: Mapping[str, str] | None = None) -> Examples:
    """The windows of every owner's text, of the owner's class in `kinds`; ValueError for a text without a window."""
    parts = {owner: cut_windows(encode(text), length) for owner, text in texts.items()}
    for owner, part in parts.items():
        if not len(part):
            raise ValueError(
                f"{name}: the text of {owner!r} has {len(texts[owner].encode())} tokens, and a window of"
                f" length={length} takes {length + 1}; use shorter windows, or leave it out"
            )
    sizes = torch.tensor([len(part) for part in parts.values()])
    present = {kinds[owner] for owner in texts} if kinds else set()
    order = tuple(kind for kind in dict.fromkeys((kinds or {}).values()) if kind in present)
    places = torch.tensor([order.index(kinds[owner]) if kinds else 0 for owner in parts])
    owners = torch.arange(len(parts)).repeat_interleave(sizes)
    return Examples(torch.cat(list(parts.values())), places[owners], name, order, owners, tuple(parts))


def check_length(length: int) -> None:
    if length < 1:
        raise ValueError(f"length={length}: a window has at least one token to predict")


class TextFolder(DataSet):
    """The text files of a folder, UTF-8, each an owner's, in windows: tokens int64 [N, length + 1], without labels.

    Args:
        root: the folder; `*.txt` in it and in the folders below it are read, in the order of their names. The owner's
            name is the file's, with its folder below `root` in front.
        length: tokens that are predicted in a window.
        name: what stored scores call the data; the folder's name by default.

    Raises:
        ValueError: for a length below 1.
    """

    splits = ("train",)

    def __init__(self, root: str | Path, length: int = 64, name: str | None = None) -> None:
        check_length(length)
        self.root, self.length = Path(root), length
        self.name = f"{name or self.root.resolve().name}-{length}"

    def read(self, split: Split) -> Examples:
        """The windows of all files; ValueError for a file that is not UTF-8 or shorter than one window."""
        files = sorted(self.root.rglob("*.txt")) if self.root.is_dir() else []
        if not files:
            raise FileNotFoundError(f"{self.root} is no folder with text files (*.txt), one an owner")
        texts = {}
        for file in files:
            try:
                texts[str(file.relative_to(self.root).with_suffix(""))] = read_regular(file).decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"{file} is not UTF-8 ({error}); convert it, or move it out of the folder") from error
        return windows_of(texts, self.length, f"{self.name}/{split}")


PATH = Path("/usr/lib/bible.data")  # where the package puts it
BIBLE = "install it: apt-get install bible-kjv-text (Debian, Ubuntu), or give path= of its bible.data"
MAGIC = b"EC02"
HEADER = 0x54  # bytes before the size of windows, their number and their places
COMPRESS = 3  # bytes between these and the first window, with which `compress` begins a file
LARGEST = 1 << 24  # bytes of a window, and windows: more are a damaged file

SECTIONS = {
    "law": "Ge Exo Lev Num Deu",
    "history": "Josh Jdgs Ruth 1Sm 2Sm 1Ki 2Ki 1Chr 2Chr Ezra Neh Est",
    "wisdom": "Job Psa Prv Eccl SSol",
    "major prophets": "Isa Jer Lam Eze Dan",
    "minor prophets": "Hos Joel Amos Obad Jonah Mic Nahum Hab Zep Hag Zec Mal",
    "gospels and acts": "Mat Mark Luke John Acts",
    "letters": "Rom 1Cor 2Cor Gal Eph Phi Col 1Th 2Th 1Tim 2Tim Titus Phmn Heb Jas 1Pet 2Pet 1Jn 2Jn 3Jn Jude",
    "revelation": "Rev",
}
"""The books as the file abbreviates them, by their traditional section."""
SECTION_OF = {book: section for section, books in SECTIONS.items() for book in books.split()}
CLEAR, FIRST_BITS = 256, 9  # of LZW: the code that empties the table, and bits of the first codes
VERSE = re.compile(r"(\w*?[A-Za-z]+)\d+:\d+ (.*)")


class BibleKJV(DataSet):
    """The King James Version in windows of characters: tokens int64 [N, length + 1]; owners are its 66 books.

    A window's label is the section of its book (law, history, ..., letters). Verses end with a line break and have no
    numbers. Windows do not overlap. Books have from 23 windows of 64 characters (2 John) to 3,442 (Psalms).

    Args:
        length: characters that are predicted in a window.
        path: of the package's `bible.data`.

    Raises:
        ValueError: for a length below 1.
    """

    splits = ("train",)

    def __init__(self, length: int = 64, path: str | Path = PATH) -> None:
        check_length(length)
        self.length, self.path = length, Path(path)
        self.name = f"bible_kjv-{length}"

    def read(self, split: Split) -> Examples:
        """The windows of all books; ValueError if one is shorter than a window."""
        return windows_of(read_books(self.path), self.length, f"{self.name}/{split}", SECTION_OF)


def read_books(path: Path) -> dict[str, str]:
    """The text of each book by its abbreviation, a line a verse, of a `bible.data`."""
    try:
        state = path.stat()
    except OSError as error:
        raise FileNotFoundError(f"no text of the King James Version at {path}; {BIBLE}") from error
    return dict(_read_books(path, state.st_size, state.st_mtime_ns))


@lru_cache(maxsize=1)  # decompressing takes two seconds, and experiments load their data anew for every run
def _read_books(path: Path, size: int, changed: int) -> dict[str, str]:
    try:
        lines = _decompress(read_regular(path)).decode("ascii").splitlines()
        verses: dict[str, list[str]] = {}
        for number, line in enumerate(lines[1:], start=2):
            if (found := VERSE.fullmatch(line)) is None or found[1] not in SECTION_OF:
                raise ValueError(f"line {number} is no verse of a known book: {line[:40]!r}")
            verses.setdefault(found[1], []).append(f"{found[2]}\n")
        if not verses:
            raise ValueError("it has no verses")
    except (ValueError, struct.error) as error:
        raise ValueError(f"{path} does not hold the King James Version, or is damaged ({error}); {BIBLE}") from error
    return {book: "".join(lines) for book, lines in verses.items()}


def _decompress(data: bytes) -> bytes:
    if not data.startswith(MAGIC):
        raise ValueError(f"it begins with {data[:4]!r}, not {MAGIC!r}")
    size, count = struct.unpack_from(">2I", data, HEADER)
    if not 0 < size <= LARGEST or not 0 < count <= LARGEST // 4:
        raise ValueError(f"{count} windows of {size} bytes")
    ends = struct.unpack_from(f">{count + 1}I", data, HEADER + 8)
    if list(ends) != sorted(ends) or ends[0] < HEADER + 12 + 4 * count + COMPRESS or ends[-1] > len(data):
        raise ValueError("its windows lie outside the file")
    check_unpacked(count * size, len(data))
    windows = [decompress_lzw(data[start:end], limit=size) for start, end in pairwise(ends)]
    short = next((place for place, window in enumerate(windows[:-1]) if len(window) != size), None)
    if short is not None:
        raise ValueError(f"window {short} has {len(windows[short])} bytes, not {size}")
    return b"".join(windows)


def decompress_lzw(data: bytes, max_bits: int = 16, limit: int | None = None) -> bytes:
    """The bytes of an LZW stream of `compress`; ValueError for a code out of place, or more than `limit` bytes."""
    # Welch 1984. Codes are packed from the lowest bit on, in groups of eight of one width; the width grows from 9 bits
    # to `max_bits` as the table does, and a group that it ends is filled up. A `.Z` file has three bytes before its
    # stream.
    singles = [bytes([value]) for value in range(256)] + [b""]
    table, found, size = list(singles), [], 0
    bits, group, place = FIRST_BITS, 0, 0  # width of codes; bit at which codes of this width begin; bit of the next
    before = b""
    while place + bits <= 8 * len(data):
        code = int.from_bytes(data[place >> 3 : (place >> 3) + 4], "little") >> (place & 7) & ((1 << bits) - 1)
        place += bits
        if code == CLEAR:
            place = group = _end_of_group(place, group, bits)
            table, bits, before = list(singles), FIRST_BITS, b""
            continue
        if code > len(table) or (code == len(table) and not before):
            raise ValueError(f"a damaged LZW stream: code {code} in bit {place - bits}, and {len(table)} are known")
        text = table[code] if code < len(table) else before + before[:1]
        found.append(text)
        size += len(text)
        if limit is not None and size > limit:
            raise ValueError(f"a damaged LZW stream: it is longer than {limit} bytes")
        if before and len(table) < 1 << max_bits:
            table.append(before + text[:1])
        before = text
        if len(table) >= 1 << bits and bits < max_bits:
            place = group = _end_of_group(place, group, bits)
            bits += 1
    return b"".join(found)


def _end_of_group(place: int, start: int, bits: int) -> int:
    """The bit at which the group of eight codes ends that a bit lies in."""
    return start + -(-(place - start) // (8 * bits)) * 8 * bits


FILES = {"train": "train.csv.gz", "test": "test.csv.gz", "unseen": "test_scaffolds.csv.gz"}
MOLSETS = (
    "install it with `pip install --no-deps molsets` (the package asks for libraries that the data do not need), or"
    " give the folder of its *.csv.gz as root="
)
FAMILIES = (
    *("saturated rings", "benzene rings", "hetero-aromatic rings"),
    *("benzene and saturated", "benzene and saturated, 3 or more"),
    *("hetero-aromatic and saturated", "hetero-aromatic and saturated, 3 or more"),
    *("benzene and hetero-aromatic", "benzene and hetero-aromatic, 3 or more"),
    "all three kinds",
)
"""Scaffolds by the kinds of their rings (benzene: aromatic, of carbon alone), and where there are two kinds by whether
there are more than two rings."""
UNSEEN = "unseen: "


class Moses(DataSet):
    """Molecules of MOSES as SMILES: tokens int64 [N, T], bytes with zeros at the end; owners are ten scaffold families.

    A molecule's family, which is its label too, says which kinds of rings its scaffold has: benzene rings,
    hetero-aromatic ones and saturated ones (those without any ring are among the last). Families have from 3 to 17 % of
    the molecules. `IID` deals the same molecules at random. RDKit finds the rings: some 5,000 molecules a second.

    Args:
        most: molecules of a split, drawn at random but always the same, in the order of the file; None for all.
        unseen: molecules of the scaffold test to have beside those of "train", their owners' names beginning with
            "unseen: "; `ThreeWaySplit(unparticipating="unseen: *")` keeps those owners from training.
        root: a folder with the files; that of the installed package by default.

    Raises:
        ValueError: for a number out of range.
    """

    def __init__(self, most: int | None = None, unseen: int = 0, root: str | Path | None = None) -> None:
        for name, value, least in (("most", most, 1), ("unseen", unseen, 0)):
            if value is not None and value < least:
                raise ValueError(f"{name}={value}: a number of molecules, at least {least}")
        self.most, self.unseen, self.root = most, unseen, None if root is None else Path(root)
        self.name = "moses" if most is None else f"moses-{most}"

    def read(self, split: Split) -> Examples:
        """The molecules of a split; ValueError for one that RDKit cannot read."""
        molecules = read_molecules(self._file(split), self.most)
        further = read_molecules(self._file("unseen"), self.unseen) if split == "train" and self.unseen else []
        chem = need_rdkit("the data set Moses")
        shown = track([*molecules, *further], "scaffold families", len(molecules) + len(further), "molecules")
        labels = torch.tensor([FAMILIES.index(_family(text, chem)) for text in shown], dtype=torch.int64)
        owners = labels + len(FAMILIES) * (torch.arange(len(labels)) >= len(molecules))
        names = (*FAMILIES, *(f"{UNSEEN}{family}" for family in FAMILIES)) if further else FAMILIES
        inputs = encode_all([*molecules, *further])
        return Examples(inputs, labels, f"{self.name}/{split}", FAMILIES, owners, names)

    def _file(self, part: str) -> Path:
        package = find_spec("moses")  # importing it would ask for libraries that nobody needs
        installed = package.submodule_search_locations if package is not None else None
        folder = self.root or (Path(installed[0], "dataset", "data") if installed else Path("moses"))
        if not (folder / FILES[part]).is_file():
            raise FileNotFoundError(f"no molecules of MOSES at {folder / FILES[part]}; {MOLSETS}")
        return folder / FILES[part]


def read_molecules(path: Path, most: int | None = None) -> list[str]:
    """The SMILES of a file of MOSES, the first column after a header; at most so many, the same at every call."""
    lines = read_gzip(path).decode("ascii", errors="replace").splitlines()
    if not lines or lines[0].split(",")[0] != "SMILES":
        raise ValueError(f"{path} is no file of MOSES, whose first column is SMILES; {MOLSETS}")
    found = [line.split(",")[0] for line in lines[1:]]
    if most is None or most >= len(found):
        return found
    return [found[place] for place in subset(len(found), most, 0, "molecules", path.name).tolist()]


def _family(text: str, chem: Any) -> str:
    molecule = chem.MolFromSmiles(text)
    if molecule is None:
        raise ValueError(f"{text[:80]!r} is not a molecule in SMILES; {MOLSETS}")
    kinds: Counter[str] = Counter()
    for ring in molecule.GetRingInfo().AtomRings():
        atoms = [molecule.GetAtomWithIdx(place) for place in ring]
        carbon = all(atom.GetAtomicNum() == 6 for atom in atoms)
        aromatic = all(atom.GetIsAromatic() for atom in atoms)
        kinds["saturated" if not aromatic else "benzene" if carbon else "hetero-aromatic"] += 1
    if len(kinds) == 3:
        return FAMILIES[-1]
    if len(kinds) < 2:
        return f"{next(iter(kinds), 'saturated')} rings"
    names = " and ".join(kind for kind in ("benzene", "hetero-aromatic", "saturated") if kind in kinds)
    return names + (", 3 or more" if kinds.total() > 2 else "")
