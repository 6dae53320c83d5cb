"""A run's scores as tables: every round, what each column selects, where avg and all disagree, and its gaps."""

import io
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedgen.evaluation.marks import GAPS, explained, gap_title, interval, mark_of, marked, say_directions, say_marks
from fedgen.evaluation.names import DISTRIBUTION, PART_TRAIN, PART_VAL, PERCENTILES, REPORT, UNPART
from fedgen.evaluation.records import (
    BALANCED,
    CONTROLS,
    MODEL,
    Columns,
    ScoreRecord,
    by_column,
    grouped,
    say_interval,
    say_number,
    say_sampling,
)
from fedgen.evaluation.runs.selection import Comparison, aggregates_compared, rank, reported, say_kind, say_weights

HIDDEN = frozenset({"worst", *DISTRIBUTION})  # in tables over rounds
MOST_NAMED = 3  # comparisons in a title
MOST_PAIRS, MOST_ROWS = 30, 300  # pairs listed of two columns, and of all of a table's
ROUND_WIDTH, VALUE_WIDTH = 9, 16  # characters of the first column and of another, borders included
HTML_WIDTH = 120  # characters
MEANINGS = {
    REPORT: "another sample, against data not used in training or selection",
    PART_TRAIN: "against training data of clients that train",
    PART_VAL: "against held-out data of clients that train",
    UNPART: "against data of clients that never train",
}
SPLITS = (PART_TRAIN, PART_VAL, UNPART)


def new_table(title: str, headings: Iterable[str], left: Collection[str] = (), fold: Collection[str] = ()) -> Table:
    """A table without rows: `left` are its columns of words; long cells of those in `fold` are broken, others cut."""
    table = Table(title=escape(title) or None, caption_justify="left")
    for heading in headings:
        justify: Any = "left" if heading in left else "right"
        table.add_column(escape(heading), justify=justify, overflow="fold" if heading in fold else "ellipsis")
    return table


def score_table(records: Sequence[ScoreRecord], split: str | None = None, embedding: str | None = None) -> Table:
    """Rounds by scores for one split and embedding, then models that clients fine-tuned, the floor last.

    The columns are avg, all (with their standard errors) and power means where they were asked for.

    Args:
        records: a run's.
        split: the run's first by default.
        embedding: the run's first by default.
    """
    shown = [record for record in _of(records, split, embedding) if record.aggregate not in HIDDEN]
    models = sorted((r for r in shown if r.is_model), key=lambda record: -2 if record.round is None else record.round)
    by_name = grouped(shown, lambda record: record.name)
    first = "round" if any(r.round is not None for r in models) or not models else ""
    headings = [first, *(marked(name, own) for name, own in by_name.items())]
    one = next((r for r in shown if r.is_model), shown[0])
    weights = "" if one.round is None else f", {say_weights(one)}"  # stored images have neither
    title = f"{one.num_generated:,} generated {one.noun} against {one.real}, embedding {one.embedding}{weights}"
    table = new_table(title, headings)
    table.caption = _caption(shown)
    best = {}
    if are_several(shown):
        best = {name: min((r.badness for r in own if r.is_model), default=None) for name, own in by_name.items()}
    sections = models, [r for r in shown if r.is_fine_tuned], [r for r in shown if r.is_floor]
    for place, section in enumerate(sections):
        table.add_section()
        for label, own in grouped(section, row_label).items():
            scores = {record.name: record for record in own}
            cells = [_cell(scores.get(name), None if place else best.get(name)) for name in by_name]
            table.add_row(label, *cells, style="dim" if place else None)
    return table


def row_label(record: ScoreRecord) -> str:
    """The name of a record's row: "299", "299, fine-tuned 20", "generated" for stored images, "floor"."""
    if not (record.is_model or record.is_fine_tuned):
        return record.generator
    if record.round is None:
        return "generated"
    after = "before" if record.round < 0 else str(record.round)
    return after if record.is_model else f"{after}, {record.generator}"


def score_tables(
    records: Sequence[ScoreRecord], split: str | None = None, embedding: str | None = None, width: int = 80
) -> list[Table]:
    """The scores of `score_table`, as many in each table as fit with their errors into a width; arguments as there."""
    own = _of(records, split, embedding)
    labels = [row_label(record) for record in own if record.is_fine_tuned]
    parts = by_width(own, width - max([ROUND_WIDTH, *(len(label) + 4 for label in labels)]))
    tables = [score_table([record for record in own if record.score in part], split, embedding) for part in parts]
    return _without_repeats(tables)


def _without_repeats(tables: list[Table]) -> list[Table]:
    """The tables, each caption without what one above has said."""
    said = set[str]()
    for table in tables:
        parts = str(table.caption or "").split("; ")
        table.caption = "; ".join(part for part in parts if part not in said) or None
        said |= set(parts)
    return tables


def _of(records: Sequence[ScoreRecord], split: str | None, embedding: str | None) -> list[ScoreRecord]:
    split, embedding = split or records[0].split, embedding or records[0].embedding
    own = [record for record in records if (record.split, record.embedding) == (split, embedding)]
    if not own:
        raise ValueError(f"no scores on split {split!r} with embedding {embedding!r}")
    return own


def by_width(records: Sequence[ScoreRecord], width: int) -> list[list[str]]:
    """The scores of records in groups whose columns (one a shown aggregate) fit into a width, at least one each."""
    columns: dict[str, set[str]] = {}
    for record in records:
        columns.setdefault(record.score, set()).update({record.aggregate} - HIDDEN)
    groups: list[list[str]] = []
    used = width + 1
    for score, aggregates in columns.items():
        needed = sum(max(len(f"{score}_{aggregate}") + 3, VALUE_WIDTH) for aggregate in aggregates)
        if used + needed > width:
            groups.append([])
            used = 0
        groups[-1].append(score)
        used += needed
    return groups


def are_several(records: Iterable[ScoreRecord]) -> bool:
    """Whether more than one checkpoint is scored, so that there is something to choose."""
    return len({record.round for record in records if record.is_model}) > 1


def selection_table(records: Sequence[ScoreRecord]) -> Table:
    """Return what each column selects, with the same score of the selected checkpoint on images not used for training.

    Those are the clients' held-out images, or of unseen clients where some are kept from training. Of checkpoints of
    one best value the first is selected, and their number said.
    """
    unseen = any(record.split == UNPART for record in records)
    final, where = (UNPART, "on unseen clients") if unseen else (REPORT, "on held-out data")
    table = new_table("Selected by each column", ("column", "round", "value", where), ("column",), fold=("column",))
    for numbers in table.columns[1:]:  # on a narrow screen names are folded
        numbers.no_wrap = True
    marks, shown, names = set[str](), list[str](), Columns.of(records)
    columns = by_column(records, names)
    for column, group in columns.items():
        if group[0].split in (final, *GAPS) or group[0].aggregate in HIDDEN or group[0].score == BALANCED:
            continue
        if not (ranking := rank(group)):
            continue
        best = ranking[0]
        shown.append(column)
        equals = sum(entry.value == best.value for entry in ranking)
        remarks = [f"of {equals} equal"] * (equals > 1) + ["not kept"] * (best.checkpoint is None)
        chosen = next(record for record in group if record.round == best.round)
        held_out = reported(columns, names, chosen, final)
        marks |= {best.mark, mark_of(held_out) if held_out else ""}
        table.add_row(
            escape(f"{column} {best.mark}".rstrip()),
            f"{best.round} ({', '.join(remarks)})" if remarks else str(best.round),
            say_number(best.value, best.standard_error),
            marked(_cell(held_out), [held_out]) if held_out else "",
        )
    table.caption = escape("; ".join([*say_columns(records, shown), *say_marks(marks)])) or None
    return table


def inversion_table(records: Sequence[ScoreRecord]) -> Table:
    """Return how avg and all rank the checkpoints, for each score, split and embedding, and where they disagree."""
    comparisons = aggregates_compared(records)
    return _comparisons(_counted(comparisons), comparisons, records)


def inversions_found(records: Sequence[ScoreRecord]) -> Table | str:
    """The table of inverted pairs, or where there are none a sentence that says so."""
    comparisons = aggregates_compared(records)
    return inversion_table(records) if any(one.pairs for one in comparisons) else f"{_counted(comparisons)}."


def _counted(comparisons: Sequence[Comparison]) -> str:
    """Say how many pairs each score's avg and all order differently."""
    inverted = [one for one in comparisons if one.pairs]
    parts = [say_pairs(one) for one in inverted[:MOST_NAMED]]
    if len(inverted) > MOST_NAMED:
        parts.append(f"{len(inverted) - MOST_NAMED} more listed below")
    alike = "avg and all order all pairs of checkpoints alike"
    return "; ".join(parts) or (alike if comparisons else "no checkpoints are scored in both avg and all")


def say_pairs(comparison: Comparison) -> str:
    total, clear = math.comb(comparison.checkpoints, 2), sum(pair.holds for pair in comparison.pairs)
    start = f"{comparison.first_column} and {comparison.second_column} order"
    if not comparison.pairs:
        return f"{start} all {total:,} pairs of checkpoints alike"
    return f"{start} {len(comparison.pairs):,} of {total:,} pairs of checkpoints differently, {clear:,} for sure"


def comparison_table(comparison: Comparison, records: Sequence[ScoreRecord]) -> Table:
    """Return how two columns rank the checkpoints that have both, and the pairs they order differently.

    Args:
        comparison: of the two columns.
        records: the run's, by which the columns' names are explained.
    """
    title = f"{say_pairs(comparison)}: tau {_tau(comparison)}"
    return _comparisons(title, [comparison], records, (comparison.first_column, comparison.second_column))


def _comparisons(
    title: str, comparisons: Sequence[Comparison], records: Sequence[ScoreRecord], both: Iterable[str] = ("avg", "all")
) -> Table:
    columns = {name for one in comparisons for name in (one.first_column, one.second_column)}
    noun = next((record.noun for record in records), "images")
    legend = f"tau: Kendall's rank correlation, 1 for equal order; for sure: none is wrong on these real {noun} (95 %)"
    meanings = say_marks(mark for comparison in comparisons for mark in comparison.marks)
    headings = ("columns", "tau", *(f"{name} prefers" for name in both), "for sure")
    table = new_table(title, headings, left={*headings} - {"tau"}, fold=headings)
    table.caption = escape("; ".join([legend, *say_columns(records, columns), *meanings]))
    most = max(1, min(MOST_PAIRS, MOST_ROWS // max(1, len(comparisons))))
    for comparison in comparisons:
        names = zip((comparison.first_column, comparison.second_column), comparison.marks)
        label = escape(" / ".join(f"{name} {mark}".rstrip() for name, mark in names))
        if not comparison.pairs:
            table.add_row(label, _tau(comparison), "no pair inverted" if comparison.checkpoints > 1 else "", "", "")
        for place, pair in enumerate(comparison.pairs[:most]):
            rounds = f"round {pair.better_by_first}", f"round {pair.better_by_second}"
            head = (label, _tau(comparison)) if place == 0 else ("", "")
            table.add_row(*head, *rounds, "yes" if pair.holds else "no")
        if len(comparison.pairs) > most:
            table.add_row("", "", f"and {len(comparison.pairs) - most:,} more pairs", "", "")
    if not comparisons:
        table.add_row("none", "", "", "", "")
    return table


def _tau(comparison: Comparison) -> str:
    return "-" if comparison.tau is None else f"{comparison.tau:.2f}"


def say_value(record: ScoreRecord) -> str:
    return say_number(record.value, record.standard_error)


def client_value(record: ScoreRecord, client: int) -> str:
    errors = record.per_client_errors
    return say_number(record.per_client[client], errors[client] if errors else None)


def best_first(record: ScoreRecord) -> list[int]:
    """The clients of a record of avg, the best served first."""
    sign = -1 if record.higher_is_better else 1
    return sorted(range(len(record.per_client)), key=lambda client: sign * record.per_client[client])


def _cell(record: ScoreRecord | None, best: float | None = None) -> str:
    if record is None:
        return ""
    text = say_value(record)
    return f"[bold]{text}[/bold]" if record.badness == best else text


def _caption(records: Sequence[ScoreRecord]) -> str:
    models = [(r, (r.num_generated, r.weights, r.seed)) for r in records if r.is_model]
    bold = ", bold: best" * are_several(records)
    parts = [say_directions(records), f"± standard error{bold}"]
    others = {record.name: say_kind(record) for record, asked in models if asked != models[0][1]}
    parts += [f"{name}: {kind}" for name, kind in others.items()]
    tuned = dict.fromkeys((record.generator, record.note) for record in records if record.is_fine_tuned)
    parts += [f"{generator}: {note}" for generator, note in tuned]
    counts = sorted({record.num_generated for record in records if record.is_floor})
    parts += [f"floor: {count:,} real {records[0].noun} of the other split, scored as if generated" for count in counts]
    return escape("; ".join([*parts, *say_notes(records)]))


def say_notes(records: Sequence[ScoreRecord]) -> list[str]:
    """Models' sampling in words, the notes of their records, and what marks mean."""
    models = [record for record in records if record.is_model]
    lines = sorted({say_sampling(record.sampling) for record in models} - {""})
    lines += sorted({part for record in models or records for part in record.note.split("; ") if part})
    return [*lines, *explained(records)]


def say_columns(records: Sequence[ScoreRecord], shown: Collection[str]) -> list[str]:
    """In words, what a split or an embedding in front of a score's name means; none where no shown column has one."""
    columns = Columns.of(records)
    own = [one for one in records if one.split not in GAPS and columns.name(one) in shown]
    splits = dict.fromkeys(one.split for one in own if columns.name(one).startswith(f"{one.split}/"))
    embeddings = dict.fromkeys(one.embedding for one in own if f"{one.embedding}/" in columns.name(one))
    found = [f"{split}/: {MEANINGS[split]}" for split in splits if split in MEANINGS]
    if embeddings:
        found.append(
            f"{', '.join(f'{name}/' for name in embeddings)}: in that embedding; others: in {columns.embedding}"
        )
    return found


def evaluation_line(
    records: Sequence[ScoreRecord], floor: Iterable[ScoreRecord], columns: Columns, column: str | None = None
) -> list[str]:
    """The parts of the line, most important first."""
    if not records:
        return []
    first = {columns.name(record): record for record in records}.get(column or "", records[0])
    floors = {record.column: record for record in floor if record.is_floor}
    alike = [r for r in records if (r.split, r.embedding) == (first.split, first.embedding)]
    both = [r for r in alike if r.score == first.score and r.aggregate in ("avg", "all")]
    others = [r for r in alike if r.score != first.score and r.aggregate == "all"]
    return [_part(group, floors, columns) for group in (both or [first], *([record] for record in others))]


def join_parts(head: str, parts: Sequence[str], width: int) -> str:
    """Head and parts in one line: the first whatever the width, further ones as far as they fit."""
    line = f"{head}: {', '.join(parts[:1])}"
    for part in parts[1:]:
        if len(line) + len(part) + 2 > width:
            break
        line += f", {part}"
    return line


def headline(records: Sequence[ScoreRecord], columns: Columns, column: str | None = None) -> str:
    """One score for a progress bar: that of a column, or of the first score's aggregate all: "fid_all 9.1±0.3"."""
    if not records:
        return ""
    first = records[0]
    default = next((r for r in records if r.column[:-1] == first.column[:-1] and r.aggregate == "all"), first)
    return _part([{columns.name(record): record for record in records}.get(column or "", default)], {}, columns)


def say_round(round: int) -> str:
    """ "round 399 (400 done)": rounds count from 0; "before training" for -1."""
    return "before training" if round < 0 else f"round {round} ({round + 1} done)"


def _part(records: Sequence[ScoreRecord], floors: Mapping[tuple[Any, ...], ScoreRecord], columns: Columns) -> str:
    """Records of one score, and behind them the floors of those that have one."""
    values = [f"{columns.name(record)} {say_value(record)}" for record in records]
    found = [floors[record.column] for record in records if record.column in floors]
    real = [say_value(record).split("±")[0] for record in found]
    return ", ".join(values) + (f" (real {', '.join(real)})" if real else "")


def has_gaps(records: Sequence[ScoreRecord]) -> bool:
    """Whether some clients were kept from training and scored."""
    return any(record.split in GAPS for record in records)


def gap_tables(records: Sequence[ScoreRecord]) -> list[Table]:
    """One table a score, aggregate and embedding; none where no client was kept from training."""
    own = (record for record in records if record.split in (*SPLITS, *GAPS))
    groups = grouped(own, lambda record: (record.embedding, record.score, record.aggregate))
    return [_table(group) for group in groups.values() if has_gaps(group)]


def _table(records: Sequence[ScoreRecord]) -> Table:
    first = next(record for record in records if record.split in GAPS)
    title = f"{marked(first.name, records)}, embedding {first.embedding}: {first.num_clients} clients of each kind"
    table = new_table(f"{title}, equal numbers of {first.noun}", ["round", *SPLITS, *map(gap_title, GAPS)])
    rows = dict.fromkeys((record.generator, record.round) for record in records)
    controls = [generator for generator, _ in rows if generator != MODEL]
    for generator, round in sorted(rows, key=lambda row: row[0] != MODEL):  # models in their order, then controls
        own = {r.split: r for r in records if (r.generator, r.round) == (generator, round)}
        if controls and generator == controls[0]:
            table.add_section()
        cells = [say_number(own[split].value) if split in own else "" for split in SPLITS]
        cells += [_with_interval(own[gap]) if gap in own else "" for gap in GAPS]
        label = row_label(next(iter(own.values())))
        table.add_row(escape(label), *cells, style=None if generator == MODEL else "dim")
    own_models = "each client's own model, that many iterations from the server's"
    lines = [f"{name}: {CONTROLS.get(name, own_models)}" for name in dict.fromkeys(controls)]
    table.caption = escape("\n".join(["gaps: how much worse, with 95 % intervals over clients (Student)", *lines]))
    return table


def _distribution(records: Sequence[ScoreRecord]) -> list[Table]:
    """A table of how the last model serves the clients of each split; none where it was not asked for."""
    models = [record for record in records if record.is_model and record.round is not None]
    last = max((record.round or 0 for record in models), default=None)
    rows: dict[tuple[str, str, str], dict[str, ScoreRecord]] = {}
    for record in models:
        if record.round == last and record.split not in GAPS:
            rows.setdefault((record.embedding, record.score, record.split), {})[record.aggregate] = record
    rows = {row: own for row, own in rows.items() if set(DISTRIBUTION) <= set(own)}
    if not rows:
        return []
    left = ("embedding", "score", "split")
    headings = (*left, "avg", "unweighted", "spread", *PERCENTILES)
    table = new_table(f"The clients' scores after round {last}", headings, left, fold=headings)
    for (embedding, score, split), own in rows.items():
        values = [own["avg"].value, own["unweighted"].value, math.sqrt(own["var"].value)]
        values += [own[name].value for name in PERCENTILES]
        table.add_row(*map(escape, (embedding, score, split)), *map(say_number, values))
    table.caption = "spread: standard deviation over clients; percentiles are clients' own values (nearest)"
    return [table]


def _with_interval(record: ScoreRecord) -> str:
    ends = interval(record)
    return say_number(record.value, digits=3) + ("" if ends is None else f" [{say_interval(*ends)}]")


def run_tables(records: Sequence[ScoreRecord], width: int = 80) -> list[Table]:
    """The scores of every split and embedding; where some clients never train, the gaps and the clients' spread."""
    places = dict.fromkeys((record.split, record.embedding) for record in records if record.split not in GAPS)
    tables = [table for place in places for table in score_tables(records, *place, width)]
    return _without_repeats([*tables, *gap_tables(records), *_distribution(records)])


def html_of(records: Sequence[ScoreRecord]) -> str:
    """The tables of some records as a preformatted block; "" for none."""
    if not records:
        return ""
    console = Console(record=True, file=io.StringIO(), width=HTML_WIDTH, force_jupyter=False)
    for table in run_tables(records, HTML_WIDTH):
        console.print(table)
    return console.export_html(inline_styles=True, code_format='<pre style="line-height: 1.2">{code}</pre>')
