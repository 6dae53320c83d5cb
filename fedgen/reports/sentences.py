"""The conclusions of a run in plain sentences: which checkpoint to take, how sure that is, and what to do next."""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from fedgen.evaluation import Run, print_report
from fedgen.evaluation.marks import GAPS, gap_title, interval, mark_of
from fedgen.evaluation.names import HELD_OUT
from fedgen.evaluation.records import (
    BALANCED,
    LEAST_SURE,
    Columns,
    ScoreRecord,
    by_column,
    grouped,
    say_interval,
    say_number,
)
from fedgen.evaluation.runs.scores_file import RECIPE, load_influences
from fedgen.evaluation.runs.selection import (
    ByColumn,
    Comparison,
    aggregates_compared,
    best_in_words,
    best_records,
    covariance_of,
    default_column,
    trained,
    unmarked,
)
from fedgen.evaluation.tables.table import has_gaps, say_pairs, say_value
from fedgen.federated.left_out import shorten
from fedgen.own_code import program
from fedgen.progress import make_console
from fedgen.reports.controls import ARMS, CENTRALISED, CONTROLS, LOCAL_ONLY, Controls, arm_of, read_controls
from fedgen.reports.figures.curves import draw_curves, draw_generalisation
from fedgen.scores.rankings import Z, best_set, winner

Floats = NDArray[np.float64]
Bests = Mapping[str, ScoreRecord]  # one record of each column
UNBIASED = "kid", "fidc", "fidj"  # scores that are compared whatever the numbers of images
# in the notes of scores to be doubted: of few images (the latter until 0.2), and of samples in another range
DOUBTS = "is biased upwards", "fewer images than", " look like "
INDENT = "  "
CURVES, GENERALISATION = "curves.png", "generalisation.png"


def conclusions(
    records: Sequence[ScoreRecord], run: str = "RUN", has_recipe: bool = True, ended: bool = True
) -> list[str]:
    """Return what a run's records say, by what it is about, and what to do next; commands stand between backticks.

    Args:
        records: a run's, or those of one stored set.
        run: the run folder, as the commands name it.
        has_recipe: whether the folder keeps the recipe, without which training cannot go on by a command.
        ended: whether training is over, so that a score that was still improving is worth a word.

    Returns:
        Sentences behind what they are about, "Take: Round 7, ...", the most important first.
    """
    return in_lines(by_topic(records, run, has_recipe, ended))


def by_topic(
    records: Sequence[ScoreRecord], run: str, has_recipe: bool, ended: bool, controls: Controls | None = None
) -> dict[str, list[str]]:
    """Return the paragraphs of `conclusions` by what they are about."""
    steps = next_steps(records, run, has_recipe, ended)
    told = {about: [" ".join(lines)] for about, lines in verdict(records, run, controls).items()}
    return told | ({"Next": [f"`{command}` {words}." for command, words in steps.items()]} if steps else {})


def in_lines(told: Mapping[str, Sequence[str]]) -> list[str]:
    return [f"{about}: {paragraph}" for about, paragraphs in told.items() for paragraph in paragraphs]


def findings(records: Sequence[ScoreRecord], run: str | Path = "RUN") -> list[str]:
    """Return what a run's records say, the most important first."""
    return in_lines({about: [" ".join(lines)] for about, lines in verdict(records, run).items()})


def verdict(
    records: Sequence[ScoreRecord], run: str | Path = "RUN", controls: Controls | None = None
) -> dict[str, list[str]]:
    """Return what a run's records say by what it is about, in a reader's order: first the checkpoint to take."""
    controls = read_controls(Path(run), records) if controls is None else controls
    models = [record for record in records if record.is_model]
    if not models:
        return {"Scores": ["No model has been scored yet: there is nothing to choose."]}
    everything = by_column(records)
    columns = _trained(everything)
    default = default_column(everything)
    if not columns:
        served = _served(records, everything[default][0])
        parts = {"Scores": _stored(models), "Caution": _cautions(models), "Clients": served}
        return {heading: lines for heading, lines in parts.items() if lines}
    best = {name: best_of(group) for name, group in columns.items()}
    name = default_column(columns)
    chosen, split = best[name], records[0].split
    compared = aggregates_compared(records)
    # first the column that checkpoints are chosen by
    main = [one for one in compared if everything[one.first_column][0].split == split]
    main.sort(key=lambda one: one.second_column != default)
    known = {column: floor for column, floor in floors_of(records).items() if math.isfinite(floor.value)}
    floors = {name: known[one.column] for name, one in best.items() if one.column in known and math.isfinite(one.value)}
    group = load_influences(Path(run), columns[name])
    among, within = best_in_words(group, name)
    number = len(columns[name])
    best_by = f"the best of {number} by" if number > 1 else "the only one scored:"
    rounds = sorted({record.round or 0 for group in columns.values() for record in group})
    scored = "one checkpoint is" if len(rounds) == 1 else f"{len(rounds)} checkpoints are"
    parts = {
        "Take": [f"Round {chosen.round}, {best_by} {_value(name, chosen)}{within and f'; {within}'}."],
        "As good": [among] if among else [],
        "Caution": _cautions(models),
        "Floor": [*_above_floor(name, group, floors.get(name)), *_rough_floors(best, floors, main)],
        "Held out": _by_held_out(columns, best, chosen),
        "avg and all": [line for one in main for line in _of_score(columns, best, one)],
        "Clients": _served(records, chosen),
        "New clients": _unseen(models, chosen.round),
        "Other scores": _alone({key: one for key, one in best.items() if key != name}, compared, split),
        "Controls": _controls(columns, Columns.of(records), controls, arm_of(Path(run))),
        "Training": [f"{rounds[-1] + 1:,} round{'s' * (rounds[-1] > 0)}, counted from 0; {scored} scored."],
    }
    return {heading: lines for heading, lines in parts.items() if lines}


def _trained(columns: ByColumn) -> ByColumn:
    """The records of models that were trained, by column; only columns that have some."""
    return {name: own for name, group in columns.items() if (own := trained(group))}


def taken(records: Sequence[ScoreRecord]) -> tuple[str, ScoreRecord] | None:
    """The column that checkpoints are chosen by, and the record of the best one; None where no model was trained."""
    columns = _trained(by_column(records))
    name = default_column(columns) if columns else ""
    return (name, best_of(columns[name])) if columns else None


def _stored(models: Sequence[ScoreRecord]) -> list[str]:
    """The scores in avg and all of images that have no rounds, one sentence a split and embedding."""
    name, own = Columns.of(models).name, [r for r in models if r.aggregate in ("avg", "all") and r.split not in GAPS]
    lines = grouped(own, lambda record: (record.split, record.embedding)).values()
    return [f"{', '.join(_value(name(record), record) for record in line)}." for line in lines]


def best_of(records: Sequence[ScoreRecord]) -> ScoreRecord:
    """The best of one column's records; the earlier of equals."""
    return min(records, key=lambda record: (record.badness, -1 if record.round is None else record.round))


def differ(first: ScoreRecord, second: ScoreRecord) -> bool:
    """Whether two values of one column differ by more than 1.96 combined standard errors of the generated images."""
    return abs(first.badness - second.badness) > Z * math.hypot(first.generated_error, second.generated_error)


def floors_of(records: Sequence[ScoreRecord]) -> dict[tuple[str, ...], ScoreRecord]:
    """The floors by split, embedding, score and aggregate."""
    return {record.column: record for record in reversed(records) if record.is_floor}  # the first of each


def _of_score(columns: ByColumn, best: Bests, comparison: Comparison) -> list[str]:
    """Say which checkpoint each aggregate of a score prefers, and how many pairs the two order differently."""
    names = comparison.first_column, comparison.second_column
    values = zip(*(columns.get(name, []) for name in names))
    if all(one.value == other.value for one, other in values):  # as of a score of the generated set alone
        return []
    first, second = (best[name] for name in names)
    avg, of_all = _value(names[0], first), _value(names[1], second)
    if comparison.checkpoints < 2:
        return [f"{avg}, {of_all}."]
    several = comparison.checkpoints > 2
    if first.round == second.round and several and not comparison.pairs:
        pairs = math.comb(comparison.checkpoints, 2)
        return [f"{avg} and {of_all} both prefer round {first.round}, and order all {pairs:,} pairs alike."]
    if first.round == second.round:
        lines = [f"Both prefer round {first.round}: {avg}, {of_all}."]
    else:
        how = "These scores cannot tell which is better: one of the orders may be chance."
        sure = [{pair.better_by_first, pair.better_by_second} for pair in comparison.pairs if pair.holds]
        if {first.round, second.round} in sure:
            how = f"Both orders hold on these real {first.noun} (95 %), so the choice of aggregate decides."
        both = f"{names[0]} prefers round {first.round} ({avg}), {names[1]} round {second.round} ({of_all})"
        lines = [f"{both}. {how}"]
    return [*lines, f"{say_pairs(comparison)}."] if several else lines


def _alone(best: Bests, compared: Sequence[Comparison], split: str) -> list[str]:
    """The best by each score of the first split that has one aggregate alone."""
    paired = {name for one in compared for name in (one.first_column, one.second_column)}
    usual = {name: one for name, one in best.items() if one.aggregate in ("avg", "all") and one.score != BALANCED}
    alone = {name: one for name, one in usual.items() if name not in paired and one.split == split}
    return [f"{_value(name, one)} at round {one.round} is the best." for name, one in alone.items()]


def _value(name: str, record: ScoreRecord) -> str:
    return f"{name} {say_value(record)} {mark_of(record)}".rstrip()


def _above_floor(name: str, group: Sequence[ScoreRecord], floor: ScoreRecord | None) -> list[str]:
    """Say how far the best of a column is from real images scored in its place, although it was chosen."""
    errors = covariance_of(group)
    if floor is None or not np.isfinite(errors).all() or not math.isfinite(floor.generated_error):
        return []
    found = winner([one.badness - floor.badness for one in group], errors + floor.generated_error**2)
    start = f"By {name}, round {group[found.place].round} is"
    real = f"real {floor.noun} score {say_value(floor)}"
    if found.low <= 0 <= found.high:
        return [f"{start} at the floor: {real}, and the difference may be chance."]
    near, far = sorted((abs(found.low), abs(found.high)))
    how = "worse" if found.low > 0 else "better"
    return [f"{start} {say_interval(near, far)} {how} than the floor (95 %): {real}."]


def _rough_floors(best: Bests, floors: Bests, compared: Sequence[Comparison]) -> list[str]:
    """Say of which columns the floor has another number of images than the model, a sentence for each two numbers."""
    names = (one.second_column for one in compared if one.second_column in floors)
    names = (name for name in names if not best[name].score.startswith(UNBIASED))
    rough = grouped(names, lambda name: (floors[name].num_generated, best[name].num_generated))
    return [
        f"The floor of {', '.join(names)} uses {real:,} {floors[names[0]].noun} and the model {made:,}: the distance"
        " between them is approximate."
        for (real, made), names in rough.items()
        if real != made
    ]


def _by_held_out(columns: ByColumn, best: Bests, chosen: ScoreRecord) -> list[str]:
    """Say what the chosen checkpoint scores on held-out images, and which is the best by them where that is another."""
    lines = []
    for name, one in best.items():
        own = {record.round: record for record in columns[name]}.get(chosen.round)
        is_same = one.column[1:] == chosen.column[1:] and one.split != chosen.split
        if not (one.split in HELD_OUT and is_same and own):
            continue
        if one.round == own.round:
            lines.append(f"{_value(name, own)}, also the best on these {own.noun}.")
        else:
            how = "which may be chance" if own in best_records(columns[name]) else "beyond chance (95 %)"
            lines.append(
                f"On held-out {own.noun} round {one.round} is the best ({_value(name, one)}), not round {own.round}"
                f" ({_value(name, own)}), {how}."
            )
    return lines


def _served(records: Sequence[ScoreRecord], chosen: ScoreRecord) -> list[str]:
    """Say who is served worst and best by the chosen score, else the first, relative to its floor, if any."""
    own = [r for r in records if r.is_model and r.round == chosen.round and r.aggregate == "avg"]
    own = [r for r in own if len(r.per_client) > 1 and r.score != BALANCED and r.split not in GAPS]
    record = next((r for r in own if r.column[:3] == chosen.column[:3]), own[0] if own else None)
    if record is None or not any(map(math.isfinite, record.per_client)):
        return []
    floor, sign = floors_of(records).get(record.column), -1 if record.higher_is_better else 1
    values = np.array(record.per_client)
    errors = np.array(record.per_client_errors or [math.nan] * len(values))
    beside = ""
    if floor is not None and floor.client_names == record.client_names and np.isfinite(floor.per_client).all():
        values, beside = values - floor.per_client, f", minus the score of real {floor.noun}"
        errors = np.hypot(errors, floor.per_client_errors or math.nan)
    badness = np.where(np.isnan(values), math.inf, sign * values)
    start = f"By {record.score}{'' if chosen.round is None else f' at round {chosen.round}'}{beside}"
    worst, best = (_leading(record.client_names, values, errors, side) for side in (-badness, badness))
    if not worst:
        return [f"{start}, no client is clearly served worst."]
    return [f"{start}, {worst} is served worst{f' and {best} best' if best else ''}."]


def _leading(names: Sequence[str], values: Floats, errors: Floats, badness: Floats) -> str:
    """The client of the least badness, and how many others may have a smaller mean; "" where most of them may."""
    if not np.isfinite(errors).all():
        return ""
    mask, place = best_set(badness.tolist(), errors), int(badness.argmin())
    others = int(mask.sum()) - 1
    if others > 0 and (mask.all() or mask.sum() > max(2, len(mask) // 2)):
        return ""
    name = shorten(names[place], 60) if names else f"client {place}"
    who = name if name.startswith("client ") else f"client {name!r}"
    also = "" if others < 1 else " or one other" if others == 1 else f" or one of {others} others"
    return f"{who} ({say_number(values[place], errors[place])}){also}"


def _unseen(models: Sequence[ScoreRecord], round: int | None) -> list[str]:
    """Say what a score loses on clients that never train, with its interval."""
    lines = []
    for record in models:
        if record.split in GAPS and record.round == round and record.aggregate == "avg":
            within = interval(record)
            ends = "" if within is None else f" (95 %: {say_interval(*within)})"
            if within is not None and within[0] <= 0 <= within[1]:
                ends += "; it may be zero"
            lines.append(
                f"{gap_title(record.split).capitalize()} of {record.score}: {say_number(record.value, digits=3)}{ends}."
            )
    return lines


def _cautions(models: Sequence[ScoreRecord]) -> list[str]:
    """Reasons to doubt the values: few images, samples in another range, and embeddings that a loss used."""
    parts = list(dict.fromkeys(part for record in models for part in record.note.split("; ")))
    lines = [f"{part}." for doubt in DOUBTS for part in [part for part in parts if doubt in part][:1]]
    if any(record.is_of_few for record in models):
        lines.append(f"Of fewer than {LEAST_SURE} generated {models[0].noun} nothing is sure.")
    if any(mark_of(record) for record in models):
        lines.append("Scores marked * or (*) use the embedding of a training loss and prove little.")
    return lines


def _controls(columns: ByColumn, names: Columns, controls: Controls, arm: str) -> list[str]:
    """The last checkpoint beside those of the recipe's other arms, where they were scored under equal conditions."""
    firsts = ((name, group[0]) for name, group in columns.items())
    usual = [k for k, one in firsts if one.aggregate == "all" and one.score != BALANCED and one.split == names.split]
    if not usual:
        return []
    name = default_column({name: columns[name] for name in usual})
    last, others = columns[name][-1], list[str]()
    lasts = {other: own[name][-1] for other, records in controls.items() if name in (own := by_column(records, names))}
    for words, other in lasts.items():
        how = "worse" if other.badness > last.badness else "better"
        how = how if differ(last, other) else "no clear difference"
        rounds = "" if other.round == last.round else f" after round {other.round}"
        others.append(f"{words} {say_value(other)}{rounds}, {how}")
    return [f"Last checkpoints by {name}: {ARMS[arm]} {say_value(last)}; {'; '.join(others)}."] if others else []


def next_steps(
    records: Sequence[ScoreRecord], run: str | Path, has_recipe: bool = True, ended: bool = True, recipe: str = ""
) -> dict[str, str]:
    """Commands that go on from a run, with what they do: the ranking, more rounds, a second embedding, controls."""
    columns, folder = _trained(by_column(records)), shlex.quote(str(run))
    if not columns:
        return {}
    name = default_column(columns)
    if mark_of(best_of(columns[name])):
        name = next((other for other in unmarked(records, name) if other in columns), name)
    group, steps = columns[name], {}
    if len(group) > 1:
        steps[f"{program()} select {folder} --by {name}"] = "ranks the checkpoints and prints the best one's path"
    improving = len(group) > 1 and best_of(group) is group[-1] and differ(group[-1], group[-2])
    if improving and has_recipe and ended:
        more = 2 * ((group[-1].round or 0) + 1)
        command = f"{program()} fit {folder}/recipe.yaml --trainer.max_epochs {more}"
        steps[command] = f"continues: {name} was still improving when training ended"
    embeddings = {record.embedding for record in records if record.split not in HELD_OUT}
    if has_recipe and len(embeddings) == 1 and not embeddings & {"identity", ""}:  # of images alone
        other = "pixels" if embeddings != {"pixels"} else "efficientnet-lite0-32"
        number = next(record.num_generated for record in records if record.is_model)
        command = f"{program()} evaluate {folder} {other} --num_images {number}"
        steps[command] = "adds scores in a second embedding, as one may mislead"
    return steps | _missing_controls(Path(run), recipe)


def _missing_controls(folder: Path, recipe: str) -> dict[str, str]:
    """The controls that were not trained beside a run that is none itself, nor came with its recipe."""
    if not recipe or arm_of(folder) or (folder / CONTROLS).exists():
        return {}
    words = {LOCAL_ONLY: "is the control without exchange", CENTRALISED: "is the control on pooled data"}
    missing = [arm for arm in words if not folder.with_name(f"{folder.name}-{arm}").exists()]
    return {f"{program()} fit {shlex.quote(recipe)} --{arm}": words[arm] for arm in missing}


def closing_lines(
    folder: Path, records: Sequence[ScoreRecord], pictures: Sequence[Path] = (), recipe: str = "", width: int = 160
) -> list[str]:
    """A run's conclusion, its pictures and logs, and the commands that go on from here, under a heading each."""
    room, models = width - len(INDENT), any(record.is_model for record in records)
    said = findings(records, folder) if models else []
    steps = {f"{program()} report {shlex.quote(str(folder))}": "shows the run as one page"} if models else {}
    steps |= next_steps(records, folder, (folder / RECIPE).exists(), recipe=recipe)
    parts = {
        "In short": [part for line in said for part in wrap(line, room, subsequent_indent="  ")],
        "To look at": looks(folder, pictures),
        "What next": beside(steps, room),
    }
    return [part for heading, lines in parts.items() if lines for part in (f"{heading}:", *(INDENT + x for x in lines))]


def beside(commands: Mapping[str, str], room: int) -> list[str]:
    """Commands with what they are for: behind them if that fits into the columns, else above them."""
    longest = max(map(len, commands), default=0)
    if longest + max(map(len, commands.values()), default=0) + 4 <= room:
        return [f"{command:<{longest}}  # {words}" for command, words in commands.items()]
    return [line for command, words in commands.items() for line in (f"# {words}", command)]


def looks(folder: Path, pictures: Sequence[Path] = ()) -> list[str]:
    """The newest grid of samples, the figures, and the logs: TensorBoard's command, or the newest table."""
    grids = sorted((folder / "samples").glob("round=*.png"))
    found = [f"{path}  # samples, above real images" for path in grids[-1:]]
    found += map(str, [*pictures, *sorted(folder.glob("*.html"))])
    newest = sorted(folder.rglob("events.out.tfevents.*"), key=lambda path: path.stat().st_mtime)
    found += [f"tensorboard --logdir {shlex.quote(str(path.parent))}" for path in newest[-1:]]
    tables = sorted(folder.rglob("metrics.csv"), key=lambda path: path.stat().st_mtime)
    return found + [f"{path}  # logged values" for path in tables[-1:]]


def report_run(folder: str | Path, console: Console | None = None, recipe: str = "") -> None:
    """Prints a run's tables, draws its curves, `curves.png`, into its folder, and says in words what came of it.

    Args:
        folder: the run's.
        console: where to print; standard output by default.
        recipe: name or path of its recipe, for the commands that go on from it.

    Raises:
        FileNotFoundError: if nothing was scored there.
    """
    console, run = console or make_console(), Run(folder)
    print_report(run, console)
    models = [record for record in run.records if record.is_model]
    pictures = [draw_curves(run.records, run.folder / CURVES, read_controls(run.folder, run.records))] if models else []
    pictures += [draw_generalisation(run.records, run.folder / GENERALISATION)] if has_gaps(models) else []
    for line in closing_lines(run.folder, run.records, pictures, recipe, console.width):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
