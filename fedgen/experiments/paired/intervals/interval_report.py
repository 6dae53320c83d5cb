"""What `communication-interval` says: quality by interval and control, and how avg and all rank at every interval."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.table import Table

from fedgen.experiments.engine.aggregate_rankings import agreement_table, compare, expectation, gap_of
from fedgen.experiments.engine.paired_seeds import change_of, compare_pairs
from fedgen.experiments.engine.scored_checkpoints import ScoredRows, title_of

Part = Literal["train", "held_out"]
REFERENCES: dict[str, Part] = {"training images": "train", "held-out images": "held_out"}
HELD_OUT, TRAINING = "held-out images", "training images"
SCORES = tuple((score, how) for score in ("fid", "kid") for how in ("avg", "all"))
ALL = "all"  # intervals
FLAT = 1e-9  # of KID's gap: rounding leaves less


def group_of(about: Mapping[str, Any]) -> str:
    """What a checkpoint's run is one of: "interval 40", "local only" or "centralised"."""
    return about["control"].replace("_", " ") if about["control"] else f"interval {about['interval']}"


def kinds_in(numbers: Mapping[str, Any]) -> list[str]:
    """The kinds of generators."""
    return list(dict.fromkeys(one["series"] for one in numbers["checkpoints"].values()))


def intervals_in(numbers: Mapping[str, Any]) -> list[int]:
    """The communication intervals, shortest first."""
    return sorted({one["interval"] for one in numbers["checkpoints"].values() if not one["control"]})


def rows_in(numbers: Mapping[str, Any], names: Sequence[str], embedding: str, reference: str) -> ScoredRows:
    """Scores of some checkpoints in one embedding, against one reference."""
    return ScoredRows({name: numbers["scores"][name][embedding][reference] for name in names})


def quality_of(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Scores of the runs' last checkpoints by seed: {embedding: {reference: {kind: {group: {"fid avg": [...]}}}}}."""
    last = {(one["series"], group_of(one), one["seed"]): name for name, one in numbers["checkpoints"].items()}
    found: dict[str, Any] = {}
    for embedding, references in numbers["real"].items():
        for reference in references:
            for (kind, group, _), name in last.items():
                row = numbers["scores"][name][embedding][reference]["clients"]
                place = found.setdefault(embedding, {}).setdefault(reference, {}).setdefault(kind, {})
                own = place.setdefault(group, {f"{score} {how}": [] for score, how in SCORES})
                for score, how in SCORES:
                    own[f"{score} {how}"].append(row[score][how])
    return found


def compare_intervals(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """How avg and all rank checkpoints: {embedding: {reference: {kind: {"interval 1": {score: as `compare`}}}}}.

    Seeds are pooled. "all" holds the intervals of a kind together, without the controls; the "gap" of KID over all
    checkpoints, both kinds and the controls, stands beside the kinds.
    """
    about = numbers["checkpoints"]
    found: dict[str, Any] = {}
    for embedding, references in numbers["real"].items():
        for reference in references:
            own: dict[str, Any] = {}
            for kind in kinds_in(numbers):
                names = {name: one for name, one in about.items() if one["series"] == kind and not one["control"]}
                pools = {
                    group: [name for name, one in names.items() if group_of(one) == group]
                    for group in dict.fromkeys(map(group_of, names.values()))
                }
                own[kind] = {
                    group: _compared(rows_in(numbers, pool, embedding, reference))
                    for group, pool in {**pools, ALL: list(names)}.items()
                }
            everything = rows_in(numbers, list(about), embedding, reference)
            own["gap"] = gap_of(everything.clients, "kid")
            own["pairs of kid inverted"] = len(compare(everything.clients, [], "kid")["inverted"])
            found.setdefault(embedding, {})[reference] = own
    return found


def _compared(rows: ScoredRows) -> dict[str, Any]:
    return {score: compare(rows.clients, rows.controls(score), score) for score in rows.scores}


def tables_of(numbers: Mapping[str, Any]) -> list[Table]:
    """Of each embedding and reference the quality; then of each kind and embedding how avg and all agree."""
    tables = [
        quality_table(numbers, embedding, reference)
        for embedding, references in numbers["quality"].items()
        for reference in references
    ]
    for kind in kinds_in(numbers):
        for embedding in numbers["quality"]:
            own = numbers["found"][embedding][TRAINING][kind]
            named = {f"FID at {group.removeprefix('interval ')}": row["fid"] for group, row in own.items()}
            about = f"{kind} checkpoints by interval, {embedding}, against {TRAINING}"
            tables.append(agreement_table({**named, f"KID at {ALL}": own[ALL]["kid"]}, about))
    return tables


def quality_table(numbers: Mapping[str, Any], embedding: str, reference: str) -> Table:
    """The last checkpoints: mean and spread over seeds by kind and interval or control; real images below."""
    real = numbers["real"][embedding][reference]
    table = Table(
        title=f"last checkpoint of each run, {embedding}, against {reference}",
        caption=f"mean ± standard deviation over seeds; {numbers['images']} images each; real: the clients' others",
        caption_justify="left",
    )
    for heading in ("kind", "trained at"):
        table.add_column(heading)
    for score, how in SCORES:
        table.add_column(f"{title_of(score)} {how}", justify="right")
    for kind, groups in numbers["quality"][embedding][reference].items():
        for place, (group, values) in enumerate(groups.items()):
            table.add_row("" if place else kind, group, *(_spread(values[f"{score} {how}"]) for score, how in SCORES))
        table.add_section()
    table.add_row("real", "", *(f"{real[score][how]:.3g}" for score, how in SCORES))
    return table


def _spread(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.3g}"
    return f"{mean} ± {statistics.stdev(values):.2g}" if len(values) > 1 else mean


def lines_of(numbers: Mapping[str, Any]) -> list[str]:
    """What was expected and whether it was seen, and what quality does with the interval."""
    lines = []
    for embedding, references in numbers["found"].items():
        for reference, own in references.items():
            lines.append(gap_line(own, f"{embedding}, {reference}", len(numbers["checkpoints"])))
    for kind in kinds_in(numbers):
        for embedding, references in numbers["found"].items():
            for reference, own in references.items():
                lines.append(inversion_line(own[kind], f"{kind}, {embedding}, {reference}"))
    for kind in kinds_in(numbers):
        for embedding, references in numbers["quality"].items():
            lines.append(trend_line(references[HELD_OUT][kind], f"{kind}, {embedding}, {HELD_OUT}"))
    return lines


def gap_line(found: Mapping[str, Any], where: str, checkpoints: int) -> str:
    """Whether KID's avg - all is one number over all intervals, kinds and controls, and no pair is inverted."""
    gap, inverted = found["gap"], found["pairs of kid inverted"]
    relative = gap["spread"] / max(abs(gap["mean"]), 1e-300)
    text = (
        f"KID, {where}: avg - all is one number over all {checkpoints} checkpoints, of all intervals and controls, to"
        f" {relative:.1e} of it; {inverted} pairs inverted"
    )
    return expectation(text, relative < FLAT and not inverted)


def inversion_line(found: Mapping[str, Any], where: str) -> str:
    """Whether FID's avg and all invert more pairs than over IID clients, at every interval.

    Args:
        found: `compare` of FID by interval, and over all.
        where: kind, embedding and reference.
    """
    own = {group.removeprefix("interval "): row["fid"] for group, row in found.items() if group != ALL}
    counts = [
        f"{interval}: {len(row['inverted'])} ({row['beyond error']}) of {row['pairs']},"
        f" IID {statistics.mean(row['control inverted']):.3g} ({statistics.mean(row['control beyond error']):.3g})"
        for interval, row in own.items()
    ]
    text = (
        f"FID, {where}: avg and all invert pairs beyond error, and more than over IID clients, at every interval;"
        f" inverted (beyond error) at {'; '.join(counts)}"
    )
    return expectation(text, all(row["beyond error"] > 0 and row["excess beyond error"] > 0 for row in own.values()))


def trend_line(quality: Mapping[str, Mapping[str, Sequence[float]]], where: str) -> str:
    """Which interval each aggregate of FID calls best, and how the longest differs from the shortest, by seed."""
    federated = {group: values for group, values in quality.items() if group.startswith("interval ")}
    parts = []
    for how in ("avg", "all"):
        means = {group: statistics.mean(values[f"fid {how}"]) for group, values in federated.items()}
        best = min(means, key=lambda group: means[group]).removeprefix("interval ")
        shortest, *_, longest = [*federated, *federated]
        text = f"FID-{how} is best at interval {best}, {means[longest] / means[shortest]:.3g} times as high at"
        text += f" {longest.removeprefix('interval ')} as at {shortest.removeprefix('interval ')}"
        if longest != shortest:
            pair = compare_pairs(federated[shortest][f"fid {how}"], federated[longest][f"fid {how}"])
            text += f", by {change_of(pair)}"
        parts.append(text)
    return f"{where}: {'; '.join(parts)}"
