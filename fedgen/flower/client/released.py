"""Releases of images' statistics, kept in a file: who asks again is given the same, which reveals nothing more.

Sums with noise, at server and clients; and at a client the statistics without noise that a run asks for once.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from fedgen.flower.client.policy import RefusedError
from fedgen.flower.wire.messages import Item
from fedgen.io.files import atomic_write, write_once
from fedgen.statistics.statistic_messages import Message, MessageError

RELEASED = "released"  # the folder
ONCE = "once"  # a client's folder of what has no noise
EXACT = "told-without-noise"  # a client's mark: whatever noise it adds from then on promises nothing


def release_path(folder: Path, split: str, embedding: str) -> Path:
    """The file of one split's sums in one embedding, in a run's folder or a client's own."""
    return folder / RELEASED / f"{split}-{re.sub(r'[^A-Za-z0-9._-]+', '-', embedding)}.safetensors"


def once_path(folder: Path, item: Item) -> Path:
    """The file of what a client tells once of an item without noise, in its own folder of the run."""
    name = "-".join(filter(None, [item.ask, item.split, item.embedding, item.score]))
    return folder / ONCE / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.safetensors"


def read_release(path: Path, made: Mapping[str, str], kind: str | None = "private-sums") -> Message | None:
    """Read a release; None if nothing was released.

    Args:
        path: of `release_path`.
        made: remarks that it must have: the embedding and the promise.
        kind: that it must be of; None for any.

    Raises:
        ValueError: if it is damaged, or was released under other settings: another release would not be counted.
    """
    if not path.exists():
        return None
    try:
        found = Message.from_bytes(path.read_bytes(), kind)
    except MessageError as error:
        raise ValueError(f"{path} is damaged ({error}); begin another run, which is another release") from error
    if differing := [name for name, value in made.items() if found.meta.get(name) != value]:
        name = differing[0]
        raise ValueError(
            f"the statistics in {path} were released with {name} {found.meta.get(name)}, now it is {made[name]}: that"
            " would be another release of the same images, which nobody counts; set it back, or begin another run"
        )
    return found


def release_once(
    path: Path, made: Mapping[str, str], make: Callable[[], Message], kind: str | None = "private-sums"
) -> Message:
    """Return what was released, or else what is made now, which is kept before it is given.

    Of two who ask at once, as a server that was started again does, both are given the one that was kept first.

    Raises:
        ValueError: as `read_release`.
    """
    if not path.exists():
        write_once(path, make().to_bytes(sealed=True))
    found = read_release(path, made, kind)
    assert found is not None  # nobody removes it
    return found


def note_exact(folder: Path) -> None:
    """Notes in a client's own folder of the run that it tells statistics without noise, masked ones among them."""
    write_once(folder / EXACT, b"")


def refuse_after_exact(folder: Path) -> None:
    """Refuses to release sums with noise once statistics were told without.

    Raises:
        RefusedError: with the remedy.
    """
    if (folder / EXACT).exists():
        raise RefusedError(
            "this client has told statistics without noise in this run, so sums with noise would promise what no longer"
            " holds: leave the promise out of the run's config, or begin a run of another name (`output`) over other"
            " images"
        )


def refuse_after_noise(folder: Path) -> None:
    """Refuses to tell anything without noise once sums with noise were released.

    Raises:
        RefusedError: always then.
    """
    if (folder / RELEASED).exists():
        raise RefusedError("this run's statistics have been released with noise; others would be another release")


def keep_release(path: Path, message: Message) -> None:
    """Writes what is released."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(message.to_bytes(sealed=True))
