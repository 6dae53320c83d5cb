"""The conclusions of a run in plain sentences: which checkpoint to take, how sure that is, and what to do next."""

import math
import shlex
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from fedgen.evaluation.marks import GAPS, gap_title, interval, mark_of
from fedgen.evaluation.names import HELD_OUT
from fedgen.evaluation.records import BALANCED, Columns, ScoreRecord, by_column
from fedgen.evaluation.runs.scores_file import SCORES_FILE, read_records
from fedgen.evaluation.runs.selection import Comparison, aggregates_compared, default_column, unmarked
from fedgen.evaluation.tables.table import client_value, format_value, say_pairs, say_value
from fedgen.federated.left_out import shorten
from fedgen.own_code import program
from fedgen.scores.rankings import Z

LOCAL_ONLY, CENTRALISED = "-local_only", "-centralised"  # behind a folder's name: the controls of `fedgen fit`
ARMS = {"": "federated", LOCAL_ONLY: "local only", CENTRALISED: "centralised"}
MOST_ROUNDS = 5  # named of those that do not differ from the best
FEW = "fewer images than"  # in the note of such a score


def conclusions(
    records: Sequence[ScoreRecord], run: str = "RUN", has_recipe: bool = True, ended: bool = True
) -> list[str]:
    """Return what a run's records say, a sentence or two each, and what to do next; commands stand between backticks.

    Args:
        records: a run's, or those of one stored set.
        run: the run folder, as the commands name it.
        has_recipe: whether the folder keeps the recipe, without which training cannot go on by a command.
        ended: whether training is over, so that a score that was still improving is worth a word.

    Returns:
        The sentences, the most important first.
    """
    steps = next_steps(records, run, has_recipe, ended)
    return [*findings(records, run), *(f"Next: `{command}` {words}." for command, words in steps.items())]


def findings(records: Sequence[ScoreRecord], run: str | Path = "RUN") -> list[str]:
    """Return what a run's records say, a sentence or two each, the most important first."""
    models = [record for record in records if record.is_model]
    if not models:
        return ["No model has been scored yet: there is nothing to choose."]
    everything = by_column(records)
    columns = _trained(everything)
    if not columns:
        return [*_cautions(models), *_stored(models), *_served(models, models[0].round)]
    rounds = sorted({record.round or 0 for group in columns.values() for record in group})
    number = "one checkpoint is" if len(rounds) == 1 else f"{len(rounds)} checkpoints are"
    count = f"{rounds[-1] + 1:,} round{'s' if rounds[-1] else ''}"
    chosen, compared = best_of(columns[default_column(columns)]), aggregates_compared(records)
    main = [one for one in compared if _is_first(everything[one.first_column], records)]
    default = default_column(everything)
    floors = floors_of(records)
    lines = [f"{count}, counted from 0 to {rounds[-1]}; {number} scored."]
    lines += [*_cautions(models), *_served(models, chosen.round)]
    # first the column that checkpoints are chosen by
    for place, comparison in enumerate(sorted(main, key=lambda one: one.second_column != default)):
        lines += _of_score(columns, floors, comparison, in_full=place == 0)
    lines += [*_rough_floors(columns, floors, main), *_alone(columns, compared, records)]
    lines += [*_controls(columns, records, Path(run)), *_by_held_out(columns, chosen)]
    return [*lines, *_unseen(models, chosen.round)]


def _trained(columns: Mapping[str, list[ScoreRecord]]) -> dict[str, list[ScoreRecord]]:
    """The records of models that were trained, by column; only columns that have some."""
    trained = {
        name: [one for one in group if one.round is not None and one.round >= 0] for name, group in columns.items()
    }
    return {name: group for name, group in trained.items() if group}


def _is_first(group: Sequence[ScoreRecord], records: Sequence[ScoreRecord]) -> bool:
    return group[0].split == records[0].split


def _stored(models: Sequence[ScoreRecord]) -> list[str]:
    """The scores in avg and all of images that have no rounds, one sentence a split and embedding."""
    columns, lines = Columns.of(models), dict[tuple[str, str], list[str]]()
    for record in models:
        if record.aggregate in ("avg", "all") and record.split not in GAPS:
            lines.setdefault((record.split, record.embedding), []).append(_value(columns.name(record), record))
    return [f"{', '.join(values)}." for values in lines.values()]


def best_of(records: Sequence[ScoreRecord]) -> ScoreRecord:
    """The best of one column's records; the earlier of equals."""
    return min(records, key=lambda record: (record.badness, -1 if record.round is None else record.round))


def differ(first: ScoreRecord, second: ScoreRecord) -> bool:
    """Whether two values of one column differ by more than 1.96 combined standard errors of the generated images."""
    error = math.hypot(first.generated_error, second.generated_error)
    return abs(first.badness - second.badness) > Z * error


def _of_score(
    columns: Mapping[str, list[ScoreRecord]],
    floors: Mapping[tuple[str, ...], ScoreRecord],
    comparison: Comparison,
    in_full: bool,
) -> list[str]:
    """Say which checkpoint each aggregate prefers; in full, also what is inverted, too close to rank, and the floor."""
    names = comparison.first_column, comparison.second_column
    groups = [columns.get(name, []) for name in names]
    if not all(groups):
        return []
    first, second = (best_of(group) for group in groups)
    values = [_value(name, record) for name, record in zip(names, (first, second))]
    if len(groups[1]) == 1:
        lines = [f"One checkpoint was scored, round {first.round}: {values[0]}, {values[1]}."]
    elif first.round == second.round:
        lines = [f"Both aggregates prefer round {first.round}: {values[0]}, {values[1]}."]
    else:
        clear = any(
            {pair.better_by_first, pair.better_by_second} == {first.round, second.round} and pair.beyond_error
            for pair in comparison.pairs
        )
        how = (
            "The two checkpoints differ beyond their errors by both, so the choice of the aggregate decides."
            if clear
            else "They do not differ beyond their errors by both: these scores cannot tell which is better."
        )
        both = f"{names[0]} prefers round {first.round} ({values[0]}), {names[1]} round {second.round} ({values[1]})"
        lines = [f"{both}. {how}"]
    if not in_full:
        return lines
    if comparison.checkpoints > 2:
        lines.append(f"{say_pairs(comparison)}.")
    return [*lines, *_ties(names[1], second, groups[1]), *_above_floor(floors, names[1], second)]


def _alone(
    columns: Mapping[str, list[ScoreRecord]], compared: Sequence[Comparison], records: Sequence[ScoreRecord]
) -> list[str]:
    """The best by each score of the first split that has one aggregate alone."""
    paired = {name for one in compared for name in (one.first_column, one.second_column)}
    lines = []
    for name, group in columns.items():
        best = best_of(group)
        usual = best.aggregate in ("avg", "all") and best.score != BALANCED and _is_first(group, records)
        if usual and name not in paired:
            lines.append(f"{_value(name, best)} at round {best.round} is the best.")
    return lines


def _value(name: str, record: ScoreRecord) -> str:
    return f"{name} {say_value(record)} {mark_of(record)}".rstrip()


def _ties(name: str, best: ScoreRecord, group: Sequence[ScoreRecord]) -> list[str]:
    """The checkpoints that a column cannot distinguish from its best."""
    same = [str(record.round) for record in group if record is not best and not differ(record, best)]
    if not same:
        return []
    shown = f"round{'' if len(same) == 1 else 's'} {', '.join(same[-MOST_ROUNDS:])}"
    rest = f" and {len(same) - MOST_ROUNDS} earlier ones" if len(same) > MOST_ROUNDS else ""
    return [f"By {name}, {shown}{rest} cannot be told from the best: the difference lies within the errors."]


def floors_of(records: Sequence[ScoreRecord]) -> dict[tuple[str, ...], ScoreRecord]:
    """The floors by split, embedding, score and aggregate."""
    return {record.column: record for record in reversed(records) if record.is_floor}  # the first of each


def _above_floor(floors: Mapping[tuple[str, ...], ScoreRecord], name: str, best: ScoreRecord) -> list[str]:
    """Say how far the best of a column is from real images scored in its place."""
    floor = _floor_of(floors, best)
    if floor is None:
        return []
    real = f"real images in its place have {say_value(floor)} (the floor)"
    if not differ(best, floor):
        return [f"By {name}, round {best.round} is at the floor: {real}, and the difference lies within the errors."]
    side = "worse" if best.badness > floor.badness else "better"
    away = format_value(abs(best.value - floor.value), math.hypot(best.generated_error, floor.generated_error))
    return [f"By {name}, round {best.round} is {away} {side} than the floor: {real}."]


def _floor_of(floors: Mapping[tuple[str, ...], ScoreRecord], best: ScoreRecord) -> ScoreRecord | None:
    """The floor of a record's column, where the two can be compared."""
    floor = floors.get(best.column)
    return floor if floor and math.isfinite(best.value) and math.isfinite(floor.value) else None


def _rough_floors(
    columns: Mapping[str, list[ScoreRecord]],
    floors: Mapping[tuple[str, ...], ScoreRecord],
    compared: Sequence[Comparison],
) -> list[str]:
    """Say of which columns the floor has another number of images than the model, a sentence for each two numbers."""
    rough: dict[tuple[int, int], list[str]] = {}
    for name in (one.second_column for one in compared if one.second_column in columns):
        best = best_of(columns[name])
        floor = _floor_of(floors, best)
        if floor and floor.num_generated != best.num_generated:
            rough.setdefault((floor.num_generated, best.num_generated), []).append(name)
    return [
        f"The floor of {', '.join(names)} is of {real:,} images and the model of {made:,}: the distance to it is rough."
        for (real, made), names in rough.items()
    ]


def _by_held_out(columns: Mapping[str, list[ScoreRecord]], chosen: ScoreRecord) -> list[str]:
    """Say which checkpoint is the best by held-out images, where that is not the chosen one."""
    lines = []
    for name, group in columns.items():
        best, found = best_of(group), {one.round: one for one in group}
        is_same = best.column[1:] == chosen.column[1:] and best.split != chosen.split
        own = found.get(chosen.round)
        if best.split in HELD_OUT and is_same and own and best.round != own.round:
            how = "beyond their errors" if differ(best, own) else "within the errors"
            lines.append(
                f"On held-out images round {best.round} is the best ({_value(name, best)}), not round {own.round}"
                f" ({_value(name, own)}); they differ {how}."
            )
    return lines


def _served(models: Sequence[ScoreRecord], round: int | None) -> list[str]:
    """Say which client is served worst and which best, of the first score that has clients' values."""
    own = [r for r in models if r.round == round and r.aggregate == "avg" and len(r.per_client) > 1]
    record = next((r for r in own if r.score != BALANCED and r.split not in GAPS), None)
    if record is None or not any(map(math.isfinite, record.per_client)):
        return []
    sign = -1 if record.higher_is_better else 1
    values = [math.inf if math.isnan(value) else sign * value for value in record.per_client]
    order = sorted(range(len(values)), key=values.__getitem__)
    best, worst = (_client(record, k) for k in (order[0], order[-1]))
    when = "" if round is None else f" at round {round}"
    return [f"By {record.score}{when}, client {worst} is served worst and client {best} best."]


def _client(record: ScoreRecord, place: int) -> str:
    name = shorten(record.client_names[place], 60) if record.client_names else str(place)
    return f"{name!r} ({client_value(record, place)})"


def _unseen(models: Sequence[ScoreRecord], round: int | None) -> list[str]:
    """Say what a score loses on clients that never train, with its interval."""
    lines = []
    for record in models:
        if record.split in GAPS and record.round == round and record.aggregate == "avg":
            within = interval(record)
            ends = "" if within is None else f" (95 %: {within[0]:.3g} to {within[1]:.3g})"
            if within is not None and within[0] <= 0 <= within[1]:
                ends += "; it cannot be told from none"
            lines.append(f"{gap_title(record.split).capitalize()} of {record.score}: {record.value:.3g}{ends}.")
    return lines


def _cautions(models: Sequence[ScoreRecord]) -> list[str]:
    """Reasons to doubt the values: few images, and embeddings that a loss used."""
    few = (part for record in models for part in record.note.split("; ") if FEW in part)
    lines = [f"Caution: {part}." for part in islice(few, 1)]
    if any(mark_of(record) for record in models):
        lines.append("Caution: scores marked * or (*) are in the embedding of a training loss and prove little.")
    return lines


def _controls(columns: Mapping[str, list[ScoreRecord]], records: Sequence[ScoreRecord], folder: Path) -> list[str]:
    """The last checkpoint beside those of the recipe's other arms, where they were scored under equal conditions."""
    mine = next((end for end in (LOCAL_ONLY, CENTRALISED) if folder.name.endswith(end)), "")
    base = folder.name.removesuffix(mine)
    usual = (name for name, group in columns.items() if group[0].aggregate == "all" and _is_first(group, records))
    name = next((name for name in usual if columns[name][0].score != BALANCED), None)
    if name is None:
        return []
    last, beside = columns[name][-1], list[str]()
    for end, words in ARMS.items():
        other = read_records(folder.with_name(base + end) / SCORES_FILE) if end != mine else []
        if theirs := [one for one in by_column(other).get(name, []) if one.conditions == last.conditions]:
            beside.append(_beside(last, theirs[-1], words))
    return [f"Last checkpoints by {name}: {ARMS[mine]} {say_value(last)}; {'; '.join(beside)}."] if beside else []


def _beside(own: ScoreRecord, other: ScoreRecord, words: str) -> str:
    away, error = other.badness - own.badness, math.hypot(own.generated_error, other.generated_error)
    how = "not told apart" if abs(away) <= Z * error else "worse" if away > 0 else "better"
    rounds = "" if other.round == own.round else f" after round {other.round}"
    return f"{words} {say_value(other)}{rounds}, {how}"


def next_steps(
    records: Sequence[ScoreRecord],
    run: str | Path,
    has_recipe: bool = True,
    ended: bool = True,
    recipe: str | None = None,
) -> dict[str, str]:
    """Commands that go on from a run, with what they do: the ranking, more rounds, a second embedding, controls."""
    columns, folder = _trained(by_column(records)), shlex.quote(str(run))
    if not columns:
        return {}
    name = default_column(columns)
    if mark_of(best_of(columns[name])):
        name = next((other for other in unmarked(records, name) if other in columns), name)
    group = sorted(columns[name], key=lambda record: record.round or 0)
    steps = {}
    if len(group) > 1:
        steps[f"{program()} select {folder} --by {name}"] = "ranks the checkpoints and prints the best one's path"
    improving = len(group) > 1 and best_of(group) is group[-1] and differ(group[-1], group[-2])
    if improving and has_recipe and ended:
        more = 2 * ((group[-1].round or 0) + 1)
        command = f"{program()} fit --config {folder}/recipe.yaml --trainer.max_epochs {more}"
        steps[command] = f"goes on: {name} was still improving when training ended"
    if has_recipe:
        steps |= _another_embedding(records, folder)
    return steps | _missing_controls(Path(run), recipe)


def _another_embedding(records: Sequence[ScoreRecord], folder: str) -> dict[str, str]:
    """The command that confirms a choice in a second embedding, where there is one of images alone."""
    first = next(record for record in records if record.is_model)
    embeddings = dict.fromkeys(record.embedding for record in records if record.split not in HELD_OUT)
    if len(embeddings) != 1 or set(embeddings) & {"identity", ""}:
        return {}
    other = "pixels" if next(iter(embeddings)) != "pixels" else "efficientnet-lite0-32"
    words = "adds scores in a second embedding, as one may mislead"
    return {f"{program()} evaluate {folder} {other} --num_images {first.num_generated}": words}


def _missing_controls(folder: Path, recipe: str | None) -> dict[str, str]:
    """The controls that were not trained beside a run that is none itself."""
    if recipe is None or folder.name.endswith((LOCAL_ONLY, CENTRALISED)):
        return {}
    words = {LOCAL_ONLY: "is the control without exchange", CENTRALISED: "is the control on pooled data"}
    missing = [end for end in words if not folder.with_name(folder.name + end).exists()]
    return {f"{program()} fit {shlex.quote(recipe)} --{end[1:]}": words[end] for end in missing}
