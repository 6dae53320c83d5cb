"""Progress bars with rates and remaining time, silent where there is no terminal; consoles for tables."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Column
from rich.text import Text

from fedgen.foreign_text import printable_lines

T = TypeVar("T")
WIDE = 160  # columns of tables that no terminal shows
LONGEST_BAR = 40
_shown: list[Progress] = []  # the display on the terminal, if there is one; two would overwrite each other


class DescriptionColumn(ProgressColumn):
    """The words before a bar, cut where there is no room for all."""

    def render(self, task: Task) -> Text:
        return Text(task.description, no_wrap=True, overflow="ellipsis")


class RateColumn(ProgressColumn):
    """Units a second, e.g. `312 images/s`, or seconds of a unit, `4.2 s each`."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        slow = f"{1 / speed:,.3g} s each"
        return Text(slow if speed < 1 else f"{speed:,.0f} {task.fields['unit']}/s", style="progress.data.speed")


def track(
    items: Iterable[T], description: str, total: float, unit: str, step: float | Callable[[T], float] = 1
) -> Iterator[T]:
    """Yields the items while a transient bar on standard error counts them to `total`, each as `step` units."""
    if not total:
        yield from items
        return
    done, is_inner = 0.0, bool(_shown)
    with _display() as display:
        task = display.add_task(description, total=total, unit=unit)
        try:
            for item in items:
                yield item
                done = min(done + (step(item) if callable(step) else step), total)
                display.update(task, completed=done)
        finally:
            if is_inner:
                display.remove_task(task)


@contextmanager
def _display() -> Iterator[Progress]:
    if _shown:
        yield _shown[-1]
        return
    console = ForeignConsole(stderr=True)
    whole = Column(no_wrap=True)  # of numbers; the description and the bar give way where a line is too long
    columns = (
        DescriptionColumn(),
        BarColumn(bar_width=min(LONGEST_BAR, console.width // 6)),
        MofNCompleteColumn(table_column=whole),
        RateColumn(table_column=whole),
        TimeRemainingColumn(table_column=whole),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as display:
        _shown.append(display)
        try:
            yield display
        finally:
            _shown.remove(display)


class ForeignConsole(Console):
    """A console on which no text of strangers acts: hidden characters are escapes, and texts hold no markup."""

    def print(self, *objects: Any, markup: bool | None = None, **options: Any) -> None:
        """Print as rich does, without markup in texts by default; tables have theirs."""
        if markup is None and all(isinstance(one, str) for one in objects):
            markup = False
        super().print(*objects, markup=markup, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Render as rich does, with text alone; rich's own controls are no text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable_lines(segment.text))


def make_console(quiet: bool = False, emoji: bool = True) -> Console:
    """A console for a command's tables: in files and pipes they are wide, where rich would cut them to 80 columns."""
    console = ForeignConsole(quiet=quiet, emoji=emoji)
    if not (console.is_terminal or console.is_jupyter or "COLUMNS" in os.environ):
        console.width = WIDE
    return console
