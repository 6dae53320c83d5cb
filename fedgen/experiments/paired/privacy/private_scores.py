"""FID-all and KID-all from what clients send in place of images: bytes, rounding, sketches' error, and noise's.

Everything runs on Gaussian clients that it draws. Sums and KID-avg are exact. Whole numbers cost 1e-9 of FID-all and
centred sketches 1e-3 of KID-all. Noise for differential privacy lifts the FID: with D features it adds about D^2
variances to the covariance, and eigenvalues below it drown, the sooner the faster the spectrum falls.
"""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.experiments.engine.aggregate_rankings import expectation
from fedgen.experiments.engine.choice import quickly
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.study import Study
from fedgen.experiments.paired.privacy.private_measures import (
    CLIENTS,
    DELTA,
    EPSILONS,
    FORMS,
    RADIUS,
    Toy,
    exactness,
    message_sizes,
    noise_bias,
    noise_multipliers,
    rms,
    sketch_jobs,
)
from fedgen.io.files import in_bytes

DIMS = (16, 64, 256)
SIZES = (64, 1280, 2048)  # features of a small layer, of EfficientNet-Lite0 and of Inception
SKETCHES = (250, 1000, 4000, 16000)
SPECTRA = ("flat", "falling")
COLOURS = ("#1f5fa8", "#c4560b", "#3a8a3a")
FORM_COLOURS = dict(zip(FORMS, ("#1f5fa8", "#c4560b", "#7a4fa0", "#3a8a3a", "#b8860b")))
STYLES = {"trace": "-", "clamp": ":", "none": "--"}
LABELS = {"trace": "projected, same trace", "clamp": "projected, clamped", "none": "not projected"}
FIGURE = "private_scores.png"


@quickly(images=5_000, draws=2)
def private_scores(
    output: Path | None = None, images: int = 50_000, draws: int = 5, seed: int = 0, quick: bool = False
) -> None:
    """Measures messages, their sums' exactness and what rounding, sketches and noise change of FID-all and KID-all.

    Args:
        output: folder of results.json and private_scores.png; checkpoints/private-scores by default.
        images: of all ten clients together; 5,000 with --quick.
        draws: of the noise, at each setting, and of the sketches, four times as many; 2 with --quick.
        seed: of all draws.
        quick: takes seconds, to see that it runs.
    """
    if images < 100 * CLIENTS or draws < 2:
        raise ValueError(f"images={images}, draws={draws}: give at least {100 * CLIENTS} images and 2 draws")
    dims, numbers = (DIMS[:2], SKETCHES[:2]) if quick else (DIMS, SKETCHES)
    study = Study("private-scores", output, {"images": images, "draws": draws, "seed": seed, "quick": quick})
    sizes = study.each("bytes", {str(dim): dim for dim in SIZES}, message_sizes, unit="sizes of features")
    exact = study.step("exact", lambda: exactness(Toy(64, "flat", min(images, 5_000), seed)))
    toys = {f"{spectrum} {dim}": Toy(dim, spectrum, images, seed) for spectrum in SPECTRA for dim in dims}
    noise = study.each("noise", toys, lambda toy: noise_bias(toy, draws), unit="spectra")
    multipliers = study.step("multipliers", noise_multipliers)
    measured = sketch_jobs(numbers, 4 * draws, seed)
    sketches = study.each("sketches", measured, lambda job: job(), unit="sketches")
    tables: list[Table | str] = [
        size_table(sizes),
        noise_table(noise, images, draws),
        sketch_table(sketches, 4 * draws),
    ]
    study.report([*tables, *outcomes(exact, multipliers, noise, sketches)], draw(noise, sketches, study.path(FIGURE)))


def outcomes(
    exact: Mapping[str, Any], multipliers: Mapping[str, Any], noise: Mapping[str, Any], sketches: Mapping[str, Any]
) -> list[str]:
    """Return what was expected of the experiment and whether it was seen."""
    sums, fixed = exact["fid_all"]["float64 sums"], exact["fid_all"]["fixed point, 24 bits"]
    ratios = [rms(row["stated"]) / row["rms"] for row in sketches.values()]
    gain = min(
        sketches[name.replace("centred", "uncentred")]["rms"] / row["rms"]
        for name, row in sketches.items()
        if ", centred" in name
    )
    lifts = {name: [rms(row[str(epsilon)]["trace"]) for epsilon in EPSILONS] for name, row in noise.items()}
    by_dim = [[lifts[name][2] for name in lifts if name.startswith(spectrum)] for spectrum in SPECTRA]
    share = multipliers["analytic"]["1.0"] / multipliers["classic"]["1.0"]
    lines = [
        (
            f"FID-all and KID-avg from sums are those on features, to {max(sums, exact['kid_avg']):.0e}",
            max(sums, exact["kid_avg"]) < 1e-11,
        ),
        (f"masked whole numbers of 24 bits change FID-all by {fixed:.0e} of it", fixed < 1e-8),
        (
            f"sketches state their error: {min(ratios):.2f} to {max(ratios):.2f} of the real one",
            min(ratios) > 0.4 and max(ratios) < 2.5,
        ),
        (f"centring lowers the cubic sketch's error {gain:.0f}-fold or more", gain > 2),
        (
            "the error of FID-all falls with epsilon at every D",
            all(row == sorted(row, reverse=True) for row in lifts.values()),
        ),
        ("and rises with D at epsilon = 1, for both spectra", all(row == sorted(row) for row in by_dim)),
        (f"exact accounting takes {share:.0%} of the textbook's noise at epsilon = 1", share < 1),
    ]
    return [expectation(text, met) for text, met in lines]


def size_table(sizes: Mapping[str, Mapping[str, int]]) -> Table:
    """Messages by features."""
    table = Table(title="size of one client's message")
    table.add_column("message")
    for dim in sizes:
        table.add_column(f"D = {dim}", justify="right")
    for name in next(iter(sizes.values())):
        table.add_row(name, *(in_bytes(row[name]) for row in sizes.values()))
    return table


def noise_table(noise: Mapping[str, Mapping[str, Any]], images: int, draws: int) -> Table:
    """FID-all without noise, and by epsilon what noise adds: its mean and standard deviation over the draws."""
    table = Table(
        title=f"what noise adds to FID-all ({images:,} images of {CLIENTS} clients,\n"
        f"delta = {DELTA:g}, R = {RADIUS:g}, noise shared; mean ± deviation of {draws} draws)"
    )
    for heading in ("spectrum, D", "eps", "same trace", "clamped", "unprojected", "lost"):
        table.add_column(heading, justify="left" if heading == "spectrum, D" else "right")
    for name, row in noise.items():
        names = [name, f"FID {row['fid']:.3f}"]
        for position, epsilon in enumerate(EPSILONS):
            cell = row[str(epsilon)]
            added = [f"{statistics.mean(cell[p]):+.3f}±{statistics.stdev(cell[p]):.3f}" for p in STYLES]
            lost = f"{cell['lost']}/{len(cell['none'])}" if cell["lost"] else ""
            first = names[position] if position < len(names) else ""
            table.add_row(first, f"{epsilon:g}", *added, lost, end_section=epsilon == EPSILONS[-1])
    clipped = max(row["clipped"] for row in noise.values())
    table.caption = (
        "lost: unprojected, the covariance term fell below 0 and reads 0,\nas a perfect generator's would; "
        f"at most {clipped:.1%} of images are clipped"
    )
    return table


def sketch_table(sketches: Mapping[str, Mapping[str, Any]], seeds: int) -> Table:
    """KID-all by form and number of sketches: real and stated error, relative to it."""
    table = Table(title=f"error of KID-all by sketches, relative to it\n(D = 64, 1,000 images, rms of {seeds} seeds)")
    for heading in ("sketch, q", "KID-all", "error", "stated"):
        table.add_column(heading, justify="left" if heading == "sketch, q" else "right")
    for name, row in sketches.items():
        cells = row["rms"] / row["exact"], rms(row["stated"]) / row["exact"]
        table.add_row(name, f"{row['exact']:.4f}", *(f"{cell:.1e}" for cell in cells))
    return table


def draw(noise: Mapping[str, Any], sketches: Mapping[str, Any], path: Path) -> Path:
    """Left and middle: error of FID-all against epsilon by D, a spectrum each; right: error of KID-all against q."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.4), layout="constrained")
    panels = figure.subplots(1, 3)
    for axes, spectrum in zip(panels, SPECTRA):
        draw_noise(axes, {int(name.split()[1]): row for name, row in noise.items() if name.startswith(spectrum)})
        axes.set_title(f"{spectrum} spectrum", fontsize=10)
    panels[0].legend(fontsize=8)
    panels[1].sharey(panels[0])
    panels[0].set_ylabel("error of FID-all by noise (rms)")
    draw_sketches(panels[2], sketches)
    return save_figure(figure, path)


def draw_noise(axes: Any, rows: Mapping[int, Mapping[str, Any]]) -> None:
    """The root mean square change of FID-all by noise against epsilon, by D and projection."""
    for (dim, row), colour in zip(rows.items(), COLOURS):
        for project, style in STYLES.items():
            errors = [rms(row[str(epsilon)][project]) for epsilon in EPSILONS]
            label = f"D = {dim}" if project == "trace" else None
            axes.plot(EPSILONS, errors, style, marker="o", markersize=3, color=colour, linewidth=1.2, label=label)
    for project, style in STYLES.items():
        axes.plot([], [], style, color="0.4", linewidth=1.2, label=LABELS[project])
    logarithmic(axes, "epsilon")


def draw_sketches(axes: Any, sketches: Mapping[str, Any]) -> None:
    """The relative error of KID-all against the number of sketches, by form: real and as stated."""
    for form, colour in FORM_COLOURS.items():
        rows = {int(name.rsplit(" ", 1)[1]): row for name, row in sketches.items() if name.rsplit(" ", 1)[0] == form}
        real = [row["rms"] / row["exact"] for row in rows.values()]
        stated = [rms(row["stated"]) / row["exact"] for row in rows.values()]
        axes.plot(list(rows), real, "o-", color=colour, markersize=4, linewidth=1.2, label=form)
        axes.plot(list(rows), stated, "--", color=colour, linewidth=1)
    axes.plot([], [], "--", color="0.4", linewidth=1, label="as stated")
    logarithmic(axes, "sketches q")
    axes.set_ylim(None, 20)  # room for the legend
    axes.legend(fontsize=8, ncols=2, loc="upper center")
    axes.set_ylabel("relative error of KID-all (rms)")
    axes.set_title("KID-all by sketches", fontsize=10)


def logarithmic(axes: Any, xlabel: str) -> None:
    """Logarithmic axes with a grid."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(xlabel)
    axes.grid(alpha=0.25)
