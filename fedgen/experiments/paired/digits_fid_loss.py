"""FID as a second loss of a federated GAN: the same recipe with and without it, over paired seeds.

A lower score under the embedding that was trained on is what the loss was asked for; whether images are better is asked
of another embedding, on images that no client trained on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from fedgen.evaluation import Run, ScoreRecord, by_column
from fedgen.evaluation.marks import direction_of, mark_of, say_marks, title_of
from fedgen.evaluation.names import REPORT, SELECT
from fedgen.experiments.engine.arm_panels import ArmPanel, draw_panels, pairs_panel
from fedgen.experiments.engine.paired_seeds import change_of, compare_pairs, mean_of
from fedgen.experiments.engine.study import Numbers, make_table
from fedgen.experiments.engine.trainings import Arm, RecipeChoice, train_arms

LOSSES = "model.init_args.generator_losses"
ARMS = (Arm("without", {LOSSES: None}), Arm("with"))
IMAGES = {SELECT: "training images", REPORT: "held-out images"}
LOWER = "lower is better"
QUICK = {"trainer.callbacks.init_args.num_images": 100, "trainer.callbacks.init_args.embeddings": ["pixels"]}
STYLES = {arm.name: {"color": colour, "marker": "o"} for arm, colour in zip(ARMS, ("0.35", "#1f5fa8"))}
Scores = Mapping[str, ScoreRecord]
"""column -> record, of one run"""


@dataclass(frozen=True)
class DigitsChoice(RecipeChoice):
    """Options of digits-fid-loss; its fields are options of the command.

    Args:
        recipe: a recipe with `generator_losses`.
        rounds: of each run, of which the last is scored; the recipe's by default.
        quick: two pairs of 20 rounds at most, scored by 100 images' pixels, to see that it runs.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 2, "rounds": 20}
    LEAST: ClassVar[Mapping[str, float]] = {**RecipeChoice.LEAST, "seeds": 2}  # a comparison needs two pairs

    recipe: Path = Path("recipes/wgan_gp_digits_fid.yaml")
    seeds: int = 5
    rounds: int | None = None


def digits_fid_loss(**options: Any) -> None:
    """Trains the recipe with and without its generator losses for each seed and compares the last checkpoints."""
    choice = DigitsChoice(**options)
    study = choice.study("digits-fid-loss")
    common = ({} if choice.rounds is None else {"trainer.max_epochs": choice.rounds}) | (QUICK if choice.quick else {})
    runs = train_arms(study, "compared", choice, ARMS, common)

    def measure() -> dict[str, Any]:
        return compare(*([last_scores(run.folder, choice.rounds) for run in own] for own in runs.values()))

    compared = study.step("compared", measure)
    study.report([table_of(compared)], draw_pairs(compared, study.path("pairs.png")))


def last_scores(folder: Path, rounds: int | None = None) -> dict[str, ScoreRecord]:
    last = {column: records[-1] for column, records in by_column(Run(folder).records).items()}
    for record in last.values():
        if rounds is not None and record.round != rounds - 1:
            raise ValueError(
                f"{folder} holds a run of {(record.round or 0) + 1} rounds, not {rounds}; choose another --output"
            )
    return last


def compare(control: Sequence[Scores], treated: Sequence[Scores]) -> dict[str, Any]:
    """Every column of two arms as `compare_pairs` has it, with "without" (the control's values), "title" and marks."""
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


def table_of(compared: Numbers) -> Table:
    count = len(next(iter(compared.values()))["values"])
    rows = []
    for column, row in compared.items():
        name = column if row["better"] == LOWER else f"{column}, {row['better']}"
        means = (f"{mean_of({'values': row[arm]}):.4g}" for arm in ("without", "values"))
        rows.append((f"{name} {row['mark']}".rstrip(), *means, change_of(row), f"{row['improved']} of {count}"))
    title = f"last checkpoint, mean of {count} seeds; {LOWER} unless a score says otherwise"
    headings = ("score", "without", "with", "difference (95 %)", "seeds improved")
    return make_table(title, headings, rows, say_marks(row["mark"] for row in compared.values()))


def draw_pairs(compared: Numbers, path: Path) -> Path:
    panels = []
    for row in (row for column, row in compared.items() if column.endswith("_all")):
        title = row["title"] + ("\n(trained on)" if row["mark"] else "")
        values = {arm.name: row[key] for arm, key in zip(ARMS, ("without", "values"))}
        bottom = 0 if min(*row["without"], *row["values"]) >= 0 else None
        panels.append(pairs_panel(values, title=title, bottom=bottom))
    across = min(4, len(panels))
    rows = [panels[start : start + across] for start in range(0, len(panels), across)]
    rows[-1] += [ArmPanel({})] * (across - len(rows[-1]))
    title = "Digits, ten clients of one class: the generator's loss without and with FID"
    return draw_panels(rows, STYLES, path, title, size=(2.7, 2.7))
