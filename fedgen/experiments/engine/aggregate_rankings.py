"""Rankings of the same generators by avg and all, beside controls over IID clients of the same sizes."""

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedgen.experiments.engine.rankings.number_table import number_table
from fedgen.scores import ExcessInversions, excess_inversions, inversions, kendall_tau
from fedgen.scores.rankings import Inversion

Rows = Mapping[str, Mapping[str, Mapping[str, Any]]]  # generator -> score -> as `federation.rows_of` gives it
CLIENTS, CONTROLS, IID = "clients", "controls", "IID "
BOTH = ("avg", "all")
FLAT = 1e-9  # of the gap of a score that cannot rank in two ways: rounding leaves less


@dataclass(frozen=True)
class ScoredRows:
    """Scores of several generators over the clients and over each IID dealing of their images.

    Args:
        scored: by generator, what it scores over "clients"; and over the dealings, as the list "controls" or under
            "IID 0", "IID 1", ...
    """

    scored: Mapping[str, Mapping[str, Any]]

    @cached_property
    def clients(self) -> Rows:
        """Over the clients."""
        return {name: row[CLIENTS] for name, row in self.scored.items()}

    def controls(self, score: str) -> list[Rows]:
        """Over each IID dealing; none for a score that is not measured there."""
        dealt = {name: list(_dealings(row)) for name, row in self.scored.items()}
        known = [number for number, row in enumerate(next(iter(dealt.values()))) if score in row]
        return [{name: rows[number] for name, rows in dealt.items()} for number in known]

    @property
    def scores(self) -> list[str]:
        """The scores' names."""
        return list(next(iter(self.clients.values())))

    def compared(
        self, scores: Collection[str] | None = None, between: tuple[Collection[int], Collection[int]] | None = None
    ) -> dict[str, dict[str, Any]]:
        """`compare` of all scores, or of some, with the controls that hold them."""
        return {name: compare(self.clients, self.controls(name), name, between) for name in scores or self.scores}


def column(rows: Rows, score: str, aggregate: str) -> list[float]:
    """One score's values under an aggregate, in the generators' order."""
    return [float(row[score][aggregate]) for row in rows.values()]


def gaps_of(rows: Rows, score: str) -> list[float]:
    """avg - all of one score, in the generators' order."""
    return [a - b for a, b in zip(column(rows, score, "avg"), column(rows, score, "all"))]


def best_of(rows: Rows, score: str, aggregate: str) -> str:
    """The generator that a score calls best."""
    return min(rows, key=lambda name: float(rows[name][score][aggregate]))


def errors_of(rows: Rows, score: str, aggregate: str) -> list[float]:
    """The standard errors of `column` over generated images; zero where none were computed."""
    return [float(row[score].get("errors", {}).get(aggregate, 0.0)) for row in rows.values()]


def compare(
    rows: Rows,
    controls: Sequence[Rows],
    score: str,
    between: tuple[Collection[int], Collection[int]] | None = None,
) -> dict[str, Any]:
    """Compare avg and all of one score over the same generators, as numbers for `results.json`.

    Keys: "tau" (None where a column is constant), "pairs", "inverted" ([place, place] of the pairs that avg and all
    order differently), "beyond error" (how many of these exceed their errors in both columns), "control inverted" and
    "control beyond error" (one number an IID control), "excess" and "excess beyond error" (less the controls' mean),
    "evidence" (pairs inverted beyond their errors and in no control), "gap" (avg - all: mean, min, max, and "spread",
    max - min, which is 0 for a score that cannot rank in two ways) and "control gap" (the same of each control).

    Args:
        rows: scores of every generator over the clients.
        controls: of the same generators over IID clients; may be empty.
        score: which, e.g. "fid".
        between: places of two groups of generators that share none; only pairs with one of each are counted.

    Raises:
        ValueError: for fewer than two generators, or controls of others.
    """
    for control in controls:
        if list(control) != list(rows):
            raise ValueError("a control must hold the same generators in the same order")
    columns = column(rows, score, "avg"), column(rows, score, "all")
    errors = errors_of(rows, score, "avg"), errors_of(rows, score, "all")
    found = _counted(inversions(*columns, *errors), between)
    both = [
        excess_inversions(
            columns,
            (column(control, score, "avg"), column(control, score, "all")),
            errors,
            (errors_of(control, score, "avg"), errors_of(control, score, "all")),
        )
        for control in controls
    ]
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


def agreement_table(found: Mapping[str, Mapping[str, Any]], title: str) -> Table:
    """Return what `compare` found of several scores, a line each.

    Args:
        found: by what is measured, e.g. "FID" or "FID, PCA-64".
        title: of the table.
    """

    def cells(name: str, row: Mapping[str, Any]) -> list[Any]:
        excess, controls = row["excess beyond error"], (row["control inverted"], row["control beyond error"])
        iid = "{:.3g} ({:.3g})".format(*map(statistics.mean, controls)) if controls[0] else None
        more = None if excess is None else f"{excess:+.0f}" if abs(excess) >= 100 else f"{excess:+.3g}"
        inverted, gap = f"{len(row['inverted'])} ({row['beyond error']})", row["gap"]
        return [escape(name), row["pairs"], tau_of(row), inverted, iid, more, gap["mean"], f"{gap['spread']:.2g}"]

    return number_table(
        title,
        ("score", "pairs", "tau", "inverted", "IID", "excess", "avg - all", "its spread"),
        [cells(name, row) for name, row in found.items()],
        caption="inverted: pairs of generators that avg and all order differently (beyond 1.96 standard errors of"
        " both); IID: the mean over dealings of the same images to clients of the same sizes, which have bias and noise"
        " but no heterogeneity; excess: pairs beyond error less the IID ones, which alone is evidence",
    )


def expectation(text: str, met: bool) -> str:
    """A line that says whether an expected outcome was seen: "as expected: ..." or "not seen: ..."."""
    return f"{'as expected' if met else 'not seen'}: {text}"


def inversion_lines(own: str, row: Mapping[str, Any]) -> list[str]:
    """Say whether avg and all order more pairs differently than over IID clients: all such pairs, and those beyond
    error; nothing where there are no controls.

    Args:
        own: the score's title.
        row: as `compare` gives it.
    """
    if not row["control inverted"]:
        return []
    inverted, control = count(row["inverted"]), statistics.mean(row["control inverted"])
    text = (
        f"{own}: avg and all order {inverted:,} of {row['pairs']:,} pairs differently, {control:.4g} over IID clients"
    )
    clear = f"{own}: {row['excess beyond error']:.3g} of these beyond their own errors and beyond IID clients"
    return [expectation(text, inverted > control), expectation(clear, row["excess beyond error"] > 0)]


def ranking_lines(
    found: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str], scale: float | None = None
) -> list[str]:
    """Say what the papers found of each score, and whether it was seen.

    A kernel score's avg - all is one number for every generator, so it ranks in one way. Another's differs by more, and
    more pairs are ordered differently, than over IID clients.

    Args:
        found: as `compare` gives it, by score; "kid" and what begins so are kernel scores.
        titles: the scores to tell of, by what to call them.
        scale: of which a kernel score's gap may differ by rounding; the gap itself if None.
    """
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


def tau_of(row: Mapping[str, Any]) -> str | None:
    """Kendall's tau as tables show it; None where a column is constant."""
    return None if row["tau"] is None else f"{row['tau']:.3f}"


def count(pairs: int | Sequence[Any]) -> int:
    """Return how many pairs there are, which may be counted already."""
    return pairs if isinstance(pairs, int) else len(pairs)


def better_than_real(
    rows: Rows, real: Mapping[str, Any], what: str, than: str = "real images", named: bool = False
) -> list[str]:
    """Count the generators that each aggregate of FID calls better than real images; nothing where there are none.

    Args:
        rows: scores of every generator.
        real: of real images.
        what: to call the generators.
        than: to call the real images.
        named: whether to say which.
    """
    lines = []
    for how in BOTH if real else ():
        better = [name for name, row in rows.items() if row["fid"][how] < real["fid"][how]]
        which = f": {', '.join(better) or 'none'}" if named else ""
        lines.append(f"FID-{how} calls {len(better)} of {len(rows)} {what} better than {than}{which}")
    return lines


def _dealings(row: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from row.get(CONTROLS, [own for where, own in row.items() if where.startswith(IID)])


def _counted(pairs: list[Inversion], between: tuple[Collection[int], Collection[int]] | None) -> list[Inversion]:
    if between is None:
        return pairs
    one, other = (set(places) for places in between)
    return [p for p in pairs if (p.first in one and p.second in other) or (p.first in other and p.second in one)]
