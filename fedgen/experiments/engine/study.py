"""An experiment's run: steps whose numbers are kept as they come, its tables and figure, and the options it takes."""

import json
import platform
import reprlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedgen.io.files import atomic_write, read_json, require_writable, write_json
from fedgen.progress import make_console, track
from fedgen.reports.contents import CONCLUSIONS
from fedgen.reports.figures.curves import new_figure, save_picture

T = TypeVar("T")
Numbers = Mapping[str, Any]  # what an experiment measured, as `results.json` has it
FOLDER = Path("checkpoints")  # where experiments go that are not told otherwise
SEEDS = 2**32  # NumPy takes no others
EVERY = 5.0  # seconds between writes of a step's items


class Study:
    """The measurements of an experiment, kept in a folder with their settings: a step that is done is not run again."""

    def __init__(self, name: str, output: Path | None, settings: Mapping[str, Any]) -> None:
        if not 0 <= (seed := settings.get("seed", 0)) < SEEDS:
            raise ValueError(f"seed={seed}: give one from 0 to {SEEDS - 1}")
        self.name, self.settings = name, dict(settings)
        self.folder = require_place(output or FOLDER / folder_name(name, settings))
        self.numbers: dict[str, Any] = read_results(self.folder, self.settings) or {}
        self.console = make_console()

    def step(self, name: str, run: Callable[[], T]) -> T:
        """The numbers of one step (JSON values), which is run unless they are known."""
        if name not in self.numbers:
            if sys.stderr.isatty():
                Console(stderr=True).print(f"{self.name}: {name}", style="dim")
            self.numbers[name] = run()
            self._save()
        return self.numbers[name]

    def each(self, name: str, items: Mapping[str, T], run: Callable[[T], Any], unit: str = "items") -> dict[str, Any]:
        """The numbers of every item of a step, by name; those that are known are not measured again."""
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
        return any(not self.numbers.get(name) for name in names)

    def report(self, tables: Sequence[Table | str], figure: Path | None = None) -> None:
        for table in tables:
            self.console.print(table)
        lines = "".join(f"{line}\n" for line in tables if isinstance(line, str))
        with atomic_write(self.path(CONCLUSIONS)) as file:  # which the folder's report shows
            file.write(lines.encode(errors="replace"))
        self.console.print(f"numbers: {self.folder / RESULTS}")
        if figure is not None:
            self.console.print(f"figure: {figure}")

    @property
    def figure(self) -> Path:
        return self.path(f"{self.name.replace('-', '_')}.png")

    def path(self, file: str) -> Path:
        return self.folder / file

    def _save(self) -> None:
        save_results(self.folder, self.name, self.settings, self.numbers)


def require_place(folder: Path) -> Path:
    """The folder, which need not be there yet; nothing is left behind."""
    require_writable(next(path for path in (folder, *folder.parents) if path.exists()))
    return folder


def folder_name(name: str, settings: Mapping[str, Any]) -> str:
    """Its name and what tells its usual variants apart: "class-generators-cifar10-pixels-seed1-quick"."""
    parts = [name]
    parts += [Path(str(settings[key])).name for key in ("data", "embedding") if settings.get(key)]
    parts += [f"seed{settings['seed']}"] if settings.get("seed") else []
    parts += ["quick"] if settings.get("quick") else []
    return "-".join(parts)


RESULTS = "results.json"
LIBRARIES = ("fedgen", "torch", "lightning", "torchmetrics", "numpy", "scipy")


def save_results(folder: str | Path, name: str, settings: dict[str, Any], numbers: dict[str, Any]) -> Path:
    versions = {"python": platform.python_version()} | {library: version(library) for library in LIBRARIES}
    path = Path(folder) / RESULTS
    write_json(path, {"experiment": name, "settings": settings, "versions": versions, "numbers": numbers})
    return path


def read_results(folder: str | Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The numbers that the same settings left in a folder; None if there are none."""
    path = Path(folder) / RESULTS
    if not path.exists():
        return None
    try:
        stored = read_json(path)
        before, numbers = stored["settings"], stored["numbers"]
        if not isinstance(before, dict) or not isinstance(numbers, dict):
            raise TypeError("settings and numbers must be objects")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error!r}); remove it to run the experiment again") from error
    now = json.loads(json.dumps(settings))  # tuples as lists, as they are stored
    alone = {  # an option that was not there yet when they were stored counts as off, 0 or None
        key: value for one, other in ((before, now), (now, before)) for key, value in one.items() if key not in other
    }
    changed = sorted(key for key in before.keys() | now.keys() if alone.get(key, before.get(key) != now.get(key)))
    if changed:
        about = f"{path} holds results of other settings; choose another --output, or remove it"
        short = reprlib.repr
        lines = [f"  {key}: {short(before.get(key))} there, {short(now.get(key))} now" for key in changed[:5]]
        raise ValueError("\n".join([about, *lines]))
    return numbers


def expectation(text: str, met: bool) -> str:
    return f"{'as expected' if met else 'not seen'}: {text}"


def make_table(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[Any] | None],
    notes: str | Sequence[str] = (),
    left: int = 1,
    max_width: int | None = None,
    names: Sequence[str] | None = None,
    digits: int = 4,
    **look: Any,
) -> Table:
    """A table of texts, numbers in some digits, and None, shown as "-"; an empty row begins a section."""
    caption = notes if isinstance(notes, str) else "\n".join(notes)
    table = Table(title=escape(title), caption=caption or None, caption_justify="left", **look)
    for place, heading in enumerate(headings):
        if names is None and place < left:
            table.add_column(heading, no_wrap=True)
        elif heading in (names or ()):
            table.add_column(heading)
        else:
            table.add_column(heading, justify="right", max_width=max_width)
    for row in rows:
        if row:
            texts = (f"{cell:.{digits}g}" if isinstance(cell, float) else cell for cell in row)
            table.add_row(*("-" if text is None else str(text) for text in texts))
        else:
            table.add_section()
    return table


@contextmanager
def panels(
    path: Path,
    size: tuple[float, float],
    rows: int = 1,
    columns: int = 1,
    title: str = "",
    grid: Literal["both", "x", "y"] = "both",
    **options: Any,
) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes [rows, columns] with a light grid, saved as PNG when they are drawn."""
    figure = new_figure(*size)
    if title:
        figure.suptitle(title, fontsize=10)
    grids = figure.subplots(rows, columns, squeeze=False, **options) if rows else None
    for axes in () if grids is None else grids.flat:
        axes.grid(alpha=0.25, axis=grid)
    yield figure, grids
    save_picture(figure, path)


RUNS = FOLDER / "runs"  # shared by the experiments: what one has trained the other need not
PLACES = ("root", "runs", "recipes", "parallel", "device", "output")  # where and how fast, which no number depends on


def at_least(least: float, **given: Any) -> None:
    """Refuse options with a number below the least, or with none; None is an option that is not given."""
    for name, value in given.items():
        several = isinstance(value, list | tuple)
        if value == () or any(one is not None and one < least for one in (value if several else [value])):
            raise ValueError(f"{name}={plain(value)}: give {'numbers of ' if several else ''}at least {least:g}")


def rising(least: float, count: int = 1, **given: Sequence[float]) -> None:
    """Refuse options that are not numbers each larger than the one before."""
    for name, value in given.items():
        if len(value) < count or list(value) != sorted(set(value)) or value[0] < least:
            raise ValueError(f"{name}={list(value)}: give {count} or more numbers from {least:g}, rising")


def plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Options that several experiments share; its fields are options of their commands.

    Args:
        output: folder of results.json, the figures and all else that is kept; below checkpoints/ by default.
        seed: of all draws.
        quick: takes the smaller options of a quick run, to see that it runs.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {}  # see `smaller`
    APART: ClassVar[tuple[str, ...]] = ()  # fields that are no settings, beside `PLACES`
    LEAST: ClassVar[Mapping[str, float]] = {}  # of fields that are numbers, or None, where an experiment has them

    output: Path | None = None
    seed: int = 0
    quick: bool = False

    def __post_init__(self) -> None:
        for name, most in self.QUICK.items():
            object.__setattr__(self, name, self.smaller(getattr(self, name), most))
        for name in (field.name for field in fields(self) if field.name in self.LEAST):
            at_least(self.LEAST[name], **{name: getattr(self, name)})

    def smaller(self, value: Any, most: Any) -> Any:
        """The value of an option, in a quick run at most so much, or what `most` makes of it."""
        if not self.quick:
            return value
        if callable(most):
            return most(value)
        return most if value is None or not isinstance(most, int | float) else min(value, most)

    def study(self, name: str, *which: Any, **more: Any) -> Study:
        return Study(name, self.output, self.settings(*which) | more)

    def settings(self, *which: Any) -> dict[str, Any]:
        names = [field.name for field in fields(self) if field.name not in (*PLACES, *self.APART)]
        return {name: plain(getattr(self, name)) for name in names} | self.resolved(*which)

    def resolved(self) -> dict[str, Any]:
        """Settings that options stand for."""
        return {}


@dataclass(frozen=True)
class ArmsChoice(Choice):
    """Options common to experiments that train arms over paired seeds; its fields are options of their commands.

    Args:
        seeds: runs of each arm, with seeds from `seed` on, the same for all arms.
        parallel: runs at once.
        quick: a minute or two, to see that it runs.
    """

    LEAST: ClassVar[Mapping[str, float]] = {"seeds": 1, "parallel": 1, "rounds": 1, "num_images": 2}

    seeds: int = 3
    parallel: int = 1

    @property
    def seeds_of(self) -> range:
        return range(self.seed, self.seed + self.seeds)


@dataclass(frozen=True)
class ScoredArmsChoice(ArmsChoice):
    """Options common to experiments whose arms are scored in an embedding that nothing was trained on.

    Args:
        embedding: that nothing was trained on, to score in besides the one that was.
        weights: a local file of its weights.
        runs: folder of the run folders; checkpoints/runs, or below the output if that is given.
        recipes: folder of the recipes.
    """

    embedding: str | None = None
    weights: Path | None = None
    runs: Path | None = None
    recipes: Path = Path("recipes")

    @property
    def folder(self) -> Path:
        return self.runs or (RUNS if self.output is None else self.output / "runs")
