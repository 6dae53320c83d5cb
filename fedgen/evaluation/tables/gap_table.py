"""A run's generalisation gaps, as tables: the three splits and the two differences, round by round."""

import io
import math
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedgen.evaluation.marks import GAP_AGGREGATES, GAPS, gap_title, interval, marked
from fedgen.evaluation.names import DISTRIBUTION, PART_TRAIN, PART_VAL, PERCENTILES, UNPART
from fedgen.evaluation.records import FLOOR, MEMORISER, MODEL, PARTICIPANTS, ScoreRecord
from fedgen.evaluation.tables.table import format_value, new_table, row_label, score_tables

WIDTH = 120  # columns
SPLITS = (PART_TRAIN, PART_VAL, UNPART)
CONTROLS = {
    FLOOR: "images of all clients that are not scored, in a generator's place",
    PARTICIPANTS: "such images of participating clients alone, in a generator's place",
    MEMORISER: "the very images of part_train, in a generator's place",
}


def has_gaps(records: Sequence[ScoreRecord]) -> bool:
    """Whether some clients were kept from training and scored."""
    return any(record.split in GAPS for record in records)


def gap_tables(records: Sequence[ScoreRecord]) -> list[Table]:
    """One table a score, aggregate and embedding; none where no client was kept from training."""
    groups: dict[tuple[str, str, str], list[ScoreRecord]] = {}
    for record in records:
        if record.aggregate in GAP_AGGREGATES and record.split in (*SPLITS, *GAPS):
            groups.setdefault((record.embedding, record.score, record.aggregate), []).append(record)
    return [_table(group) for group in groups.values() if has_gaps(group)]


def _table(records: Sequence[ScoreRecord]) -> Table:
    first = next(record for record in records if record.split in GAPS)
    title = f"{marked(first.name, records)}, embedding {first.embedding}: {first.num_clients} clients of either kind"
    table = new_table(f"{title}, equally many images", ["round", *SPLITS, *map(gap_title, GAPS)])
    rows = dict.fromkeys((record.generator, record.round) for record in records)
    controls = [generator for generator, _ in rows if generator != MODEL]
    for generator, round in sorted(rows, key=lambda row: row[0] != MODEL):  # models in their order, then controls
        own = {r.split: r for r in records if (r.generator, r.round) == (generator, round)}
        if controls and generator == controls[0]:
            table.add_section()
        cells = [format_value(own[split].value, None) if split in own else "" for split in SPLITS]
        cells += [_with_interval(own[gap]) if gap in own else "" for gap in GAPS]
        label = generator if generator in CONTROLS else row_label(generator, round)
        table.add_row(escape(label), *cells, style=None if generator == MODEL else "dim")
    own_models = "each client's own model, after so many iterations from the server's"
    lines = [f"{name}: {CONTROLS.get(name, own_models)}" for name in dict.fromkeys(controls)]
    table.caption = escape("\n".join(["gaps: how much worse, with 95 % intervals over clients (Student)", *lines]))
    return table


def distribution_table(records: Sequence[ScoreRecord]) -> Table | None:
    """Return how the clients of each split are served by the last model."""
    models = [record for record in records if record.is_model and record.round is not None]
    last = max((record.round or 0 for record in models), default=None)
    rows: dict[tuple[str, str, str], dict[str, ScoreRecord]] = {}
    for record in models:
        if record.round == last and record.split not in GAPS:
            rows.setdefault((record.embedding, record.score, record.split), {})[record.aggregate] = record
    rows = {row: own for row, own in rows.items() if set(DISTRIBUTION) <= set(own)}
    if not rows:
        return None
    left = ("embedding", "score", "split")
    headings = (*left, "avg", "unweighted", "spread", *PERCENTILES)
    table = new_table(f"The clients' scores after round {last}", headings, left, fold=headings)
    for (embedding, score, split), own in rows.items():
        values = [own["avg"].value, own["unweighted"].value, math.sqrt(own["var"].value)]
        values += [own[name].value for name in PERCENTILES]
        table.add_row(*map(escape, (embedding, score, split)), *(f"{value:.3g}" for value in values))
    table.caption = "spread: standard deviation over clients; percentiles are clients' own values (nearest)"
    return table


def _with_interval(record: ScoreRecord) -> str:
    ends = interval(record)
    return f"{record.value:.3g}" if ends is None else f"{record.value:.3g} [{ends[0]:.3g}, {ends[1]:.3g}]"


def run_tables(records: Sequence[ScoreRecord], width: int = 80) -> list[Table]:
    """The scores of every split and embedding; where some clients never train, the gaps and the clients' spread."""
    places = dict.fromkeys((record.split, record.embedding) for record in records if record.split not in GAPS)
    tables = [table for place in places for table in score_tables(records, *place, width)]
    found = distribution_table(records)
    return [*tables, *gap_tables(records), *([found] if found else [])]


def html_of(records: Sequence[ScoreRecord]) -> str:
    """The tables of some records as a preformatted block; "" for none."""
    if not records:
        return ""
    console = Console(record=True, file=io.StringIO(), width=WIDTH, force_jupyter=False)
    for table in run_tables(records, WIDTH):
        console.print(table)
    return console.export_html(inline_styles=True, code_format='<pre style="line-height: 1.2">{code}</pre>')
