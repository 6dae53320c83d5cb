"""Rankings of the same generators by avg and all, beside controls over IID clients of the same sizes."""

import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedgen.scores import ExcessInversions, excess_inversions, inversions, kendall_tau
from fedgen.scores.rankings import Inversion

Rows = Mapping[str, Mapping[str, Mapping[str, Any]]]  # generator -> score -> as `federation.rows_of` gives it


def column(rows: Rows, score: str, aggregate: str) -> list[float]:
    """One score's values under an aggregate, in the generators' order."""
    return [float(row[score][aggregate]) for row in rows.values()]


def gaps_of(rows: Rows, score: str) -> list[float]:
    """avg - all of one score, in the generators' order."""
    return [a - b for a, b in zip(column(rows, score, "avg"), column(rows, score, "all"))]


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
    table = Table(
        title=escape(title),
        caption="inverted: pairs of generators that avg and all order differently (beyond 1.96 standard errors of"
        " both); IID: the mean over dealings of the same images to clients of the same sizes, which have bias and noise"
        " but no heterogeneity; excess: pairs beyond error less the IID ones, which alone is evidence",
        caption_justify="left",
    )
    for heading in ("score", "pairs", "tau", "inverted", "IID", "excess", "avg - all", "its spread"):
        table.add_column(heading, justify="left" if heading == "score" else "right")
    for name, row in found.items():
        excess = row["excess beyond error"]
        table.add_row(
            escape(name),
            str(row["pairs"]),
            "-" if row["tau"] is None else f"{row['tau']:.3f}",
            f"{len(row['inverted'])} ({row['beyond error']})",
            _means(row["control inverted"], row["control beyond error"]),
            "-" if excess is None else f"{excess:+.0f}" if abs(excess) >= 100 else f"{excess:+.3g}",
            f"{row['gap']['mean']:.4g}",
            f"{row['gap']['spread']:.2g}",
        )
    return table


def expectation(text: str, met: bool) -> str:
    """A line that says whether an expected outcome was seen: "as expected: ..." or "not seen: ..."."""
    return f"{'as expected' if met else 'not seen'}: {text}"


def inversion_lines(own: str, row: Mapping[str, Any]) -> list[str]:
    """Say whether avg and all order more pairs differently than over IID clients: all such pairs, and those beyond
    error.

    Args:
        own: the score's title.
        row: as `compare` gives it.
    """
    inverted, control = len(row["inverted"]), statistics.mean(row["control inverted"])
    text = f"{own}: avg and all order {inverted} of {row['pairs']:,} pairs differently, {control:.3g} over IID clients"
    clear = f"{own}: {row['excess beyond error']:.3g} of these beyond their own errors and beyond IID clients"
    return [expectation(text, inverted > control), expectation(clear, row["excess beyond error"] > 0)]


def _counted(pairs: list[Inversion], between: tuple[Collection[int], Collection[int]] | None) -> list[Inversion]:
    if between is None:
        return pairs
    one, other = (set(places) for places in between)
    return [p for p in pairs if (p.first in one and p.second in other) or (p.first in other and p.second in one)]


def _means(inverted: Sequence[float], clear: Sequence[float]) -> str:
    return f"{statistics.mean(inverted):.3g} ({statistics.mean(clear):.3g})" if inverted else "-"
