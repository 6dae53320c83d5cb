"""The shape of the package, counted from its source and from one traced round, beside its goals: `make house`.

A journey is the files of the package whose functions run between two events of a round of one client, and the lines of
those functions: what somebody reads who follows it. Counts of lines are of whole files, with docstrings and comments.
"""

import argparse
import logging
import warnings
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from benchmarks.house.journeys import JOURNEYS, Journey, trace
from benchmarks.house.measures import PROBE, ROOT, measures, reasons, repeated_files, repeated_types
from benchmarks.house.source_counts import naming, trees


def print_names() -> None:
    """Lists the names that recur, and the files that name a score."""
    beside = sorted(map(str, naming(trees(ROOT), PROBE)))
    for what, names in (("type names", repeated_types()), ("files", repeated_files()), ("beside", beside)):
        print(f"{what}: {', '.join(names)}")


def print_files(journeys: Mapping[str, Journey]) -> None:
    """Lists the files and functions of each journey."""
    for name, one in journeys.items():
        print(f"{JOURNEYS[name]}:")
        for file, lines in one.lines_by_file.items():
            print(f"  {file}, {lines} lines: {', '.join(one.functions[file])}")


def main() -> None:
    """Prints the table, and below it a reason for each goal that is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true", help="list the names that recur")
    parser.add_argument("--files", action="store_true", help="list the files and functions of each journey")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning").setLevel(logging.ERROR)
    journeys = trace()
    if options.files:
        print_files(journeys)
    if options.names:
        print_names()
    found = measures(journeys)
    table = Table("measure", "today", "goal", "met")
    for measure in found:
        table.add_row(measure.name, measure.today, measure.goal, "yes" if measure.is_met else "no")
    console = Console(width=120)
    console.print(table)
    for line in reasons(found):
        console.print(f"- {line}", highlight=False)


if __name__ == "__main__":
    main()
