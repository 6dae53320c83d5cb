"""Facts that a client holds to in a run, on its own disk: its number, the images' split, what it was asked and told.

Which images are held out depends on the client's number, which the server says. Were another number believed in every
question, the answers' differences would show single images, one by one. Of releases, who asks again is given the same:
sums with noise, which the server keeps likewise, and the statistics without noise that a run asks for once.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedgen.clients.client import Client
from fedgen.flower.client.policy import RefusedError
from fedgen.flower.wire.messages import Item
from fedgen.foreign_text import printable
from fedgen.io.files import atomic_write, parse_json, write_once
from fedgen.io.tensor_files import hash_tensors
from fedgen.statistics.statistic_messages import Message, MessageError

PINNED = "pinned"  # the folder
IMAGES, EMBEDDINGS, SUMMED = "images.json", "embeddings.json", "summed"  # in it
ASKED = "asked"  # in it: by statistic a folder with a file for each question
RELEASED = "released"  # the folder of sums with noise, at clients and servers
ONCE = "once"  # a client's folder of what has no noise
EXACT = "told-without-noise"  # a client's mark: whatever noise it adds from then on promises nothing


def hold_to_split(folder: Path, client: Client, number: int) -> None:
    """Refuses to answer once a client has another number, or its images are split otherwise, than in the run before."""
    split = hash_tensors([("train", client.train), ("held out", client.held_out)])
    before = _kept(folder / PINNED / IMAGES, own := {"number": number, "split": split})
    if before != own:
        number_before = before.get("number") if isinstance(before, dict) else None
        was = f", under the number {number_before} in place of {number}" if number_before != number else ""
        raise RefusedError(
            f"this run began when other images of this client were held out{was}: what it told of those and would tell"
            " of these shows single images; go on with the number, `seed` and `held_out` of before, or begin a run of"
            " another name (`output`)"
        )


def hold_to_embeddings(folder: Path, names: Iterable[str]) -> None:
    """Refuses statistics in other embeddings than those of the run's first: a promise is shared among these."""
    before = _kept(folder / PINNED / EMBEDDINGS, own := sorted(names))
    if before != own:
        raise RefusedError(
            f"this run's statistics were told in the embeddings {json.dumps(before)}, and its recipe now has"
            f" {json.dumps(own)}: that would be another release of the same images, which nobody counts; go on with"
            " those of before, or begin a run of another name (`output`)"
        )


def hold_to_clients(folder: Path, what: str, names: Iterable[str]) -> None:
    """Refuses to unmask `what`, e.g. "round 3", over other clients than before: the difference would show some."""
    before = _kept(folder / PINNED / SUMMED / f"{what}.json", own := sorted(names))
    if before != own:
        was = printable(", ".join(map(str, before)), 200) if isinstance(before, list) else "others"
        raise RefusedError(
            f"{what} was summed over {was} before and is now over {printable(', '.join(own), 200)}: the"
            " difference would show single clients' numbers; bring back the same clients"
        )


def count_question(folder: Path, what: str, content: str, check: Callable[[int], None]) -> None:
    """Counts a question by the hash of its content, once; `check` gets the number of others, and may refuse."""
    asked = folder / PINNED / ASKED / hash_tensors([], what)
    if not (asked / content).exists():
        check(sum(1 for _ in asked.glob("[!.]*")))  # not what a kill has left half-written
        write_once(asked / content, b"")


def _kept(path: Path, own: object) -> Any:
    """Return what a file keeps, which is this where there is none yet."""
    kept = write_once(path, json.dumps(own).encode())
    try:
        return parse_json(kept)
    except ValueError as error:
        raise RefusedError(
            f"what this client keeps of the run, {path.name}, is damaged, and without it nobody knows what it told:"
            " begin a run of another name (`output`)"
        ) from error


def release_path(folder: Path, split: str, embedding: str) -> Path:
    """The file of one split's sums in one embedding, in a run's folder or a client's own."""
    return folder / RELEASED / f"{split}-{re.sub(r'[^A-Za-z0-9._-]+', '-', embedding)}.safetensors"


def once_path(folder: Path, item: Item) -> Path:
    """The file of what a client tells once of an item without noise, in its own folder of the run."""
    name = "-".join(filter(None, [item.ask, item.split, item.embedding, item.score]))
    return folder / ONCE / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}.safetensors"


def read_release(path: Path, made: Mapping[str, str], kind: str | None = "private-sums") -> Message | None:
    """Read a release, with the remarks that it must have; None without one, ValueError for a damaged or another one."""
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
    """Return what was released, or else what is made now; of two who ask at once both get what was kept first."""
    if not path.exists():
        write_once(path, make().to_bytes(sealed=True))
    found = read_release(path, made, kind)
    assert found is not None  # nobody removes it
    return found


def note_exact(folder: Path) -> None:
    """Notes in a client's own folder of the run that it tells statistics without noise, masked ones among them."""
    write_once(folder / EXACT, b"")


def refuse_after_exact(folder: Path) -> None:
    """Refuses to release sums with noise once statistics were told without."""
    if (folder / EXACT).exists():
        raise RefusedError(
            "this client has told statistics without noise in this run, so sums with noise would promise what no longer"
            " holds: leave the promise out of the run's config, or begin a run of another name (`output`) over other"
            " images"
        )


def refuse_after_noise(folder: Path) -> None:
    """Refuses to tell anything without noise once sums with noise were released."""
    if (folder / RELEASED).exists():
        raise RefusedError("this run's statistics have been released with noise; others would be another release")


def keep_release(path: Path, message: Message) -> None:
    """Writes what is released."""
    with atomic_write(path) as file:
        file.write(message.to_bytes(sealed=True))
