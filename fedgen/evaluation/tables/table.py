"""A run's scores as tables: every round, what each column selects, and where avg and all disagree."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedgen.evaluation.marks import GAPS, explained, mark_of, marked, say_directions, say_marks
from fedgen.evaluation.names import DISTRIBUTION, PART_TRAIN, PART_VAL, REPORT, UNPART
from fedgen.evaluation.records import BALANCED, Columns, ScoreRecord, by_column
from fedgen.evaluation.runs.selection import Comparison, aggregates_compared, rank, reported, say_kind, say_weights
from fedgen.evaluation.sampling_settings import say_sampling

HIDDEN = frozenset({"worst", *DISTRIBUTION})  # in tables over rounds
MOST_TOLD = 3  # comparisons in a title
MOST_PAIRS, MOST_ROWS = 30, 300  # pairs listed of two columns, and of all of a table's
ROUND_WIDTH, VALUE_WIDTH = 9, 16  # characters of the first column and of another, borders included


def score_table(records: Sequence[ScoreRecord], split: str | None = None, embedding: str | None = None) -> Table:
    """Rounds by scores for one split and embedding, then models that clients fine-tuned, the floor last.

    The columns are avg, all (with their standard errors) and power means where they were asked for.

    Args:
        records: a run's.
        split: the run's first by default.
        embedding: the run's first by default.
    """
    split, embedding = split or records[0].split, embedding or records[0].embedding
    shown = [record for record in _of(records, split, embedding) if record.aggregate not in HIDDEN]
    models = [record for record in shown if record.is_model]
    by_name: dict[str, list[ScoreRecord]] = {}
    rows: dict[int | None, dict[str, ScoreRecord]] = {}
    for record in shown:
        by_name.setdefault(record.name, []).append(record)
        if record.is_model:
            rows.setdefault(record.round, {})[record.name] = record
    table = Table(title=_title(models or shown), caption=_caption(shown), caption_justify="left")
    rounds = sorted(rows, key=lambda round: -2 if round is None else round)
    table.add_column("" if rounds == [None] else "round", justify="right")
    for name, own in by_name.items():
        table.add_column(escape(marked(name, own)), justify="right")
    best = {name: min((r.badness for r in own if r.is_model), default=None) for name, own in by_name.items()}
    for round in rounds:
        label = "generated" if round is None else round_label(round)
        table.add_row(label, *(_cell(rows[round].get(name), best[name]) for name in by_name))
    tuned: dict[str, dict[str, ScoreRecord]] = {}
    for record in shown:
        if record.is_fine_tuned:
            tuned.setdefault(tuned_label(record.generator, record.round), {})[record.name] = record
    if tuned:
        table.add_section()
    for label, scores in tuned.items():
        table.add_row(label, *(_cell(scores.get(name)) for name in by_name), style="dim")
    floor = {record.name: record for record in shown if record.is_floor}
    if floor:
        table.add_section()
        table.add_row("floor", *(_cell(floor.get(name)) for name in by_name), style="dim")
    return table


def tuned_label(generator: str, round: int | None) -> str:
    """A row's name of models that clients fine-tuned from the server's after a round: "299, fine-tuned 20"."""
    return f"{round_label(round)}, {generator}"


def round_label(round: int | None) -> str:
    """A row's name of a model after a round."""
    return "before" if round is None or round < 0 else str(round)


def score_tables(
    records: Sequence[ScoreRecord], split: str | None = None, embedding: str | None = None, width: int = 80
) -> list[Table]:
    """The scores of `score_table`, as many in each table as a terminal can show with their errors.

    Args:
        records: a run's.
        split: the run's first by default.
        embedding: the run's first by default.
        width: of the terminal, in characters.
    """
    split, embedding = split or records[0].split, embedding or records[0].embedding
    own = _of(records, split, embedding)
    labels = [tuned_label(record.generator, record.round) for record in own if record.is_fine_tuned]
    parts = by_width(own, width - max([ROUND_WIDTH, *(len(label) + 4 for label in labels)]))
    return [score_table([record for record in own if record.score in part], split, embedding) for part in parts]


def _of(records: Sequence[ScoreRecord], split: str, embedding: str) -> list[ScoreRecord]:
    own = [record for record in records if (record.split, record.embedding) == (split, embedding)]
    if not own:
        raise ValueError(f"no scores on split {split!r} with embedding {embedding!r}")
    return own


def by_width(records: Sequence[ScoreRecord], width: int) -> list[list[str]]:
    """The scores of records in groups whose columns (one for each shown aggregate) fit into a width, at least one each.

    Args:
        records: of one split and embedding.
        width: what the columns may take, in characters.
    """
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


def selection_table(records: Sequence[ScoreRecord]) -> Table:
    """Return what each column selects, with the same score of the selected checkpoint on images that nobody trained on.

    Those are the clients' held-out images, or of unseen clients where some are kept from training.

    Of checkpoints of one best value the first is selected, and their number said.
    """
    table = Table(title="Selected by each column")
    unseen = any(record.split == UNPART for record in records)
    final, where = (UNPART, "on unseen clients") if unseen else (REPORT, "on held-out images")
    for heading in ("column", "round", "checkpoint", "value", where):
        left = heading in ("column", "checkpoint")
        table.add_column(heading, justify="left" if left else "right", overflow="fold")  # names are there to be copied
    marks: set[str] = set()
    shown: list[str] = []
    names = Columns.of(records)
    columns = by_column(records, names)
    for column, group in columns.items():
        if group[0].split in (final, *GAPS) or group[0].aggregate in HIDDEN or group[0].score == BALANCED:
            continue
        ranking = rank(group)
        if ranking:
            best = ranking[0]
            shown.append(column)
            value = format_value(best.value, best.standard_error)
            equals = sum(entry.value == best.value for entry in ranking)
            chosen = next(record for record in group if record.round == best.round)
            held_out = reported(columns, names, chosen, final)
            marks |= {best.mark, mark_of(held_out) if held_out else ""}
            table.add_row(
                escape(f"{column} {best.mark}".rstrip()),
                str(best.round) if equals == 1 else f"{best.round} (of {equals} equal)",
                escape(str(best.checkpoint or "not kept")),
                value,
                marked(_cell(held_out), [held_out]) if held_out else "",
            )
    legend = [*say_columns(records, shown), *say_marks(marks)]
    table.caption, table.caption_justify = escape("; ".join(legend)) or None, "left"
    return table


def inversion_table(records: Sequence[ScoreRecord]) -> Table:
    """Return how avg and all rank the checkpoints, for each score, split and embedding, and where they disagree."""
    return _inversions(records, aggregates_compared(records))


def inversions_found(records: Sequence[ScoreRecord]) -> Table | str:
    """The table of inverted pairs, or where there are none a sentence that says so."""
    comparisons = aggregates_compared(records)
    found = any(one.pairs for one in comparisons)
    return _inversions(records, comparisons) if found else f"{_counted(comparisons)}."


def _inversions(records: Sequence[ScoreRecord], comparisons: Sequence[Comparison]) -> Table:
    columns = {name for one in comparisons for name in (one.first_column, one.second_column)}
    headings = ("avg prefers", "all prefers")
    return _comparisons(_counted(comparisons), comparisons, headings, say_columns(records, columns))


def _counted(comparisons: Sequence[Comparison]) -> str:
    """Say how many pairs each score's avg and all order differently."""
    inverted = [one for one in comparisons if one.pairs]
    told = [say_pairs(one) for one in inverted[:MOST_TOLD]]
    rest = [f"{len(inverted) - MOST_TOLD} more listed below"] if len(inverted) > MOST_TOLD else []
    alike = "avg and all order all pairs of checkpoints alike"
    return "; ".join([*told, *rest]) or (alike if comparisons else "no checkpoints are scored in both avg and all")


def say_pairs(comparison: Comparison) -> str:
    """Say how many pairs of checkpoints two columns order differently."""
    total, clear = math.comb(comparison.checkpoints, 2), sum(pair.beyond_error for pair in comparison.pairs)
    start = f"{comparison.first_column} and {comparison.second_column} order"
    if not comparison.pairs:
        return f"{start} all {total:,} pairs of checkpoints alike"
    count = f"{len(comparison.pairs):,} of {total:,} pairs of checkpoints"
    return f"{start} {count} differently, {clear:,} beyond their errors"


def comparison_table(comparison: Comparison, records: Sequence[ScoreRecord]) -> Table:
    """Return how two columns rank the checkpoints that have both, and the pairs they order differently.

    Args:
        comparison: of the two columns.
        records: the run's, by which the columns' names are explained.
    """
    first, second = comparison.first_column, comparison.second_column
    title = f"{say_pairs(comparison)}: tau {_tau(comparison)}"
    return _comparisons(
        title, [comparison], (f"{first} prefers", f"{second} prefers"), say_columns(records, (first, second))
    )


def _comparisons(
    title: str, comparisons: Sequence[Comparison], preferences: tuple[str, str], columns: Sequence[str] = ()
) -> Table:
    legend = "tau: Kendall's rank correlation of the two columns, 1 if they rank alike"
    meanings = say_marks(mark for comparison in comparisons for mark in comparison.marks)
    table = Table(title=escape(title), caption=escape("; ".join([legend, *columns, *meanings])), caption_justify="left")
    for heading in ("columns", "tau", *preferences, "beyond error"):
        table.add_column(escape(heading), justify="right" if heading == "tau" else "left", overflow="fold")
    most = max(1, min(MOST_PAIRS, MOST_ROWS // max(1, len(comparisons))))
    for comparison in comparisons:
        names = zip((comparison.first_column, comparison.second_column), comparison.marks)
        label = escape(" / ".join(f"{name} {mark}".rstrip() for name, mark in names))
        if not comparison.pairs:
            table.add_row(label, _tau(comparison), "no pair inverted" if comparison.checkpoints > 1 else "", "", "")
        for place, pair in enumerate(comparison.pairs[:most]):
            rounds = f"round {pair.better_by_first}", f"round {pair.better_by_second}"
            head = (label, _tau(comparison)) if place == 0 else ("", "")
            table.add_row(*head, *rounds, "yes" if pair.beyond_error else "no")
        if len(comparison.pairs) > most:
            table.add_row("", "", f"and {len(comparison.pairs) - most:,} more pairs", "", "")
    if not comparisons:
        table.add_row("none", "", "", "", "")
    return table


def _tau(comparison: Comparison) -> str:
    return "-" if comparison.tau is None else f"{comparison.tau:.2f}"


def format_value(value: float, error: float | None) -> str:
    """ "12.34±0.06": as many digits as the error lets stand (its first, or two if that is a 1); four without one."""
    if not error or not math.isfinite(error) or not math.isfinite(value):
        return f"{value:.4g}"
    if error < 1e-6:
        return f"{value:.2g}±{error:.0e}"
    places = -math.floor(math.log10(error))
    places += error * 10**places < 2
    return f"{value:.{max(0, places)}f}±{error:.{max(0, places)}f}"


def _cell(record: ScoreRecord | None, best: float | None = None) -> str:
    if record is None:
        return ""
    text = format_value(record.value, record.standard_error)
    return f"[bold]{text}[/bold]" if record.badness == best else text


def _title(records: Sequence[ScoreRecord]) -> str:
    first = records[0]
    own = "" if first.round is None else f", {say_weights(first)}"  # stored images have neither
    return escape(f"{first.num_generated} generated images against {first.reference}, embedding {first.embedding}{own}")


def _asked(record: ScoreRecord) -> tuple[int, str, int]:
    return record.num_generated, record.weights, record.seed


def _caption(records: Sequence[ScoreRecord]) -> str:
    parts = [f"{say_directions(records)}; ± standard error, bold: best"]
    models = [record for record in records if record.is_model]
    others = {r.name: say_kind(r) for r in models if _asked(r) != _asked(models[0])}
    parts += [f"{name}: {kind}" for name, kind in others.items()]
    tuned = dict.fromkeys((record.generator, record.note) for record in records if record.is_fine_tuned)
    parts += [f"{generator}: {note}" for generator, note in tuned]
    counts = sorted({record.num_generated for record in records if record.is_floor})
    parts += [f"floor: {count} real images of the other split, scored as if generated" for count in counts]
    parts += sorted({say_sampling(record.sampling) for record in models} - {""})
    parts += sorted({part for record in models or records for part in record.note.split("; ") if part})
    return escape("; ".join([*parts, *explained(records)]))


MEANINGS = {
    REPORT: "another sample, against images that neither training nor selection has seen",
    PART_TRAIN: "against training images of clients that train",
    PART_VAL: "against held-out images of clients that train",
    UNPART: "against images of clients that never train",
}


def say_columns(records: Sequence[ScoreRecord], shown: Collection[str]) -> list[str]:
    """In words, what a split or an embedding in front of a score's name means; none where no shown column has one."""
    columns = Columns.of(records)
    own = [one for one in records if one.split not in GAPS and columns.name(one) in shown]
    splits = dict.fromkeys(one.split for one in own if columns.name(one).startswith(f"{one.split}/"))
    embeddings = dict.fromkeys(one.embedding for one in own if f"{one.embedding}/" in columns.name(one))
    found = [f"{split}/: {MEANINGS[split]}" for split in splits if split in MEANINGS]
    if embeddings:
        found.append(f"{', '.join(f'{name}/' for name in embeddings)}: in that embedding, else {columns.embedding}")
    return found


AVG, ALL = "avg", "all"


def evaluation_line(
    records: Sequence[ScoreRecord], floor: Iterable[ScoreRecord], columns: Columns, column: str | None = None
) -> list[str]:
    """The parts of the line, most important first."""
    found = {columns.name(record): record for record in records}
    if not found:
        return []
    first = found.get(column or "", records[0])
    floors = {record.column: record for record in floor if record.is_floor}
    alike = [r for r in records if (r.split, r.embedding) == (first.split, first.embedding)]
    both = [r for r in alike if r.score == first.score and r.aggregate in (AVG, ALL)]
    others = [r for r in alike if r.score != first.score and r.aggregate == ALL]
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
    found = {columns.name(record): record for record in records}
    if not found:
        return ""
    first = records[0]
    default = next((r for r in records if r.column[:-1] == first.column[:-1] and r.aggregate == ALL), first)
    return _part([found.get(column or "", default)], {}, columns)


def say_round(round: int) -> str:
    """ "round 399 (400 done)": rounds count from 0; "before training" for -1."""
    return "before training" if round < 0 else f"round {round} ({round + 1} done)"


def _part(records: Sequence[ScoreRecord], floors: Mapping[tuple[Any, ...], ScoreRecord], columns: Columns) -> str:
    """Records of one score, and behind them the floors of those that have one."""
    told = [f"{columns.name(record)} {format_value(record.value, record.standard_error)}" for record in records]
    found = [floors[record.column] for record in records if record.column in floors]
    real = [format_value(record.value, record.standard_error).split("±")[0] for record in found]
    return ", ".join(told) + (f" (real {', '.join(real)})" if real else "")
