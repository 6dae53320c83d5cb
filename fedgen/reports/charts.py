"""Score records as plain values for a page's charts and its table of clients."""

import math
from collections.abc import Sequence
from typing import Any

from fedgen.evaluation.directions import axis_of, title_of
from fedgen.evaluation.gaps import GAPS
from fedgen.evaluation.generation.sampling_settings import say_sampling
from fedgen.evaluation.marks import explained, strongest
from fedgen.evaluation.record_names import DISTRIBUTION
from fedgen.evaluation.records import BALANCED, Columns, ScoreRecord
from fedgen.evaluation.runs.selection import InvertedPair, aggregates_compared
from fedgen.reports.contents import Contents

MOST_NUMBERS = 300_000  # clients' scores in one run's part of a page; of more, evenly spaced rounds
MOST_PAIRS = 2_000  # of rounds that avg and all order differently, in one panel: each is a line
BEFORE = -1  # the untrained model's round


def panels(records: Sequence[ScoreRecord]) -> list[dict[str, Any]]:
    """A panel for each score, split and embedding, in the records' order; gaps are in tables.

    Each has "name", "title", "axis", "about", "mark", "lines" (an aggregate each: "column", "rounds", "values",
    "errors", "generated" (errors of the generated images alone), "floor"), "pairs" (of rounds that avg and all order
    differently, at most MOST_PAIRS, those beyond error first), "pairs_left" (how many more there are) and "clients"
    (see `_clients`).
    """
    columns = Columns.of(records)
    groups: dict[tuple[str, str, str], list[ScoreRecord]] = {}
    for record in records:
        if record.split not in GAPS and record.aggregate not in DISTRIBUTION:
            groups.setdefault((record.split, record.embedding, record.score), []).append(record)
    groups = {key: group for key, group in groups.items() if any(record.is_model for record in group)}
    inverted = {one.first_column: one.pairs for one in aggregates_compared(records)}
    per_panel = MOST_NUMBERS // max(1, len(groups))
    return [
        {
            "name": columns.score(*key),
            "title": title_of(key[2]),
            "axis": axis_of(max(group, key=lambda record: record.is_optimised)),
            "higher": bool(group[0].higher_is_better),
            "balanced": key[2] == BALANCED,
            "mark": strongest(group),
            "about": _about(group),
            "lines": _lines(group, columns),
            **_pairs(inverted.get(f"{columns.score(*key)}_avg", [])),
            "clients": _clients(group, per_panel),
        }
        for key, group in groups.items()
    ]


def clients(contents: Contents) -> list[dict[str, Any]]:
    """A row for each client: "name", "role", sizes, "labels" (counts) and "out" (rounds that it was left out of).

    The clients of the folder; without any, those that scores name.
    """
    named = [dict(one) for one in contents.kept.clients]
    if not named:
        names = next((r.client_names for r in contents.records if r.client_names), [])
        named = [{"name": name, "role": "", "train": None, "held_out": None} for name in names]
    turns: dict[str, int] = {}
    for entry in contents.left_out:
        if entry.get("kind", "") in ("", "earlier"):
            turns[entry["name"]] = turns.get(entry["name"], 0) + entry.get("turns", 1)
    return [{**one, "out": turns.get(one["name"], 0)} for one in named]


def plain(value: float | None, digits: int | None = None) -> float | str | None:
    """A number as JSON has it: what is not finite as text, and others to so many digits."""
    if value is None:
        return None
    if not math.isfinite(value):
        return str(value)
    return value if digits is None else float(f"{value:.{digits}g}")


def _about(group: Sequence[ScoreRecord]) -> list[str]:
    """Return in words what the values of a panel depend on."""
    models = [record for record in group if record.is_model]
    first = models[0]
    made = f"{first.num_generated:,} generated images against " if first.num_generated else "against "
    lines = [f"{made}{first.reference}; embedding {first.embedding}"]
    floors = sorted({record.num_generated for record in group if record.is_floor})
    lines += [f"floor: {count:,} real images of others, scored as if generated" for count in floors]
    lines += sorted({say_sampling(record.sampling) for record in models} - {""})
    lines += sorted({part for record in models for part in record.note.split("; ") if part})
    return [*lines, *explained(group)]


def _pairs(inverted: Sequence[InvertedPair]) -> dict[str, Any]:
    drawn = inverted
    if len(inverted) > MOST_PAIRS:
        drawn = sorted(inverted, key=lambda pair: not pair.beyond_error)[:MOST_PAIRS]
    shown = [[pair.better_by_first, pair.better_by_second, pair.beyond_error] for pair in drawn]
    return {"pairs": shown, "pairs_left": len(inverted) - len(shown)}


def _lines(group: Sequence[ScoreRecord], columns: Columns) -> list[dict[str, Any]]:
    lines = []
    for aggregate in dict.fromkeys(record.aggregate for record in group):
        own = [record for record in group if record.aggregate == aggregate]
        models = sorted((record for record in own if record.is_model), key=_round)
        floor = next((record for record in own if record.is_floor), None)
        if not models:
            continue
        lines.append(
            {
                "aggregate": aggregate,
                "column": columns.name(models[0]),
                "rounds": [_round(record) for record in models],
                "values": [plain(record.value) for record in models],
                "errors": [plain(record.standard_error) for record in models],
                "generated": [plain(record.generated_error) for record in models],
                "floor": None
                if floor is None
                else {"value": plain(floor.value), "error": plain(floor.standard_error), "images": floor.num_generated},
            }
        )
    return lines


def _clients(group: Sequence[ScoreRecord], most: int) -> dict[str, Any]:
    """The clients' scores: "names", "rounds", "values" and "errors" (a row a round) and the "floor"'s.

    Of more numbers than the page has room for, evenly spaced rounds, the last among them; "left_out" counts the others.
    """
    own = sorted((r for r in group if r.is_model and r.aggregate == "avg" and r.per_client), key=_round)
    if not own:
        return {}
    names = own[-1].client_names
    own = [
        record for record in own if record.client_names == names and len(record.per_client) == len(own[-1].per_client)
    ]
    room = max(1, most // (2 * len(own[-1].per_client)))
    step = -(-len(own) // room)
    shown = own[::-1][::step][::-1]
    floor = next((r for r in group if r.is_floor and r.aggregate == "avg" and r.client_names == names), None)
    return {
        "names": names or [str(place) for place in range(len(own[-1].per_client))],
        "rounds": [_round(record) for record in shown],
        "values": [[plain(value, 6) for value in record.per_client] for record in shown],
        "errors": [[plain(error, 3) for error in record.per_client_errors] for record in shown],
        "floor": [plain(value, 6) for value in floor.per_client] if floor else [],
        "left_out": len(own) - len(shown),
    }


def _round(record: ScoreRecord) -> int:
    """The round; that of stored images, which have none, is 0."""
    return 0 if record.round is None else record.round
