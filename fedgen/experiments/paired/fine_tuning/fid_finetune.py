"""A trained generator fine-tuned on FID alone, its critic gone: what becomes of its images, and of scores of them.

Section 3 of "Backpropagating through Fréchet Inception Distance" (arXiv 2009.14075) fine-tunes BigGAN so (Fig. 2): a
thousand images a step, half the learning rate, fixed latents, the first layers only. Here a federated WGAN-GP: all
layers on FID in pixels, the first layer alone, and all layers on two embeddings in balance. Each is scored where it was
trained on and in an embedding that nothing was trained on, against images that no client trained on.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import Tensor

from fedgen.embeddings import Embedding, load_embedding
from fedgen.evaluation.marks import say_marks
from fedgen.experiments.engine.arms.arm_curves import REAL, Rows, draw_arm, finish_panels
from fedgen.experiments.engine.choice import quickly
from fedgen.experiments.engine.image_scores import (
    HELD_OUT,
    SCORES,
    TITLES,
    compare_scores,
    mark_of,
    real_side,
    scores_table,
)
from fedgen.experiments.engine.paired_seeds import CELL, by_chance, cell, compare_pairs, mean_of, verdict
from fedgen.experiments.engine.recipe_file import fingerprints
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trained_choice import TrainedChoice
from fedgen.experiments.engine.trained_runs import Plan, TrainedRun, protocol_of, runs_folder, train_runs
from fedgen.experiments.engine.trainings import train_all
from fedgen.experiments.engine.unrelated import require_unrelated
from fedgen.experiments.paired.fine_tuning.finetune_arms import (
    ALL,
    ARMS,
    BOTH,
    FIRST,
    NETWORK,
    PIXELS,
    Precision,
    TuningRuns,
    images_of,
    tracked,
    tuning_of,
)
from fedgen.reports.figures.picture_panels import show_rows

START = "start"
ROWS, COLUMNS = 5, 12  # of an arm's grid of tracked images
CURVES, GRID = "fid_finetune.png", "tracked_images.png"
STYLES = {
    ALL: {"color": "#1f5fa8", "marker": "o"},
    FIRST: {"color": "#3a8a3a", "marker": "s"},
    BOTH: {"color": "#c4560b", "marker": "^"},
}
PANELS = {"fid, held out": "FID to held-out images", "coverage": "coverage of held-out images"}


@quickly(seeds=1, parallel=lambda _: 2)
def fid_finetune(
    output: Path | None = None,
    data: str = "digits",
    embedding: str | None = None,
    weights: Path | None = None,
    seeds: int = 3,
    steps: int | None = None,
    steps_both: int | None = None,
    precision: Precision | None = None,
    runs: Path | None = None,
    recipes: Path = Path("recipes"),
    parallel: int = 1,
    seed: int = 0,
    quick: bool = False,
) -> None:
    """Fine-tunes trained generators on FID alone in three ways and scores them before, on the way and after.

    Finished runs are kept and not run again; stopped ones go on. With digits a quarter of an hour on one core, beside
    the generators themselves: two minutes each, shared with other experiments.

    Args:
        output: folder of results.json and two figures; checkpoints/fid-finetune-... by default.
        data: digits or mnist5k.
        embedding: to score in besides pixels and efficientnet-lite0-32; nothing is trained on it, nor was it
            trained on the clients' images: classifier-mnist5k for digits; for mnist5k inception-v3-compat, whose
            weights are downloaded.
        weights: a local file of its weights.
        seeds: generators, each with fine-tunings of its own; 1 with --quick.
        steps: of fine-tuning in pixels; 400 for digits, 80 for mnist5k, a tenth with --quick.
        steps_both: with two embeddings, where a step costs a hundred times as much; 48 for digits, 40 for mnist5k.
        precision: of the fine-tuning: bf16-mixed, or 16-mixed on a GPU; full by default.
        runs: folder of the run folders; checkpoints/runs, or below the output if that is given.
        recipes: folder of the recipes.
        parallel: runs at once; 2 with --quick.
        seed: of the first generator, the clients' held-out images and the images scored.
        quick: takes about a minute, to see that it runs: generators of a twentieth of the rounds, small batches.
    """
    own = tuning_of(data)
    judge = embedding or own.judge
    require_unrelated(judge, (PIXELS, NETWORK), data)
    kept = (
        TrainedChoice.QUICK["checkpoints"] if quick else protocol_of(data).checkpoints
    )  # as perfect-generator trains them
    plan = Plan(tuple(range(seed, seed + seeds)), kept, seed, runs_folder(runs, output), recipes, parallel, quick)
    arms = TuningRuns(data, plan, steps, steps_both, precision)
    bases = arms.bases()
    settings = {
        "data": data,
        "unrelated": judge,
        "weights": None if weights is None else str(weights),
        "seeds": seeds,
        "steps": {arm: arms.length(arm) for arm in ARMS},
        "precision": precision,
        "recipes": fingerprints(arms.recipes()),
        "seed": seed,
        "quick": quick,
    }
    study = Study("fid-finetune", output, settings)
    if study.missing("floor") or len(study.numbers.get("scores", {})) < len(states_of(arms, bases)):
        embeddings = [load_embedding(PIXELS), load_embedding(NETWORK), load_embedding(judge, weights=weights)]
        measure(study, arms, bases, embeddings)
    rows = rows_of(study.numbers["scores"], arms, bases)
    if not study.path(GRID).exists():
        pictures = {arm: tracked(arms.states(arm, bases[0]), ROWS, COLUMNS, seed) for arm in ARMS}
        draw_grid(pictures, study.path(GRID))
    tables: list[Table | str] = [table_of(rows, study.numbers["floor"], name) for name in study.numbers["floor"]]
    tables += [*outcomes(rows, study.numbers["floor"], judge), f"tracked images: {study.path(GRID)}"]
    study.report(tables, draw_curves(rows, study.numbers["floor"], study.path(CURVES)))


def measure(study: Study, arms: TuningRuns, bases: Sequence[TrainedRun], embeddings: Sequence[Embedding]) -> None:
    """Trains what is missing, and scores every state and real images in some embeddings."""
    train_runs(bases, arms.plan)
    tunings = [arms.training(arm, base) for base in bases for arm in ARMS]
    train_all(tunings, arms.plan.parallel)
    folders = [base.folder for base in bases] + [one.folder for one in tunings]
    scores, held_out = real_side(folders, embeddings)
    count, seed = len(held_out), arms.plan.split_seed
    study.step("images", lambda: count)
    study.step("floor", lambda: scores.floor)
    study.each("scores", states_of(arms, bases), lambda path: scores.score(images_of(path, count, seed)), "generators")


def states_of(arms: TuningRuns, bases: Sequence[TrainedRun]) -> dict[str, Path]:
    """Every checkpoint that is scored, by name; the arms of a seed share their start."""
    found = {}
    for base in bases:
        for arm in ARMS:
            for steps, path in arms.states(arm, base).items():
                found[_key(arm, base.seed, steps)] = path
    return found


def _key(arm: str, seed: int, steps: int) -> str:
    return f"{arm if steps else START}, seed {seed}, step {steps}"


def rows_of(scores: Mapping[str, Any], arms: TuningRuns, bases: Sequence[TrainedRun]) -> Rows:
    """The scores by arm, steps and seed."""
    return {
        arm: {steps: [scores[_key(arm, base.seed, steps)] for base in bases] for steps in arms.states(arm, bases[0])}
        for arm in ARMS
    }


def compare(rows: Rows, arm: str, start: int = 0) -> dict[str, dict[str, dict[str, Any]]]:
    """Embedding -> score -> an arm's last step beside another one of the same seeds, as `compare_pairs` gives it."""
    return compare_scores(rows[arm][start], rows[arm][max(rows[arm])])


def table_of(rows: Rows, floor: Mapping[str, Mapping[str, float]], embedding: str) -> Table:
    """Scores in one embedding before and after fine-tuning: means over seeds, and differences from the start."""
    start = rows[next(iter(ARMS))][0]
    count = len(start)
    marks = {mark_of(score, embedding, own) for own in ARMS.values() for score in SCORES}
    lines = ([f"{CELL}, beside the start"] if count > 1 else []) + say_marks(marks)
    table = scores_table(f"{embedding}, mean of {count} seed(s)", lines, ["generator"], TITLES.values(), max_width=16)
    table.add_row("real images", *(f"{floor[embedding][score]:.3g}" for score in SCORES))
    table.add_row(START, *(cell(row) for row in compare_scores(None, start)[embedding].values()))
    for arm in ARMS:
        found = compare(rows, arm)[embedding]
        cells = (cell(found[score], mark_of(score, embedding, ARMS[arm])) for score in SCORES)
        table.add_row(f"{arm}, {max(rows[arm])} steps", *cells)
    return table


def outcomes(rows: Rows, floor: Mapping[str, Mapping[str, float]], unrelated: str) -> list[str]:
    """Return what was expected of each arm, and whether it is so beyond the interval of paired seeds."""
    lines, seeds = [], len(rows[next(iter(ARMS))][0])
    for arm, (own, *_) in ARMS.items():
        steps = list(rows[arm])
        middle = steps[len(steps) // 2]
        change, later, real = compare(rows, arm), compare(rows, arm, middle), floor[own]["fid"]
        end, trace = change[own]["fid"], change[unrelated]["trace"]
        below = compare_pairs([real] * seeds, end["values"])
        rise = f"{arm}: from step {middle} on FID to held-out images in {unrelated} rises"
        spread = f"{arm}: images spread less than at the start, trace in {unrelated} {mean_of(trace):.3g} of the data's"
        lines += [
            verdict(f"{arm}: FID to training images in {own}, trained on, falls", end, "less"),
            verdict(f"{arm}: to {mean_of(end):.3g}, below the {real:.3g} of held-out real images", below, "less"),
            verdict(f"{arm}: it falls from step {middle} on too", later[own]["fid"], "less"),
            verdict(rise, later[unrelated][HELD_OUT], "more"),
            verdict(spread, trace, "less"),
        ]
    return lines + ([by_chance(len(lines))] if seeds > 1 else [])


def draw_curves(rows: Rows, floor: Mapping[str, Mapping[str, float]], path: Path) -> Path:
    """For each embedding FID and coverage against the part of the steps taken: each seed, and their mean.

    Args:
        rows: by arm and steps.
        floor: embedding -> score -> what real images score.
        path: of the PNG.
    """
    from matplotlib.figure import Figure

    embeddings = list(floor)
    figure = Figure(figsize=(3.4 * len(embeddings), 5.6), layout="constrained")
    panels = figure.subplots(len(PANELS), len(embeddings), sharex=True)
    for line, score in zip(panels, PANELS):
        for axes, embedding in zip(line, embeddings):
            for arm in ARMS:
                line_of = "-" if embedding in ARMS[arm] else "--"
                draw_arm(axes, rows[arm], (embedding, score), max(rows[arm]), linestyle=line_of, **STYLES[arm])
            axes.axhline(floor[embedding][score], **REAL, linewidth=1.2)
            axes.set_ylim(bottom=0)
    for axes, embedding in zip(panels[0], embeddings):
        used = [arm for arm in ARMS if embedding in ARMS[arm]]
        note = "nothing trained on it" if not used else "all trained on it" if len(used) == len(ARMS) else ""
        axes.set_title(f"{embedding}\n{note or 'trained on: ' + ', '.join(used)}", fontsize=10)
    for line, title in zip(panels, PANELS.values()):
        line[0].set_ylabel(title, fontsize=10)
    named = {f"{arm} ({max(rows[arm])} steps)": STYLES[arm] for arm in ARMS}
    finish_panels(figure, panels, "part of the steps", named, "real images")
    figure.suptitle("Generators fine-tuned on FID alone", fontsize=12)
    return save_figure(figure, path)


def draw_grid(pictures: Mapping[str, Mapping[int, Tensor]], path: Path) -> Path:
    """Images of the same latents along the steps: a block for each arm, a row for each step, a column for each latent.

    Args:
        pictures: arm -> steps -> uint8 images [columns, C, H, W], of as many steps in each arm.
        path: of the PNG.
    """
    from matplotlib.figure import Figure

    states = next(iter(pictures.values()))
    rows, columns = len(states), len(next(iter(states.values())))
    figure = Figure(figsize=(0.5 * columns + 1.2, len(pictures) * (0.5 * rows + 0.6)), layout="constrained")
    panels = figure.subplots(len(pictures), 1, squeeze=False)[:, 0]
    for axes, (arm, states) in zip(panels, pictures.items()):
        show_rows(axes, {str(steps): images for steps, images in states.items()})
        axes.set_ylabel("steps", fontsize=10)
        title = {"fontsize": 11, "color": STYLES[arm]["color"], "weight": "bold"}
        axes.set_title(f"{arm}: FID in {' and '.join(ARMS[arm])}", **title)
    return save_figure(figure, path)
