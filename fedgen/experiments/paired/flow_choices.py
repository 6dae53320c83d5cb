"""One choice of a federated flow changed at a time, as many local iterations in all: what its quality hangs on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from fedgen.evaluation import Run, by_column
from fedgen.evaluation.marks import title_of
from fedgen.experiments.engine.arms.arms_choice import ArmsChoice
from fedgen.experiments.engine.arms.score_curves import EVALUATION, Curve, ends, trained_curves
from fedgen.experiments.engine.choice import at_least, rising
from fedgen.experiments.engine.paired_seeds import (
    by_chance,
    change_of,
    compare_pairs,
    mean_and_spread,
    verdict_on,
)
from fedgen.experiments.engine.recipe_file import cohort_of, fingerprints, interval_of, local_iterations
from fedgen.experiments.engine.results import make_table, save_figure
from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Arm, Training

CONTROL = "the recipe"
MODEL, NETWORK = "model.init_args", "model.init_args.network.init_args"
STRATEGY, INTERVAL = "trainer.strategy.init_args", "communication_interval"
CHANGED: Mapping[str, Mapping[str, Any]] = {
    "no moving average": {f"{MODEL}.ema_decay": None},
    "BatchNorm": {f"{NETWORK}.normalisation": "batch"},
    "optimizer kept": {f"{STRATEGY}.optimizer_state": "keep"},
    "optimizer reset": {f"{STRATEGY}.optimizer_state": "reset"},
    "independent noise": {f"{MODEL}.coupling": "independent"},
    "uniform times": {f"{MODEL}.times": "uniform"},
    # an option of its own would read null as a word
    "without labels": {"config": {"model": {"init_args": {"network": {"init_args": {"num_classes": None}}}}}},
}
COLUMNS = ("fid_all", "fid_avg")
FIGURE = "flow_choices.png"


@dataclass(frozen=True)
class FlowChoice(ArmsChoice):
    """Options of flow-choices; its fields are options of the command.

    Args:
        recipe: of a federated flow with a cohort, a moving average, labels, GroupNorm, optimal-transport coupling and
            logit-normal times.
        intervals: communication intervals besides the recipe's.
        cohorts: sizes besides the recipe's.
        iterations: of all clients together, the same in all arms: a whole number of rounds of each.
        widths: of the network, a smaller one than the recipe's.
        num_images: that are scored at the end.
        quick: two seeds of a few rounds, scored by 100 images' pixels, to see that it runs.

    Raises:
        FileNotFoundError: if the recipe is not there.
        ValueError: for numbers out of range, and iterations that are no whole number of rounds.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {
        "seeds": 2, "intervals": (1, 4), "cohorts": (4,), "iterations": 24, "widths": (8,), "num_images": 100,
    }  # fmt: skip

    recipe: Path = Path("recipes/flow_fashion_mnist.yaml")
    intervals: tuple[int, ...] = (1, 50)
    cohorts: tuple[int, ...] = (5,)
    iterations: int = 5000
    widths: tuple[int, ...] = (16, 32, 32)
    num_images: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        rising(1, intervals=self.intervals, cohorts=self.cohorts)
        at_least(1, widths=self.widths)
        local_iterations(self.recipe)
        for name, own, others in (
            ("intervals", self.own_interval, self.intervals),
            ("cohorts", self.own_cohort, self.cohorts),
        ):
            if own in others:
                raise ValueError(f"{name}={list(others)}: the recipe has {own}; name others")
        for interval, cohort in self._turns().values():
            if self.iterations % (interval * cohort):
                raise ValueError(
                    f"iterations={self.iterations} are no rounds of {cohort} clients x {interval} iterations: give a"
                    " multiple of all"
                )

    @cached_property
    def own_interval(self) -> int:
        """The recipe's communication interval, in a quick run 2."""
        return 2 if self.quick else interval_of(self.recipe)

    @cached_property
    def own_cohort(self) -> int:
        """The recipe's cohort size."""
        return cohort_of(self.recipe)

    def _turns(self) -> dict[str, tuple[int, int]]:
        """Interval and cohort size of the recipe, and by arm those that differ from it."""
        own, cohort = self.own_interval, self.own_cohort
        return {
            CONTROL: (own, cohort),
            **{f"interval {interval}": (interval, cohort) for interval in self.intervals},
            **{f"cohort of {size}": (own, size) for size in self.cohorts},
        }

    def resolved(self) -> dict[str, Any]:
        """Return what the recipe says."""
        return {"recipes": fingerprints([self.recipe])}

    def arms(self) -> list[Arm]:
        """The recipe, its other intervals and cohorts, and the recipe with each other choice changed."""
        turns = self._turns()
        return [
            *(self._arm(name, *turn, {}) for name, turn in turns.items()),
            *(self._arm(name, *turns[CONTROL], settings) for name, settings in CHANGED.items()),
        ]

    def _arm(self, name: str, interval: int, cohort: int, settings: Mapping[str, Any]) -> Arm:
        rounds = self.iterations // (interval * cohort)
        length = {"trainer.max_epochs": rounds, f"{EVALUATION}.every_n_rounds": rounds}
        small = {f"{NETWORK}.widths": list(self.widths)}
        turns = {f"{STRATEGY}.{INTERVAL}": interval, f"{STRATEGY}.cohort_size": cohort}
        return Arm(name, {**length, **small, **turns, **settings})


def flow_choices(output: Path | None = None, **options: Any) -> None:
    """Trains a federated flow with one choice changed at a time, and compares scores with the recipe's.

    Finished runs are kept and not run again; stopped ones go on.

    Args:
        output: folder of the runs, results.json and the figure; checkpoints/flow-choices by default.
        options: the fields of `FlowChoice`.
    """
    choice = FlowChoice(**options)
    study = Study("flow-choices", output, choice.settings())
    curves = trained_curves(study, choice, scores_of)
    study.report([table_of(curves), *lines_of(curves)], draw(curves, study.path(FIGURE)))


def scores_of(training: Training) -> dict[str, Any]:
    """Return a run's scores at its evaluations."""
    columns = by_column(Run(training.place).records)
    return {name: [record.value for record in columns[name]] for name in COLUMNS}


def lines_of(curves: Mapping[str, Sequence[Curve]]) -> list[str]:
    """Return of each change whether FID-all is the worse for it, as is expected of all but a shorter interval."""
    control = ends(curves[CONTROL], "fid_all")
    changed = {arm: ends(own, "fid_all") for arm, own in curves.items() if arm != CONTROL}
    lines = [
        verdict_on(f"{arm}: FID-all, beside {CONTROL},", [control, found])
        if arm == "interval 1"
        else verdict_on(f"{arm}: FID-all is higher than {CONTROL}'s", [control, found], "more")
        for arm, found in changed.items()
    ]
    return [*lines, by_chance(len(changed))]


def table_of(curves: Mapping[str, Sequence[Curve]]) -> Table:
    """Scores of each arm, means and standard deviations over seeds, and paired differences."""
    control = ends(curves[CONTROL], "fid_all")
    rows = []
    for arm, own in curves.items():
        change = "" if arm == CONTROL else change_of(compare_pairs(control, ends(own, "fid_all")))
        rows.append((arm, *(mean_and_spread(ends(own, column), 2) for column in COLUMNS), change))
    fid = title_of("fid")
    note = f"mean ± standard deviation over {len(control)} seeds; difference: in {fid} all, paired, its 95 % interval"
    headings = ("changed", f"{fid} all", f"{fid} avg", "difference")
    return make_table("one choice changed at a time, as many local iterations", headings, rows, note)


def draw(curves: Mapping[str, Sequence[Curve]], path: Path) -> Path:
    """Paired differences in FID-all: a point a seed, a bar for the mean and its interval."""
    from matplotlib.figure import Figure

    control = ends(curves[CONTROL], "fid_all")
    rows = {arm: compare_pairs(control, ends(own, "fid_all")) for arm, own in curves.items() if arm != CONTROL}
    figure = Figure(figsize=(7, 0.6 + 0.4 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(rows.values()):
        axes.plot(row["interval"] if "interval" in row else [row["difference"]] * 2, [place, place], color="0.35")
        axes.plot(row["difference"], place, "|", color="0.1", markersize=12)
        differences = [own - other for own, other in zip(row["values"], control)]
        axes.plot(differences, [place] * len(differences), "o", color="#1f5fa8", markersize=4)
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlabel(f"{title_of('fid')} all, less that of {CONTROL}; a point a seed, 95 % interval")
    axes.grid(axis="x", alpha=0.25)
    return save_figure(figure, path)
