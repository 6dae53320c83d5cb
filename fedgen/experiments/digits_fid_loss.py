"""What a FID loss changes in a federated GAN: the same recipe with and without it, over paired seeds.

A lower score under the embedding that was trained on is what the loss was asked for; whether images are better is asked
of another embedding, on images that no client trained on.
"""

import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedgen.evaluation import Run, ScoreRecord, by_column
from fedgen.evaluation.splits import REPORT, SELECT
from fedgen.experiments.paired import paired_difference
from fedgen.experiments.results import read_results, save_figure, save_results
from fedgen.experiments.runs import Training, train_all
from fedgen.experiments.study import FOLDER, folder_name, require_place, require_seed
from fedgen.experiments.trained import local_iterations

ARMS = {"without": ("--model.init_args.generator_losses", "null"), "with": ()}
IMAGES = {SELECT: "training images", REPORT: "held-out images"}
FIGURE, NAME = "pairs.png", "digits-fid-loss"
QUICK_ROUNDS = 20
QUICK = tuple(
    text
    for key, value in (("num_images", "100"), ("embeddings", "[pixels]"))
    for text in (f"--trainer.callbacks.init_args.{key}", value)
)


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

    Finished runs are kept and not run again; stopped ones go on.

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
    require_seed(seed)
    if not recipe.is_file():
        raise FileNotFoundError(f"{recipe} does not exist; run from the folder that holds recipes/, or give --recipe")
    local_iterations(recipe)  # refuses what is no recipe of a federation
    if quick:
        seeds, rounds = 2, min(rounds or QUICK_ROUNDS, QUICK_ROUNDS)
    more_settings = ({"seed": seed} if seed else {}) | ({"quick": True} if quick else {})
    settings: dict[str, Any] = {"recipe": str(recipe), "seeds": seeds, "rounds": rounds, **more_settings}
    output = require_place(output or FOLDER / folder_name(NAME, settings))
    read_results(output, settings)  # refuses others' place
    more: tuple[str, ...] = () if rounds is None else ("--trainer.max_epochs", str(rounds))
    more += QUICK if quick else ()
    pairs = range(seed, seed + seeds)
    jobs = [Training(recipe, folder_of(output, arm, one), one, (*ARMS[arm], *more)) for one in pairs for arm in ARMS]
    train_all(jobs, parallel)
    numbers = compare({arm: [last_scores(folder_of(output, arm, one), rounds) for one in pairs] for arm in ARMS})
    save_results(output, NAME, settings, numbers)
    console = Console()
    console.print(table_of(numbers))
    console.print("* trained on: its value proves little")
    console.print(f"figure: {draw_pairs(numbers, output / FIGURE)}")


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


def compare(scores: dict[str, list[dict[str, ScoreRecord]]]) -> dict[str, Any]:
    """For each column: both arms' values by seed, the mean paired difference (with minus without), its 95 percent
    interval by Student's t, and whether the loss trained on the column's embedding."""
    found: dict[str, Any] = {}
    for column in scores["with"][0]:
        values = {arm: [run[column].value for run in runs] for arm, runs in scores.items()}
        record = scores["with"][0][column]
        found[column] = {
            **values,
            "title": f"{record.score.upper()}-{record.aggregate}\n{record.embedding}, {IMAGES[record.split]}",
            **paired_difference(values["without"], values["with"]),
            "optimised": record.is_optimised,
        }
    return found


def table_of(numbers: dict[str, Any]) -> Table:
    """Columns by arms, with the mean paired difference."""
    count = len(next(iter(numbers.values()))["with"])
    table = Table(title=f"last checkpoint, mean of {count} seeds; lower is better")
    for heading in ("score", "without", "with", "difference", "95 % interval", "seeds improved"):
        table.add_column(heading, justify="left" if heading == "score" else "right")
    for column, row in numbers.items():
        improved = sum(b < a for a, b in zip(row["without"], row["with"]))
        cells = [f"{statistics.mean(row[arm]):.4g}" for arm in ARMS]
        low, high = row["interval"]
        table.add_row(
            column + (" *" if row["optimised"] else ""),
            *cells,
            f"{row['difference']:+.3g}",
            f"{low:+.3g} to {high:+.3g}",
            f"{improved} of {count}",
        )
    return table


def draw_pairs(numbers: dict[str, Any], path: Path) -> Path:
    """One panel for each column of `all`: the seeds' scores without and with the loss, joined; the mean in black."""
    from matplotlib.figure import Figure

    columns = [column for column in numbers if column.endswith("_all")]
    across = min(4, len(columns))
    down = -(-len(columns) // across)
    figure = Figure(figsize=(2.7 * across, 2.7 * down + 0.4), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for panel, column in zip(panels, columns):
        row = numbers[column]
        for a, b in zip(row["without"], row["with"]):
            panel.plot([0, 1], [a, b], color="0.6", marker="o", markersize=3, linewidth=1)
        means = [statistics.mean(row[arm]) for arm in ARMS]
        panel.plot([0, 1], means, color="black", marker="o", markersize=4, linewidth=2)
        panel.set_title(row["title"] + ("\n(trained on)" if row["optimised"] else ""), fontsize=8)
        panel.set_xticks([0, 1], list(ARMS))
        panel.set_xlim(-0.3, 1.3)
        panel.set_ylim(min(0, panel.get_ylim()[0]), None)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.25)
    for panel in panels[len(columns) :]:
        panel.set_visible(False)
    figure.suptitle("Digits, ten clients of one class: the generator's loss without and with FID", fontsize=10)
    return save_figure(figure, path)
