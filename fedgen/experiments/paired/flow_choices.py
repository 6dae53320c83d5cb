"""One choice of a federated flow changed at a time, as many local iterations in all: what its quality hangs on."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from fedgen.experiments.engine.paired_seeds import by_chance, change_of, compare_pairs, verdict_on
from fedgen.experiments.engine.study import Study, at_least, make_table, panels, rising
from fedgen.experiments.engine.trainings import Arm, cohort_of, interval_of
from fedgen.experiments.paired.cost_curves import (
    EVALUATION,
    FID,
    Curves,
    CurvesChoice,
    ends,
    scores_of,
    shown,
    spread_note,
    trained_curves,
)

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


@dataclass(frozen=True)
class FlowChoice(CurvesChoice):
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
        return cohort_of(self.recipe)

    def _turns(self) -> dict[str, tuple[int, int]]:
        """Interval and cohort size of the recipe, and by arm those that differ from it."""
        own, cohort = self.own_interval, self.own_cohort
        return {
            CONTROL: (own, cohort),
            **{f"interval {interval}": (interval, cohort) for interval in self.intervals},
            **{f"cohort of {size}": (own, size) for size in self.cohorts},
        }

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
    """
    choice = FlowChoice(**options)
    study = Study("flow-choices", output, choice.settings())
    curves = trained_curves(study, choice, choice.num_images, scores_of)
    draw_changes(curves, study.figure)
    study.report([flow_table(curves), *flow_lines(curves)], study.figure)


def changes_of(curves: Curves) -> dict[str, dict[str, Any]]:
    """Return FID-all of each changed arm beside the recipe's, as `compare_pairs` gives it."""
    control = ends(curves[CONTROL])
    return {arm: compare_pairs(control, ends(own)) for arm, own in curves.items() if arm != CONTROL}


def flow_lines(curves: Curves) -> list[str]:
    """Return of each change whether FID-all is the worse for it, as is expected of all but a shorter interval."""
    control = ends(curves[CONTROL])
    lines = [
        verdict_on(f"{arm}: FID-all, beside {CONTROL},", [control, row["values"]])
        if arm == "interval 1"
        else verdict_on(f"{arm}: FID-all is higher than {CONTROL}'s", [control, row["values"]], "more")
        for arm, row in changes_of(curves).items()
    ]
    return [*lines, by_chance(len(lines))]


def flow_table(curves: Curves) -> Table:
    """Scores of each arm, means and standard deviations over seeds, and paired differences."""
    changes = {CONTROL: "", **{arm: change_of(row) for arm, row in changes_of(curves).items()}}
    rows = [
        (arm, *(shown(ends(own, column)) for column in ("fid_all", "fid_avg")), changes[arm])
        for arm, own in curves.items()
    ]
    note = spread_note(curves, f"; difference: in {FID} all, paired, its 95 % interval")
    headings = ("changed", f"{FID} all", f"{FID} avg", "difference")
    return make_table("one choice changed at a time, as many local iterations", headings, rows, note)


def draw_changes(curves: Curves, path: Path) -> None:
    """Paired differences in FID-all: a point a seed, a bar for the mean and its interval."""
    control, rows = ends(curves[CONTROL]), changes_of(curves)
    with panels(path, (7, 0.6 + 0.4 * len(rows))) as (_, ((axes,),)):
        for place, row in enumerate(rows.values()):
            axes.plot(row["interval"] if "interval" in row else [row["difference"]] * 2, [place, place], color="0.35")
            axes.plot(row["difference"], place, "|", color="0.1", markersize=12)
            differences = [own - other for own, other in zip(row["values"], control)]
            axes.plot(differences, [place] * len(differences), "o", color="#1f5fa8", markersize=4)
        axes.axvline(0, color="0.6", linewidth=0.8)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.invert_yaxis()
        axes.set_xlabel(f"{FID} all, less that of {CONTROL}; a point a seed, 95 % interval")
        axes.grid(axis="x", alpha=0.25)
