"""An experiment's run: named steps whose numbers are kept as they come, then its tables and its figure."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from fedgen.experiments.engine.results import RESULTS, read_results, save_results
from fedgen.io.files import atomic_write, require_writable
from fedgen.progress import make_console, track
from fedgen.reports.contents import CONCLUSIONS

T = TypeVar("T")
FOLDER = Path("checkpoints")  # where experiments go that are not told otherwise
SEEDS = 2**32  # NumPy takes no others
EVERY = 5.0  # seconds between writes of a step's items


class Study:
    """The measurements of an experiment, in a folder; a step that is done is not run again.

    `results.json` appears with the first number and holds settings, versions and every number, so an experiment that
    was stopped goes on where it was, and a finished one prints again at once. The folder is made with that file.

    Args:
        name: of the experiment.
        output: its folder; below `checkpoints/`, named after the experiment and the settings that make it another
            (data, embedding, seed, quick), if None.
        settings: all that its numbers depend on, as plain types.

    Raises:
        PermissionError: if the folder cannot be written.
        ValueError: if it holds the results of other settings, naming them, or a damaged file; for a seed out of range.
    """

    def __init__(self, name: str, output: Path | None, settings: Mapping[str, Any]) -> None:
        require_seed(settings.get("seed", 0))
        self.name, self.settings = name, dict(settings)
        self.folder = require_place(output or FOLDER / folder_name(name, settings))
        self.numbers: dict[str, Any] = read_results(self.folder, self.settings) or {}
        self.console = make_console()
        self._partly: set[str] = set()

    def step(self, name: str, run: Callable[[], T]) -> T:
        """The numbers of one step (JSON values), which is run unless they are known.

        Args:
            name: of the step, its key in `results.json`.
            run: makes the numbers.
        """
        if name not in self.numbers:
            self._say(name)
            self.numbers[name] = run()
            self._save()
        return self.numbers[name]

    def each(self, name: str, items: Mapping[str, T], run: Callable[[T], Any], unit: str = "items") -> dict[str, Any]:
        """The numbers of every item of a step, by the items' names; those that are known are not measured again.

        Args:
            name: of the step.
            items: by name, in order.
            run: gives an item's numbers.
            unit: what the progress bar counts.
        """
        done: dict[str, Any] = self.numbers.setdefault(name, {})
        missing = {key: item for key, item in items.items() if key not in done}
        saved = time.monotonic()
        try:
            for key, item in track(missing.items(), name, len(missing), unit):
                done[key] = run(item)
                if time.monotonic() - saved > EVERY:
                    self._save()
                    saved = time.monotonic()
        finally:
            if missing:
                self._save()
        return {key: done[key] for key in items}

    def missing(self, *names: str) -> bool:
        """Whether any of these steps has no number yet: whether what they need must be computed."""
        return any(not self.numbers.get(name) for name in names)

    def report(self, tables: Sequence[Table | str], figure: Path | None = None) -> None:
        """Prints the tables (or lines), and where numbers and figure are."""
        for table in tables:
            self.console.print(table)
        lines = "".join(f"{line}\n" for line in tables if isinstance(line, str))
        with atomic_write(self.path(CONCLUSIONS)) as file:  # which the folder's report shows
            file.write(lines.encode(errors="replace"))
        self.console.print(f"numbers: {self.folder / RESULTS}")
        if figure is not None:
            self.console.print(f"figure: {figure}")

    def path(self, file: str) -> Path:
        """A file of the experiment's folder."""
        return self.folder / file

    def _say(self, step: str) -> None:
        if sys.stderr.isatty():
            Console(stderr=True).print(f"{self.name}: {step}", style="dim")

    def _save(self) -> None:
        save_results(self.folder, self.name, self.settings, self.numbers)


def require_place(folder: Path) -> Path:
    """The folder, which need not be there yet; nothing is left behind.

    Raises:
        PermissionError: if it cannot be made or written, before any long work starts.
    """
    require_writable(next(path for path in (folder, *folder.parents) if path.exists()))
    return folder


def require_seed(seed: int) -> None:
    """Raises ValueError, before any work, for a seed that some generator of a training would not take."""
    if not 0 <= seed < SEEDS:
        raise ValueError(f"seed={seed}: give one from 0 to {SEEDS - 1}")


def folder_name(name: str, settings: Mapping[str, Any]) -> str:
    """The experiment's name and what tells its usual variants apart: "class-generators-cifar10-pixels-seed1-quick"."""
    parts = [name]
    parts += [Path(str(settings[key])).name for key in ("data", "embedding") if settings.get(key)]
    parts += [f"seed{settings['seed']}"] if settings.get("seed") else []
    parts += ["quick"] if settings.get("quick") else []
    return "-".join(parts)
