"""A deployment killed again and again, as `tests.killed_runs` kills a simulation: `main(FOLDER, KILLS, SEED)`.

Server and clients are one process over a loopback, so a kill ends whoever of them was at work. What happened is written
to FOLDER/summary.json.
"""

import json
import random
from itertools import cycle
from pathlib import Path

import torch

from fedgen.flower.app.app_sides import ServerCLI
from fedgen.flower.app.recipe import for_server, read_settings
from fedgen.flower.client.client_node import ClientNode
from fedgen.flower.wire.serialization import from_bytes
from tests.flower.connected import connection_to
from tests.flower.runs import SIZES, app_of, deploy, learn_types, recipe, small_gan, write_images
from tests.killed_runs import Points, faults_of, in_watched_fork

PHASES = ("training", "evaluation", "checkpoint", "client")
ROUNDS = 4
SCORES = {"every_n_rounds": 1, "num_images": 20, "embeddings": ["pixels"], "report": True, "page": True, "grid": 4}
SETTINGS = recipe(
    ROUNDS,
    SCORES,
    {**small_gan(), "class_path": "tests.killed_runs.Model"},
    cohort_size=3,
    optimizer_state="keep",
    personal=["critic.*"],
    compression={"class_path": "fedgen.federated.compression.TopK"},  # what is not sent is kept, too
)


class PointsOfBoth(Points):
    """Of what clients keep between turns and pin, too."""

    def install(self):
        super().install()
        self._watch(ClientNode, "_remember", "step", "client")
        self._watch(ClientNode, "answers", "step", "client")


def attempt(images, run, points, counts=None):
    """Runs the deployment in a fork; gives back its status, -9 where it was killed."""

    def train():
        deploy(SETTINGS, images, run)
        return 0

    return in_watched_fork(train, run, points, counts)


def kept(run):
    """What clients keep of a run: states between turns, and names of what they pin, without what a kill left."""
    folders = {path.name.removeprefix(run.name): path / run.name for path in run.parent.glob(f"{run.name}-?")}
    files = {(name, str(file.relative_to(at))): file for name, at in folders.items() for file in at.rglob("[!.]*.*")}
    pins = {
        (name, str(file.relative_to(at))) for name, at in folders.items() for file in (at / "pinned").rglob("[!.]*")
    }
    states = {key: file.read_bytes() for key, file in files.items() if key[1].startswith("round=")}
    return {key: from_bytes(data, key[1], sealed=True) for key, data in states.items()}, pins


def main(folder, kills=8, seed=0):
    """The undisturbed run in FOLDER/whole, the one that is killed in FOLDER/broken."""
    folder = Path(folder)
    torch.set_num_threads(1)
    images = write_images(folder / "clients")
    learn_types(SETTINGS, images, folder)
    # settings, too: each attempt would parse and write the server's, and take half a second
    read = read_settings(app_of(SETTINGS, folder / "settings", len(SIZES)))
    assert ServerCLI(for_server(read, folder / "settings"), connection_to(), None).recipe
    whole, broken, report = folder / "whole", folder / "broken", folder / "killed_at"
    summary = {"status": [attempt(images, whole, PointsOfBoth(), folder / "counts.json")], "killed": [], "faults": []}
    counts = json.loads((folder / "counts.json").read_text())
    draws, seen = random.Random(seed), set()
    kinds = {phase: cycle(sorted(where for where in counts if where.startswith(phase))) for phase in PHASES}
    for kill in draws.sample(range(kills), kills):
        where = next(kinds[PHASES[kill % len(PHASES)]])
        rounds = int(draws.random() < ROUNDS / (2 * kills))  # so that some are left for the last kill
        points = PointsOfBoth(where, rounds, draws.randrange(max(1, counts[where] // ROUNDS)), report)
        summary["status"].append(attempt(images, broken, points))
        summary["killed"].append(report.read_text() if report.exists() else f"{where}: not met")
        summary["faults"] += faults_of(broken, seen)
        report.unlink(missing_ok=True)
    summary["status"].append(attempt(images, broken, PointsOfBoth()))
    (folder / "summary.json").write_text(json.dumps(summary, indent=2))
