"""Facts that a client holds to in a run, on its own disk: number, images' split, embeddings, who was summed, what was
asked.

Which images are held out depends on the client's number, which the server says. Were another number believed in every
question, the answers' differences would show single images, one by one.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fedgen.clients.client import Client
from fedgen.flower.client.policy import RefusedError
from fedgen.foreign_text import printable
from fedgen.io.files import parse_json, write_once
from fedgen.io.hashing import hash_tensors

PINNED = "pinned"  # the folder
IMAGES, EMBEDDINGS, SUMMED = "images.json", "embeddings.json", "summed"  # in it
ASKED = "asked"  # in it: by statistic a folder with a file for each question


def hold_to_split(folder: Path, client: Client, number: int) -> None:
    """Refuses to answer once a client has another number, or its images are split otherwise, than in the run before.

    Args:
        folder: the client's own of the run.
        client: as it is split now.
        number: its own, as the server says.

    Raises:
        RefusedError: with the remedy.
    """
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
    """Refuses statistics in other embeddings than those of the run's first: a promise is shared among these.

    Args:
        folder: the client's own of the run.
        names: of all embeddings of the recipe.

    Raises:
        RefusedError: with the remedy.
    """
    before = _kept(folder / PINNED / EMBEDDINGS, own := sorted(names))
    if before != own:
        raise RefusedError(
            f"this run's statistics were told in the embeddings {json.dumps(before)}, and its recipe now has"
            f" {json.dumps(own)}: that would be another release of the same images, which nobody counts; go on with"
            " those of before, or begin a run of another name (`output`)"
        )


def hold_to_clients(folder: Path, what: str, names: Iterable[str]) -> None:
    """Refuses to help unmask a sum over other clients than the same was summed over before.

    The difference of the two sums would be what the others' numbers are, of one client its own.

    Args:
        folder: the client's own of the run.
        what: was summed, such as "round 3": a name that a file may have.
        names: of the clients whose numbers are in the sum.

    Raises:
        RefusedError: naming both.
    """
    before = _kept(folder / PINNED / SUMMED / f"{what}.json", own := sorted(names))
    if before != own:
        was = printable(", ".join(map(str, before)), 200) if isinstance(before, list) else "others"
        raise RefusedError(
            f"{what} was summed over {was} before and is now over {printable(', '.join(own), 200)}: the"
            " difference would show single clients' numbers; bring back the same clients"
        )


def count_question(folder: Path, what: str, content: str, check: Callable[[int], None]) -> None:
    """Counts a question of a run; one that it has asked before is no other.

    Args:
        folder: the client's own of the run.
        what: it is about, such as "kid" of a split in an embedding.
        content: hash of the question.
        check: is told how many others about it the run has asked, and refuses one more or not.
    """
    asked = folder / PINNED / ASKED / hash_tensors([], what)
    if not (asked / content).exists():
        check(sum(1 for _ in asked.glob("[!.]*")))  # not what a kill has left half-written
        write_once(asked / content, b"")


def _kept(path: Path, own: object) -> Any:
    """Return what a file keeps, which is this where there is none yet.

    Raises:
        RefusedError: if it is damaged.
    """
    kept = write_once(path, json.dumps(own).encode())
    try:
        return parse_json(kept)
    except ValueError as error:
        raise RefusedError(
            f"what this client keeps of the run, {path.name}, is damaged, and without it nobody knows what it told:"
            " begin a run of another name (`output`)"
        ) from error
