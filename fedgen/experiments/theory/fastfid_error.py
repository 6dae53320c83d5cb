"""The error of tr sqrt(C1 C2) in float32, where the answer is known: by scipy, Algorithm 1 of FastFID and ours.

Table 1 of "Backpropagating through Fréchet Inception Distance" (arXiv 2009.14075): with C1 = C2 the answer is tr C1.
Its answers are 2048 (m - 1): centred features of N(0, 1), not divided by sqrt(m - 1) as Eq. 4 has it; so here.
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from fedgen.experiments.engine.aggregate_rankings import expectation
from fedgen.experiments.engine.choice import at_least, quickly, settings_of
from fedgen.experiments.engine.rankings.number_table import number_table
from fedgen.experiments.engine.study import Study
from fedgen.experiments.theory.fastfid_baselines import large_trace, small_trace
from fedgen.losses.fastfid import FrechetTargets
from fedgen.losses.moments import BatchMoments
from fedgen.seeds import generator
from fedgen.statistics import summarize

PUBLISHED = {  # m: answer, scipy's error, Algorithm 1's error
    8: (14283, 175, 0.0000),
    16: (30678, 228, 0.0020),
    32: (62955, 300, 0.0000),
    64: (128947, 408, 0.0078),
    128: (259586, 565, 0.0156),
    256: (523360, 785, 0.0312),
}
DIM = 2048
METHODS = ("scipy", "Algorithm 1", "ours, float32", "ours, float64")
SMALL = 0.1  # what the error of the small matrices stays below at D = 2048


@quickly(draws=1)
def fastfid_error(output: Path | None = None, draws: int = 3, seed: int = 0, quick: bool = False) -> None:
    """Prints the table's six rows, mean absolute errors over draws, beside the published numbers.

    Scipy takes 11 seconds a row and draw on one thread.

    Args:
        output: folder of results.json; checkpoints/fastfid-error by default.
        draws: of the features; 1 with --quick.
        seed: of the features.
        quick: takes seconds, at D = 512, to see that it runs; the published numbers are for D = 2048.
    """
    study = Study("fastfid-error", output, settings_of(locals()))
    at_least(1, draws=draws)
    dim = 512 if quick else DIM
    items = {f"m = {size}, draw {draw}": (size, draw) for size in PUBLISHED for draw in range(draws)}
    found = study.each("errors", items, lambda item: errors_of(draw_rows(*item, dim, seed)), unit="matrices")
    rows = {size: mean_of([found[name] for name, item in items.items() if item[0] == size]) for size in PUBLISHED}
    study.report([table_of(rows, dim, draws), *outcomes(rows, dim)])


def draw_rows(size: int, draw: int, dim: int, seed: int) -> Tensor:
    """Centred rows of N(0, 1), float32 [size, dim]."""
    rows = torch.randn(size, dim, generator=generator(seed, "fastfid-error", size, draw))
    return rows - rows.mean(0)


def errors_of(rows: Tensor) -> dict[str, float]:
    """The answer tr(rows^T rows), summed in float64, and each method's absolute error."""
    answer = float(rows.double().square().sum())
    product = rows.T @ rows @ rows.T @ rows  # from the left, as the authors' script does: rounding depends on it
    cross = rows @ rows.T
    values = {
        METHODS[0]: large_trace(product),
        METHODS[1]: float(small_trace(cross @ cross.T)),
        METHODS[2]: our_trace(rows, torch.float32),
        METHODS[3]: our_trace(rows, torch.float64),
    }
    return {"answer": answer} | {method: abs(value - answer) for method, value in values.items()}


def our_trace(rows: Tensor, dtype: torch.dtype) -> float:
    """tr sqrt(C C) as `FastFIDLoss` has it, with products in a dtype, times m - 1: without the covariances' divisor."""
    # not from the loss's value, 2 tr C - 2 tr sqrt(C C), which is never below 0: half of the errors would not show. The
    # form does not matter to a reference of fewer features than D, which is kept as those features
    targets = FrechetTargets([0], [summarize(rows)], ddof=1, dtype=dtype, form="covariance")
    estimate = BatchMoments().estimate(rows, remember=False)
    traces, _ = targets.pull(estimate, 1, torch.ones(1, dtype=torch.float64), needed=False)
    return float(traces[0]) * (len(rows) - 1)


def mean_of(cells: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each number."""
    return {key: statistics.mean(cell[key] for cell in cells) for key in cells[0]}


def outcomes(rows: Mapping[int, Mapping[str, float]], dim: int) -> list[str]:
    """Return what was expected of the experiment and whether it was seen."""
    theirs = [row["scipy"] for row in rows.values()]
    grows = all(a < b for a, b in itertools.pairwise(theirs))
    lines = [expectation(f"scipy's error grows with m, from {theirs[0]:.3g} to {theirs[-1]:.3g}", grows)]
    if dim == DIM:
        ratios = [error / PUBLISHED[size][1] for size, error in zip(rows, theirs)]
        text = f"scipy's errors are {min(ratios):.2f} to {max(ratios):.2f} of the published ones"
        lines.append(expectation(text, min(ratios) > 0.8 and max(ratios) < 1.25))
    for method in METHODS[1:]:
        largest = max(row[method] for row in rows.values())
        lines.append(expectation(f"{method}: the largest error is {largest:.2g}, below {SMALL:g}", largest < SMALL))
    off = max(abs(row["answer"] / (dim * (size - 1)) - 1) for size, row in rows.items())
    lines.append(
        expectation(f"the answers are D (m - 1) within {off:.1%}: no row was divided by sqrt(m - 1)", off < 0.05)
    )
    return lines


def table_of(rows: Mapping[int, Mapping[str, float]], dim: int, draws: int) -> Table:
    """m by answer and errors, the published ones beside."""

    def cells(size: int, row: Mapping[str, float]) -> list[Any]:
        first, *rest = METHODS
        own = [f"{row['answer']:.0f}", f"{row[first]:.0f}", *(f"{row[method]:.4f}" for method in rest[:2])]
        answer, theirs, small = PUBLISHED[size]
        return [size, *own, f"{row[rest[2]]:.1e}", answer, theirs, f"{small:.4f}"]

    return number_table(
        f"float32, D = {dim}, C1 = C2: absolute errors of tr sqrt(C1 C2), mean of {draws} draw(s)",
        ("m", "answer", *METHODS, "published: answer", "scipy", "Algorithm 1"),
        [cells(size, row) for size, row in rows.items()],
        names=(),
        caption="the published answers are one draw each, from another generator of random numbers",
    )
