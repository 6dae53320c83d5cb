"""Time to read, rank and show the scores of long runs, over parsing the same file's JSON, and the size of pages.

    python -m benchmarks.stored_scores [--repeats 5]

Medians of calls that take turns: what else the machine does meets all alike.
"""

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.messages import medians
from benchmarks.report import report
from fedgen.cli.run import select_checkpoint
from fedgen.evaluation import ScoreRecord, append_records
from fedgen.evaluation.runs.scores_file import SCORES_FILE, read_records
from fedgen.reports import write_report

# checkpoints, clients, scores -> limits of reading, select and report: 30,000 records; 100 and 1,000 clients' values
LIMITS = {(1_250, 10, 12): (3.2, 9.0, 20.0), (30, 100, 4): (4.0, 30.0, 30.0), (30, 1_000, 4): (3.2, 8.0, 14.0)}


def write_scores(folder: Path, checkpoints: int, clients: int, scores: int) -> Path:
    """A run's scores, avg with each client's and all; the file."""
    shared = {
        "standard_error": 0.1, "split": "train", "embedding": "pixels", "embedding_fingerprint": "0",
        "reference": "digits/train", "num_generated": 100, "num_clients": clients, "seed": 0,
    }  # fmt: skip
    names = [f"client {client}" for client in range(clients)]
    records = []
    for round in range(checkpoints):
        own = {**shared, "round": round, "checkpoint": f"round={round:05d}.ckpt", "higher_is_better": False}
        for score in range(scores):
            value = 2 - round / checkpoints  # falling; neighbours are ordered differently by the two aggregates
            parts = {"per_client": [value + client / clients for client in range(clients)], "client_names": names}
            parts["per_client_errors"] = [0.5] * clients
            name = f"fid{score}" if score else "fid"
            records.append(ScoreRecord(name, "avg", value, **own, **parts))  # type: ignore[arg-type]
            records.append(ScoreRecord(name, "all", value / 3 + round % 5 / (2 * checkpoints), **own))  # type: ignore[arg-type]
    append_records(folder / SCORES_FILE, records)
    return folder / SCORES_FILE


def rank(folder: Path) -> None:
    """`fedgen select`, printed to nowhere."""
    with contextlib.redirect_stdout(io.StringIO()):
        select_checkpoint(folder)


def measure(folder: Path, shape: tuple[int, int, int], limits: Sequence[float], repeats: int) -> bool:
    """Prints the figures of one store; returns whether all are within their limits."""
    file, page = write_scores(folder, *shape), folder / "report.html"
    works = (
        lambda: [json.loads(line) for line in file.read_bytes().splitlines()],
        lambda: read_records(file),
        lambda: rank(folder),
        lambda: write_report([folder], page),
    )
    parse, *seconds = medians(repeats, *works)
    said = f"{shape[0]:,} checkpoints, {shape[1]:,} clients, {shape[2]} scores"
    report(f"{said}: parsing the JSON", parse, "s")
    kept = report(f"{said}: the page", page.stat().st_size / 1e6, "MB", 10)
    for what, took, limit in zip(("reading", "select", "report"), seconds, limits):
        kept &= report(f"{said}: {what}", took / parse, "times parsing the JSON", limit)
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats, kept = parser.parse_args().repeats, True
    for shape, limits in LIMITS.items():
        with tempfile.TemporaryDirectory() as place:
            kept &= measure(Path(place), shape, limits, repeats)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
