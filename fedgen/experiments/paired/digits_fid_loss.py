"""FID as a second loss of a federated GAN: the same recipe with and without it, over paired seeds.

A lower score under the embedding that was trained on is what the loss was asked for; whether images are better is asked
of another embedding, on images that no client trained on.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from fedgen.evaluation import Run, ScoreRecord, by_column
from fedgen.evaluation.directions import direction_of, title_of
from fedgen.evaluation.marks import mark_of, say_marks
from fedgen.evaluation.record_names import REPORT, SELECT
from fedgen.experiments.engine.choice import quickly
from fedgen.experiments.engine.paired_seeds import change_of, compare_pairs
from fedgen.experiments.engine.recipe_file import fingerprints, local_iterations
from fedgen.experiments.engine.results import save_figure
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Arm, by_seed, train_all, trainings_of

LOSSES = "model.init_args.generator_losses"
ARMS = (Arm("without", {LOSSES: None}), Arm("with"))
IMAGES = {SELECT: "training images", REPORT: "held-out images"}
FIGURE, NAME = "pairs.png", "digits-fid-loss"
LOWER = "lower is better"
QUICK = {"trainer.callbacks.init_args.num_images": 100, "trainer.callbacks.init_args.embeddings": ["pixels"]}
Scores = Mapping[str, ScoreRecord]
"""column -> record, of one run"""


@quickly(seeds=2, rounds=20)
def digits_fid_loss(
    output: Path | None = None,
    recipe: Path = Path("recipes/wgan_gp_digits_fid.yaml"),
    seeds: int = 5,
    rounds: int | None = None,
    parallel: int = 1,
    seed: int = 0,
    quick: bool = False,
) -> None:
    """Trains the recipe with and without its generator losses for each seed and compares the last checkpoints.

    Finished runs are kept and not run again; stopped ones go on. What was compared is printed again at once.

    Args:
        output: folder of the runs, results.json and pairs.png; checkpoints/digits-fid-loss by default.
        recipe: a recipe with `generator_losses`.
        seeds: pairs of runs, at least 2.
        rounds: rounds of each run; the recipe's by default.
        parallel: runs at once.
        seed: of the first pair; the others' follow it.
        quick: two pairs of 20 rounds at most, scored by 100 images' pixels, to see that it runs.
    """
    if seeds < 2:
        raise ValueError(f"seeds={seeds}: a comparison needs at least 2 pairs")
    if parallel < 1 or (rounds is not None and rounds < 1):
        raise ValueError(f"rounds={rounds}, parallel={parallel}: at least one round, and one run at a time")
    local_iterations(recipe)  # refuses what is no recipe of a federation
    more_settings = ({"seed": seed} if seed else {}) | ({"quick": True} if quick else {})
    settings: dict[str, Any] = {"recipe": str(recipe), "seeds": seeds, "rounds": rounds, **more_settings}
    settings["recipes"] = fingerprints([recipe])
    study, pairs = Study(NAME, output, settings), range(seed, seed + seeds)
    common = ({} if rounds is None else {"trainer.max_epochs": rounds}) | (QUICK if quick else {})
    runs = trainings_of(recipe, ARMS, pairs, lambda arm, one: folder_of(study.folder, arm.name, one), common)
    if study.missing("compared"):
        train_all(by_seed(runs), parallel)
    compared = study.step(
        "compared", lambda: compare(*([last_scores(run.folder, rounds) for run in own] for own in runs.values()))
    )
    study.report([table_of(compared)], draw_pairs(compared, study.path(FIGURE)))


def folder_of(output: Path, arm: str, seed: int) -> Path:
    """The run folder of one arm and seed."""
    return output / f"{arm}-{seed}"


def last_scores(folder: Path, rounds: int | None = None) -> dict[str, ScoreRecord]:
    """Each column's record of the last evaluated round.

    Raises:
        ValueError: if the run has had another number of rounds, where one is given.
    """
    last = {column: records[-1] for column, records in by_column(Run(folder).records).items()}
    for record in last.values():
        if rounds is not None and record.round != rounds - 1:
            raise ValueError(
                f"{folder} holds a run of {(record.round or 0) + 1} rounds, not {rounds}; choose another --output"
            )
    return last


def compare(control: Sequence[Scores], treated: Sequence[Scores]) -> dict[str, Any]:
    """Every column of two arms, by seed, as numbers for `results.json`.

    Keys: "without" (the control's values) and those of `compare_pairs`, "title", "mark" (see `fedgen.evaluation.marks`)
    and "better" (which way).
    """
    found: dict[str, Any] = {}
    for column, record in treated[0].items():

        def badness(value: float, like: ScoreRecord = record) -> float:
            return replace(like, value=value).badness

        without, own = ([run[column].value for run in arm] for arm in (control, treated))
        found[column] = {
            "without": without,
            **compare_pairs(without, own, badness),
            "title": f"{title_of(record.score)}-{record.aggregate}\n{record.embedding}, {IMAGES[record.split]}",
            "mark": mark_of(record),
            "better": direction_of(record),
        }
    return found


def table_of(compared: Mapping[str, Any]) -> Table:
    """Columns without and with the loss, with the mean paired difference."""
    count = len(next(iter(compared.values()))["values"])
    table = Table(
        title=f"last checkpoint, mean of {count} seeds; {LOWER} unless a score says otherwise",
        caption="\n".join(say_marks(row["mark"] for row in compared.values())),
        caption_justify="left",
    )
    for heading in ("score", "without", "with", "difference (95 %)", "seeds improved"):
        table.add_column(heading, justify="left" if heading == "score" else "right")
    for column, row in compared.items():
        name = column if row["better"] == LOWER else f"{column}, {row['better']}"
        means = (f"{statistics.mean(row[arm]):.4g}" for arm in ("without", "values"))
        table.add_row(f"{name} {row['mark']}".rstrip(), *means, change_of(row), f"{row['improved']} of {count}")
    return table


def draw_pairs(compared: Mapping[str, Any], path: Path) -> Path:
    """One panel for each column of `all`: the seeds' scores without and with the loss, joined; the mean in black."""
    from matplotlib.figure import Figure

    columns = [column for column in compared if column.endswith("_all")]
    across = min(4, len(columns))
    down = -(-len(columns) // across)
    figure = Figure(figsize=(2.7 * across, 2.7 * down + 0.4), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for panel, column in zip(panels, columns):
        row = compared[column]
        for a, b in zip(row["without"], row["values"]):
            panel.plot([0, 1], [a, b], color="0.6", marker="o", markersize=3, linewidth=1)
        means = [statistics.mean(row[arm]) for arm in ("without", "values")]
        panel.plot([0, 1], means, color="black", marker="o", markersize=4, linewidth=2)
        panel.set_title(row["title"] + ("\n(trained on)" if row["mark"] else ""), fontsize=8)
        panel.set_xticks([0, 1], [arm.name for arm in ARMS])
        panel.set_xlim(-0.3, 1.3)
        panel.set_ylim(min(0, panel.get_ylim()[0]), None)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.25)
    for panel in panels[len(columns) :]:
        panel.set_visible(False)
    figure.suptitle("Digits, ten clients of one class: the generator's loss without and with FID", fontsize=10)
    return save_figure(figure, path)
