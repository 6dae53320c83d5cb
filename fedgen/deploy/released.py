"""Noisy sums that have been released, kept in a file: who asks again is given the same, which reveals nothing more."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fedgen.clients.client import Client
from fedgen.deploy.run_statistics import RefusedError
from fedgen.files import atomic_write, write_once
from fedgen.hashing import hash_tensors
from fedgen.statistics.messages import Message, MessageError

RELEASED = "released"  # the folder
IMAGES = "images.json"  # in it, at a client: which of its images are in which split
EMBEDDINGS = "embeddings.json"  # likewise: among which the promise is shared
EXACT = "told-without-noise"  # a client's mark: whatever noise it adds from then on promises nothing


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

    Of two who ask at once, as a server that was started again does, both are given the one that was kept first.

    Raises:
        ValueError: as `read_release`.
    """
    if not path.exists():
        write_once(path, make().to_bytes(sealed=True))
    found = read_release(path, made)
    assert found is not None  # nobody removes it
    return found


def hold_to_splits(folder: Path, client: Client) -> None:
    """Refuses to release sums once a client's images are split otherwise than when it first did.

    An image counts in one of two splits, whose sums have one promise together; were it in each of them once, it would
    be released twice. The split hangs on the client's number, which is the server's.

    Args:
        folder: the client's own of the run.
        client: as it is split now.

    Raises:
        RefusedError: with the remedy.
    """
    path = folder / RELEASED / IMAGES
    own = json.dumps({"split": hash_tensors([("train", client.train), ("held out", client.held_out)])}).encode()
    if write_once(path, own) != own:
        raise RefusedError(
            "this run's statistics were released when other images of this client were held out, and an image may be in"
            " both: that would be another release of it, which nobody counts; go on with the number, `seed` and"
            " `held_out` of before, or begin a run of another name (`output`)"
        )


def hold_to_embeddings(folder: Path, names: Iterable[str]) -> None:
    """Refuses to release sums in other embeddings than those among which the run's promise was shared first.

    Args:
        folder: the client's own of the run.
        names: of all embeddings of the recipe.

    Raises:
        RefusedError: with the remedy.
    """
    own = json.dumps(sorted(names)).encode()
    if (kept := write_once(folder / RELEASED / EMBEDDINGS, own)) != own:
        before, now = (data.decode(errors="replace") for data in (kept, own))
        raise RefusedError(
            f"this run's statistics were released in the embeddings {before}, and its recipe now has {now}: that would"
            " be another release of the same images, which nobody counts; go on with those of before, or begin a run of"
            " another name (`output`)"
        )


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


def keep_release(path: Path, message: Message) -> None:
    """Writes what is released."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(message.to_bytes(sealed=True))
