"""`fedgen benchmark run SUITE` and `fedgen benchmark table RESULTS ...`: generators and algorithms compared alike."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedgen.class_paths import nearest
from fedgen.flags import ASK, ASK_ALL, PlainCommandParser
from fedgen.progress import make_console

if TYPE_CHECKING:  # the parsers are made, and help printed, without torch
    from fedgen.benchmark.suite import Cell, Suite

RUN = (
    "Train a suite's cells (data set, partition, generator, algorithm) and write a JSON entry for each. To resume,"
    " repeat the command. docs/benchmark.md explains the ranking."
)


def run_parser() -> PlainCommandParser:
    parser = PlainCommandParser(prog="fedgen benchmark run", description=RUN)
    parser.add_argument("suite", metavar="SUITE", help="the suite's name, e.g. tiny; an unknown name lists all suites")
    parser.add_argument(
        "--entry",
        metavar="CLASS",
        help="class path of a LightningModule, data set, client algorithm, aggregator, compressor or server optimizer;"
        " its cells are trained instead of the suite's",
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder for runs and entries; checkpoints/benchmark-SUITE by default"
    )
    parser.add_argument("--cells", metavar="NAMES", help="comma-separated cells to train; all by default")
    parser.add_argument(
        "--parallel", type=int, default=1, metavar="N", help="trainings to run at once, one core each; 1 by default"
    )
    return parser


def table_parser() -> PlainCommandParser:
    parser = PlainCommandParser(
        prog="fedgen benchmark table", description="Check entries, print their ranking and write leaderboard.html."
    )
    parser.add_argument(
        "results", nargs="+", type=Path, metavar="RESULTS", help="folders written by `run`, or entry files"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="the page; by default leaderboard.html in the first folder"
    )
    return parser


def benchmark(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in (*ASK, ASK_ALL):
        parts = "usage: fedgen benchmark run|table ...\n", run_parser().format_help(), table_parser().format_help()
        print("\n".join(parts))
        return 0
    forms = {"run": run, "table": table}
    if arguments[0] not in forms:
        raise ValueError(f"benchmark {arguments[0]!r}: give run or table{nearest(arguments[0], list(forms))}")
    return forms[arguments[0]](arguments[1:])


def run(arguments: Sequence[str]) -> int:
    """`fedgen benchmark run SUITE`; ValueError for an unknown suite or cell, or a class that cannot be entered."""
    settings = run_parser().parse_args(list(arguments))
    from fedgen.benchmark.suite import find_suite

    suite = find_suite(settings.suite)
    if settings.parallel < 1:
        raise ValueError(f"--parallel {settings.parallel}: expected 1 or more")
    cells = _cells(suite, settings.entry, settings.cells)
    output = settings.output or Path("checkpoints") / f"benchmark-{suite.name}"
    print(f"suite {suite.name}: {suite.about}")
    from fedgen.benchmark.run_suite import run_cells

    run_cells(suite, cells, output, settings.parallel)
    print(f"entries: {output}; fedgen benchmark table {output} compares them")
    return 0


def _cells(suite: "Suite", entry: str | None, names: str | None) -> "list[Cell]":
    if entry is None:
        cells = list(suite.cells)
    else:
        from fedgen.benchmark.own import find_own

        cells = suite.cells_with(find_own(entry))
    if names is None:
        return cells
    known = {cell.name: cell for cell in cells}
    for name in names.split(","):
        if name not in known:
            raise ValueError(f"--cells: there is no {name!r}{nearest(name, list(known))}; cells: {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def table(arguments: Sequence[str]) -> int:
    settings = table_parser().parse_args(list(arguments))
    from fedgen.benchmark.leaderboard import default_page, leaderboard_texts, read_all, write_leaderboard

    console = make_console()
    entries, refused = read_all(settings.results)
    page = write_leaderboard(entries, refused, settings.output or default_page(settings.results))
    for text in leaderboard_texts(entries):
        console.print(text, highlight=False)
    for reason in refused:
        console.print(reason, markup=False, highlight=False, soft_wrap=True)
    console.print(f"leaderboard: {page}", markup=False, highlight=False, soft_wrap=True)
    return 1 if refused else 0
