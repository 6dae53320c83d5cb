"""The leaderboard on a terminal: a table a task, what the suite's questions got for answers, and who was refused."""

import statistics
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from fedgen.benchmark.entry import Entry
from fedgen.benchmark.number import AGGREGATES
from fedgen.benchmark.standings import Standing, SuiteAnswer, answers_of, standings_of
from fedgen.benchmark.suite import NUMBER
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


def task_lines(standing: Standing) -> tuple[str, str]:
    """Lines on what entries of a task share: the training that each gets, and real images' scores, means over seeds."""
    first = standing.entries[0]
    trainer, seeds = first.form["recipe"]["trainer"], len(first.form["seeds"])
    strategy = trainer["strategy"]["init_args"]
    clients = first.records[0][0].num_clients
    cohort = "all" if strategy["cohort_size"] is None else strategy["cohort_size"]
    training = (
        f"{seeds} seed{'s' * (seeds > 1)}; {trainer['max_epochs']} rounds of {strategy['communication_interval']} local"
        f" iterations, {cohort} of {clients} clients in each"
    )
    floors: dict[str, dict[str, list[float]]] = {}
    for record in (one for run in first.records for one in run if one.is_floor and one.score == NUMBER):
        floors.setdefault(record.embedding, {}).setdefault(record.aggregate, []).append(record.value)
    shown = (
        f"{embedding} {' and '.join(figure(statistics.mean(own[name])) for name in AGGREGATES)}"
        for embedding, own in floors.items()
    )
    return training, f"FID of real images in avg and all: {', '.join(shown)}"


def standing_table(standing: Standing) -> Table:
    """The table of one task, which 80 columns have room for: two lines a row."""
    title = escape(f"{standing.suite}: {standing.task}")
    caption = escape("\n".join([*task_lines(standing), *LEGEND]))
    table = Table(title=title, caption=caption, caption_justify="left", box=SIMPLE_HEAD)
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
