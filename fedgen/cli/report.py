"""`fedgen report RUN [RUN ...]`: one HTML page of a run, or of several side by side."""

from collections.abc import Sequence
from pathlib import Path

from fedgen.flags import PlainCommandParser

DESCRIPTION = (
    "Write one HTML page, which a browser shows without a network: conclusions, scores over rounds with errors and"
    " floors, clients, samples, logged values, settings. docs/report.md says how to read it."
)


def build_parser() -> PlainCommandParser:
    """The command's arguments."""
    parser = PlainCommandParser(prog="fedgen report", description=DESCRIPTION)
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a run folder; a folder of `fedgen reproduce`; the folder or file of `fedgen evaluate --output`",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=None,
        metavar="FILE",
        help="the page; report.html in the one run's folder, or in this one for several runs, by default",
    )
    parser.add_argument(
        "--over_time",
        type=Path,
        default=None,
        metavar="FILE",
        help="also draw the runs' scores against simulated seconds, a PNG; of runs with speeds (docs/asynchronous.md)",
    )
    parser.add_argument(
        "--column", default=None, metavar="NAME", help="the score of that picture; kid_all, else fid_all, by default"
    )
    return parser


def report(arguments: Sequence[str]) -> int:
    """Writes the page and prints its path."""
    settings = build_parser().parse_args(list(arguments))
    from fedgen.reports.page import write_report

    if settings.over_time is not None:
        from fedgen.reports.figures.curves import draw_over_time

        print(f"over time: {draw_over_time(settings.runs, settings.over_time, settings.column)}")
    print(f"report: {write_report(settings.runs, settings.output)}")
    return 0
