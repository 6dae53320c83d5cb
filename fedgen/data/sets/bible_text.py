"""The King James Version of the Bible, 1611: 66 books of many hands, real text with natural owners.

Debian's package `bible-kjv-text` brings it in one file (`EC02Compressed Data File`, of Chip Chapin's bible program): a
header, the places of windows of 65,536 characters, and each window compressed by itself. The text is a line a verse,
"Ge1:1 In the beginning ...", after a line with its title.
"""

import re
import struct
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from fedgen.data.examples import DataSet, Examples, Split
from fedgen.data.text import check_length, windows_of
from fedgen.io.regular_files import check_unpacked, read_regular

PATH = Path("/usr/lib/bible.data")  # where the package puts it
REMEDY = "install it: apt-get install bible-kjv-text (Debian, Ubuntu), or give path= of its bible.data"
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

    A window's label is the section of its book (law, history, ..., letters). Verses end with a line break and are
    without their numbers. Windows do not overlap. Books have from 23 windows of 64 characters (2 John) to 3,442
    (Psalms).

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
        raise FileNotFoundError(f"no text of the King James Version at {path}; {REMEDY}") from error
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
        raise ValueError(f"{path} does not hold the King James Version, or is damaged ({error}); {REMEDY}") from error
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
