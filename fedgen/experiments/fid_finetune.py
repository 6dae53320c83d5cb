"""A trained generator fine-tuned on FID alone, its critic gone: what becomes of its images, and of scores of them.

Section 3 of "Backpropagating through Fréchet Inception Distance" (arXiv 2009.14075) fine-tunes BigGAN so (Fig. 2): a
thousand images a step, half the learning rate, fixed latents, the first layers only. Here a federated WGAN-GP: all
layers on FID in pixels, the first layer alone, and all layers on two embeddings in balance. Each is scored where it was
trained on and in an embedding that nothing was trained on, against images that no client trained on.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.embeddings import load_embedding
from fedgen.experiments.comparison import expectation
from fedgen.experiments.finetune_arms import ARMS, NETWORK, PIXELS, Arms, images_of, tracked
from fedgen.experiments.finetune_figure import CURVES, GRID, draw_curves, draw_grid
from fedgen.experiments.image_scores import SCORES, TITLES, real_side
from fedgen.experiments.paired import paired_difference
from fedgen.experiments.runs import train_all
from fedgen.experiments.study import Study
from fedgen.experiments.trained import RUNS, Plan, TrainedRun, protocol_of

START = "start"
ROWS, COLUMNS = 5, 12  # of an arm's grid of tracked images
CHANGES = ("fid", "fid, held out", "recall", "coverage", "trace")


def fid_finetune(
    output: Path | None = None,
    data: str = "digits",
    embedding: str = "classifier-mnist5k",
    weights: Path | None = None,
    seeds: int = 3,
    steps: int | None = None,
    steps_both: int | None = None,
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
        embedding: to score in besides pixels and efficientnet-lite0-32; nothing is trained on it.
        weights: a local file of its weights.
        seeds: generators, each with fine-tunings of its own; 1 with --quick.
        steps: of fine-tuning in pixels; 400 for digits, 80 for mnist5k, a tenth with --quick.
        steps_both: with two embeddings, where a step costs a hundred times as much; 48 for digits, 40 for mnist5k.
        runs: folder of the run folders; checkpoints/runs, or below the output if that is given.
        recipes: folder of the recipes.
        parallel: runs at once; 2 with --quick.
        seed: of the first generator, the clients' held-out images and the images scored.
        quick: takes about a minute, to see that it runs: generators of a twentieth of the rounds, small batches.
    """
    if quick:
        seeds, parallel = 1, 2
    if embedding in (PIXELS, NETWORK):
        raise ValueError(f"embedding={embedding!r} is trained on; choose another one to judge by")
    protocol = protocol_of(data)
    folder = runs or (RUNS if output is None else output / "runs")
    kept = 5 if quick else protocol.checkpoints
    plan = Plan(tuple(range(seed, seed + seeds)), kept, seed, folder, recipes, parallel, quick)
    arms = Arms(data, plan, steps, steps_both)
    bases = arms.bases()
    settings = {
        "data": data,
        "unrelated": embedding,
        "weights": None if weights is None else str(weights),
        "seeds": seeds,
        "steps": {arm: arms.length(arm) for arm in ARMS},
        "seed": seed,
        "quick": quick,
    }
    study = Study("fid-finetune", output, settings)
    states = states_of(arms, bases)
    if study.missing("floor") or len(study.numbers.get("scores", {})) < len(states):
        judge = load_embedding(embedding, weights=weights)
        train_all([base.training for base in bases], parallel)
        train_all([arms.training(arm, base) for base in bases for arm in ARMS], parallel)
        scores, held_out = real_side(bases[0].folder, [load_embedding(PIXELS), load_embedding(NETWORK), judge])
        count = len(held_out)
        study.step("images", lambda: count)
        study.step("floor", lambda: scores.floor)
        study.each("scores", states, lambda path: scores.score(images_of(path, count, seed)), "generators")
    rows = rows_of(study.numbers["scores"], arms, bases)
    if not study.path(GRID).exists():
        pictures = {arm: tracked(arms.states(arm, bases[0]), ROWS, COLUMNS, seed) for arm in ARMS}
        draw_grid(pictures, study.path(GRID))
    tables: list[Table | str] = [table_of(rows, study.numbers["floor"], name) for name in study.numbers["floor"]]
    if seeds > 1:
        tables.append(change_table(rows, embedding))
    tables += [*outcomes(rows, study.numbers["floor"], embedding), f"tracked images: {study.path(GRID)}"]
    study.report(tables, draw_curves(rows, study.numbers["floor"], study.path(CURVES)))


def states_of(arms: Arms, bases: Sequence[TrainedRun]) -> dict[str, Path]:
    """Every checkpoint that is scored, by name; the arms of a seed share their start."""
    found = {}
    for base in bases:
        for arm in ARMS:
            for steps, path in arms.states(arm, base).items():
                found[_key(arm, base.seed, steps)] = path
    return found


def _key(arm: str, seed: int, steps: int) -> str:
    return f"{arm if steps else START}, seed {seed}, step {steps}"


Rows = Mapping[str, Mapping[int, Sequence[Mapping[str, Mapping[str, float]]]]]
"""arm -> steps -> one for each seed: embedding -> score -> value"""


def rows_of(scores: Mapping[str, Any], arms: Arms, bases: Sequence[TrainedRun]) -> Rows:
    """The scores by arm, steps and seed."""
    return {
        arm: {steps: [scores[_key(arm, base.seed, steps)] for base in bases] for steps in arms.states(arm, bases[0])}
        for arm in ARMS
    }


def values(rows: Rows, arm: str, steps: int, embedding: str, score: str) -> list[float]:
    """One score by seed."""
    return [one[embedding][score] for one in rows[arm][steps]]


def table_of(rows: Rows, floor: Mapping[str, Mapping[str, float]], embedding: str) -> Table:
    """Scores in one embedding before and after fine-tuning, means over seeds; * where it was trained on."""
    count = len(next(iter(rows[next(iter(ARMS))].values())))
    title = f"{embedding}, mean of {count} seed(s)"
    table = Table(title=title, caption="* trained on in this embedding: proves little", caption_justify="left")
    table.add_column("generator", no_wrap=True)
    for score in SCORES:
        table.add_column(TITLES[score], justify="right", max_width=14)
    table.add_row("real images", *(f"{floor[embedding][score]:.3g}" for score in SCORES))
    for arm in ARMS:
        steps = list(rows[arm])
        lines = [(START, 0)] if arm == next(iter(ARMS)) else []
        for name, at in [*lines, (f"{arm}, {steps[-1]} steps", steps[-1])]:
            star = " *" if at and embedding in ARMS[arm] else ""
            means = (statistics.mean(values(rows, arm, at, embedding, score)) for score in SCORES)
            table.add_row(name + star, *(f"{mean:.3g}" for mean in means))
    return table


def change_table(rows: Rows, embedding: str) -> Table:
    """What fine-tuning changed, after less before, in the unrelated embedding, over paired seeds."""
    table = Table(title=f"{embedding}: after less before, 95 % interval over seeds")
    table.add_column("generator", no_wrap=True)
    for score in CHANGES:
        table.add_column(TITLES[score], justify="right", max_width=18)
    for arm in ARMS:
        cells = []
        for score in CHANGES:
            found = change(rows, arm, embedding, score)
            low, high = found["interval"]
            cells.append(f"{found['difference']:+.3g}\n{low:+.2g} to {high:+.2g}")
        table.add_row(arm, *cells)
    return table


def change(rows: Rows, arm: str, embedding: str, score: str, start: int = 0) -> dict[str, Any]:
    """The paired difference of a score between a step and the last one."""
    last = max(rows[arm])
    return paired_difference(values(rows, arm, start, embedding, score), values(rows, arm, last, embedding, score))


def outcomes(rows: Rows, floor: Mapping[str, Mapping[str, float]], unrelated: str) -> list[str]:
    """What was expected of each arm and whether it was seen, in means over seeds."""

    def mean(arm: str, steps: int, embedding: str, score: str) -> float:
        return statistics.mean(values(rows, arm, steps, embedding, score))

    lines = []
    for arm, embeddings in ARMS.items():
        steps = list(rows[arm])
        middle, last = steps[len(steps) // 2], steps[-1]
        own = embeddings[0]
        first, half, end = (mean(arm, at, own, "fid") for at in (0, middle, last))
        text = f"{arm}: FID to training images in {own}, trained on, falls: {first:.3g} to {end:.3g}"
        lines.append(expectation(text, end < first))
        text = f"{arm}: below what held-out real images score there ({floor[own]['fid']:.3g})"
        lines.append(expectation(text, end < floor[own]["fid"]))
        held_out = [mean(arm, at, unrelated, "fid, held out") for at in (0, middle, last)]
        text = (
            f"{arm}: from step {middle} on better in {own} only: {half:.3g} to {end:.3g}, but on held-out images in"
            f" {unrelated} {held_out[1]:.3g} to {held_out[2]:.3g} (start: {held_out[0]:.3g})"
        )
        lines.append(expectation(text, end < half and held_out[2] > held_out[1]))
        trace = mean(arm, last, unrelated, "trace")
        text = f"{arm}: spreads less than the data in {unrelated}: trace {trace:.3g} of theirs"
        lines.append(expectation(text, trace < 1))
    return lines
