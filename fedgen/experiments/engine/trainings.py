"""Trainings of an experiment: recipes run by `fedgen fit`, each in a process and a folder of its own."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fedgen.evaluation.names import LAST
from fedgen.experiments.engine.processes.fit_process import run_fit, run_new_fit
from fedgen.experiments.engine.recipe_file import component, read_recipe, start_of
from fedgen.progress import track

Control = Literal["local_only", "centralised"]
SHARE_HELD_OUT = 0.5  # of every client's images, so that there are as many to score against as were trained on


@dataclass(frozen=True)
class Training:
    """One run of a recipe.

    Args:
        recipe: the recipe's file.
        folder: the run folder, see `place`; its output goes to `FOLDER.log` beside it.
        seed: of everything.
        settings: more arguments of `fedgen fit`, e.g. ("--trainer.max_epochs", "400").
        control: the flag of `fedgen fit` that turns a federated recipe into one of its controls.
        threads: of the CPU at most; the recipe's own number, or all, if None.
        measured: in a new process, whose costs are those of `fedgen fit`; otherwise in a fork where forks train.
    """

    recipe: Path
    folder: Path
    seed: int
    settings: tuple[str, ...] = ()
    control: Control | None = None
    threads: int | None = None
    measured: bool = False

    @property
    def place(self) -> Path:
        """The folder that the run is found in: `folder`, for a control with the control's name behind it."""
        return self.folder.with_name(f"{self.folder.name}-{self.control}") if self.control else self.folder

    def run(self) -> Path:
        """Trains unless the folder holds the finished run; a stopped one goes on. Returns `place`.

        A finished run leaves `FOLDER.done` beside its folder, so that it is known without starting a process for it.

        Raises:
            ChildProcessError: if it fails, with the end of its output.
        """
        log, done = (self.place.with_name(f"{self.place.name}.{end}") for end in ("log", "done"))
        asked = json.dumps([start_of(self.recipe), *self._arguments()])
        if (self.place / LAST).exists() and done.exists() and done.read_text() == asked:
            return self.place
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "a") as file:  # what a run said while it trained stays when it is found finished
            status = (run_new_fit if self.measured else run_fit)(self._arguments(), file)
        if status:
            command = " ".join([sys.executable, "-m", "fedgen", "fit", *self._arguments()])
            tail = "\n".join(log.read_text().splitlines()[-5:])
            raise ChildProcessError(f"{command} failed with status {status}; the end of {log}:\n{tail}")
        done.write_text(asked)
        return self.place

    def _arguments(self) -> list[str]:
        given = ["--config", str(self.recipe), "--seed_everything", str(self.seed)]
        given += ["--trainer.default_root_dir", str(self.folder), *self.settings]
        if self.threads is not None:
            own = (read_recipe(self.recipe) or {}).get("threads") or self.threads
            given += ["--threads", str(min(self.threads, own))]
        return [*given, f"--{self.control}"] if self.control else given


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Args:
        name: in tables; unique among an experiment's arms.
        settings: what differs from the recipe, options of `fedgen fit` without dashes.
        control: of the recipe, "centralised".
        rounds: as a multiple of the recipe's.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    control: Control | None = None
    rounds: float = 1.0


def trainings_of(
    recipe: Path,
    arms: Sequence[Arm],
    seeds: Sequence[int],
    place: Callable[[Arm, int], Path],
    common: Mapping[str, Any],
) -> dict[str, list[Training]]:
    """Return each arm's runs, one a seed, by the arm's name.

    Args:
        recipe: of all arms.
        arms: their settings go before the common ones.
        seeds: the same for all arms.
        place: the folder of an arm's run of a seed.
        common: settings of all runs.
    """
    return {
        arm.name: [
            Training(recipe, place(arm, seed), seed, arguments({**common, **arm.settings}), arm.control)
            for seed in seeds
        ]
        for arm in arms
    }


def by_seed(runs: Mapping[str, Sequence[Training]]) -> list[Training]:
    """Return the runs of all arms, the first seed's first: of a stopped experiment all arms have as many seeds."""
    return [run for one_seed in zip(*runs.values()) for run in one_seed]


def arguments(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Arguments of `fedgen fit` from options, without their dashes, and values: texts and paths as they are."""
    texts = {key: str(value) if isinstance(value, str | Path) else json.dumps(value) for key, value in given.items()}
    return tuple(text for key, value in texts.items() for text in (f"--{key}", value))


def kept_rounds(
    rounds: int,
    every: int,
    split_seed: int,
    held_out: float | None = SHARE_HELD_OUT,
    more: Mapping[str, Any] | None = None,
) -> tuple[str, ...]:
    """Arguments of `fedgen fit` for a run whose checkpoints are scored later: nothing is scored while it trains.

    Args:
        rounds: of the run.
        every: how many of them lie between two kept checkpoints.
        split_seed: of the clients' held-out images.
        held_out: fraction of each client's images that it does not train on; the recipe's if None.
        more: options and values.
    """
    given = {
        "trainer.max_epochs": rounds,
        "trainer.callbacks": [component("fedgen.callbacks.RoundCheckpoint", every_n_rounds=every)],
        "trainer.logger": False,
        "data.init_args.seed": split_seed,
    }
    own = {} if held_out is None else {"data.init_args.held_out": held_out}
    return arguments({**given, **own, **(more or {})})


def train_all(trainings: Sequence[Training], parallel: int = 1) -> list[Path]:
    """The run folders of trainings, some at once, with a progress bar; after a failure or Ctrl-C no further one starts.

    Runs at once share the CPU's cores.

    Raises:
        FileNotFoundError: if a recipe is not there, before any training.
        ValueError: likewise if one is no YAML.
        ChildProcessError: if one fails.
    """
    for recipe in {training.recipe for training in trainings}:
        read_recipe(recipe)
    threads = max(1, (os.cpu_count() or 1) // parallel) if parallel > 1 else None
    jobs = [replace(training, threads=threads) for training in trainings]
    pool = ThreadPoolExecutor(parallel)
    try:
        return list(track(pool.map(Training.run, jobs), "training", total=len(jobs), unit="runs"))
    finally:
        pool.shutdown(cancel_futures=True)
