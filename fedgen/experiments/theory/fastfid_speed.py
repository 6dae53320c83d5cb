"""Time of FID as a loss by the number of generated images: ours, Algorithm 1 of FastFID, and the peers' matrix roots.

The setting of Fig. 3 in "Backpropagating through Fréchet Inception Distance" (arXiv 2009.14075): m generated images
against statistics of 10,000 real ones, all features drawn from N(0, C), at Inception's D = 2048 and ChemNet's 512. A
call goes from features [m, D] to the value, or to the gradient; the reference is prepared before. Beside seconds stand
multiples of a D x D float64 product timed in between, which carry over to other machines.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from rich import box
from rich.table import Table
from threadpoolctl import threadpool_limits
from torch import Tensor

from fedgen.experiments.engine.aggregate_rankings import expectation
from fedgen.experiments.engine.choice import at_least, quickly, settings_of
from fedgen.experiments.engine.rankings.number_table import number_table
from fedgen.experiments.engine.rankings.ranking_figures import panels
from fedgen.experiments.engine.study import Study
from fedgen.experiments.theory.fastfid_baselines import Score, scipy_fid, small_fid, torchmetrics_fid
from fedgen.losses import FastFIDLoss
from fedgen.seeds import generator
from fedgen.statistics import Gaussian, summarize

REAL = 10_000
OURS, ALGORITHM = "FastFIDLoss", "Algorithm 1"
PEERS = ("torchmetrics", "scipy sqrtm")  # slow, and without a backward pass
METHODS: dict[str, Callable[[Gaussian, torch.dtype], Score]] = {
    OURS: lambda real, dtype: FastFIDLoss(dtype=dtype).set_references([real]),
    ALGORITHM: small_fid,
    PEERS[0]: lambda real, dtype: torchmetrics_fid(real),
    PEERS[1]: lambda real, dtype: scipy_fid(real),
}
PASSES = ("forward", "forward + backward")
COLOURS = {OURS: "#1f5fa8", ALGORITHM: "#c4560b", PEERS[0]: "#3a8a3a", PEERS[1]: "#7a4fa0"}
MARKERS = {OURS: "o", ALGORITHM: "s", PEERS[0]: "^", PEERS[1]: "D"}
BLOCK = 10  # repeats between two timings of the product
AGREES = {"float64": 1e-5, "float32": 1e-4}  # scipy's root of a singular matrix keeps half of float64's digits
FASTER = 25  # the paper's least factor over scipy
FIGURE = "fastfid_speed.png"


@quickly(dims=(512,), batch_sizes=(8, 64), repeats=5, slow_repeats=2)
def fastfid_speed(
    output: Path | None = None,
    dims: tuple[int, ...] = (2048, 512),
    batch_sizes: tuple[int, ...] = (8, 16, 32, 64, 128, 256),
    repeats: int = 100,
    slow_repeats: int = 3,
    threads: int = 1,
    dtype: Literal["float64", "float32"] = "float64",
    spectrum: Literal["flat", "falling"] = "flat",
    seed: int = 0,
    quick: bool = False,
) -> None:
    """Times every method at every D and m, after one warm-up each, and compares their values.

    Nothing else should run on the machine. A quarter of an hour, most of it in scipy's 24 roots at D = 2048.

    Args:
        output: folder of results.json and fastfid_speed.png; checkpoints/fastfid-speed by default.
        dims: features D.
        batch_sizes: generated images m, each at most D.
        repeats: timed calls of the fast methods; 5 with --quick.
        slow_repeats: of torchmetrics and scipy; 2 with --quick.
        threads: of all methods.
        dtype: of the fast methods' products; torchmetrics and scipy always work in float64.
        spectrum: of the covariance: "flat" is N(0, I), the paper's; "falling" has variances 1 / k.
        seed: of the features.
        quick: takes seconds, at D = 512, to see that it runs.
    """
    settings = settings_of(locals())
    at_least(2, repeats=repeats, slow_repeats=slow_repeats, batch_sizes=batch_sizes)
    at_least(1, threads=threads)
    if not dims or not batch_sizes or max(batch_sizes) > min(dims):
        raise ValueError(f"batch_sizes={batch_sizes}: give some to the least of dims={dims}; Algorithm 1 wants m <= D")
    study = Study("fastfid-speed", output, settings)
    cells = cells_of(dims, batch_sizes)
    with limited(threads):
        found = study.each("times", cells, lambda cell: time_cell(*cell, settings), unit="timings")
    tables: list[Table | str] = [table_of(found, dim, batch_sizes) for dim in dims]
    study.report(
        [*tables, *outcomes(found, dims, batch_sizes, dtype)], draw(found, dims, batch_sizes, study.path(FIGURE))
    )


def name_of(dim: int, size: int, method: str, passes: str) -> str:
    """A cell's key in results.json."""
    return f"D = {dim}, m = {size}, {method}, {passes}"


def cells_of(dims: Sequence[int], batch_sizes: Sequence[int]) -> dict[str, tuple[int, int, str, str]]:
    """Return what is timed: (D, m, method, passes); the peers have no backward pass."""
    cells = itertools.product(dims, METHODS, batch_sizes, PASSES)
    return {
        name_of(dim, size, method, passes): (dim, size, method, passes)
        for dim, method, size, passes in cells
        if passes == PASSES[0] or method not in PEERS
    }


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Within, torch and scipy's BLAS run on this many threads."""
    before = torch.get_num_threads()
    with threadpool_limits(threads):
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def time_cell(dim: int, size: int, method: str, passes: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """{"seconds": [mean, sd], "products": [mean, sd], "value"} of one method."""
    spectrum, seed = settings["spectrum"], settings["seed"]
    score = prepare(method, dim, settings["dtype"], spectrum, seed, REAL // (10 if settings["quick"] else 1))
    batch = draw_features(size, dim, spectrum, seed, "generated")
    factor = torch.randn(dim, dim, generator=generator(seed, "product", dim), dtype=torch.float64)
    repeats = settings["slow_repeats" if method in PEERS else "repeats"]
    call = (lambda: step(score, batch)) if passes == PASSES[1] else (lambda: value_of(score, batch))
    value = call()  # the warm-up
    times, products = timed(call, lambda: factor @ factor, repeats)
    unit = statistics.mean(products)
    mean, spread = statistics.mean(times), statistics.stdev(times)
    return {"seconds": [mean, spread], "products": [mean / unit, spread / unit], "value": value}


@lru_cache(maxsize=1)
def prepare(method: str, dim: int, dtype: str, spectrum: str, seed: int, real: int) -> Score:
    """A method against the summary of `real` drawn features; the last one is kept."""
    summary = summarize(draw_features(real, dim, spectrum, seed, "real"))
    return METHODS[method](summary, getattr(torch, dtype))


def draw_features(count: int, dim: int, spectrum: str, seed: int, side: str) -> Tensor:
    """Features of N(0, diag(variances)), float32 [count, dim]."""
    features = torch.randn(count, dim, generator=generator(seed, "fastfid-speed", side, dim, count))
    return features * torch.arange(1, dim + 1).rsqrt() if spectrum == "falling" else features


def value_of(score: Score, batch: Tensor) -> float:
    """The value, without a gradient."""
    with torch.no_grad():
        return float(score(batch))


def step(score: Score, batch: Tensor) -> float:
    """The value, with the gradient in the features computed too."""
    batch = batch.clone().requires_grad_()
    value = score(batch)
    value.backward()
    return float(value.detach())


def timed(call: Callable[[], Any], product: Callable[[], Any], repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of each call, and of a product before every tenth of them and after the last."""
    product()
    times, products = [], []
    for number in range(repeats):
        if number % BLOCK == 0:
            products.append(seconds(product))
        times.append(seconds(call))
    products.append(seconds(product))
    return times, products


def seconds(call: Callable[[], Any]) -> float:
    """Return how long a call takes, by the clock on the wall."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def outcomes(
    found: Mapping[str, Mapping[str, Any]], dims: Sequence[int], batch_sizes: Sequence[int], dtype: str
) -> list[str]:
    """Return what was expected of the experiment and whether it was seen."""
    sides = list(itertools.product(dims, batch_sizes))
    differences = [largest_difference([found[name]["value"] for name in cells_of([d], [m])]) for d, m in sides]
    worst = max(differences)
    over_scipy = [ratio(found, (PEERS[1], PASSES[0]), (OURS, PASSES[1]), *side) for side in sides]
    over_algorithm = [ratio(found, (ALGORITHM, PASSES[1]), (OURS, PASSES[1]), max(dims), size) for size in batch_sizes]
    return [
        expectation(f"all methods give one value: largest relative difference {worst:.1e}", worst < AGREES[dtype]),
        expectation(
            f"{OURS}, value and gradient, is {min(over_scipy):.3g} to {max(over_scipy):.3g} times as fast as scipy's"
            f" value alone (the paper: at least {FASTER} for its own)",
            min(over_scipy) >= FASTER,
        ),
        expectation(
            f"at D = {max(dims)} value and gradient take {OURS} no longer than {ALGORITHM} by autograd:"
            f" {min(over_algorithm):.3g} to {max(over_algorithm):.3g} times as fast",
            min(over_algorithm) >= 1,
        ),
    ]


def largest_difference(values: Sequence[float]) -> float:
    """Between two of the values, relative to the least."""
    return (max(values) - min(values)) / min(map(abs, values))


def ratio(
    found: Mapping[str, Mapping[str, Any]], slow: tuple[str, str], fast: tuple[str, str], dim: int, size: int
) -> float:
    """Return how many times as fast one (method, pass) is as another."""
    above, below = (found[name_of(dim, size, *side)]["seconds"][0] for side in (slow, fast))
    return above / below


def table_of(found: Mapping[str, Mapping[str, Any]], dim: int, batch_sizes: Sequence[int]) -> Table:
    """One D: m by methods and passes, milliseconds with their deviation; in the caption what a product takes."""
    cells = cells_of([dim], batch_sizes)
    product = statistics.median(found[name]["seconds"][0] / found[name]["products"][0] for name in cells)
    columns = list(dict.fromkeys((method, passes) for _, _, method, passes in cells.values()))

    def milliseconds(seconds: list[float]) -> str:
        return "±".join(f"{1e3 * s:.3g}" if s < 1 else f"{1e3 * s:.0f}" for s in seconds)

    return number_table(
        f"D = {dim}: milliseconds, mean ± standard deviation",
        ["m", *(f"{method}\n{passes.replace(' + ', chr(10) + '+ ')}" for method, passes in columns)],
        [[m, *(milliseconds(found[name_of(dim, m, *one)]["seconds"]) for one in columns)] for m in batch_sizes],
        names=(),
        caption=f"a {dim}³ float64 product took {1e3 * product:.3g} ms\n{' and '.join(PEERS)} have no backward pass",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=0,  # fits 80 columns
    )


def draw(found: Mapping[str, Mapping[str, Any]], dims: Sequence[int], batch_sizes: Sequence[int], path: Path) -> Path:
    """A panel for each D: seconds against m, both on logarithmic axes, with bars of one standard deviation."""
    with panels(path, (max(8.0, 1.2 + 4.4 * len(dims)), 4.6), 1, len(dims), sharey=True) as (figure, (axes,)):
        for panel, dim in zip(axes, dims):
            for method, passes in dict.fromkeys(cell[2:] for cell in cells_of([dim], batch_sizes).values()):
                row = [found[name_of(dim, size, method, passes)] for size in batch_sizes]
                means, spreads = zip(*(cell["seconds"] for cell in row))
                below = [min(s, 0.9 * m) for m, s in zip(means, spreads)]  # a bar to zero has no end on these axes
                style: dict[str, Any] = {"color": COLOURS[method], "marker": MARKERS[method], "markersize": 4.5}
                style |= {"capsize": 2.5, "linewidth": 1.3, "label": f"{method}, {passes}"}
                if passes == PASSES[0] and method not in PEERS:
                    style |= {"linestyle": "--", "markerfacecolor": "white"}
                panel.errorbar(batch_sizes, means, yerr=[below, spreads], **style)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_xticks(batch_sizes, [str(size) for size in batch_sizes])
            panel.set_xlabel("generated images m")
            panel.set_title(f"D = {dim}", fontsize=10)
            panel.grid(alpha=0.25)
        axes[0].set_ylabel("seconds")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return path
