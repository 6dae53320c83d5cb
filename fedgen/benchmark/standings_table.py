"""The leaderboard on a terminal: a table a task, what the suite's questions got for answers, and who was refused."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from fedgen.benchmark.entry import Entry
from fedgen.benchmark.standings import Standing, SuiteAnswer, answers_of, standings_of
from fedgen.foreign_text import printable
from fedgen.io.files import in_bytes

HEADINGS = ("rank", "generator", "algorithm", "number", "95 % interval", "avg", "all", "sent", "client s", "memory")
LEGEND = (
    "number: FID over that of real images, geometric mean over embeddings, avg and all; 1 is as good as real images",
    "rank: beyond intervals; sent: by all clients of a run; client s: of all clients' turns; memory: of the process",
)
ORDER = "<: ahead, the intervals do not overlap; ~: cannot be told apart"


def cells_of(standing: Standing, entry: Entry) -> tuple[str, ...]:
    """The cells of an entry's row, by `HEADINGS`."""
    claims = entry.claims
    low, high, parts = claims["low"], claims["high"], claims["parts"]
    return (
        standing.rank(entry),
        *(printable(part, 80) for part in entry.parts),
        figure(claims["number"]),
        "none" if low is None or high is None else f"{low:.3g} to {high:.3g}",
        *(figure(parts.get(name)) for name in ("avg", "all")),
        in_bytes(round(claims["sent_bytes"])),
        f"{claims['client_seconds']:.3g}",
        in_bytes(claims["peak_memory"]),
    )


def figure(value: float | None) -> str:
    """A number in three digits; "none" for none."""
    return "none" if value is None else f"{value:.3g}"


def standing_table(standing: Standing) -> Table:
    """The table of one task, which 80 columns have room for: two lines a row."""
    count = len(standing.entries[0].form["seeds"])
    title = escape(f"{standing.suite}: {standing.task}, {count} seeds")
    table = Table(title=title, caption=escape("\n".join(LEGEND)), caption_justify="left", box=SIMPLE_HEAD)
    table.pad_edge = False
    table.add_column("rank", justify="right", max_width=6)
    for heading in ("generator\nalgorithm", "number\ninterval", *HEADINGS[5:]):
        table.add_column(heading, justify="left" if "\n" in heading else "right", overflow="fold")
    for entry in standing.entries:
        rank, generator, algorithm, number, interval, *others = map(escape, cells_of(standing, entry))
        table.add_row(rank, f"{generator}\n{algorithm}", f"{number}\n{interval}", *others)
    return table


def answer_lines(answers: Sequence[SuiteAnswer]) -> list[str]:
    """The questions with their answers."""
    lines = [f"{answer.question}\n  {answer.order}" for answer in answers]
    return [*lines, ORDER] if lines else []


def leaderboard_texts(entries: Sequence[Entry]) -> list[RenderableType]:
    """Everything that a terminal shows of entries."""
    tables: list[RenderableType] = [standing_table(standing) for standing in standings_of(entries)]
    return [*tables, *(escape(line) for line in answer_lines(answers_of(entries)))]
