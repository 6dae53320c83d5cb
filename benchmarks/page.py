"""A page of the documentation from what `make bench` or `make bench-gpu` printed, one file a run.

    make bench > 1.jsonl; make bench > 2.jsonl; ...
    python -m benchmarks.page 1.jsonl 2.jsonl > docs/benchmark-figures.md
    make bench-gpu > gpu.jsonl; python -m benchmarks.page gpu.jsonl > docs/gpu-figures.md

Each figure is the median over the runs, with the least and the largest behind it where they differ.
"""

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HEAD = """# Figures of the benchmarks{where}

Printed by `make {target}`, {runs}, {threads}; this page is made of them by
`python -m benchmarks.page`. Units are ratios to a peer, or to an operation that cannot be avoided, measured in the same
run; seconds beside them are of this machine. Medians over the runs, with the least and the largest in brackets. [What
they mean](benchmarks.md).
"""
Line = dict[str, Any]
Key = tuple[str, str, str]  # benchmark, name and unit of a figure


def lines_of(text: str) -> list[Line]:
    """The JSON lines of a run's output, which warnings may stand between."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def page(runs: Sequence[str]) -> str:
    """Return the page, Markdown.

    Args:
        runs: the outputs, one a run.

    Raises:
        ValueError: if the runs are of different machines or versions, whose figures are not to be mixed, or say nothing
            of theirs; if a run has two figures of one name and unit.
    """
    lines = [lines_of(text) for text in runs]
    machines = [line["machine"] for run in lines for line in run if "machine" in line]
    if not machines or any(machine != machines[0] for machine in machines):
        raise ValueError(f"figures of one machine and one set of versions make a page; these are of {machines}")
    figures: dict[Key, list[Line]] = {}
    for run in lines:
        for key, line in _figures(run).items():
            figures.setdefault(key, []).append(line)
    counts = {key[0]: len(found) for key, found in figures.items()}
    of = {"where": "", "target": "bench", "threads": "one thread a process unless a figure says otherwise"}
    if "GPU" in machines[0]:
        of = {"where": " on a GPU", "target": "bench-gpu", "threads": "all threads of its machine beside it"}
    parts = [HEAD.format(runs=_runs(len(runs)), **of), _machine(machines[0])]
    for benchmark in dict.fromkeys(key[0] for key in figures):
        parts.append(f"## `python -m benchmarks.{benchmark}`\n")
        if counts[benchmark] < len(runs):
            parts.append(f"Of {_runs(counts[benchmark])}.\n")
        rows = [_row(key, found) for key, found in figures.items() if key[0] == benchmark]
        parts.append(_table(("figure", "value", "unit", "limit"), rows))
    return "\n".join(parts)


def _figures(run: Sequence[Line]) -> dict[Key, Line]:
    found: dict[Key, Line] = {}
    for line in run:
        if "value" in line:
            key = line["benchmark"], line["name"], line["unit"]
            if key in found:
                raise ValueError(f"one run has two figures {line['name']!r} of benchmarks.{line['benchmark']}")
            found[key] = line
    return found


def _runs(count: int) -> str:
    return f"{count} runs" if count > 1 else "one run"


def _row(key: Key, found: Sequence[Line]) -> tuple[str, str, str, str]:
    """A figure's row; one that is beyond its limit is marked."""
    _, name, unit = key
    values = [line["value"] for line in found]
    middle, limit = statistics.median(values), found[0]["limit"]
    least, largest = f"{min(values):.3g}", f"{max(values):.3g}"
    spread = f" ({least} to {largest})" if least != largest else ""
    beyond = limit is not None and middle > limit
    value = f"**{middle:.3g}**" if beyond else f"{middle:.3g}"
    return name, value + spread, unit, "-" if limit is None else f"{limit:g}" + (" (beyond)" if beyond else "")


def _machine(machine: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in machine.items()) + ".\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    print(page([Path(path).read_text() for path in sys.argv[1:]]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
