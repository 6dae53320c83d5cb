"""Messages to clients and their replies, as they come."""

import time
from collections.abc import Hashable, Iterator, Mapping
from typing import TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from fedgen.progress import track

Key = TypeVar("Key", bound=Hashable)
LOOK, LONGEST_LOOK = 0.005, 0.1  # seconds between looks for replies: after one has come, and at most


class Silence(str):
    """The reason why nothing came from a client."""

    @classmethod
    def within(cls, deadline: float | None) -> "Silence":
        """It is there, and did not answer in so many seconds, if there was a deadline."""
        return cls(f"it did not answer within {deadline:g} seconds" if deadline else "no answer")


def replies_to(
    grid: Grid, messages: Mapping[Key, Message], deadline: float | None, description: str
) -> Iterator[tuple[Key, Message]]:
    """Each reply with the name of the message that it answers; fewer where the deadline passes first.

    Flower answers itself, with an error, for a node that has gone.

    Args:
        grid: Flower's.
        messages: by any name.
        deadline: seconds to wait; None for as long as it takes.
        description: text of the progress bar.
    """
    start = time.monotonic()
    pushed = list(grid.push_messages(list(messages.values())))
    waiting = {identity: key for identity, key in zip(pushed, messages) if identity}
    for reply in track(_pulled(grid, waiting, start, deadline), description, len(messages), "clients"):
        if (key := waiting.pop(reply.metadata.reply_to_message_id, None)) is not None:
            yield key, reply


def _pulled(grid: Grid, waiting: Mapping[str, object], start: float, deadline: float | None) -> Iterator[Message]:
    pause = LOOK
    while waiting:
        found = list(grid.pull_messages(list(waiting)))
        yield from found
        pause = LOOK if found else min(1.5 * pause, LONGEST_LOOK)
        if deadline is not None and time.monotonic() - start > deadline:
            return
        if waiting:
            time.sleep(pause)
