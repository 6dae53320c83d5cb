"""FID as a loss beside FastFID's Algorithm 1, torchmetrics and scipy: the error of its matrix root, and its time.

After "Backpropagating through Fréchet Inception Distance" (arXiv 2009.14075). Error: Table 1, tr sqrt(C1 C2) in float32
with C1 = C2, of centred features not divided by sqrt(m - 1) as Eq. 4 has it, as published. Time: Fig. 3, from features
[m, D] to the value or the gradient, beside multiples of a D x D float64 product, which carry over to other machines.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import scipy.linalg
import torch
from rich import box
from rich.table import Table
from torch import Tensor
from torchmetrics.image.fid import _compute_fid

from fedgen.data import Moses
from fedgen.embeddings import embed, load_embedding
from fedgen.embeddings.chemnet import FEATURES
from fedgen.experiments.engine.study import Choice, at_least, expectation, make_table, panels
from fedgen.extras import need
from fedgen.losses import FastFIDLoss
from fedgen.losses.fastfid import FrechetTargets
from fedgen.losses.moments import BatchMoments
from fedgen.seeds import generator
from fedgen.statistics import Gaussian, summarize

Score = Callable[[Tensor], Tensor]  # features [m, D] to a scalar


def small_trace(gram: Tensor) -> Tensor:
    """tr sqrt(C1 C2) from root C2 root^T [m, m], a scalar that autograd differentiates: the paper's Algorithm 1."""
    # that matrix has the eigenvalues of C1 C2; centred rows have rank m - 1, so the smallest one is left out
    return torch.linalg.svdvals(gram)[: len(gram) - 1].sqrt().sum()


def large_trace(product: Tensor) -> float:
    """tr sqrt(C1 C2) from C1 C2 [D, D], by `scipy.linalg.sqrtm` in the product's dtype."""
    return float(scipy.linalg.sqrtm(product.numpy()).trace().real)


def fid_by(
    root_trace: Callable[[Tensor, Tensor], Tensor | float], real: Gaussian, dtype: torch.dtype = torch.float64
) -> Score:
    """FID to a reference by tr sqrt(C1 C2) of root [m, D], root^T root = C1, and C2, which is computed once."""
    mean, covariance = real.mean.to(dtype), real.covariance().to(dtype)
    trace = covariance.trace()

    def score(features: Tensor) -> Tensor:
        made, root = _moments(features.to(dtype))
        rest = (made - mean).square().sum() + root.square().sum() + trace
        return rest - 2 * root_trace(root, covariance)

    return score


def small_fid(real: Gaussian, dtype: torch.dtype = torch.float64) -> Score:
    """FID by Algorithm 1; the gradient is autograd's."""
    return fid_by(lambda root, covariance: small_trace(root @ covariance @ root.T), real, dtype)


def torchmetrics_fid(real: Gaussian) -> Score:
    """FID to a reference as in torchmetrics: by the eigenvalues of C1 C2 [D, D], in float64, without gradient."""
    covariance = real.covariance()

    def score(features: Tensor) -> Tensor:
        made, root = _moments(features.double())
        return _compute_fid(made, root.T @ root, real.mean, covariance)

    return score


def scipy_fid(real: Gaussian) -> Score:
    """FID by `scipy.linalg.sqrtm`, without gradient."""
    return fid_by(lambda root, covariance: large_trace(root.T @ root @ covariance), real)


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [D] and root [m, D], divisor m - 1."""
    mean = features.mean(0)
    return mean, (features - mean) / (len(features) - 1) ** 0.5


PUBLISHED = {  # m: answer, scipy's error, Algorithm 1's error
    8: (14283, 175, 0.0000),
    16: (30678, 228, 0.0020),
    32: (62955, 300, 0.0000),
    64: (128947, 408, 0.0078),
    128: (259586, 565, 0.0156),
    256: (523360, 785, 0.0312),
}
DIM = 2048
TRACES = ("scipy", "Algorithm 1", "ours, float32", "ours, float64")
SMALL = 0.1  # what the error of the small matrices stays below at D = 2048


def fastfid_error(draws: int = 3, **options: Any) -> None:
    """Prints the table's six rows, mean absolute errors over draws, beside the published numbers.

    Scipy takes 11 seconds a row and draw on one thread.

    Args:
        draws: of the features; 1 with --quick, at D = 512, while the published numbers are for D = 2048.
    """
    choice = Choice(**options)
    draws = choice.smaller(draws, 1)
    study, dim = choice.study("fastfid-error", draws=draws), 512 if choice.quick else DIM
    at_least(1, draws=draws)
    items = {f"m = {size}, draw {draw}": (size, draw) for size in PUBLISHED for draw in range(draws)}
    found = study.each("errors", items, lambda item: errors_of(draw_rows(*item, dim, choice.seed)), unit="matrices")
    rows = {size: mean_of([found[name] for name, item in items.items() if item[0] == size]) for size in PUBLISHED}
    study.report([error_table(rows, dim, draws), *error_outcomes(rows, dim)])


def draw_rows(size: int, draw: int, dim: int, seed: int) -> Tensor:
    """Centred rows of N(0, 1), float32 [size, dim]."""
    rows = torch.randn(size, dim, generator=generator(seed, "fastfid-error", size, draw))
    return rows - rows.mean(0)


def errors_of(rows: Tensor) -> dict[str, float]:
    """The answer tr(rows^T rows), summed in float64, and each method's absolute error."""
    answer = float(rows.double().square().sum())
    product = rows.T @ rows @ rows.T @ rows  # from the left, as the authors' script does: rounding depends on it
    cross = rows @ rows.T
    theirs = large_trace(product), float(small_trace(cross @ cross.T))
    values = (*theirs, *(our_trace(rows, dtype) for dtype in (torch.float32, torch.float64)))
    return {"answer": answer} | {method: abs(value - answer) for method, value in zip(TRACES, values)}


def our_trace(rows: Tensor, dtype: torch.dtype) -> float:
    """tr sqrt(C C) as `FastFIDLoss` has it, with products in a dtype, times m - 1: without the covariances' divisor."""
    # not from the loss's value, 2 tr C - 2 tr sqrt(C C), which is never below 0: half of the errors would not show
    targets = FrechetTargets([0], [summarize(rows)], ddof=1, dtype=dtype, form="covariance")
    estimate = BatchMoments().estimate(rows, remember=False)
    traces, _ = targets.pull(estimate, 1, torch.ones(1, dtype=torch.float64), needed=False)
    return float(traces[0]) * (len(rows) - 1)


def mean_of(cells: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {key: statistics.mean(cell[key] for cell in cells) for key in cells[0]}


def error_outcomes(rows: Mapping[int, Mapping[str, float]], dim: int) -> list[str]:
    theirs = [row["scipy"] for row in rows.values()]
    grows = all(a < b for a, b in itertools.pairwise(theirs))
    lines = [expectation(f"scipy's error grows with m, from {theirs[0]:.3g} to {theirs[-1]:.3g}", grows)]
    if dim == DIM:
        ratios = [error / PUBLISHED[size][1] for size, error in zip(rows, theirs)]
        text = f"scipy's errors are {min(ratios):.2f} to {max(ratios):.2f} of the published ones"
        lines.append(expectation(text, min(ratios) > 0.8 and max(ratios) < 1.25))
    for method in TRACES[1:]:
        largest = max(row[method] for row in rows.values())
        lines.append(expectation(f"{method}: the largest error is {largest:.2g}, below {SMALL:g}", largest < SMALL))
    off = max(abs(row["answer"] / (dim * (size - 1)) - 1) for size, row in rows.items())
    text = f"the answers are D (m - 1) within {off:.1%}: no row was divided by sqrt(m - 1)"
    return [*lines, expectation(text, off < 0.05)]


def error_table(rows: Mapping[int, Mapping[str, float]], dim: int, draws: int) -> Table:
    lines = []
    for size, row in rows.items():
        own = (f"{row[key]:{form}}" for key, form in zip(("answer", *TRACES), (".0f", ".0f", ".4f", ".4f", ".1e")))
        answer, theirs, small = PUBLISHED[size]
        lines.append([size, *own, answer, theirs, f"{small:.4f}"])
    title = f"float32, D = {dim}, C1 = C2: absolute errors of tr sqrt(C1 C2), mean of {draws} draw(s)"
    headings = ("m", "answer", *TRACES, "published: answer", "scipy", "Algorithm 1")
    note = "the published answers are one draw each, from another generator of random numbers"
    return make_table(title, headings, lines, note, names=())


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


def fastfid_speed(
    dims: tuple[int, ...] = (2048, 512),
    batch_sizes: tuple[int, ...] = (8, 16, 32, 64, 128, 256),
    repeats: int = 100,
    slow_repeats: int = 3,
    threads: int = 1,
    dtype: Literal["float64", "float32"] = "float64",
    spectrum: Literal["flat", "falling", "chemnet"] = "flat",
    **options: Any,
) -> None:
    """Times every method at every D and m, after one warm-up each, and compares their values.

    Nothing else should run on the machine. A quarter of an hour, most of it in scipy's 24 roots at D = 2048.

    Args:
        dims: features D; 512 with --quick.
        batch_sizes: generated images m, each at most D.
        repeats: timed calls of the fast methods; 5 with --quick.
        slow_repeats: of torchmetrics and scipy; 2 with --quick.
        threads: of all methods.
        dtype: of the fast methods' products; torchmetrics and scipy always work in float64.
        spectrum: of the covariance: "flat" is N(0, I), the paper's; "falling" has variances 1 / k; "chemnet" takes
            ChemNet's features of molecules of MOSES in place of draws, with dims=(512,).
    """
    choice = Choice(**options)
    dims, batch_sizes = choice.smaller(dims, (512,)), choice.smaller(batch_sizes, (8, 64))
    repeats, slow_repeats = choice.smaller(repeats, 5), choice.smaller(slow_repeats, 2)
    at_least(2, repeats=repeats, slow_repeats=slow_repeats, batch_sizes=batch_sizes)
    at_least(1, threads=threads)
    if not dims or not batch_sizes or max(batch_sizes) > min(dims):
        raise ValueError(f"batch_sizes={batch_sizes}: give some to the least of dims={dims}; Algorithm 1 wants m <= D")
    if spectrum == "chemnet" and set(dims) != {FEATURES}:
        raise ValueError(f"dims={dims}: ChemNet has {FEATURES} features; with spectrum=chemnet give --dims {FEATURES}")
    own = {"repeats": repeats, "slow_repeats": slow_repeats, "threads": threads, "dtype": dtype, "spectrum": spectrum}
    study = choice.study("fastfid-speed", dims=dims, batch_sizes=batch_sizes, **own)
    cells = cells_of(dims, batch_sizes)
    with limited(threads):
        found = study.each("times", cells, lambda cell: time_cell(*cell, study.settings), unit="timings")
    tables: list[Table | str] = [speed_table(found, dim, batch_sizes) for dim in dims]
    tables += speed_outcomes(found, dims, batch_sizes, dtype)
    study.report(tables, draw(found, dims, batch_sizes, study.figure))


def name_of(dim: int, size: int, method: str, passes: str) -> str:
    return f"D = {dim}, m = {size}, {method}, {passes}"


def cells_of(dims: Sequence[int], batch_sizes: Sequence[int]) -> dict[str, tuple[int, int, str, str]]:
    """(D, m, method, passes) of all timings; the peers have no backward pass."""
    cells = itertools.product(dims, METHODS, batch_sizes, PASSES)
    return {
        name_of(dim, size, method, passes): (dim, size, method, passes)
        for dim, method, size, passes in cells
        if passes == PASSES[0] or method not in PEERS
    }


@contextmanager
def limited(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    with need("threadpoolctl", "clusters", "fastfid-speed").threadpool_limits(threads):
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
    call = partial(value_of, score, batch, backward=passes == PASSES[1])
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
    """Features of N(0, diag(variances)), or of molecules, float32 [count, dim]."""
    if spectrum == "chemnet":
        return molecule_features("test" if side == "real" else "train", count)
    features = torch.randn(count, dim, generator=generator(seed, "fastfid-speed", side, dim, count))
    return features * torch.arange(1, dim + 1).rsqrt() if spectrum == "falling" else features


@cache
def molecule_features(split: Literal["train", "test"], count: int) -> Tensor:
    return embed(load_embedding("chemnet"), Moses(count).read(split).inputs)


def value_of(score: Score, batch: Tensor, backward: bool) -> float:
    with torch.set_grad_enabled(backward):
        value = score(batch.clone().requires_grad_() if backward else batch)
    if backward:
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
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def speed_outcomes(found: Mapping[str, Any], dims: Sequence[int], batch_sizes: Sequence[int], dtype: str) -> list[str]:
    sides = list(itertools.product(dims, batch_sizes))
    values = [[found[name]["value"] for name in cells_of([d], [m])] for d, m in sides]
    worst = max((max(own) - min(own)) / min(map(abs, own)) for own in values)
    over_scipy = [ratio(found, (PEERS[1], PASSES[0]), (OURS, PASSES[1]), *side) for side in sides]
    over_algorithm = [ratio(found, (ALGORITHM, PASSES[1]), (OURS, PASSES[1]), max(dims), size) for size in batch_sizes]
    fast = f"{OURS}, value and gradient, is {min(over_scipy):.3g} to {max(over_scipy):.3g} times as fast as scipy's"
    slower = f"at D = {max(dims)} value and gradient take {OURS} no longer than {ALGORITHM} by autograd:"
    slower += f" {min(over_algorithm):.3g} to {max(over_algorithm):.3g} times as fast"
    return [
        expectation(f"all methods give one value: largest relative difference {worst:.1e}", worst < AGREES[dtype]),
        expectation(f"{fast} value alone (the paper: at least {FASTER} for its own)", min(over_scipy) >= FASTER),
        expectation(slower, min(over_algorithm) >= 1),
    ]


def ratio(found: Mapping[str, Any], slow: tuple[str, str], fast: tuple[str, str], dim: int, size: int) -> float:
    above, below = (found[name_of(dim, size, *side)]["seconds"][0] for side in (slow, fast))
    return above / below


def speed_table(found: Mapping[str, Any], dim: int, batch_sizes: Sequence[int]) -> Table:
    cells = cells_of([dim], batch_sizes)
    product = statistics.median(found[name]["seconds"][0] / found[name]["products"][0] for name in cells)
    columns = list(dict.fromkeys((method, passes) for _, _, method, passes in cells.values()))

    def milliseconds(seconds: list[float]) -> str:
        return "±".join(f"{1e3 * s:.3g}" if s < 1 else f"{1e3 * s:.0f}" for s in seconds)

    return make_table(
        f"D = {dim}: milliseconds, mean ± standard deviation",
        ["m", *(f"{method}\n{passes.replace(' + ', chr(10) + '+ ')}" for method, passes in columns)],
        [[m, *(milliseconds(found[name_of(dim, m, *one)]["seconds"]) for one in columns)] for m in batch_sizes],
        names=(),
        notes=f"a {dim}³ float64 product took {1e3 * product:.3g} ms\n{' and '.join(PEERS)} have no backward pass",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=0,  # fits 80 columns
    )


def draw(found: Mapping[str, Any], dims: Sequence[int], batch_sizes: Sequence[int], path: Path) -> Path:
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
        axes[0].set_ylabel("seconds")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return path
