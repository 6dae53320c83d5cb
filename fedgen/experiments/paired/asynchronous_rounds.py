"""FedAvg and FedBuff (Nguyen et al. 2022, arXiv 2106.06639) on one simulated clock, with slow and fast clients.

As many turns of clients in all arms, so that work and bytes are equal: what differs is how long they take, how late
updates arrive, and how often each client is heard.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from fedgen.evaluation import Run, by_column
from fedgen.evaluation.marks import title_of
from fedgen.experiments.engine.arms.arms_choice import ArmsChoice
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
from fedgen.federated.run_files import read_times

FEDAVG, FEDBUFF = "FedAvg", "FedBuff"
COLOURS = {FEDAVG: "0.35", FEDBUFF: "#1f5fa8"}
COLUMNS = ("fid_all", "fid_avg", "fid_worst")
FIGURE = "asynchronous_rounds.png"


@dataclass(frozen=True)
class AsynchronousChoice(ArmsChoice):
    """Options of asynchronous-rounds; its fields are options of the command.

    Args:
        recipe: of a federation.
        rounds: of FedAvg; FedBuff takes as many turns in more rounds.
        under_way: clients that train at once: FedAvg's cohort, and FedBuff's concurrency.
        buffer_size: updates to a step of FedBuff's server.
        staleness_power: of the discount of late updates; 0 for none.
        interval: local iterations of a turn.
        spread: standard deviation of the logarithm of clients' seconds an iteration, whose median is 1.
        checks: evaluations of a run.
        num_images: that each evaluation generates.
        quick: two seeds of 4 rounds at most, scored twice by 100 images' pixels, to see that it runs.

    Raises:
        FileNotFoundError: if the recipe is not there.
        ValueError: for numbers out of range, and rounds that are not `checks` times a number, in FedBuff's too.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 2, "rounds": 4, "checks": 2, "num_images": 100}

    recipe: Path = Path("recipes/quickstart.yaml")
    rounds: int = 600
    under_way: int = 5
    buffer_size: int = 2
    interval: int = 2
    staleness_power: float = 0.5
    spread: float = 1.0
    checks: int = 10
    num_images: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, under_way=self.under_way, buffer_size=self.buffer_size, interval=self.interval, checks=self.checks)
        at_least(0, spread=self.spread, staleness_power=self.staleness_power)
        local_iterations(self.recipe)
        if self.rounds % self.checks or self.rounds // self.checks * self.under_way % self.buffer_size:
            raise ValueError(
                f"rounds={self.rounds}, checks={self.checks}: {self.checks} evaluations are to come after as many turns"
                f" of {self.under_way} clients a round and of {self.buffer_size}; give e.g."
                f" rounds={self.checks * self.buffer_size * 10}"
            )

    def resolved(self) -> dict[str, Any]:
        """Return what the recipe says."""
        return {"recipes": fingerprints([self.recipe])}

    def arms(self) -> list[Arm]:
        """FedAvg, and FedBuff with as many turns of clients."""
        synchronous = {"cohort_size": self.under_way, "client_weights": "uniform"}
        buffered = {
            "concurrency": self.under_way,
            "buffer_size": self.buffer_size,
            "staleness_power": self.staleness_power,
        }
        return [
            self._arm(FEDAVG, "FedAvgStrategy", self.under_way, **synchronous),
            self._arm(FEDBUFF, "FedBuffStrategy", self.buffer_size, **buffered),
        ]

    def _arm(self, name: str, strategy: str, turns: int, **own: Any) -> Arm:
        """Return an arm of a strategy that takes so many turns a round."""
        speeds = component("fedgen.federated.ClientSpeeds", seconds=1.0, spread=self.spread)
        common = {"communication_interval": self.interval, "optimizer_state": "keep", "speeds": speeds}
        rounds = self.rounds * self.under_way // turns
        settings = {
            "trainer.strategy": component(f"fedgen.federated.{strategy}", **common, **own),
            "trainer.max_epochs": rounds,
            f"{EVALUATION}.every_n_rounds": rounds // self.checks,
        }
        return Arm(name, settings)


def asynchronous_rounds(output: Path | None = None, **options: Any) -> None:
    """Trains FedAvg and FedBuff with as many turns of slow and fast clients, and compares scores by simulated time.

    Finished runs are kept and not run again; stopped ones go on.

    Args:
        output: folder of the runs, results.json and the figure; checkpoints/asynchronous-rounds by default.
        options: the fields of `AsynchronousChoice`.
    """
    choice = AsynchronousChoice(**options)
    study = Study("asynchronous-rounds", output, choice.settings())
    curves = trained_curves(study, choice, curve_of)
    study.report([table_of(curves), *lines_of(curves)], draw(curves, study.path(FIGURE), choice))


# ---- numbers ----


def curve_of(training: Training) -> dict[str, Any]:
    """Return a run's scores by simulated "seconds" and "turns" of clients, and its mean "staleness"."""
    times, columns = read_times(training.place), by_column(Run(training.place).records)
    rounds = [record.round for record in columns[COLUMNS[0]]]
    turns = [sum(times[before].turns for before in range(round + 1)) for round in rounds if round is not None]
    every = [one.turns for one in times.values()]
    found: dict[str, Any] = {name: [record.value for record in columns[name]] for name in COLUMNS}
    found["seconds"] = [times[round].seconds for round in rounds if round is not None]
    found["staleness"] = sum(one.staleness * one.turns for one in times.values()) / sum(every)
    return found | {"turns": turns}


def lines_of(curves: Mapping[str, Sequence[Curve]]) -> list[str]:
    """Return what was expected and whether it was seen, and what differs."""

    def both(name: str) -> list[list[float]]:
        return [ends(curves[arm], name) for arm in (FEDAVG, FEDBUFF)]

    early = at_the_end_of(curves, FEDAVG, FEDBUFF, "fid_all", "seconds")
    return [
        verdict_on(
            f"{FEDBUFF} takes less simulated time for as many turns, as a share of {FEDAVG}'s less 1,",
            [[1.0] * len(early), [own / other for other, own in zip(*both("seconds"))]],
            "less",
        ),
        verdict_on(
            f"when {FEDBUFF} is through, its FID-all is lower than {FEDAVG}'s of that moment",
            [early, ends(curves[FEDBUFF], "fid_all")],
            "less",
        ),
        verdict_on(f"FID-all after as many turns, {FEDBUFF} less {FEDAVG},", both("fid_all")),
        verdict_on(f"FID of the worst client after as many turns, {FEDBUFF} less {FEDAVG},", both("fid_worst")),
    ]


# ---- table and figure ----


def table_of(curves: Mapping[str, Sequence[Curve]]) -> Table:
    """Time, staleness and scores of each arm, means and standard deviations over seeds."""
    rows = []
    for arm, own in curves.items():
        early = mean_and_spread(at_the_end_of(curves, arm, FEDBUFF, "fid_all", "seconds"), 2)
        staleness = f"{statistics.mean(curve['staleness'] for curve in own):.2f}"
        scores = (mean_and_spread(ends(own, column), 2) for column in COLUMNS)
        rows.append((arm, mean_and_spread(ends(own, "seconds"), 2), staleness, early, *scores))
    fid = title_of("fid")
    headings = ("arm", "seconds", "staleness", f"{fid} all then", *(f"{fid} {name[4:]}" for name in COLUMNS))
    count = len(curves[FEDAVG])
    note = (
        f"mean ± standard deviation over {count} seeds; seconds: simulated, to the end; then: when {FEDBUFF} is"
        " through; the last three: at the end, after as many turns of clients"
    )
    return make_table("slow and fast clients on one clock", headings, rows, note)


def draw(curves: Mapping[str, Sequence[Curve]], path: Path, choice: AsynchronousChoice) -> Path:
    """FID-all against simulated seconds, and against turns: a line each seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for one, cost, label in zip(axes, ("seconds", "turns"), ("simulated seconds", "turns of clients")):
        draw_against(one, curves, cost, "fid_all", COLOURS)
        one.set_xlabel(label)
    axes[0].set_ylabel(f"{title_of('fid')} all")
    axes[0].legend(fontsize=9)
    figure.suptitle(
        f"{choice.under_way} clients at once, {FEDBUFF} steps with {choice.buffer_size}; a line a seed", fontsize=11
    )
    return save_figure(figure, path)
