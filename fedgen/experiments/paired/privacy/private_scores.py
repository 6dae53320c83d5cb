"""FID-all and KID-all from what clients send in place of images: bytes, rounding, sketches' error, and noise's.

Everything runs on Gaussian clients that it draws. Sums and KID-avg are exact. Whole numbers cost 1e-9 of FID-all and
centred sketches 1e-3 of KID-all. Noise for differential privacy lifts the FID: with D features it adds about D^2
variances to the covariance, and eigenvalues below it drown, the sooner the faster the spectrum falls.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from fedgen.experiments.engine.aggregate_rankings import expectation
from fedgen.experiments.engine.arms.arm_panels import ArmPanel, draw_panels
from fedgen.experiments.engine.choice import Choice
from fedgen.experiments.engine.results import make_table
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
LINES = {"trace": "-", "clamp": ":", "none": "--"}
REAL_ERROR = "real"
SKETCH_LINES = {REAL_ERROR: "-", "as stated": "--"}
LABELS = {"trace": "projected, same trace", "clamp": "projected, clamped", "none": "not projected"}
FIGURE = "private_scores.png"


@dataclass(frozen=True)
class PrivateScoresChoice(Choice):
    """Options of private-scores; its fields are options of the command.

    Args:
        images: of all ten clients together.
        draws: of the noise, at each setting, and of the sketches, four times as many.
        quick: seconds, to see that it runs.

    Raises:
        ValueError: for too few of them.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"images": 5_000, "draws": 2}

    images: int = 50_000
    draws: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.images < 100 * CLIENTS or self.draws < 2:
            raise ValueError(
                f"images={self.images}, draws={self.draws}: give at least {100 * CLIENTS} images and 2 draws"
            )


def private_scores(output: Path | None = None, **options: Any) -> None:
    """Measures messages, their sums' exactness and what rounding, sketches and noise change of FID-all and KID-all.

    Args:
        output: folder of results.json and private_scores.png; checkpoints/private-scores by default.
        options: the fields of `PrivateScoresChoice`.
    """
    choice = PrivateScoresChoice(**options)
    images, draws, seed = choice.images, choice.draws, choice.seed
    dims, numbers = (DIMS[:2], SKETCHES[:2]) if choice.quick else (DIMS, SKETCHES)
    study = Study("private-scores", output, choice.settings())
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
    rows = [(name, *(in_bytes(row[name]) for row in sizes.values())) for name in next(iter(sizes.values()))]
    return make_table("size of one client's message", ("message", *(f"D = {dim}" for dim in sizes)), rows)


def noise_table(noise: Mapping[str, Mapping[str, Any]], images: int, draws: int) -> Table:
    """FID-all without noise, and by epsilon what noise adds: its mean and standard deviation over the draws."""
    rows: list[Sequence[str]] = []
    for name, row in noise.items():
        names = [name, f"FID {row['fid']:.3f}", *[""] * len(EPSILONS)]
        for first, epsilon in zip(names, EPSILONS):
            cell = row[str(epsilon)]
            added = [f"{statistics.mean(cell[p]):+.3f}±{statistics.stdev(cell[p]):.3f}" for p in LABELS]
            lost = f"{cell['lost']}/{len(cell['none'])}" if cell["lost"] else ""
            rows.append((first, f"{epsilon:g}", *added, lost))
        rows.append(())
    clipped = max(row["clipped"] for row in noise.values())
    title = (
        f"what noise adds to FID-all ({images:,} images of {CLIENTS} clients,\n"
        f"delta = {DELTA:g}, R = {RADIUS:g}, noise shared; mean ± deviation of {draws} draws)"
    )
    note = (
        "lost: unprojected, the covariance term fell below 0 and reads 0,\nas a perfect generator's would; "
        f"at most {clipped:.1%} of images are clipped"
    )
    return make_table(title, ("spectrum, D", "eps", "same trace", "clamped", "unprojected", "lost"), rows, note)


def sketch_table(sketches: Mapping[str, Mapping[str, Any]], seeds: int) -> Table:
    """KID-all by form and number of sketches: real and stated error, relative to it."""
    rows = [
        (name, f"{row['exact']:.4f}", *(f"{error / row['exact']:.1e}" for error in (row["rms"], rms(row["stated"]))))
        for name, row in sketches.items()
    ]
    title = f"error of KID-all by sketches, relative to it\n(D = 64, 1,000 images, rms of {seeds} seeds)"
    return make_table(title, ("sketch, q", "KID-all", "error", "stated"), rows)


def draw(noise: Mapping[str, Any], sketches: Mapping[str, Any], path: Path) -> Path:
    """Left and middle: error of FID-all against epsilon by D, a spectrum each; right: error of KID-all against q."""
    styles = {
        f"{form}, {kind}": {"color": FORM_COLOURS[form], "linestyle": line, "marker": "."}
        for kind, line in SKETCH_LINES.items()
        for form in FORMS
    }
    dims = list(dict.fromkeys(int(name.split()[1]) for name in noise))
    for (dim, colour), (project, label) in product(zip(dims, COLOURS), LABELS.items()):
        styles[f"D = {dim}, {label}"] = {"color": colour, "linestyle": LINES[project], "marker": "."}

    def of_noise(spectrum: str) -> ArmPanel:
        arms = {
            f"D = {dim}, {label}": {e: [rms(noise[f"{spectrum} {dim}"][str(e)][project])] for e in EPSILONS}
            for dim, (project, label) in product(dims, LABELS.items())
        }
        return ArmPanel(
            arms, title=f"{spectrum} spectrum, against epsilon", label="error of FID-all by noise (rms)", log="xy"
        )

    errors = {
        form: {int(name.rsplit(" ", 1)[1]): row for name, row in sketches.items() if name.rsplit(" ", 1)[0] == form}
        for form in FORMS
    }
    curves = {
        f"{form}, {kind}": {
            q: [(row["rms"] if kind == REAL_ERROR else rms(row["stated"])) / row["exact"]] for q, row in rows.items()
        }
        for (form, rows), kind in product(errors.items(), SKETCH_LINES)
    }
    last = ArmPanel(
        curves, title="KID-all by sketches, against their number q", label="relative error of KID-all (rms)", log="xy"
    )
    return draw_panels([[*map(of_noise, SPECTRA), last]], styles, path, "Scores from messages", size=(4.6, 4.4))
