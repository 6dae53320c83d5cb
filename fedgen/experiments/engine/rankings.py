"""Rankings of the same generators by avg and all, beside IID clients of the same sizes: numbers, lines, figures."""

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedgen.experiments.engine.study import Numbers, expectation, make_table, panels
from fedgen.reports.figures.aggregate_panels import draw_aggregates, draw_gap
from fedgen.scores import ExcessInversions, excess_inversions, inversions, kendall_tau
from fedgen.scores.rankings import Inversion, Z

Rows = Mapping[str, Mapping[str, Mapping[str, Any]]]  # generator -> score -> as `federation.rows_of` gives it
CLIENTS, CONTROLS, IID = "clients", "controls", "IID "
BOTH = ("avg", "all")
FLAT = 1e-9  # of the gap of a score that cannot rank in two ways: rounding leaves less


@dataclass(frozen=True)
class ScoredRows:
    """Scores of several generators over the clients and over IID splits of their images."""

    # generator -> "clients" -> score -> values; and of IID splits the same in the list "controls", or as "IID 0", ...
    scored: Mapping[str, Mapping[str, Any]]

    @cached_property
    def clients(self) -> Rows:
        return {name: row[CLIENTS] for name, row in self.scored.items()}

    def controls(self, score: str) -> list[Rows]:
        """Over each IID split; none for a score that is not measured there."""
        splits = {
            name: row.get(CONTROLS, [own for where, own in row.items() if where.startswith(IID)])
            for name, row in self.scored.items()
        }
        known = [number for number, row in enumerate(next(iter(splits.values()))) if score in row]
        return [{name: rows[number] for name, rows in splits.items()} for number in known]

    @property
    def scores(self) -> list[str]:
        return list(next(iter(self.clients.values())))

    def compared(
        self, scores: Collection[str] | None = None, between: tuple[Collection[int], Collection[int]] | None = None
    ) -> dict[str, dict[str, Any]]:
        return {name: compare(self.clients, self.controls(name), name, between) for name in scores or self.scores}


def column(rows: Rows, score: str, aggregate: str) -> list[float]:
    return [float(row[score][aggregate]) for row in rows.values()]


def gaps_of(rows: Rows, score: str) -> list[float]:
    return [a - b for a, b in zip(column(rows, score, "avg"), column(rows, score, "all"))]


def best_of(rows: Rows, score: str, aggregate: str) -> str:
    return min(rows, key=lambda name: float(rows[name][score][aggregate]))


def errors_of(rows: Rows, score: str, aggregate: str) -> list[float]:
    """The standard errors of `column` over generated images; zero where none were computed."""
    return [float(row[score].get("errors", {}).get(aggregate, 0.0)) for row in rows.values()]


def compare(
    rows: Rows, controls: Sequence[Rows], score: str, between: tuple[Collection[int], Collection[int]] | None = None
) -> dict[str, Any]:
    """Compare avg and all of one score over the same generators, as numbers for `results.json`.

    Keys: "tau" (None where a column is constant), "pairs", "inverted" ([place, place] of the pairs that avg and all
    order differently), "beyond error" (how many of these exceed their errors in both columns), "control inverted" and
    "control beyond error" (one number an IID control), "excess" and "excess beyond error" (less the controls' mean),
    "evidence" (pairs inverted beyond their errors and in no control), "gap" (avg - all: mean, min, max, and "spread",
    max - min, which is 0 for a score that cannot rank in two ways) and "control gap" (the same of each control).
    """
    assert all(list(control) == list(rows) for control in controls)

    def sides(of: Callable[[Rows, str, str], list[float]], own: Rows) -> tuple[list[float], list[float]]:
        return of(own, score, "avg"), of(own, score, "all")

    columns, errors = sides(column, rows), sides(errors_of, rows)
    found = _counted(inversions(*columns, *errors), between)
    both = [excess_inversions(columns, sides(column, one), errors, sides(errors_of, one)) for one in controls]
    excess = [ExcessInversions(_counted(one.found, between), _counted(one.control, between)) for one in both]
    evidence = {(pair.first, pair.second) for pair in found if pair.beyond_error}
    for one in excess:
        evidence &= {(pair.first, pair.second) for pair in one.evidence}
    constant = any(len(set(values)) == 1 for values in columns)
    return {
        "tau": None if constant else kendall_tau(*columns),
        "pairs": len(between[0]) * len(between[1]) if between else len(rows) * (len(rows) - 1) // 2,
        "inverted": [[pair.first, pair.second] for pair in found],
        "beyond error": sum(pair.beyond_error for pair in found),
        "control inverted": [len(one.control) for one in excess],
        "control beyond error": [sum(pair.beyond_error for pair in one.control) for one in excess],
        "excess": statistics.mean(one.excess for one in excess) if excess else None,
        "excess beyond error": statistics.mean(one.excess_beyond_error for one in excess) if excess else None,
        "evidence": sorted(map(list, evidence)),
        "gap": gap_of(rows, score),
        "control gap": [gap_of(control, score) for control in controls],
    }


def gap_of(rows: Rows, score: str) -> dict[str, float]:
    """avg - all over the generators: mean, min, max and spread (max - min)."""
    gaps = gaps_of(rows, score)
    return {"mean": statistics.mean(gaps), "min": min(gaps), "max": max(gaps), "spread": max(gaps) - min(gaps)}


def agreement_table(found: Numbers, title: str) -> Table:
    lines = []
    for name, row in found.items():
        excess, controls = row["excess beyond error"], (row["control inverted"], row["control beyond error"])
        iid = "{:.3g} ({:.3g})".format(*map(statistics.mean, controls)) if controls[0] else None
        more = None if excess is None else f"{excess:+.0f}" if abs(excess) >= 100 else f"{excess:+.3g}"
        inverted, gap = f"{len(row['inverted'])} ({row['beyond error']})", row["gap"]
        cells = row["pairs"], tau_of(row), inverted, iid, more, gap["mean"], f"{gap['spread']:.2g}"
        lines.append([escape(name), *cells])
    notes = (
        "inverted: pairs of generators that avg and all order differently (beyond 1.96 standard errors of both); IID:"
        " the mean over splits of the same images among clients of the same sizes, which have bias and noise but no"
        " heterogeneity; excess: pairs beyond error less the IID ones, which alone is evidence"
    )
    headings = ("score", "pairs", "tau", "inverted", "IID", "excess", "avg - all", "its spread")
    return make_table(title, headings, lines, notes, names=("score",))


def inversion_lines(own: str, row: Numbers) -> list[str]:
    """Say whether avg and all order more pairs differently than over IID clients; nothing without controls."""
    if not row["control inverted"]:
        return []
    inverted, control = count(row["inverted"]), statistics.mean(row["control inverted"])
    text = f"{own}: avg and all order {inverted:,} of {row['pairs']:,} pairs differently,"
    clear = f"{own}: {row['excess beyond error']:.3g} of these beyond their own errors and beyond IID clients"
    seen = expectation(f"{text} {control:.4g} over IID clients", inverted > control)
    return [seen, expectation(clear, row["excess beyond error"] > 0)]


def ranking_lines(found: Numbers, titles: Mapping[str, str], scale: float | None = None) -> list[str]:
    """Say whether a kernel's avg - all is one number, and others' differ by more than over IID clients."""
    lines = []
    for score, title in titles.items():
        row, gap = found[score], found[score]["gap"]
        if score.startswith("kid"):
            relative, inverted = gap["spread"] / max(scale or abs(gap["mean"]), 1e-300), count(row["inverted"])
            flat = f"{title}: avg - all is one number, {gap['mean']:.4g}, to {relative:.1e} of"
            lines.append(expectation(f"{flat} {'the mean kernel' if scale else 'it'}", relative < FLAT))
            same = f"{title}: avg and all order {inverted:,} of {row['pairs']:,} pairs differently"
            lines.append(expectation(same, inverted == 0))
        elif row["control gap"]:
            most = max(one["spread"] for one in row["control gap"])
            text = f"{title}: avg - all is {gap['min']:.4g} to {gap['max']:.4g}, a spread of {gap['spread']:.4g}"
            lines.append(expectation(f"{text}; over IID clients {most:.4g} at most", gap["spread"] > most))
            lines += inversion_lines(title, row)
    return lines


def tau_of(row: Numbers) -> str | None:
    return None if row["tau"] is None else f"{row['tau']:.3f}"


def count(pairs: int | Sequence[Any]) -> int:
    """The number of pairs, which may be counted already."""
    return pairs if isinstance(pairs, int) else len(pairs)


def better_than_real(rows: Rows, real: Numbers, what: str, than: str = "real images", named: bool = False) -> list[str]:
    """Count the generators that each aggregate of FID calls better than real images, if there are any."""
    lines = []
    for how in BOTH if real else ():
        better = [name for name, row in rows.items() if row["fid"][how] < real["fid"][how]]
        which = f": {', '.join(better) or 'none'}" if named else ""
        lines.append(f"FID-{how} calls {len(better)} of {len(rows)} {what} better than {than}{which}")
    return lines


def _counted(pairs: list[Inversion], between: tuple[Collection[int], Collection[int]] | None) -> list[Inversion]:
    if between is None:
        return pairs
    one, other = (set(places) for places in between)
    return [p for p in pairs if (p.first in one and p.second in other) or (p.first in other and p.second in one)]


INVERTED = "#c0203a"
LOOKS = {"class": ("#7a4fa0", "D"), "mixture": ("#1f5fa8", "o"), "neighbourhood": ("#c4560b", "^")}  # of generators


def draw_ranking(
    axes: Any,
    rows: Rows,
    score: str,
    title: str,
    found: Mapping[str, Any] | None = None,
    real: Mapping[str, Any] | None = None,
    kinds: Mapping[str, str] | None = None,
    colours: Sequence[float] | None = None,
    real_title: str = "real images",
    marker: str = "o",
    errors: bool = True,
) -> Any:
    """avg (across) against all (up) of each generator with its errors; returns the points for a colour bar."""
    sides = avg, everyone = column(rows, score, "avg"), column(rows, score, "all")
    pairs = {"inverted pairs": (found["inverted"], 0.6)} if found else {}
    if found and found.get("control inverted"):
        pairs["beyond error, not IID"] = found["evidence"], 2
    for label, (ends, width) in pairs.items():
        for place, (first, second) in enumerate(ends):
            name = None if place else f"{label}: {len(ends):,}"
            line = [[side[first], side[second]] for side in sides]
            axes.plot(*line, color=INVERTED, linewidth=width, zorder=2, label=name)
    bars = (errors_of(rows, score, "avg"), errors_of(rows, score, "all")) if errors else None
    points = draw_aggregates(axes, avg, everyone, title, bars, colours=colours, marker=marker)
    if kinds is not None:
        points.remove()
        for kind in dict.fromkeys(kinds.values()):
            colour, marker = LOOKS[kind]
            own = [place for place, name in enumerate(rows) if kinds[name] == kind]
            where = [[side[place] for place in own] for side in sides]
            axes.scatter(*where, s=16, marker=marker, color=colour, linewidths=0, zorder=3, label=kind)
    if real:
        at = [[real[score][how]] for how in BOTH]
        axes.scatter(*at, s=80, marker="*", color="black", zorder=4, label=real_title)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
    return points


def draw_gaps(axes: Any, x: Sequence[float], rows: ScoredRows, score: str, title: str, xlabel: str) -> None:
    others = [gaps_of(control, score) for control in rows.controls(score)]
    draw_gap(axes, x, gaps_of(rows.clients, score), title, xlabel, others)
    axes.set_ylim(min(0, axes.get_ylim()[0]), None)


Found = Mapping[str, Mapping[str, Any]]  # score -> as `compare` gives it


@dataclass(frozen=True)
class RankingStudy:
    rows: ScoredRows  # scores of every generator
    titles: Mapping[str, str]  # the scores to compare, by what to call them
    heading: str = ""  # a line on clients and generators
    real: Mapping[str, Any] = field(default_factory=dict)  # scores of real images over the clients; none if empty
    kinds: Mapping[str, str] | None = None  # of each generator, if there are several

    def table(self, found: Found) -> Table:
        return agreement_table({self.titles[score]: row for score, row in found.items()}, self.heading)

    def lines(self, found: Found, scale: float | None = None) -> list[str]:
        return ranking_lines(found, {score: title for score, title in self.titles.items() if score in found}, scale)

    def scatter(
        self, axes: Any, score: str, found: Found | None = None, colours: Sequence[float] | None = None, **look: Any
    ) -> Any:
        pairs = None if found is None else found[score]
        about = {"real": self.real, "kinds": self.kinds, "colours": colours, **look}
        return draw_ranking(axes, self.rows.clients, score, self.titles[score], pairs, **about)

    def draw(self, found: Found, path: Path, limits: tuple[float, float] | None = None) -> Path:
        """A column a score: above avg against all with inverted pairs, below the gap by avg beside IID clients'."""
        with panels(path, (4.3 * len(self.titles), 7.4), 2, len(self.titles), self.heading) as (_, both):
            for (above, below), (score, title) in zip(both.T, self.titles.items()):
                self.scatter(above, score, found)
                draw_gaps(below, column(self.rows.clients, score, "avg"), self.rows, score, title, f"{title} avg")
                if limits:
                    below.set_ylim(*limits)
        return path


def valley(
    values: Sequence[float], at: Sequence[float], difference: Callable[[int, int], tuple[float, float]]
) -> dict[str, Any]:
    """A curve's least value, how far its ends lie above that ("left", "right"), and whether both do beyond errors."""
    place = min(range(len(values)), key=values.__getitem__)
    found: dict[str, Any] = {"least at": at[place], "place": place, "least": values[place]}
    found |= {side: list(difference(end, place)) for side, end in (("left", 0), ("right", len(values) - 1))}
    found["inside"] = all(found[side][0] > max(0.0, Z * found[side][1]) for side in ("left", "right"))
    return found


def valley_line(title: str, low: Numbers, size: str, note: str = "") -> str:
    ends = " and ".join(f"{low[side][0]:.4g} ± {low[side][1]:.2g}" for side in ("left", "right"))
    text = f"{title} falls and rises, least at {size} = {low['least at']:,} ({low['least']:.4g}), its ends {ends} above"
    return expectation(text + note, low["inside"])
