"""Tables and figures of `communication-interval`: quality by interval and control, avg and all at every interval."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from fedgen.experiments.engine.aggregate_rankings import (
    FLAT,
    ScoredRows,
    agreement_table,
    compare,
    expectation,
    gap_of,
)
from fedgen.experiments.engine.arms.arm_panels import REAL, ArmPanel, Picture, Styles, draw_panels, draw_pictures
from fedgen.experiments.engine.arms.scored_arms import REAL_IMAGES
from fedgen.experiments.engine.paired_seeds import change_of, compare_pairs, mean_and_spread
from fedgen.experiments.engine.results import make_table
from fedgen.experiments.engine.scored_checkpoints import title_of
from fedgen.experiments.engine.study import Study
from fedgen.reports.figures.curves import COLOURS

Part = Literal["train", "held_out"]
REFERENCES: dict[str, Part] = {"training images": "train", "held-out images": "held_out"}
HELD_OUT, TRAINING = "held-out images", "training images"
SCORES = tuple((score, how) for score in ("fid", "kid") for how in ("avg", "all"))
ALL = "all"  # intervals
FIGURE, SAMPLES = "communication_interval.png", "samples.png"
SIDE = 6  # images along a grid
CONTROLS = ("local only", "centralised")
STYLES: Styles = {
    "FedAvg": {"color": COLOURS["all"], "marker": "o"},
    **{group: {"color": colour, "linewidth": 1.4} for group, colour in zip(CONTROLS, ("#7a4fa0", "#3a8a3a"))},
    REAL_IMAGES: REAL,
}
# KID-avg is KID-all and a constant
PANELS = (("fid", "avg"), ("fid", "all"), ("kid", "all"))


def group_of(about: Mapping[str, Any]) -> str:
    """Return the group of a checkpoint's run: "interval 40", "local only" or "centralised"."""
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
    """Compare how avg and all rank checkpoints: {embedding: {reference: {kind: {"interval 1": {score: as
    `compare`}}}}}.

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
                    group: rows_in(numbers, pool, embedding, reference).compared()
                    for group, pool in {**pools, ALL: list(names)}.items()
                }
            everything = rows_in(numbers, list(about), embedding, reference)
            own["gap"] = gap_of(everything.clients, "kid")
            own["pairs of kid inverted"] = len(compare(everything.clients, [], "kid")["inverted"])
            found.setdefault(embedding, {})[reference] = own
    return found


def tables_of(numbers: Mapping[str, Any]) -> list[Table]:
    """Return the quality by embedding and reference; then by kind and embedding how avg and all agree."""
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
    real, rows = numbers["real"][embedding][reference], []
    for kind, groups in numbers["quality"][embedding][reference].items():
        for place, (group, values) in enumerate(groups.items()):
            cells = (mean_and_spread(values[f"{score} {how}"], 2) for score, how in SCORES)
            rows.append(("" if place else kind, group, *cells))
        rows.append(())
    rows.append(("real", "", *(f"{real[score][how]:.3g}" for score, how in SCORES)))
    headings = ("kind", "trained at", *(f"{title_of(score)} {how}" for score, how in SCORES))
    note = f"mean ± standard deviation over seeds; {numbers['images']} images each; real: the clients' others"
    title = f"last checkpoint of each run, {embedding}, against {reference}"
    return make_table(title, headings, rows, note, left=2)


def lines_of(numbers: Mapping[str, Any]) -> list[str]:
    """Return what was expected and whether it was seen, and what quality does with the interval."""
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
    """Say whether KID's avg - all is one number over all intervals, kinds and controls, and no pair is inverted."""
    gap, inverted = found["gap"], found["pairs of kid inverted"]
    relative = gap["spread"] / max(abs(gap["mean"]), 1e-300)
    text = (
        f"KID, {where}: avg - all is one number over all {checkpoints} checkpoints, of all intervals and controls, to"
        f" {relative:.1e} of it; {inverted} pairs inverted"
    )
    return expectation(text, relative < FLAT and not inverted)


def inversion_line(found: Mapping[str, Any], where: str) -> str:
    """Say whether FID's avg and all invert more pairs than over IID clients, at every interval.

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
    """Say which interval each aggregate of FID calls best, and how the longest differs from the shortest, by seed."""
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


def grid_of(kind: str, group: str) -> str:
    """File name of a grid of images."""
    return f"{kind}-{group}.png".lower().replace(" ", "-")


def draw(study: Study) -> Path:
    """A row for each kind and embedding, a panel for each score against held-out images: means and seeds by interval.

    Controls are bands as high as their seeds lie apart, a line at the mean.
    """
    numbers, seeds = study.numbers, study.settings["seeds"]

    def panel(kind: str, embedding: str, score: str, how: str) -> ArmPanel:
        quality, column = numbers["quality"][embedding][HELD_OUT][kind], f"{score} {how}"
        curve = {interval: quality[f"interval {interval}"][column] for interval in intervals_in(numbers)}
        real = {REAL_IMAGES: [numbers["real"][embedding][HELD_OUT][score][how]]}
        return ArmPanel(
            {"FedAvg": curve},
            {group: quality[group][column] for group in CONTROLS} | real,
            title=f"{kind}, {embedding}",
            label=f"{title_of(score)} {how}",
            styles={"FedAvg": {"color": COLOURS[how]}},
            ticks={interval: str(interval) for interval in curve},
            log="xy" if score == "fid" else "x",
        )

    rows = [
        [panel(kind, embedding, *one) for one in PANELS]
        for embedding in numbers["quality"]
        for kind in kinds_in(numbers)
    ]
    about = (
        f"Ten clients of one digit each, equal local iterations, {seeds} seed{'s' * (seeds > 1)}; against {HELD_OUT}"
    )
    return draw_panels(rows, STYLES, study.path(FIGURE), about, "communication interval", (3.3, 2.7))


def draw_samples(study: Study, groups: Iterable[tuple[str, str]]) -> Path:
    """The last samples of the first seed: a row for each kind, a picture for each interval and control."""
    rows: dict[str, list[Picture]] = {}
    for kind, group in groups:
        rows.setdefault(kind, []).append((study.path(grid_of(kind, group)), f"{kind}, {group}", "black"))
    return draw_pictures(list(rows.values()), study.path(SAMPLES), "Last samples of the first seed", (1.9, 2.1))
