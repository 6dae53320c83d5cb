"""Noisy sums that have been released, kept in a file: who asks again is given the same, which reveals nothing more."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from fedgen.files import atomic_write
from fedgen.statistics.messages import Message, MessageError

RELEASED = "released"  # the folder


def release_path(folder: Path, split: str, embedding: str) -> Path:
    """The file of one split's sums in one embedding, in a run's folder or a client's own."""
    return folder / RELEASED / f"{split}-{re.sub(r'[^A-Za-z0-9._-]+', '-', embedding)}.safetensors"


def read_release(path: Path, made: Mapping[str, str]) -> Message | None:
    """What was released; None if nothing was.

    Args:
        path: of `release_path`.
        made: remarks that it must have: the embedding and the promise.

    Raises:
        ValueError: if it is damaged, or was released under other settings: another release would not be counted.
    """
    if not path.exists():
        return None
    try:
        found = Message.from_bytes(path.read_bytes(), "private-sums")
    except MessageError as error:
        raise ValueError(f"{path} is damaged ({error}); begin another run, which is another release") from error
    if differing := [name for name, value in made.items() if found.meta.get(name) != value]:
        name = differing[0]
        raise ValueError(
            f"the statistics in {path} were released with {name} {found.meta.get(name)}, now it is {made[name]}: that"
            " would be another release of the same images, which nobody counts; set it back, or begin another run"
        )
    return found


def release_once(path: Path, made: Mapping[str, str], make: Callable[[], Message]) -> Message:
    """What was released, or else what is made now, which is kept before it is given.

    Raises:
        ValueError: as `read_release`.
    """
    if (found := read_release(path, made)) is not None:
        return found
    message = make()
    keep_release(path, message)
    return message


def keep_release(path: Path, message: Message) -> None:
    """Writes what is released."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(message.to_bytes())
