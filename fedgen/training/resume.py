"""The checkpoint that `fedgen fit` goes on from, what it says where it stops, and one run at a time in a folder."""

import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedgen.callbacks.round_checkpoint import link_checkpoint
from fedgen.evaluation.runs.rebuild import previous_checkpoint
from fedgen.evaluation.tables.table import say_round
from fedgen.io.field_types import is_count
from fedgen.models.checkpoint_file import read_checkpoint

LOCK = ".run.lock"
# what a file system may answer once a run has begun, and what to do about it
UNWRITABLE = {
    errno.ENOSPC: "no space left for {}; free some",
    errno.EDQUOT: "the quota is used up for {}; free some space",
    errno.EFBIG: "a file is larger than allowed for {}; raise the limit (ulimit -f), or take another file system",
    errno.EROFS: "{} can only be read now; make it writable",
}


def starting_point(asked: str | None, last: Path) -> Path | None:
    """The checkpoint to go on from: a path, "last", "previous", or for None the last if any; None to start anew."""
    if asked == "previous":
        return previous_checkpoint(last.parent)
    if asked not in (None, "last"):
        return Path(asked)
    if last.exists():
        return last
    if asked == "last":
        raise FileNotFoundError(
            f"{last} does not exist, so there is nothing to go on from; leave ckpt_path out to start"
        )
    return None


def progress_of(path: Any) -> tuple[int, bool]:
    """Return how many rounds a checkpoint has behind it, and whether EarlyStopping ended the run there."""
    saved = read_checkpoint(path)
    if "loops" not in saved:
        raise ValueError(f"{path} holds a model without its training's progress, so nothing can go on from it")
    try:
        states = [state for state in saved.get("callbacks", {}).values() if "wait_count" in state]
        stopped = any(state["stopped_epoch"] or state["wait_count"] >= state["patience"] for state in states)
        done = saved["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} has lost its training's progress ({error!r}); nothing can go on from it") from error
    if not is_count(done):
        raise ValueError(f"{path} has {done!r} rounds behind it, so nothing can go on from it")
    return done, stopped


def progress_from(path: Path | None, last: Path, previous: str) -> tuple[int, bool]:
    """`progress_of` the checkpoint that a run goes on from, if any; of a damaged last one it says what can be done."""
    if path is None:
        return 0, False
    try:
        return progress_of(path)
    except ValueError as error:
        if path != last:
            raise
        try:
            remedy = f"{previous} goes on from {previous_checkpoint(last.parent).name}, the one before it"
        except FileNotFoundError:
            remedy = f"no checkpoint before it is left: remove {last.parent} to train again"
        raise ValueError(f"{error}; {remedy}") from error


def put_in_place(finished: Path, last: Path) -> None:
    """Gives a finished run, which training writes no other, a last checkpoint in the place of a damaged one."""
    try:
        read_checkpoint(last)
    except (OSError, ValueError):
        link_checkpoint(finished, last)


def resumes_at(last: Path) -> str:
    if not last.exists():
        return "from the start"
    try:
        done, _ = progress_of(last)
    except ValueError:  # damaged, and the run that went on from the one before it has not replaced it yet
        return "where it went on this time"
    return f"after {say_round(done - 1)}" if done else "from the start"


@contextmanager
def naming_write_errors(folder: Path, last: Path) -> Iterator[None]:
    """Says where a run goes on if its disk is full or can no longer be written, once: loggers' threads keep quiet."""
    shown = threading.excepthook

    def show(failure: threading.ExceptHookArgs) -> None:
        error = failure.exc_value
        if not isinstance(error, OSError) or error.errno not in UNWRITABLE:  # the main thread raises the same
            shown(failure)

    threading.excepthook = show
    try:
        yield
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        inside = error.filename is None or Path(error.filename).resolve().is_relative_to(folder.resolve())
        what = UNWRITABLE[error.errno].format(folder if inside else error.filename)
        raise OSError(f"{what}, and the same command goes on {resumes_at(last)}") from error
    finally:
        threading.excepthook = shown


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Keeps other runs out of a folder, with BlockingIOError; a killed run leaves the file behind and no lock."""
    descriptor = _lock(folder / LOCK)
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        os.close(descriptor)


def _lock(path: Path) -> int:
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
