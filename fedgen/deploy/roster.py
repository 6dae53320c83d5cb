"""Which clients a server knows, by number, and at which of Flower's nodes each is at present."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from fedgen import __version__
from fedgen.deploy.messages import Hello
from fedgen.deploy.records import from_records
from fedgen.deploy.sending import replies_to
from fedgen.files import write_json
from fedgen.progress import track
from fedgen.statistics.messages import MessageError

CLIENTS = "clients.json"
LOOK = 1.0  # seconds between looks at who is there
HEARD_WITHIN = 120.0  # seconds a client has to introduce itself; it starts Python for that


class Roster:
    """The clients of a federation.

    A client is known by its name: it may come back as another node. Numbers, on which draws depend, follow the names'
    order and stay with the run.

    Args:
        grid: Flower's.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.clients: list[Hello] = []
        self._nodes: dict[str, int] = {}
        self._met: set[int] = set()

    def meet(self, folder: Path, number: int, wait: float) -> None:
        """Waits until so many clients are there; those that a run's folder keeps, where it has some.

        Args:
            folder: of the run.
            number: of clients.
            wait: seconds.

        Raises:
            TimeoutError: if fewer come, naming those that are missing or counting them.
            ValueError: for clients of one name, or whose images are of different shapes.
        """
        kept = _read(folder / CLIENTS)
        found: dict[str, Hello] = {}
        for _ in track(_looks(wait), "waiting for clients", wait, "s", LOOK):
            found |= self._introduced()
            missing = [one.name for one in kept if one.name not in found]
            if len(found) >= number and not missing:
                break
        missing = [one.name for one in kept if one.name not in found]
        if len(found) < number or missing:
            whom = f"{', '.join(missing)} did not" if missing else f"{len(found)} of {number} clients did"
            raise TimeoutError(
                f"{whom} come within {wait:g} seconds; start more SuperNodes, or ask for other `clients` or a longer"
                " `wait` in the run's config"
            )
        self.clients = kept or [found[name] for name in sorted(found, key=_natural)]
        _check(self.clients, found)
        write_json(folder / CLIENTS, [asdict(one) for one in self.clients])
        rank_zero_info(f"{len(self.clients)} clients: {', '.join(one.name for one in self.clients)}")

    def look(self) -> None:
        """Finds clients that have come back as other nodes."""
        for name, one in self._introduced().items():
            known = next((own for own in self.clients if own.name == name), None)
            if known is None:
                rank_zero_warn(f"client {name!r} came after the run had begun and does not take part")
            elif known != one:
                rank_zero_warn(f"client {name!r} came back with other data ({one}, before {known})")

    def node_of(self, client: int) -> int | None:
        """The node at which a client is at present; None if it is not there."""
        node = self._nodes.get(self.clients[client].name)
        return node if node in set(self._grid.get_node_ids()) else None

    def _introduced(self) -> dict[str, Hello]:
        """Nodes that have not introduced themselves yet and do it now, by name."""
        new = [node for node in self._grid.get_node_ids() if node not in self._met]
        asked = {node: Message(RecordDict({"hello": ConfigRecord()}), node, MessageType.QUERY) for node in new}
        found: dict[str, Hello] = {}
        for node, reply in replies_to(self._grid, asked, HEARD_WITHIN, "meeting clients") if asked else ():
            self._met.add(node)
            try:
                one: Hello = from_records(Hello, reply)
            except MessageError as error:
                rank_zero_warn(f"node {node} cannot take part: {error}")
                continue
            if one.release != __version__:
                rank_zero_warn(
                    f"client {one.name!r} has fedgen {one.release}, and this server {__version__}: install the same"
                )
            if self._nodes.get(one.name) in set(self._grid.get_node_ids()):
                if not self.clients:
                    raise ValueError(f"two clients are called {one.name!r}; give each node a `name` of its own")
                rank_zero_warn(f"client {one.name!r} came as another node, which takes its place")
            self._nodes[one.name] = node
            found[one.name] = one
        return found


def _looks(wait: float) -> Iterator[None]:
    start = time.monotonic()
    while True:
        yield
        if time.monotonic() - start > wait:
            return
        time.sleep(LOOK)


def _check(clients: Sequence[Hello], found: Mapping[str, Hello]) -> None:
    for one in clients:
        if tuple(one.shape) != tuple(clients[0].shape):
            raise ValueError(
                f"client {one.name!r} has images of shape {list(one.shape)} and {clients[0].name!r} of"
                f" {list(clients[0].shape)}; a model has one"
            )
        if found[one.name].examples != one.examples:
            raise ValueError(
                f"client {one.name!r} has {found[one.name].examples} images and had {one.examples} when the run began;"
                " put them back, or begin another run"
            )


def _read(path: Path) -> list[Hello]:
    if not path.exists():
        return []
    try:
        found = json.loads(path.read_text())
        return [Hello(o["name"], int(o["examples"]), tuple(o["shape"]), tuple(o["classes"])) for o in found]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); begin another run") from error


def _natural(name: str) -> tuple[int, str]:
    """Sorts "9" before "10", and names that are no numbers as text."""
    return (len(name) if name.isdigit() else 0, name)
