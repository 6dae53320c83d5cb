"""The door for files of strangers: regular files alone are opened, and none may unfold into far more than it holds."""

import errno
import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterable, Sequence
from io import BufferedReader
from pathlib import Path

from fedgen.foreign_text import is_number

LIMIT_VARIABLE = "FEDGEN_MAX_UNPACKED"
"""Environment variable: bytes that one file may unfold into, for files that are trusted to be large."""

_ALWAYS = 256 * 2**20  # bytes that any file may unfold into
_TIMES = 16  # and this many times its own size; images and arrays of honest files stay far below
_KERNEL = ("/proc/", "/sys/")  # its files are regular by name, of no size, and some of them never end


def open_regular(path: str | Path) -> BufferedReader:
    """A regular file, open for reading, links followed; OSError for a folder, pipe or device, and below /proc."""
    # a pipe would wait for a writer for ever, a device may never end or act when it is opened, the kernel's files do
    # both
    _require_regular(os.stat(path).st_mode, path)  # before opening, which a device may notice
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _require_regular(os.fstat(descriptor).st_mode, path)  # of what was opened: a name may change hands in between
        try:
            place = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:  # of systems that do not tell
            place = os.path.realpath(path)
        if place.startswith(_KERNEL):
            raise OSError(errno.EINVAL, "is a file of the kernel; give a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def read_gzip(path: str | Path) -> bytes:
    """The content of a gzipped file; ValueError for a damaged one, or one that unfolds into far more than it holds."""
    content = read_regular(path)
    try:
        with gzip.open(io.BytesIO(content)) as file:
            data = file.read(most_unpacked(len(content)) + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} is cut short or damaged ({error}); get it again") from error
    check_unpacked(len(data), len(content), str(path))
    return data


def is_regular(path: str | Path) -> bool:
    """Whether a path is, or links to, a regular file that `open_regular` would open."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and not os.path.realpath(path).startswith(_KERNEL)
    except OSError:
        return False


def most_unpacked(stored: int) -> int:
    """Bytes that a file of `stored` bytes may unfold into: 256 MB or 16 times as many; or what the variable says."""
    said = os.environ.get(LIMIT_VARIABLE)
    if said is None:
        return max(_ALWAYS, _TIMES * stored)
    if not is_number(said):
        raise ValueError(f"{LIMIT_VARIABLE} must be a number of bytes, such as 4000000000, got {said!r}")
    return int(said)


def stored_bytes(files: Iterable[str | Path]) -> int:
    """The bytes of files, of which links to one file and a file that is named again count once."""
    return sum({(one.st_dev, one.st_ino): one.st_size for one in map(os.stat, files)}.values())


def check_unpacked(unpacked: int, stored: int, what: str = "it") -> None:
    """ValueError for `what`, of `stored` bytes, that says it unfolds into more than `most_unpacked`."""
    most = most_unpacked(stored)
    if unpacked > most:
        raise ValueError(
            f"{what} unfolds from {stored} bytes into {unpacked}, more than {most}; if you trust it, set the"
            f" environment variable {LIMIT_VARIABLE}={unpacked}"
        )


def _require_regular(mode: int, path: str | Path) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "is a pipe, a device or a socket; give a regular file", str(path))


def fetch(url: str, folder: Path, md5: str) -> Path:
    """The path of a file in the folder, downloaded unless it is there; OSError, or RuntimeError for its checksum."""
    from torchvision.datasets.utils import download_url

    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        download_url(url, str(folder), md5=md5)
    except (OSError, RuntimeError):
        for path in made:
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
        raise
    return folder / url.rpartition("/")[2]


def fetch_any(urls: Sequence[str], folder: Path, md5: str) -> Path:
    """The path of a file fetched from the first address that delivers it; OSError with all failures if none does."""
    failures = []
    for url in urls:
        try:
            return fetch(url, folder, md5)
        except (OSError, RuntimeError) as error:
            failures.append(f"{url}: {error}")
    raise OSError("; ".join(failures))


def missing(name: str, searched: Sequence[Path], remedy: str, cause: Exception | None = None) -> FileNotFoundError:
    places = ", ".join(str(folder.absolute()) for folder in searched)
    download = f"; downloading it failed ({cause})" if cause else ""
    return FileNotFoundError(f"{name} was not found in {places}{download}. To get it: {remedy}")
