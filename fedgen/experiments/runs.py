"""Trainings of an experiment: recipes run by `fedgen fit`, each in a process and a folder of its own."""

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedgen.progress import track

Control = Literal["local_only", "centralised"]


@dataclass(frozen=True)
class Training:
    """One run of a recipe.

    Args:
        recipe: the recipe's file.
        folder: the run folder, see `place`; its output goes to `FOLDER.log` beside it.
        seed: of everything.
        settings: more arguments of `fedgen fit`, e.g. ("--trainer.max_epochs", "400").
        control: the flag of `fedgen fit` that turns a federated recipe into one of its controls.
    """

    recipe: Path
    folder: Path
    seed: int
    settings: tuple[str, ...] = ()
    control: Control | None = None

    @property
    def place(self) -> Path:
        """The folder that the run is found in: `folder`, for a control with the control's name behind it."""
        return self.folder.with_name(f"{self.folder.name}-{self.control}") if self.control else self.folder

    def run(self) -> Path:
        """Trains unless the folder holds the finished run; a stopped one goes on. Returns `place`.

        Raises:
            ChildProcessError: if it fails, with the end of its output.
        """
        given = ["--config", str(self.recipe), "--seed_everything", str(self.seed)]
        given += ["--trainer.default_root_dir", str(self.folder), *self.settings]
        given += [f"--{self.control}"] if self.control else []
        log = self.place.with_name(f"{self.place.name}.log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "w") as file:
            command = [sys.executable, "-m", "fedgen", "fit", *given]
            status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
        if status:
            tail = "\n".join(log.read_text().splitlines()[-5:])
            raise ChildProcessError(f"{' '.join(command)} failed with status {status}; the end of {log}:\n{tail}")
        return self.place


def train_all(trainings: Sequence[Training], parallel: int = 1) -> list[Path]:
    """The run folders of trainings, some at once, with a progress bar; after a failure or Ctrl-C no further one starts.

    Raises:
        FileNotFoundError: if a recipe is not there, before any training.
        ChildProcessError: if one fails.
    """
    for training in trainings:
        if not training.recipe.exists():
            raise FileNotFoundError(
                f"{training.recipe} does not exist; run from the folder that holds recipes/, or give --recipe"
            )
    pool = ThreadPoolExecutor(parallel)
    try:
        return list(track(pool.map(Training.run, trainings), "training", total=len(trainings), unit="runs"))
    finally:
        pool.shutdown(cancel_futures=True)
