"""The optimum that FID and KID pull a generator to when they are its loss, by the way in which clients are aggregated.

Trained on FID-all a generator has the pool's variance, on FID-avg less: that of a barycentre of the clients. KID's two
aggregates differ by a number of the real data alone and so have one gradient. First on the papers' Gaussian toy, where
the optima are known and KID-avg is the mean of what each client computes for itself; then on digits, as the second loss
of a federated GAN, where KID-all stands for both: one code gives their gradient. No client's data reach a FID loss:
moments do, their total for "all" and each client's for "avg". KID's loss needs the clients' points: it is simulated.
"""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from fedgen.evaluation.marks import SAME, mark_in, mark_of, say_marks
from fedgen.experiments.engine.arm_panels import REAL, ArmPanel, draw_panels, pairs_panel
from fedgen.experiments.engine.paired_seeds import change_of, mean_and_spread, verdict_on
from fedgen.experiments.engine.scored_checkpoints import client_images, generated_images
from fedgen.experiments.engine.study import Study, expectation, make_table
from fedgen.experiments.engine.trainings import Training, by_seed, train_all
from fedgen.experiments.paired.digits_fid_loss import compare, last_scores
from fedgen.experiments.paired.distributed_digits import (
    ARMS,
    CONTROL,
    OBJECTIVES,
    OPTIMA,
    OPTIMISED,
    UNRELATED,
    DistributedChoice,
    ToySettings,
    floors,
    messages_against_images,
    real_traces,
    traces,
    train_toy,
    trainings,
)
from fedgen.images import save_png, tile

COLOURS = {CONTROL: "0.45", "fid_all": "#1f5fa8", "fid_avg": "#c4560b", "kid_all": "#3a8a3a", "kid_avg": "#7a4fa0"}
MARKERS = {CONTROL: "s", "fid_all": "o", "fid_avg": "o", "kid_all": "^"}
LINES = {"fid_all": "-", "fid_avg": "-", "kid_all": "-", "kid_avg": (0, (4, 3))}  # KID's two lines are one
FLOOR = "held-out real images"
SIDE = 6  # pictures of a grid's side


def name_of(arm: str) -> str:
    return "no loss" if arm == CONTROL else arm.upper().replace("_ALL", "-all").replace("_AVG", "-avg")


STYLES = {
    **{name_of(arm): {"color": COLOURS[arm], "marker": MARKERS[arm], "linestyle": "none"} for arm in ARMS},
    FLOOR: {"color": "black", "marker": "*", "linestyle": "none"},
    "real pool": REAL,
    "a client's own": {**REAL, "linestyle": "--"},
}


def save_samples(images: Mapping[str, Tensor | Sequence[Tensor]], paths: Mapping[str, Path]) -> None:
    """Writes a grid of some images of each side; of several clients' images, of each client as many."""
    for name, path in paths.items():
        side = images[name]
        if not isinstance(side, Tensor):
            each = -(-SIDE * SIDE // len(side))
            side = torch.stack([part[:each] for part in side], dim=1).flatten(0, 1)
        save_png(path, tile(side[: SIDE * SIDE], SIDE, min_side=32))


def draw_toy(toy: Mapping[str, Mapping[str, Any]], path: Path) -> Path:
    """The generator's variance along x against steps of training: each seed, and their mean; lines at the optima."""
    steps = next(iter(toy.values()))["steps"]
    arms = {
        name_of(name): dict(zip(steps, zip(*(run["variance"][name] for run in toy.values())))) for name in OBJECTIVES
    }
    optima = {
        f"optimum of {', '.join(name_of(name) for name in OBJECTIVES if OPTIMA[name] == optimum)}": [optimum]
        for optimum in sorted(set(OPTIMA.values()))
    }
    panel = ArmPanel(arms, optima, label="variance of the generator along x", bottom=0)
    styles = {name_of(name): {"color": COLOURS[name], "linestyle": LINES[name]} for name in OBJECTIVES}
    title = "Two clients N((±1, 0), I), one Gaussian generator"
    return draw_panels([[panel]], styles | dict.fromkeys(optima, REAL), path, title, "steps of training", (6.4, 4))


def draw_digits(digits: Mapping[str, Any], samples: Mapping[str, Path], path: Path) -> Path:
    """Above: FID-avg against FID-all where it was trained on and where not, the covariance's trace; below: images."""
    real = digits["real traces"][OPTIMISED]
    shares = {name_of(arm): [value / real["pool"] for value in digits["traces"][OPTIMISED][arm]] for arm in ARMS}
    traces = pairs_panel(
        shares,
        levels={"real pool": [1.0], "a client's own": [real["within"] / real["pool"]]},
        title=f"{OPTIMISED}, generated images",
        label="trace of the covariance / real pool's",
        bottom=0,
    )
    panels = [*(_against(digits, prefix, title) for prefix, title in _columns(digits).items()), traces]
    named = {arm: "real digits" if arm == "real" else name_of(arm) for arm in samples}
    pictures = [(file, named[arm], COLOURS.get(arm, "black")) for arm, file in samples.items()]
    return draw_panels([panels], STYLES, path, "", "FID-avg, or the loss", (3.6, 3.4), pictures)


def trained_prefix(digits: Mapping[str, Any]) -> str:
    """Return what stands before "fid_all" in the column of the images and the embedding that losses were trained on."""
    trained = (name for name, mark in digits["marks"].items() if mark == SAME and name.endswith("fid_all"))
    return next(trained).removesuffix("fid_all")


def _columns(digits: Mapping[str, Any]) -> dict[str, str]:
    """Prefix of the columns that are shown -> title: the embedding trained on, then another on held-out images."""
    found = {trained_prefix(digits): f"{OPTIMISED}, training images\n(trained on)"}
    if UNRELATED in digits["traces"]:
        found["report/"] = f"{UNRELATED},\nheld-out images"
    return found


def _against(digits: Mapping[str, Any], prefix: str, title: str) -> ArmPanel:
    avg, pooled = (digits["scores"][f"{prefix}fid_{how}"] for how in ("avg", "all"))
    arms = {name_of(arm): {x: [y] for x, y in zip(avg[arm], pooled[arm])} for arm in ARMS}
    floor = digits["floor"]
    if f"{prefix}fid_all" in floor:
        arms[FLOOR] = {floor[f"{prefix}fid_avg"]: [floor[f"{prefix}fid_all"]]}
    return ArmPanel(arms, title=title, label="FID-all")


TOLERANCE = 0.1  # of the toy's variances, whose clients are drawn
ROUNDING = 1e-6  # relative difference of values, or gradients, that rounding may make


def toy_table(toy: Mapping[str, Mapping[str, Any]]) -> Table:
    headings = (
        "objective",
        "optimum of the variance along x",
        "reached",
        "variance along y (1)",
        "mean x (0)",
        "y (0)",
    )
    rows = []
    for name in OBJECTIVES:
        mean_x, mean_y, along_x, along_y = map(mean_and_spread, zip(*(run["end"][name] for run in toy.values())))
        rows.append((name_of(name), f"{OPTIMA[name]:g}", along_x, along_y, mean_x, mean_y))
    sent = next(iter(toy.values()))["bytes"]
    note = f"what a client sends for FID, once: {sent} bytes; for KID its points stand beside the generator"
    title = f"Gaussian toy, mean ± standard deviation of {len(toy)} seed(s)"
    return make_table(title, headings, rows, note)


def toy_outcomes(toy: Mapping[str, Mapping[str, Any]]) -> list[str]:
    reached = {name: statistics.mean(run["end"][name][2] for run in toy.values()) for name in OBJECTIVES}
    lines = [
        expectation(
            f"{name_of(name)} leads to the variance {reached[name]:.3f}, its optimum is {OPTIMA[name]:g}",
            abs(reached[name] - OPTIMA[name]) < TOLERANCE,
        )
        for name in OBJECTIVES
    ]
    worst = max(run["kid gradients"] for run in toy.values())
    text = f"the mean of the gradients of the clients' own KIDs is that of KID-all, within {worst:.1e}"
    return [*lines, expectation(text, worst < ROUNDING)]


def digits_table(digits: Mapping[str, Any]) -> Table:
    """Scores and traces by what was trained on, mean and standard deviation over seeds."""
    seeds = len(next(iter(digits["scores"].values()))[CONTROL])
    rows: list[Sequence[str]] = []
    for column, row in digits["scores"].items():
        floor = f"{digits['floor'][column]:.3g}" if column in digits["floor"] else "-"
        name = f"{column} {digits['marks'][column]}".rstrip()
        rows.append((name, *(mean_and_spread(row[arm]) for arm in ARMS), floor))
    rows.append(())
    for embedding, row in digits["traces"].items():
        real = digits["real traces"][embedding]["pool"]
        cells = [mean_and_spread([value / real for value in row[arm]]) for arm in ARMS]
        within = digits["real traces"][embedding]["within"] / real
        name = f"trace, {embedding} {mark_in(embedding, [OPTIMISED], held_out=False)}".rstrip()
        rows.append((name, *cells, f"1 (a client: {within:.2f})"))
    note = "floor: held-out real images; trace: of the generated covariance, over that of the real pool"
    title = f"digits, last checkpoint, mean ± standard deviation of {seeds} seed(s); report: held-out images"
    headings = ("score", *map(name_of, ARMS), "floor")
    return make_table(title, headings, rows, [note, *say_marks(digits["marks"].values())])


def difference_table(digits: Mapping[str, Any]) -> Table:
    """Return what each loss changes on held-out images in embeddings that it was not trained on: paired differences."""
    against = digits["against no loss"]
    columns = [name for name, row in next(iter(against.values())).items() if name.startswith("report/")]
    shown = [name for name in columns if name in digits["scores"] and not digits["marks"][name]]
    rows = [(name_of(arm), *(change_of(found[name]) for name in shown)) for arm, found in against.items()]
    title = "held-out images, embeddings not trained on: change against no loss, 95 % interval over seeds"
    return make_table(title, ("trained on", *(name.removeprefix("report/") for name in shown)), rows)


def digits_outcomes(digits: Mapping[str, Any]) -> list[str]:
    lines = []
    prefix = trained_prefix(digits)
    for how in ("all", "avg"):
        between, within = apart(digits["scores"][f"{prefix}fid_{how}"])
        if within is not None:  # one seed says nothing of others
            text = (
                f"FID-all and FID-avg train other models: of one seed they are {between:.3g} apart in FID-{how}"
                f" on average, two seeds of one of them {within:.3g}"
            )
            lines.append(expectation(text, between > within))
    for how, other in (("all", "avg"), ("avg", "all")):
        row = digits["scores"][f"{prefix}fid_{how}"]
        text = f"FID-{how} in {OPTIMISED} is lower for the model trained on it than for FID-{other}'s"
        lines.append(verdict_on(text, (row[f"fid_{other}"], row[f"fid_{how}"]), "less"))
    column = f"{prefix}fid_avg"
    own, floor = digits["scores"][column]["fid_avg"], digits["floor"][column]
    reached = statistics.mean(own)
    text = f"trained on FID-avg, images have a lower one, {reached:.3g}, than held-out real ones, {floor:.3g}"
    lines.append(verdict_on(text, ([floor] * len(own), own), "less"))
    real, row = digits["real traces"][OPTIMISED], digits["traces"][OPTIMISED]
    pooled, single = ([value / real["pool"] for value in row[arm]] for arm in ("fid_all", "fid_avg"))
    text = (
        f"FID-avg leaves a lower trace of the generated covariance, {statistics.mean(single):.2f} of the pool's, than"
        f" FID-all, {statistics.mean(pooled):.2f} (within a client: {real['within'] / real['pool']:.2f})"
    )
    lines.append(verdict_on(text, (pooled, single), "less"))
    sent = digits["messages"]
    worst = max(max(sent[part].values()) for part in ("value", "gradient"))
    sizes = ", ".join(f"{size:,} at D = {dim}" for dim, size in sent["bytes"].items())
    text = f"FID's loss from the clients' messages ({sizes} bytes) is that from their images within {worst:.1e}"
    return [*lines, expectation(text, worst < ROUNDING)]


def apart(row: Mapping[str, Sequence[float]]) -> tuple[float, float | None]:
    """Mean distances of a score: of the models of FID-all and FID-avg of one seed, and of two seeds of one of them.

    The second, None for a single seed, is what a difference of the first kind must exceed to say anything.
    """
    arms = row["fid_all"], row["fid_avg"]
    within = [abs(a - b) for values in arms for a, b in itertools.combinations(values, 2)]
    return statistics.mean(abs(a - b) for a, b in zip(*arms)), statistics.mean(within) if within else None


TOY = ToySettings()
QUICK_TOY = ToySettings(points=2000, kernel_points=500, batch=256, queue=1024, steps=200)
FIGURES = ("distributed_fid_toy.png", "distributed_fid_digits.png")
KID_AVG = (
    "KID-avg is not trained on digits: the loss has one gradient for it and KID-all, by the same code; that this is the"
    " mean of the clients' own is checked on the toy"
)


def distributed_fid_loss(output: Path | None = None, **options: Any) -> None:
    """Trains the toy by four objectives and the digits' GAN by three of them and by none, and compares where they end.

    Finished runs are kept and not run again; stopped ones go on. 12 runs of two minutes, and three minutes for the toy.

    Args:
        output: folder of the runs, results.json and two figures; checkpoints/distributed-fid-loss by default.
    """
    choice = DistributedChoice(**options)
    study, toy_settings = Study("distributed-fid-loss", output, choice.settings()), QUICK_TOY if choice.quick else TOY
    toy = study.each("toy", {f"seed {one}": one for one in choice.seeds_of}, lambda one: train_toy(toy_settings, one))
    runs = trainings(choice, study.folder)
    if study.missing("digits"):
        train_all(by_seed(runs), choice.parallel)
    digits = study.step("digits", lambda: measure(runs, choice))
    samples = {arm: study.path(f"samples-{arm}.png") for arm in (*ARMS, "real")}
    if not all(path.exists() for path in samples.values()):
        images = {arm: generated_images(own[0].folder, seed=choice.seed) for arm, own in runs.items()}
        save_samples(images | {"real": client_images(runs[CONTROL][0].folder)}, samples)
    tables: list[Table | str] = [toy_table(toy), *toy_outcomes(toy), digits_table(digits)]
    tables += [difference_table(digits)] if choice.seeds > 1 else []
    tables += [*digits_outcomes(digits), KID_AVG, f"figure: {draw_toy(toy, study.path(FIGURES[0]))}"]
    study.report(tables, draw_digits(digits, samples, study.path(FIGURES[1])))


def measure(runs: Mapping[str, Sequence[Training]], choice: DistributedChoice) -> dict[str, Any]:
    """Measure what the digits' runs left, as numbers for `results.json`.

    Keys: "scores" (column -> arm -> values by seed), "marks" (column -> mark), "floor" (column -> value), "against no
    loss" (arm -> `digits_fid_loss.compare`, from two seeds on), "traces" (embedding -> arm -> values by seed), "real
    traces" (embedding -> pool, within), "messages" (see `messages_against_images`).
    """
    scored = {arm: [last_scores(run.folder, choice.rounds) for run in own] for arm, own in runs.items()}
    columns = [name for name in scored[CONTROL][0] if name.endswith(("_all", "_avg"))]
    found: dict[str, Any] = {
        "scores": {name: {arm: [run[name].value for run in own] for arm, own in scored.items()} for name in columns},
        "marks": {name: mark_of(scored["fid_all"][0][name]) for name in columns},
        "floor": floors(runs[CONTROL][0].folder),
        "real traces": real_traces(runs[CONTROL][0].folder, choice.embeddings),
        "messages": messages_against_images(runs[CONTROL][0].folder),
    }
    if len(scored[CONTROL]) > 1:
        found["against no loss"] = {arm: compare(scored[CONTROL], own) for arm, own in scored.items() if arm != CONTROL}
    measured = {
        arm: [traces(generated_images(run.folder, seed=choice.seed), choice.embeddings) for run in own]
        for arm, own in runs.items()
    }
    found["traces"] = {
        name: {arm: [run[name] for run in own] for arm, own in measured.items()} for name in choice.embeddings
    }
    return found
