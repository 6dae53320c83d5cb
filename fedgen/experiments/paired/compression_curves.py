"""Scores by the bytes that clients have sent, with updates whole and compressed; as many rounds in all arms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from fedgen.evaluation import Run, by_column
from fedgen.evaluation.marks import title_of
from fedgen.experiments.engine.arms.arms_choice import ArmsChoice
from fedgen.experiments.engine.arms.message_bytes import message_bytes
from fedgen.experiments.engine.arms.score_curves import (
    EVALUATION,
    Curve,
    at_the_end_of,
    draw_against,
    ends,
    trained_curves,
)
from fedgen.experiments.engine.choice import at_least
from fedgen.experiments.engine.paired_seeds import mean_and_spread, verdict_on
from fedgen.experiments.engine.recipe_file import component, fingerprints, local_iterations
from fedgen.experiments.engine.results import make_table, save_figure
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Arm, Training
from fedgen.io.files import in_bytes

WHOLE = "whole"
COMPRESSORS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "QSGD, 8 bits": ("QSGD", {"bits": 8}),
    "QSGD, 4 bits": ("QSGD", {"bits": 4}),
    "top 5 %": ("TopK", {"share": 0.05}),
    "signs": ("ScaledSign", {}),
    "rank 2": ("PowerSGD", {"rank": 2}),
}
COLOURS = dict(zip([WHOLE, *COMPRESSORS], ("0.35", "#1f5fa8", "#63a5e0", "#c4631b", "#2f8f5b", "#8a4fa3")))
COLUMNS = ("fid_all", "fid_avg")
FIGURE = "compressed_updates.png"
MEGABYTE = 1e6


@dataclass(frozen=True)
class CompressedChoice(ArmsChoice):
    """Options of compressed-updates; its fields are options of the command.

    Args:
        recipe: of a federation.
        rounds: of every arm.
        cohort: clients of a round.
        interval: local iterations of a turn.
        checks: evaluations of a run.
        num_images: that each evaluation generates.
        quick: two seeds of 4 rounds at most, scored twice by 100 images' pixels, to see that it runs.

    Raises:
        FileNotFoundError: if the recipe is not there.
        ValueError: for numbers out of range, and rounds that are not `checks` times a number.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 2, "rounds": 4, "checks": 2, "num_images": 100}

    recipe: Path = Path("recipes/quickstart.yaml")
    rounds: int = 600
    cohort: int = 5
    interval: int = 2
    checks: int = 30
    num_images: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, cohort=self.cohort, interval=self.interval, checks=self.checks)
        local_iterations(self.recipe)
        if self.rounds % self.checks:
            raise ValueError(
                f"rounds={self.rounds}, checks={self.checks}: evaluations come after as many rounds each; give e.g."
                f" rounds={self.checks * max(1, self.rounds // self.checks)}"
            )

    def resolved(self) -> dict[str, Any]:
        """Return what the recipe says."""
        return {"recipes": fingerprints([self.recipe])}

    def arms(self) -> list[Arm]:
        """Whole updates, and each compression of them."""
        common = {"communication_interval": self.interval, "cohort_size": self.cohort, "optimizer_state": "keep"}
        compressions: dict[str, dict[str, Any]] = {WHOLE: {}} | {
            name: {"compression": component(f"fedgen.federated.compression.{kind}", **options)}
            for name, (kind, options) in COMPRESSORS.items()
        }
        return [
            Arm(
                name,
                {
                    "trainer.strategy": component("fedgen.federated.FedAvgStrategy", **common, **own),
                    "trainer.max_epochs": self.rounds,
                    f"{EVALUATION}.every_n_rounds": self.rounds // self.checks,
                },
            )
            for name, own in compressions.items()
        ]


def compressed_updates(output: Path | None = None, **options: Any) -> None:
    """Trains a federation with updates whole and compressed, and compares scores by the bytes that clients have sent.

    Finished runs are kept and not run again; stopped ones go on.

    Args:
        output: folder of the runs, results.json and the figure; checkpoints/compressed-updates by default.
        options: the fields of `CompressedChoice`.
    """
    choice = CompressedChoice(**options)
    study = Study("compressed-updates", output, choice.settings())
    curves = trained_curves(study, choice, partial(curve_of, cohort=choice.cohort))
    study.report([table_of(curves), *lines_of(curves)], draw(curves, study.path(FIGURE)))


# ---- numbers ----


def curve_of(training: Training, cohort: int) -> dict[str, Any]:
    """Return a run's scores by "megabytes" that all clients have sent, and the "message" of one, in bytes."""
    columns = by_column(Run(training.place).records)
    message = sum(message_bytes(training).values())
    rounds = [record.round + 1 for record in columns[COLUMNS[0]] if record.round is not None]
    found: dict[str, Any] = {name: [record.value for record in columns[name]] for name in COLUMNS}
    return found | {"megabytes": [count * cohort * message / MEGABYTE for count in rounds], "message": message}


def lines_of(curves: Mapping[str, Sequence[Curve]]) -> list[str]:
    """Return what was expected of each compression and whether it was seen, and what it costs by rounds."""
    lines = []
    for arm in COMPRESSORS:
        then = at_the_end_of(curves, WHOLE, arm, "fid_all", "megabytes")
        own = ends(curves[arm], "fid_all")
        lines.append(
            verdict_on(f"{arm}: FID-all is lower than with whole updates of as many bytes", [then, own], "less")
        )
        lines.append(
            verdict_on(
                f"{arm}: FID-all after as many rounds, less that of {WHOLE},", [ends(curves[WHOLE], "fid_all"), own]
            )
        )
    return lines


# ---- table and figure ----


def table_of(curves: Mapping[str, Sequence[Curve]]) -> Table:
    """Bytes and scores of each arm, means and standard deviations over seeds."""
    rows = []
    for arm, own in curves.items():
        then = mean_and_spread(at_the_end_of(curves, WHOLE, arm, "fid_all", "megabytes"), 2)
        scores = [mean_and_spread(ends(own, column), 2) for column in COLUMNS]
        rows.append((arm, in_bytes(own[0]["message"]), f"{own[0]['megabytes'][-1]:.3g} MB", *scores, then))
    fid = title_of("fid")
    headings = ("updates", "a message", "all", f"{fid} all", f"{fid} avg", f"{fid} all, whole then")
    note = (
        f"mean ± standard deviation over {len(curves[WHOLE])} seeds, at the end; whole then: of whole updates when"
        " their clients had sent as many bytes"
    )
    return make_table("updates whole and compressed, as many rounds", headings, rows, note)


def draw(curves: Mapping[str, Sequence[Curve]], path: Path) -> Path:
    """FID-all against the bytes that clients have sent: a line each seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    draw_against(axes, curves, "megabytes", "fid_all", COLOURS)
    axes.set_xscale("log")
    axes.set_xlabel("MB sent by all clients")
    axes.set_ylabel(f"{title_of('fid')} all")
    axes.legend(fontsize=9)
    return save_figure(figure, path)
