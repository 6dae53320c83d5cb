"""A published table of FID and KID, avg and all, read again: which pairs it orders in two ways, and why KID's do so.

Made for Table 1 of arXiv 2310.11714, version 1. In exact arithmetic KID-avg is KID-all and one constant, so no pair can
be inverted; the printed columns invert 81 of 4,950. Rounding turns close pairs into ties only: what is left is that
each value came of random subsets, shown first on generators made of digits. The table is no part of this package.
"""

import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from fedgen.experiments.engine import rankings
from fedgen.experiments.engine.study import Choice, Numbers, Study, at_least, expectation, make_table, panels
from fedgen.experiments.ranking.class_generators import ClassChoice, ClassFederation
from fedgen.io.files import read_csv
from fedgen.reports.figures.aggregate_panels import draw_gap
from fedgen.scores import KernelReference, inversions, mmd2_subsets
from fedgen.seeds import generator

SUBSETS = 100  # as torch-fidelity, of fewer images than its 1,000, as clients have no more
SIZE = 100
EXACT, ROUNDED, DRAWN = "exact", "rounded", "subsets"  # ways of computing KID, in place of scores


def tell(study: Study, choice: Choice) -> list[Table | str]:
    """KID by way of computing it, over generators made of digits; clients hold five of the ten. Gives what to print."""
    rows = measure(study, choice)
    titles = {EXACT: "all images", ROUNDED: "all images, rounded to 3 digits", DRAWN: f"{SUBSETS} random subsets"}
    scored, count = rankings.ScoredRows({name: {rankings.CLIENTS: row} for name, row in rows.items()}), len(rows)
    found = scored.compared()
    inverted = {kind: len(row["inverted"]) for kind, row in found.items()}
    values = {kind: rankings.column(rows, kind, "all") for kind in found}
    ties = {kind: sum(a == b for place, a in enumerate(own) for b in own[place + 1 :]) for kind, own in values.items()}
    ends = {kind: [f"{row['gap'][end]:.8f}" for end in ("min", "max")] for kind, row in found.items()}
    lines = [[titles[kind], inverted[kind], ties[kind], *ends[kind]] for kind in found]
    title = f"{count} generators made of digits, {count * (count - 1) // 2} pairs, five clients of one digit each"
    headings = ("KID of", "inverted", "tied", "avg - all, least", "largest")
    table = make_table(title, headings, lines, names=headings[:1])
    shown = {kind: f"KID of {titles[kind]}," for kind in (EXACT, DRAWN)}
    gap = found[DRAWN]["gap"]  # whose noise is to be seen
    limits = gap["min"] - 0.1 * gap["spread"], gap["max"] + 0.1 * gap["spread"]
    figure = rankings.RankingStudy(scored, shown).draw(found, study.path("subset_kid.png"), limits)
    return [
        table,
        expectation(f"all images invert {inverted[EXACT]} pairs by KID", inverted[EXACT] == 0),
        expectation(f"rounding alone inverts {inverted[ROUNDED]}", inverted[ROUNDED] == 0),
        expectation(f"random subsets invert {inverted[DRAWN]}", inverted[DRAWN] > 0),
        f"figure: {figure}",
    ]


def measure(study: Study, choice: Choice) -> rankings.Rows:
    own = ClassChoice("digits", embedding="pixels", components=8, seed=choice.seed, quick=choice.quick)
    places = ClassFederation(own)
    names = {name: name for name in places.recipes}
    if len(study.numbers.get("subsets", {})) < len(names):
        parts = places.federation.parts()
        reference, pool = KernelReference.from_features(parts), torch.cat(parts)

        def score(name: str) -> dict[str, dict[str, float]]:
            generated = places.draw(name)
            exact = reference.score(generated, errors=False).values
            own = torch.tensor([subset_kid(generated, part) for part in parts], dtype=torch.float64)
            subsets = {"avg": float(reference.weights @ own), "all": subset_kid(generated, pool)}
            return {EXACT: {how: exact[how] for how in rankings.BOTH}, DRAWN: subsets}

        study.each("subsets", names, score, "generators")
    rows = {name: study.numbers["subsets"][name] for name in names}
    return {
        name: {EXACT: row[EXACT], ROUNDED: {how: round(row[EXACT][how], 3) for how in rankings.BOTH}, DRAWN: row[DRAWN]}
        for name, row in rows.items()
    }


def subset_kid(generated: torch.Tensor, real: torch.Tensor) -> float:
    """KID as torch-fidelity prints it, but of smaller subsets where images are fewer."""
    size = min(SIZE, len(generated), len(real))
    return mmd2_subsets(generated, real, subsets=SUBSETS, size=size)[0]


COLUMNS = ("fid_all", "fid_avg", "kid_all", "kid_avg")
SCORES = ("fid", "kid")
PAPER = {"generators": 100, "fid": 136, "kid": 81}  # inverted pairs counted in the printed table


def paper_table(table: Path | None = None, repeats: int = 1000, **options: Any) -> None:
    """Shows how random subsets invert pairs by KID; with the table, counts its pairs and what noise explains of them.

    Args:
        table: a CSV file with a line for each generator and the columns class, fid_all, fid_avg, kid_all, kid_avg,
            copied digit for digit from the paper; it is not part of this package.
        repeats: draws of the noise; 50 with --quick.
    """
    choice = Choice(**options)
    repeats = choice.smaller(repeats, 50)
    at_least(2, repeats=repeats)
    columns = None if table is None else read_table(table)
    study = choice.study("paper-table", table=columns, repeats=repeats)
    lines = tell(study, choice)
    if columns is None:
        lines.append("the published table is not part of this package; --table FILE.csv reads it again (see --help)")
        study.report(lines)
        return
    rows = rows_of_table(columns)
    printed = study.step("printed", lambda: describe(rows))
    digits = max(len(text.partition(".")[2]) for name in ("kid_all", "kid_avg") for text in columns[name])
    kid = rankings.column(rows, "kid", "avg"), rankings.column(rows, "kid", "all")
    explained = study.step("explained", lambda: explain(*kid, digits, repeats, choice.seed))
    lines += [*tables_of(printed, explained, digits), *outcomes(printed, explained)]
    study.report(lines, draw(rows, printed, explained, study.figure))


def read_table(path: Path) -> dict[str, list[str]]:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; give --table a CSV file with columns class, {', '.join(COLUMNS)}"
        )
    header, rows = read_csv(path, comment="#")
    lines = [row for _, row in rows]
    missing = {"class", *COLUMNS} - set(header)
    if missing or len(lines) < 3:
        what = f"lacks the columns {', '.join(sorted(missing))}" if lines and missing else "holds under 3 generators"
        raise ValueError(f"{path} {what}; it needs a first line class,{','.join(COLUMNS)}, then one for each generator")
    names = [line["class"] for line in lines]
    for line in lines:
        if names.count(line["class"]) > 1:
            raise ValueError(f"{path}: class {line['class']!r} is there twice")
        for name in COLUMNS:
            if not is_number(line[name]):
                raise ValueError(f"{path}: {name} of class {line['class']!r} is {line[name]!r}, which is no number")
    return {"class": names} | {name: [line[name].strip() for line in lines] for name in COLUMNS}


def is_number(text: str | None) -> bool:
    try:
        return abs(float(text or "")) < float("inf")
    except ValueError:
        return False


def rows_of_table(columns: Mapping[str, Sequence[str]]) -> rankings.Rows:
    return {
        name: {score: {how: float(columns[f"{score}_{how}"][place]) for how in rankings.BOTH} for score in SCORES}
        for place, name in enumerate(columns["class"])
    }


def describe(rows: rankings.Rows) -> dict[str, Any]:
    found = {score: rankings.compare(rows, [], score) for score in SCORES}
    for score, row in found.items():
        row["gap"]["sd"] = statistics.stdev(rankings.gaps_of(rows, score))
    return found


def explain(avg: list[float], all: list[float], digits: int, repeats: int, seed: int) -> dict[str, Any]:
    """Inverted pairs of columns that are one constant apart: exact, rounded, and with the gaps' noise and rounded."""
    gaps = torch.tensor(avg, dtype=torch.float64) - torch.tensor(all, dtype=torch.float64)
    rounding = 10.0**-digits / 12**0.5  # standard deviation of one rounded value
    noise = max(0.0, float(gaps.var()) - 2 * rounding**2) ** 0.5
    random = generator(seed, "paper-table")
    # the printed values stand on a grid: moved within their rounding, they are tied no more
    exact = torch.tensor(all, dtype=torch.float64)
    exact = exact + (torch.rand(len(all), generator=random, dtype=torch.float64) - 0.5) * 10.0**-digits
    moved = exact + gaps.mean()
    drawn = []
    for _ in range(repeats):
        noisy = moved + noise * torch.randn(len(all), generator=random, dtype=torch.float64)
        drawn.append(count(noisy.round(decimals=digits), exact.round(decimals=digits)))
    rounded = moved.round(decimals=digits)
    found = {"exact": count(moved, exact), "rounded": count(rounded, exact.round(decimals=digits))}
    found["tied by rounding"] = sum(a == b for a, b in combinations(rounded.tolist(), 2))
    return {**found, "noise": noise, "noisy": drawn}


def count(avg: torch.Tensor, all: torch.Tensor) -> int:
    return len(inversions(avg.tolist(), all.tolist()))


def interval(counts: Sequence[int]) -> tuple[int, int]:
    ordered, cut = sorted(counts), int(0.025 * len(counts))
    return ordered[cut], ordered[-1 - cut]


def outcomes(printed: Numbers, explained: Numbers) -> list[str]:
    found = {score: len(printed[score]["inverted"]) for score in SCORES}
    low, high = interval(explained["noisy"])
    exact, rounded, kid = explained["exact"], explained["rounded"], found["kid"]
    lines = {}
    if printed["fid"]["pairs"] == PAPER["generators"] * (PAPER["generators"] - 1) // 2:
        text = f"the table inverts {found['fid']} pairs by FID and {kid} by KID, as the paper's"
        lines[text] = all(found[score] == PAPER[score] for score in SCORES)
    lines[f"one constant apart, KID inverts {exact} pairs"] = exact == 0
    lines[f"rounding alone ties {explained['tied by rounding']} pairs and inverts {rounded}"] = rounded == 0
    noisy = f"noise of the gaps' size inverts {low} to {high} pairs by KID; {kid} are printed"
    return [expectation(text, met) for text, met in {**lines, noisy: low <= kid <= high}.items()]


def tables_of(printed: Numbers, explained: Numbers, digits: int) -> list[Table]:
    rows = []
    for score, row in printed.items():
        gap = [row["gap"][key] for key in ("mean", "sd", "min", "max")]
        rows.append([score.upper(), len(row["inverted"]), row["pairs"], f"{row['tau']:.3f}", *gap])
    low, high = interval(explained["noisy"])
    sources = [
        ["one constant", explained["exact"]],
        [f"one constant, both rounded to {digits} digits", explained["rounded"]],
        [
            f"with noise of {explained['noise']:.2g}, rounded",
            f"{statistics.mean(explained['noisy']):.0f} ({low} to {high})",
        ],
        ["as printed", len(printed["kid"]["inverted"])],
    ]
    headings = ("score", "inverted", "pairs", "Kendall tau", "avg - all", "sd", "min", "max")
    names = ("avg is all and", "inverted")
    return [
        make_table("the printed table", headings, rows, names=headings[:1]),
        make_table("pairs that KID's avg and all order differently", names, sources, names=names[:1]),
    ]


def draw(rows: rankings.Rows, printed: Numbers, explained: Numbers, path: Path) -> Path:
    with panels(path, (9.6, 6.6), rows=0) as (figure, _):
        grid = figure.add_gridspec(2, 6)
        above = [figure.add_subplot(grid[0, 3 * place : 3 * place + 3]) for place in range(2)]
        *below, last = [figure.add_subplot(grid[1, 2 * place : 2 * place + 2]) for place in range(3)]
        for panel, gap_panel, score in zip(above, below, SCORES):
            rankings.draw_ranking(panel, rows, score, score.upper(), printed[score])
            everyone = rankings.column(rows, score, "all")
            draw_gap(gap_panel, everyone, rankings.gaps_of(rows, score), score.upper(), f"{score.upper()} all")
        last.hist(explained["noisy"], bins=20, color="0.7", label="noise as in the gaps")
        last.axvline(len(printed["kid"]["inverted"]), color="#c0203a", label="printed")
        last.axvline(explained["rounded"], color="#1f5fa8", label="exact, rounded")
        last.set(xlabel="pairs inverted by KID", ylabel="draws of the noise", ylim=(0, 1.5 * last.get_ylim()[1]))
        last.legend(fontsize=8, framealpha=1)
    return path
