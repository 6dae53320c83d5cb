"""Tables and figures of `communication-interval`: quality by interval and control, avg and all at every interval."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from fedgen.experiments.engine.aggregate_rankings import ScoredRows, agreement_table, compare, expectation, gap_of
from fedgen.experiments.engine.paired_seeds import change_of, compare_pairs
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.scored_checkpoints import title_of
from fedgen.experiments.engine.study import Study
from fedgen.reports.figures.curves import COLOURS
from fedgen.reports.figures.picture_panels import show_picture

Part = Literal["train", "held_out"]
REFERENCES: dict[str, Part] = {"training images": "train", "held-out images": "held_out"}
HELD_OUT, TRAINING = "held-out images", "training images"
SCORES = tuple((score, how) for score in ("fid", "kid") for how in ("avg", "all"))
ALL = "all"  # intervals
FLAT = 1e-9  # of KID's gap: rounding leaves less
FIGURE, SAMPLES = "communication_interval.png", "samples.png"
SIDE = 6  # images along a grid
BANDS = {"local only": "#7a4fa0", "centralised": "#3a8a3a"}
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

    Controls are bands as high as their seeds lie apart, a line at the mean; dashes real images.
    """
    from matplotlib.figure import Figure

    numbers = study.numbers
    rows = [(kind, embedding) for embedding in numbers["quality"] for kind in kinds_in(numbers)]
    figure = Figure(figsize=(10, 2.7 * len(rows) + 0.9), layout="constrained")
    for panels, (kind, embedding) in zip(figure.subplots(len(rows), len(PANELS), squeeze=False), rows):
        quality = numbers["quality"][embedding][HELD_OUT][kind]
        for axes, (score, how) in zip(panels, PANELS):
            _draw_panel(axes, quality, intervals_in(numbers), score, how)
            real = numbers["real"][embedding][HELD_OUT][score][how]
            axes.axhline(real, color="black", linestyle="--", linewidth=1, label="real images")
            axes.set_title(f"{kind}, {embedding}", fontsize=9)
            axes.set_ylabel(f"{title_of(score)} {how}")
    for axes in panels:
        axes.set_xlabel("communication interval")
    handles, labels = panels[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)
    seeds = study.settings["seeds"]
    title = (
        f"Ten clients of one digit each, equal local iterations, {seeds} seed{'s' * (seeds > 1)}; against {HELD_OUT}"
    )
    figure.suptitle(title, fontsize=10)
    return save_figure(figure, study.path(FIGURE))


def _draw_panel(
    axes: Any, quality: Mapping[str, Mapping[str, Sequence[float]]], intervals: Sequence[int], score: str, how: str
) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    values = [quality[f"interval {interval}"][f"{score} {how}"] for interval in intervals]
    for group, colour in BANDS.items():
        own = quality[group][f"{score} {how}"]
        axes.axhspan(min(own), max(own), color=colour, alpha=0.2, linewidth=0)
        axes.axhline(statistics.mean(own), color=colour, linewidth=1.4, label=group)
    for interval, seeds in zip(intervals, values):
        axes.scatter([interval] * len(seeds), seeds, s=9, color=COLOURS[how], alpha=0.5, linewidths=0)
    axes.plot(
        intervals, [statistics.mean(seeds) for seeds in values], color=COLOURS[how], marker="o", markersize=4,
        label="FedAvg" if how == "all" else None,
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xticks(intervals, [str(interval) for interval in intervals])
    axes.minorticks_off()
    if score == "fid":
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.25)


def draw_samples(study: Study, groups: Iterable[tuple[str, str]]) -> Path:
    """The last samples of the first seed: a row for each kind, a column for each interval and control."""
    from matplotlib.figure import Figure

    by_kind: dict[str, list[str]] = {}
    for kind, group in groups:
        by_kind.setdefault(kind, []).append(group)
    across = max(map(len, by_kind.values()))
    figure = Figure(figsize=(1.75 * across, 2.05 * len(by_kind)), layout="constrained")
    for row, (kind, own) in zip(figure.subplots(len(by_kind), across, squeeze=False), by_kind.items()):
        for axes, group in zip(row, own):
            show_picture(axes, study.path(grid_of(kind, group)), group, fontsize=9)
        row[0].set_ylabel(kind)
    return save_figure(figure, study.path(SAMPLES))
