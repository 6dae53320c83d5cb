"""Answers that clients give once in a run, kept at the server: a run that goes on need not ask those who have left
again.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from fedgen.flower.client.released import keep_release
from fedgen.flower.wire.messages import Item
from fedgen.own_code import rank_zero_warn
from fedgen.statistics.statistic_messages import Message

TOLD = "told"  # the folder


class KeptAnswers:
    """Clients' summaries and sketches in a run's folder, a file for each client and item.

    Args:
        folder: of the run; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def read(
        self, items: Sequence[Item], clients: int, check: Callable[[int, int, bytes], Message]
    ) -> list[list[Message]] | None:
        """Every item's messages, by client; None if one is not there or no longer fits, so that all are asked.

        Args:
            items: that were asked.
            clients: how many there are.
            check: reads the bytes of an item's place and a client, or raises.
        """
        if self._folder is None or not all(
            self._path(item, client).exists() for item in items for client in range(clients)
        ):
            return None
        found: list[list[Message]] = []
        for place, item in enumerate(items):
            found.append([])
            for client in range(clients):
                path = self._path(item, client)
                try:
                    found[-1].append(check(place, client, path.read_bytes()))
                except Exception as error:  # whatever is wrong with the file
                    rank_zero_warn(f"{path} is of no use ({error}); clients are asked again")
                    return None
        return found

    def keep(self, items: Sequence[Item], found: Sequence[Sequence[Message]]) -> None:
        """Writes what was told."""
        if self._folder is None:
            return
        for item, messages in zip(items, found, strict=True):
            for client, message in enumerate(messages):
                keep_release(self._path(item, client), message)

    def _path(self, item: Item, client: int) -> Path:
        assert self._folder is not None
        parts = [item.ask, item.split, item.embedding, *([item.score] if item.score else [])]
        name = "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", part) for part in parts)
        return self._folder / TOLD / f"{client:05d}-{name}.safetensors"
