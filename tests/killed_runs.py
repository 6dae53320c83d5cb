"""One `fedgen fit` killed again and again, as a script of tests.launched.Imported: its argument is a folder.

Each attempt is a fork of this process, and kills itself by SIGKILL at a point that a seeded generator chose: in
training, in an evaluation or in the writing of a checkpoint, before or after a step or a call to the file system, or
half-way through a write. What happened is written to FOLDER/summary.json.
"""

import builtins
import gc
import json
import os
import random
import signal
import sys
from collections import Counter
from functools import cached_property
from itertools import cycle
from pathlib import Path

import torch
import yaml

from fedgen.callbacks import FederatedEvaluation, RoundCheckpoint
from fedgen.evaluation import read_records
from fedgen.models import WGANGP
from fedgen.models.checkpoint_file import read_checkpoint
from fedgen.training.fit import FedgenCLI, train
from tests.launched import in_fork

PHASES = ("training", "evaluation", "checkpoint")
KILLS, ROUNDS = 20, 14
FEWER, FEWER_ROUNDS = 9, 6


class Model(WGANGP):
    """Loses the client with the sevens in every third round."""

    def training_step(self, batch, batch_idx):
        if self.current_epoch % 3 == 1 and int(batch[1][0]) == 7:
            raise RuntimeError("no sevens today")
        return super().training_step(batch, batch_idx)


RECIPE = {
    "trainer": {
        "max_epochs": ROUNDS,
        "accelerator": "cpu",
        "logger": False,
        "strategy": {
            "class_path": "fedgen.federated.FedAvgStrategy",
            "init_args": {
                "communication_interval": 2,
                "cohort_size": 6,
                "optimizer_state": "keep",
                "compression": {"class_path": "fedgen.federated.compression.TopK", "init_args": {"share": 0.1}},
            },
        },
        "callbacks": [
            {
                "class_path": "fedgen.callbacks.FederatedEvaluation",
                "init_args": {
                    "every_n_rounds": 1,
                    "num_images": 20,
                    "embeddings": ["pixels"],
                    "grid": 4,
                    "report": False,
                    "page": False,
                },
            }
        ],
    },
    "model": {
        "class_path": "tests.killed_runs.Model",
        "init_args": {
            "generator": {"class_path": "fedgen.models.networks.SmallGenerator", "init_args": {"width": 4}},
            "critic": {"class_path": "fedgen.models.networks.SmallCritic", "init_args": {"width": 4}},
            "ema_decay": 0.9,
        },
    },
    "data": {
        "class_path": "fedgen.clients.FederatedDataModule",
        "init_args": {
            "data": {"class_path": "fedgen.data.Digits"},
            "partition": {"class_path": "fedgen.clients.partitions.ByClass"},
        },
    },
}


class Points:
    """Counts the points that a run passes, by phase and kind, and kills the process at one of them.

    Args:
        where: phase and kind, e.g. "checkpoint write"; None to count only.
        rounds: whole rounds to let pass before.
        number: of the point, counted from then on.
        report: file that is told where it was.
    """

    def __init__(self, where=None, rounds=0, number=0, report=None):
        self.where, self.rounds, self.number, self.report = where, rounds, number, report
        self.phase, self.saved, self.counts = None, 0, Counter()

    def pass_by(self, kind, what):
        where = f"{self.phase} {kind}"
        if self.phase is None or self.saved < self.rounds:
            return
        self.counts[where] += 1
        if where == self.where and self.counts[where] > self.number:
            Path(self.report).write_text(f"{where}: {what}")
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self):
        """Watches this process from now on."""
        for owner, name, phase in (
            (Model, "training_step", "training"),
            (FederatedEvaluation, "_evaluate", "evaluation"),
            (RoundCheckpoint, "on_train_epoch_end", "checkpoint"),
        ):
            self._watch(owner, name, "step", phase)
        self._watch(Model, "sample", "step")
        for name in ("fsync", "replace", "link"):
            self._watch(os, name, "call")
        plain_fdopen, plain_open = os.fdopen, builtins.open
        os.fdopen = lambda *args, **options: Halved(plain_fdopen(*args, **options), self)

        def watched_open(file, mode="r", *args, **options):  # for lists that are not replaced whole
            opened = plain_open(file, mode, *args, **options)
            return Halved(opened, self) if str(file).endswith(".jsonl") and mode in ("wb", "ab") else opened

        builtins.open = watched_open

    def _watch(self, owner, name, kind, phase=None):
        plain = getattr(owner, name)

        def watched(*args, **options):
            outer, self.phase = self.phase, phase or self.phase
            self.pass_by(kind, f"before {name}")
            try:
                result = plain(*args, **options)
                self.pass_by(kind, f"after {name}")
            finally:
                self.phase = outer
            self.saved += phase == "checkpoint"
            return result

        setattr(owner, name, watched)


class Halved:
    """A file each of whose writes is two, on disk one after the other, with a point after the first."""

    def __init__(self, file, points):
        self._file, self._points = file, points

    def write(self, data):
        data = bytes(data)
        self._file.write(data[: len(data) // 2])
        self._file.flush()
        self._points.pass_by("write", f"in {len(data)} bytes")
        self._file.write(data[len(data) // 2 :])
        return len(data)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        self._file.__enter__()
        return self

    def __exit__(self, *error):
        return self._file.__exit__(*error)


class Parsed(FedgenCLI):
    """`fedgen fit` up to its training, which would take each fork as long as a round."""

    recipe = cached_property(lambda self: FedgenCLI.recipe.fget(self))

    def attempt(self, points, counts=None):
        """Trains in a fork; gives back its status, -9 where it was killed."""
        return in_watched_fork(lambda: train(self), self.trainer.default_root_dir, points, counts)


def in_watched_fork(train, run, points, counts=None):
    """Trains in a fork that writes to a log beside the run; gives back its status, -9 where it was killed."""

    def work():
        points.install()
        status = train()
        if counts is not None:
            counts.write_text(json.dumps(points.counts))
        return status

    with open(f"{run}.log", "ab") as log:
        return in_fork(work, log.fileno())


def faults_of(run, read):
    """What is not as it must be in a run's folder after a kill; of checkpoints those that have changed are `read`."""
    found = []
    scores = run / "scores.jsonl"
    content = scores.read_bytes() if scores.exists() else b""
    if content and not content.endswith(b"\n"):
        found.append(f"half a line: {content[-80:]!r}")
    identities = [record.identity for record in read_records(scores)]
    lines = len(content.splitlines())
    if len(set(identities)) < lines:
        found.append(f"{lines} lines of {len(set(identities))} scores")
    for path in run.glob("*.ckpt"):
        if (state := (path.stat().st_ino, path.stat().st_mtime_ns)) not in read:
            read_checkpoint(path)
            read.add(state)
    return found


ASYNCHRONOUS = {  # strategy, in which every second turn or so has started in an earlier round
    "class_path": "fedgen.federated.FedBuffStrategy",
    "init_args": {
        "buffer_size": 4,
        "concurrency": 6,
        "speeds": {"class_path": "fedgen.federated.ClientSpeeds", "init_args": {"spread": 0.3}},
        "communication_interval": 2,
        "optimizer_state": "keep",
        "compression": {"class_path": "fedgen.federated.compression.TopK", "init_args": {"share": 0.1}},
    },
}


def main(folder, kills=KILLS, rounds=ROUNDS, strategy=None):
    """The undisturbed run in FOLDER/whole, the one that is killed in FOLDER/broken.

    Args:
        folder: for both.
        kills: of the second.
        rounds: of both.
        strategy: in place of the recipe's.
    """
    folder = Path(folder)
    torch.set_num_threads(1)
    sys.argv = ["fedgen"]
    recipe = folder / "tiny.yaml"
    trainer = RECIPE["trainer"] | {"max_epochs": rounds} | ({} if strategy is None else {"strategy": strategy})
    recipe.write_text(yaml.safe_dump(RECIPE | {"trainer": trainer}))
    whole, broken, report = folder / "whole", folder / "broken", folder / "killed_at"
    first, again = (
        Parsed(["--config", str(recipe), "--trainer.default_root_dir", str(run)]) for run in (whole, broken)
    )
    assert first.recipe.keys() == again.recipe.keys()  # made here, and not by each fork
    gc.freeze()  # in which no fork looks for garbage
    summary = {"status": [first.attempt(Points(), folder / "counts.json")], "killed": [], "faults": []}
    counts = json.loads((folder / "counts.json").read_text())
    draws, read = random.Random(0), set()
    kinds = {phase: cycle(sorted(where for where in counts if where.startswith(phase))) for phase in PHASES}
    for kill in draws.sample(range(kills), kills):
        where = next(kinds[PHASES[kill % len(PHASES)]])
        points = Points(where, draws.randrange(2), draws.randrange(counts[where] // rounds), report)
        summary["status"].append(again.attempt(points))
        summary["killed"].append(report.read_text())
        summary["faults"] += faults_of(broken, read)
        report.unlink()
    summary["status"].append(again.attempt(Points()))
    (folder / "summary.json").write_text(json.dumps(summary, indent=2))


def run(arguments):
    """A training, or with a second argument one whose clients are under way."""
    folder, *asynchronous = arguments
    main(folder, *((FEWER, FEWER_ROUNDS, ASYNCHRONOUS) if asynchronous else ()))
