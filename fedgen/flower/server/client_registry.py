"""The clients that a server knows, by number, and Flower's node at which each is at present."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from fedgen import __version__
from fedgen.federated.left_out import LONGEST_REASON, shorten
from fedgen.flower.app.run_config import RunLabels
from fedgen.flower.wire.flower_records import from_records
from fedgen.flower.wire.messages import Hello, check_types
from fedgen.io.files import read_json, write_json
from fedgen.own_code import rank_zero_warn
from fedgen.progress import track
from fedgen.statistics.statistic_messages import MessageError

CLIENTS = "clients.json"
LOOK = 1.0  # seconds between looks at who is there
HEARD_WITHIN = 120.0  # seconds a client has to introduce itself; it starts Python for that
PAUSE = 600.0  # seconds before a node that did not, or could not take part, is asked again
SOON = 0.1  # seconds between looks for what they say


class ClientRegistry:
    """The clients of a federation, known by name wherever they are; numbers follow the names' order, and stay."""

    # clients with other classes than `labels`, or more images than `most` (0 for no bound), cannot take part

    def __init__(
        self, grid: Grid, deadline: float | None = None, labels: RunLabels | None = None, most: int = 0
    ) -> None:
        self._grid, self._patience = grid, min(HEARD_WITHIN, deadline or HEARD_WITHIN)
        self._labels, self._most = labels or RunLabels(), most
        self.clients: list[Hello] = []
        self._nodes: dict[str, int] = {}
        self._met: set[int] = set()
        self._asked: dict[int, float] = {}  # when, of nodes that are to introduce themselves
        self._waiting: dict[str, int] = {}  # messages to them that are not answered yet
        self._refused: dict[int, str] = {}  # why they cannot take part
        self._claims: dict[int, str] = {}  # names of others that they say are theirs

    def wait_for_clients(self, folder: Path, number: int, wait: float) -> None:
        """Waits until so many of the run's clients are there; TimeoutError if fewer come within `wait` seconds."""
        self.clients = read_clients(folder / CLIENTS)
        kept = [one.name for one in self.clients]
        found: dict[str, Hello] = {}
        for _ in track(_looks(wait), "waiting for clients", wait, "s", LOOK):
            found |= self._introduced(min(wait, HEARD_WITHIN))
            if len(found) >= number and set(kept) <= found.keys():
                break
        missing = [name for name in kept if name not in found]
        there = [name for name in found if name in kept] if kept else list(found)
        if len(there) < number:
            whom = f"{', '.join(missing)} did not" if missing else f"{len(there)} of {number} clients did"
            raise TimeoutError(
                f"{whom} come within {wait:g} seconds; start more SuperNodes, or ask for fewer `clients` or a longer"
                " `wait` in the run's config"
            )
        if missing:
            rank_zero_warn(
                f"{', '.join(missing)} did not come within {wait:g} seconds; the run goes on with the"
                f" {len(there)} others of its {len(kept)} clients, as many as `clients` asks for"
            )
        # "9" before "10", and names that are no numbers as text
        ordered = sorted(found, key=lambda name: (len(name) if name.isdigit() else 0, name))
        self.clients = self.clients or [found[name] for name in ordered]
        _check(self.clients)
        write_json(folder / CLIENTS, [asdict(one) for one in self.clients])
        rank_zero_info(f"{len(self.clients)} clients: {', '.join(one.name for one in self.clients)}")

    def refresh(self) -> None:
        """Finds clients that have come back as other nodes."""
        for name, one in self._introduced(self._patience).items():
            known = self._known(name)
            if known is None:
                rank_zero_warn(f"client {name!r} came after the run had begun and does not take part")
            elif known != one:
                now, before = (shorten(str(data), LONGEST_REASON) for data in (one, known))
                rank_zero_warn(f"client {name!r} came back with other data ({now}, before {before})")

    def nodes_of(self, clients: Iterable[int]) -> dict[int, int | None]:
        """By client the node at which it is at present; None if it is not there."""
        there = set(self._grid.get_node_ids())
        nodes = {client: self._nodes.get(self.clients[client].name) for client in clients}
        return {client: node if node in there else None for client, node in nodes.items()}

    def _introduced(self, patience: float) -> dict[str, Hello]:
        """Nodes that have not introduced themselves yet and do it now, by name."""
        found: dict[str, Hello] = {}
        for node, reply in self._heard(patience):
            if node in self._met:  # it was silent, was asked again, and answers both: it is one client
                continue
            try:
                one: Hello = from_records(Hello, reply)
                self._labels.check(one)
                self._check_images(one)
                self._check_name(one.name, node)
            except MessageError as error:
                if self._refused.get(node) != (why := shorten(str(error), LONGEST_REASON)):  # said once
                    rank_zero_warn(f"node {node} cannot take part: {why}")
                self._refused[node] = why
                continue
            if one.release != __version__:
                rank_zero_warn(
                    f"client {one.name!r} has fedgen {one.release}, and this server {__version__}: install the same"
                )
            self._met.add(node)
            self._nodes[one.name] = node
            found[one.name] = one
        return found

    def _heard(self, patience: float) -> Iterator[tuple[int, Message]]:
        """Return what nodes say that are asked to introduce themselves now, or were asked before."""
        start = time.monotonic()
        there = set(self._grid.get_node_ids())
        freed = {node for node, name in self._claims.items() if self._nodes[name] not in there}
        self._claims = {node: name for node, name in self._claims.items() if node not in freed}
        long_ago = {node for node in there - self._met if start - self._asked.get(node, -PAUSE) >= PAUSE}
        asked = sorted(long_ago | freed & there)
        new = {node for node in asked if node not in self._asked or node in freed}
        self._asked |= dict.fromkeys(asked, start)
        hello = [Message(RecordDict({"hello": ConfigRecord()}), node, MessageType.QUERY) for node in asked]
        pushed = zip(list(self._grid.push_messages(hello)) if hello else [], asked)
        self._waiting |= {identity: node for identity, node in pushed if identity}
        while self._waiting:
            for reply in list(self._grid.pull_messages(list(self._waiting))):
                if (node := self._waiting.pop(reply.metadata.reply_to_message_id, None)) is not None:
                    yield node, reply
            if not new & set(self._waiting.values()) or time.monotonic() - start > patience:
                return
            time.sleep(SOON)

    def _known(self, name: str) -> Hello | None:
        """The run's client of this name, as it was when the run began."""
        return next((own for own in self.clients if own.name == name), None)

    def _check_images(self, one: Hello) -> None:
        """Raises MessageError for too many images, or others than when the run began: it is another client."""
        if self._most and one.examples > self._most:
            raise MessageError(
                f"client {one.name!r} says that it has {one.examples} images, and most-images={self._most} in the run's"
                " config is what one may say; raise that if it is true"
            )
        before = self._known(one.name) or one
        if (one.examples, one.shape, one.kind) != (before.examples, before.shape, before.kind):
            now, then = (f"{hello.examples} {hello.kind} of {list(hello.shape)}" for hello in (one, before))
            raise MessageError(
                f"client {one.name!r} has {now} and had {then} when the run began; put them back, or begin another run"
            )

    def _check_name(self, name: str, node: int) -> None:
        """Raises MessageError for the name of a client that is there: whoever takes it would take its turns."""
        if (other := self._nodes.get(name)) in set(self._grid.get_node_ids()) - {node}:
            self._claims[node] = name
            raise MessageError(
                f"it says that it is client {name!r}, which node {other} is, and that one is connected; give each node"
                " a `name` of its own, or wait until the other has gone"
            )


def _looks(wait: float) -> Iterator[None]:
    start = time.monotonic()
    while True:
        yield
        if time.monotonic() - start > wait:
            return
        time.sleep(LOOK)


def _check(clients: Sequence[Hello]) -> None:
    for one in clients:
        if (tuple(one.shape), one.kind) != (tuple(clients[0].shape), clients[0].kind):
            raise ValueError(
                f"client {one.name!r} has {one.kind} of shape {list(one.shape)} and {clients[0].name!r}"
                f" {clients[0].kind} of {list(clients[0].shape)}; a model has one"
            )


def read_clients(path: Path) -> list[Hello]:
    """The clients of a run's folder; none where it has none."""
    if not path.exists():
        return []
    try:
        found = []
        for one in read_json(path):
            found.append(Hello(**{**one, "shape": tuple(one["shape"]), "classes": tuple(one["classes"])}))
            check_types(found[-1])
        if not found or len({one.name for one in found}) != len(found):
            raise ValueError("no clients, or two of one name")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({error}); begin another run") from error
    return found
