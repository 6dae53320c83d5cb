"""Fetching a data set's files, and saying what to do where they cannot be had."""

from collections.abc import Sequence
from pathlib import Path


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
