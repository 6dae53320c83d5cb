"""Pictures of a run's folder as data URIs, small enough in all for one page."""

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedgen.io.regular_files import is_regular, read_regular

MOST_BYTES = 6_000_000  # of all pictures of a page, encoded
MOST_PIXELS = 50_000_000  # of one
LARGE_FILE = 50_000_000
PNG = b"\x89PNG\r\n\x1a\n"
QUALITY = 85  # of JPEG, which large pictures are turned into


class DataUri(str):
    """A picture as "data:image/png;base64,...", which the kit encoded: no text from outside, and of any length."""


@dataclass(frozen=True)
class Picture:
    """One picture."""

    name: str
    uri: DataUri
    round: int | None = None


class Pictures:
    """The pictures of one folder, each read once as long as its file stays as it is."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most
        self._encoded: dict[tuple[str, int, int, bool], DataUri] = {}

    def samples(self, folder: Path) -> tuple[list[Picture], list[str]]:
        """The grids of samples by round, and what must be said of them."""
        paths = sample_files(folder)
        uris, remarks = self._encode(list(paths.values()))
        named = {round: "before training" if round < 0 else f"round {round}" for round in paths}
        found = [Picture(named[round], uri, round) for round, uri in zip(paths, uris) if uri]
        shown = fitting([len(picture.uri) for picture in found], self.most)
        if len(shown) < len(found):
            remarks.append(f"samples of {len(shown)} of {len(found)} rounds are shown, to keep the page small")
        return [found[place] for place in shown], remarks

    def one(self, path: Path, name: str) -> Picture | None:
        """One picture; None if there is no such file, or it is no picture."""
        uris, _ = self._encode([path]) if is_regular(path) else ([DataUri()], [])
        return Picture(name, uris[0]) if uris[0] else None

    def _encode(self, paths: Sequence[Path]) -> tuple[list[DataUri], list[str]]:
        sizes = [path.stat().st_size for path in paths]
        small = sum(sizes) * 4 > self.most * 3
        uris = [self._uri(path, small) for path in paths]
        remarks = ["samples are compressed (JPEG), to keep the page small"] if small else []
        remarks += [f"{path.name} is not a PNG that can be shown" for path, uri in zip(paths, uris) if not uri]
        return uris, remarks

    def _uri(self, path: Path, small: bool) -> DataUri:
        status = path.stat()
        key = str(path), status.st_mtime_ns, status.st_size, small
        if key not in self._encoded:
            self._encoded[key] = _read(path, small)
        return self._encoded[key]


def sample_files(folder: Path) -> dict[int, Path]:
    """The grids of samples in a run's folder, by round; -1 for the untrained model's."""
    found = {}
    for path in filter(is_regular, (folder / "samples").glob("*.png")):
        if match := re.fullmatch(r"round=(\d{1,9})\.png", path.name):
            found[int(match[1])] = path
        elif path.name == "before.png":
            found[-1] = path
    return dict(sorted(found.items()))


def fitting(sizes: Sequence[int], most: int) -> list[int]:
    """Evenly spaced places, the last among them, whose sizes add up to at most `most`; all where they do."""
    count = len(sizes)
    for number in range(count, 0, -1):
        places = sorted({round((place + 1) * count / number) - 1 for place in range(number)})
        if sum(sizes[place] for place in places) <= most:
            return places
    return []


def _read(path: Path, small: bool) -> DataUri:
    """The picture's data URI; "" for what is none."""
    if path.stat().st_size > LARGE_FILE:
        return DataUri()
    content = read_regular(path)
    if not content.startswith(PNG):
        return DataUri()
    content, kind = (_compressed(content), "jpeg") if small else (content, "png")
    return DataUri(f"data:image/{kind};base64,{base64.b64encode(content).decode()}" if content else "")


def _compressed(content: bytes) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                return b""
            picture.convert("RGB").save(out, "JPEG", quality=QUALITY)
    except Exception:  # what Pillow raises for damaged files may be anything
        return b""
    return out.getvalue()
