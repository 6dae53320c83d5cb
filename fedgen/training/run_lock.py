"""One `fedgen fit` at a time in a run folder: two would replace each other's checkpoints and scores."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".run.lock"


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Keeps other runs out of a folder. A run that is killed leaves the file behind and no lock.

    Raises:
        BlockingIOError: if another run is at work there.
    """
    descriptor = _lock(folder / LOCK)
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        os.close(descriptor)


def _lock(path: Path) -> int:
    """A descriptor of the locked file."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise BlockingIOError(
                f"another run is at work in {path.parent}; wait for it, or choose another --trainer.default_root_dir"
            ) from error
        except OSError:  # not every network file system has locks
            return descriptor
        if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
        os.close(descriptor)  # a run that has just ended took the file away between the two calls
