"""Deployed rounds on this machine, beside Flower's minimal app of the same training.

    python -m benchmarks.deployed [--parts messages nodes simulation]

The quickstart's model and steps. First the work of one message alone, of three clients in this process, without
Flower's: half a minute. Then a SuperLink and three SuperNodes, over TLS: both apps run on them one after the other, and
a round's seconds are the median of those after the first, in which processes start: four minutes. Then ten clients in
Flower's simulation, which is installed with the peers: two minutes.
"""

import argparse
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import chdir
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.deployed import minimal, with_lightning
from benchmarks.deployed.processes import MESSAGE, WORKER, Watch, memory_of_lightning
from benchmarks.deployed.recipes import quickstart, seconds_of, write_minimal
from benchmarks.deployed.simulated import simulated
from benchmarks.report import report
from fedgen.flower.app.app_sides import run_server
from fedgen.flower.app.apps import client_app
from fedgen.flower.app.write_app import write_app
from fedgen.flower.client.local_data import KeptImages, LocalDataModule
from tests.flower.federation import Federation
from tests.flower.loopback import Loopback, Node
from tests.flower.runs import IMAGES, write_images

SIZES = {"a": 144, "b": 144, "c": 144}
OF_FIT = 2.0  # a client's processor seconds, beside a bare fit of Lightning's Trainer around the same steps


# ---- the whole ----


def deployed(rounds: int, folder: Path) -> bool:
    """Both apps on real SuperNodes."""
    images = write_images(folder / "clients", SIZES)
    ours, theirs = folder / "ours.txt", folder / "minimal.txt"
    with chdir(folder):  # so that the app takes no modules of the current folder with it
        write_app(quickstart(rounds, len(SIZES), ours), IMAGES, folder / "app", len(SIZES), "")
    write_minimal(folder / "minimal")
    with Federation(folder, {name: images / name for name in SIZES}) as federation:
        with Watch(folder / "flwr") as own:
            federation.run(folder / "app", output=str(folder / "run"))
        with Watch(folder / "flwr") as other:
            federation.run(folder / "minimal", rounds=rounds, clients=len(SIZES), cohort=len(SIZES), stamps=str(theirs))
    title = f"a round of {len(SIZES)} SuperNodes"
    report(f"{title}: the kit", seconds_of(ours), "s")
    report(f"{title}: Flower's minimal app", seconds_of(theirs), "s")
    report("a client's worker: memory of its own", own.most[WORKER], "GB")
    report("a process that imports Lightning and nothing else: memory of its own", memory_of_lightning(), "GB")
    report("a client's worker: started in the run", len(own.started[WORKER]), "processes")
    report("a message's process beside a worker: memory of its own", own.most[MESSAGE], "GB")
    report("a message's process of the minimal app: memory of its own", other.most[MESSAGE], "GB")
    return report(f"{title}: the kit over Flower's minimal app", seconds_of(ours) / seconds_of(theirs), "ratio", 1.3)


# ---- a message's own work ----


class Timed(Node):
    """A node of a loopback that counts the processor seconds of its turns, and keeps images as its worker does."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.turns: list[tuple[float, float]] = []
        self._kept = KeptImages()

    def answer(self, message: Message, number: int) -> Message | None:
        LocalDataModule.kept, start = self._kept, time.process_time()
        try:
            found: Message | None = super().answer(message, number)
            return found
        finally:
            if message.metadata.message_type == "train":
                self.turns.append((start, time.process_time()))


def seconds_of_turns(nodes: Iterable[Timed]) -> float:
    """Median of a turn but the first two of each client, in which things are made."""
    return statistics.median(end - start for node in nodes for start, end in node.turns[2:])


def seconds_between(nodes: Iterable[Timed]) -> float:
    """Median of what passes at the server between two rounds' first turns, for each turn, from the third round on."""
    turns = sorted(turn for node in nodes for turn in node.turns)
    rounds = [turns[at : at + len(SIZES)] for at in range(2 * len(SIZES), len(turns), len(SIZES))]
    own = [later[0][0] - one[0][0] - sum(end - start for start, end in one) for one, later in pairwise(rounds)]
    return statistics.median(own) / len(SIZES)


def messages(rounds: int, folder: Path) -> bool:
    """What a turn's message takes a client, and the server, without Flower's processes."""
    images = write_images(folder / "clients", SIZES)
    write_app(quickstart(rounds, len(SIZES)), IMAGES, folder / "app", len(SIZES), "")
    recipe, run = folder / "app" / "federation" / "recipe.yaml", {"clients": len(SIZES), "output": str(folder / "run")}
    nodes = {
        number: Timed(client_app(recipe), {"data-path": str(images / name)}, run)
        for number, name in enumerate(SIZES, 10)
    }
    time.sleep(2)  # images that have just been written are read again
    run_server(recipe, Loopback(nodes), run)
    kit, unit, title = seconds_of_turns(nodes.values()), "processor seconds", "a turn's message at a client"
    report(f"{title}: the kit", kit, unit)
    report(f"{title}: Flower's minimal app", minimal_messages(minimal.client, rounds, images), unit)
    fitted = minimal_messages(with_lightning.client, rounds, images)
    report(f"{title}: Flower's minimal app with Lightning's fit", fitted, unit)
    report("a turn's message at the server: the kit", seconds_between(nodes.values()), unit)
    return report(f"{title}: the kit over Flower's minimal app with Lightning's fit", kit / fitted, "ratio", OF_FIT)


def minimal_messages(client: ClientApp, rounds: int, images: Path) -> float:
    """A turn's processor seconds of a minimal app."""
    nodes = {n: Timed(client, {"data-path": str(images / name)}, {}) for n, name in enumerate(SIZES, 10)}
    grid, networks = Loopback(nodes), minimal.make_networks()
    state = minimal.state_of(networks, minimal.no_moments(networks))
    for _ in range(rounds):
        content = RecordDict({"arrays": ArrayRecord(state)})
        replies = grid.send_and_receive([Message(content, number, "train") for number in nodes])
        state = _content(replies[0])["arrays"].to_torch_state_dict()
    return seconds_of_turns(nodes.values())


def _content(reply: Message) -> RecordDict:
    if reply.has_error():
        raise RuntimeError(reply.error.reason)
    return reply.content


PARTS: dict[str, tuple[Callable[[int, Path], bool], int]] = {  # with rounds
    "messages": (messages, 8),
    "nodes": (deployed, 8),
    "simulation": (simulated, 100),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    within = True
    for name in chosen.parts:
        measure, rounds = PARTS[name]
        with tempfile.TemporaryDirectory() as folder:
            within &= measure(rounds, Path(folder))
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
