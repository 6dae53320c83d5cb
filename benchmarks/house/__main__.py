"""The shape of the package beside its budgets: `make house`. The exit status is 1 if one is exceeded."""

import argparse
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from benchmarks.house.budgets import BUDGETS
from benchmarks.house.measures import ROOT, measure_all
from benchmarks.house.source_counts import find_circles, import_graph, lonely_protocols, read_sources
from benchmarks.house.traces import Stretch


def print_names() -> None:
    """Print the circles, and the protocols with one implementation."""
    sources = read_sources(ROOT)
    for circle in find_circles(import_graph(sources, "fedgen")):
        print(f"circle: {', '.join(circle)}")
    print(f"protocols: {', '.join(lonely_protocols(sources))}")


def print_calls(ways: Mapping[str, Stretch]) -> None:
    """Print the files and functions of each way, with the number of calls."""
    for name, way in ways.items():
        print(f"{name}: {len(way.calls)} calls")
        for file, functions in way.functions.items():
            print(f"  {file}: {', '.join(f'{function} {count}' for function, count in functions.items())}")


def main() -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", action="store_true", help="list circles and protocols")
    parser.add_argument("--calls", action="store_true", help="list the files and functions of each way")
    options = parser.parse_args()
    measured, ways = measure_all()
    if options.calls:
        print_calls(ways)
    if options.names:
        print_names()
    table = Table("measure", "today", "budget", "")
    beyond = [name for name, count in measured.items() if count > BUDGETS.get(name, -1)]
    for name, count in measured.items():
        said = "beyond" if name in beyond else "lower the budget" if count < BUDGETS[name] else ""
        table.add_row(name, f"{count:,}", f"{BUDGETS[name]:,}" if name in BUDGETS else "none", said)
    Console(width=120).print(table)
    if beyond:
        print(f"beyond the budgets of benchmarks/house/budgets.py: {'; '.join(beyond)}", file=sys.stderr)
    return int(bool(beyond))


if __name__ == "__main__":
    sys.exit(main())
