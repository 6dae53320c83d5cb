"""Ways to train over clients, scored against their cost.

FedAvg and FedBuff (Nguyen et al. 2022, arXiv 2106.06639) by simulated seconds, after as many turns of slow and fast
clients; updates whole and compressed by bytes, after as many rounds; a flow's choices, as many local iterations in all.
"""

import statistics
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from fedgen.evaluation import Run, by_column
from fedgen.evaluation.marks import title_of
from fedgen.experiments.engine import paired_seeds
from fedgen.experiments.engine.scored_checkpoints import message_bytes
from fedgen.experiments.engine.study import Study, make_table, panels, rising
from fedgen.experiments.engine.trainings import Arm, RecipeChoice, Training, component, of_strategy, train_arms
from fedgen.federated.run_files import read_times
from fedgen.io.files import in_bytes
from fedgen.reports.figures.aggregate_panels import log_axis

EVALUATION = "trainer.callbacks.init_args"
FID = title_of("fid")
Curve = Mapping[str, Any]  # of a run: at its evaluations, values of each column, and what had been spent by each name
Curves = Mapping[str, Sequence[Curve]]  # arm -> one curve a seed


@dataclass(frozen=True)
class CurvesChoice(RecipeChoice):
    """Options common to experiments that train arms of one recipe, and score them by FID while they train.

    Args:
        num_images: that each evaluation generates.
    """

    num_images: int = 1000

    def trained(self, study: Study, arms: list[Arm], curve_of: Callable[[Training], Curve]) -> dict[str, list[Curve]]:
        common: dict[str, Any] = {f"{EVALUATION}.num_images": self.num_images, f"{EVALUATION}.scores": ["fid"]}
        if self.quick:
            common[f"{EVALUATION}.embeddings"] = ["pixels"]
        runs = train_arms(study, "curves", self, arms, common)
        return study.step("curves", lambda: {arm: [curve_of(run) for run in own] for arm, own in runs.items()})


@dataclass(frozen=True)
class CheckedChoice(CurvesChoice):
    """Options common to experiments whose arms are scored on the way.

    Args:
        rounds: of every arm; FedBuff takes as many turns in more rounds.
        interval: local iterations of a turn.
        checks: evaluations of a run.
        quick: two seeds of 4 rounds at most, scored twice by 100 images' pixels, to see that it runs.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 2, "rounds": 4, "checks": 2, "num_images": 100}
    LEAST: ClassVar[Mapping[str, float]] = {
        **RecipeChoice.LEAST, "under_way": 1, "buffer_size": 1, "cohort": 1, "interval": 1, "checks": 1, "spread": 0,
        "staleness_power": 0,
    }  # fmt: skip

    rounds: int = 600
    interval: int = 2
    checks: int = 30

    def of_length(self, strategy: Any, rounds: int) -> dict[str, Any]:
        every = {f"{EVALUATION}.every_n_rounds": rounds // self.checks}
        return {"trainer.strategy": strategy, "trainer.max_epochs": rounds, **every}


def scores_of(training: Training, columns: Sequence[str] = ("fid_all", "fid_avg")) -> dict[str, Any]:
    found = by_column(Run(training.place).records)
    return {name: [record.value for record in found[name]] for name in columns}


def rounds_of(training: Training) -> list[int]:
    """Rounds of a run's evaluations, counted from 0."""
    return [one.round for one in by_column(Run(training.place).records)["fid_all"] if one.round is not None]


def value_at(curve: Curve, column: str, cost: str, spent: float) -> float:
    """Return the last value that a run had when so much was spent; its first, if there was none."""
    return float(curve[column][max(0, bisect_right(curve[cost], spent) - 1)])


def ends(curves: Sequence[Curve], name: str = "fid_all") -> list[float]:
    return [curve[name][-1] for curve in curves]


def at_the_end_of(curves: Curves, arm: str, other: str, column: str, cost: str) -> list[float]:
    """Return one arm's values, a seed each, when it has spent what another arm has at its end."""
    return [value_at(own, column, cost, until[cost][-1]) for own, until in zip(curves[arm], curves[other])]


def shown(values: Sequence[float]) -> str:
    return paired_seeds.mean_and_spread(values, 2)


def spread_note(curves: Curves, more: str) -> str:
    return f"mean ± standard deviation over {len(next(iter(curves.values())))} seeds{more}"


def draw_against(axes: Any, curves: Curves, cost: str, label: str, colours: Mapping[str, str]) -> None:
    for arm, own in curves.items():
        for place, curve in enumerate(own):
            style = {"color": colours[arm], "label": arm if not place else None, "linewidth": 1.2}
            axes.plot(curve[cost], curve["fid_all"], marker=".", alpha=0.8, **style)
    log_axis(axes, "y", (1, 2, 3, 5))
    axes.grid(alpha=0.25, which="both")
    axes.set_xlabel(label)


# ---- slow and fast clients ----

FEDAVG, FEDBUFF = "FedAvg", "FedBuff"
CLOCK_COLOURS = {FEDAVG: "0.35", FEDBUFF: "#1f5fa8"}
SHOWN = ("fid_all", "fid_avg", "fid_worst")


@dataclass(frozen=True)
class AsynchronousChoice(CheckedChoice):
    """Options of asynchronous-rounds; its fields are options of the command.

    Args:
        under_way: clients that train at once: FedAvg's cohort, and FedBuff's concurrency.
        buffer_size: updates to a step of FedBuff's server.
        staleness_power: of the discount of late updates; 0 for none.
        spread: standard deviation of the logarithm of clients' seconds an iteration, whose median is 1.
    """

    checks: int = 10
    under_way: int = 5
    buffer_size: int = 2
    staleness_power: float = 0.5
    spread: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds % self.checks or self.rounds // self.checks * self.under_way % self.buffer_size:
            raise ValueError(
                f"rounds={self.rounds}, checks={self.checks}: {self.checks} evaluations are to come after as many turns"
                f" of {self.under_way} clients a round and of {self.buffer_size}; give e.g."
                f" rounds={self.checks * self.buffer_size * 10}"
            )

    def arms(self) -> list[Arm]:
        speeds = component("fedgen.federated.ClientSpeeds", seconds=1.0, spread=self.spread)
        common = {"communication_interval": self.interval, "optimizer_state": "keep", "speeds": speeds}
        synchronous = {"cohort_size": self.under_way, "client_weights": "uniform"}
        late = {"buffer_size": self.buffer_size, "staleness_power": self.staleness_power}
        buffered = {"concurrency": self.under_way, **late}
        arms = []
        for name, turns, own in ((FEDAVG, self.under_way, synchronous), (FEDBUFF, self.buffer_size, buffered)):
            strategy = component(f"fedgen.federated.{name}Strategy", **common, **own)
            arms.append(Arm(name, self.of_length(strategy, self.rounds * self.under_way // turns)))
        return arms


def asynchronous_rounds(**options: Any) -> None:
    """Trains FedAvg and FedBuff with as many turns of slow and fast clients, and compares scores by simulated time."""
    choice = AsynchronousChoice(**options)
    study = choice.study("asynchronous-rounds")
    curves = choice.trained(study, choice.arms(), clock_curve)
    title = f"{choice.under_way} clients at once, {FEDBUFF} steps with {choice.buffer_size}; a line a seed"
    with panels(study.figure, (9, 3.8), 1, 2, title, sharey=True) as (_, ((left, right),)):
        draw_against(left, curves, "seconds", "simulated seconds", CLOCK_COLOURS)
        draw_against(right, curves, "turns", "turns of clients", CLOCK_COLOURS)
        left.set_ylabel(f"{FID} all")
        left.legend(fontsize=9)
    rows = []
    for arm, own in curves.items():
        early = shown(at_the_end_of(curves, arm, FEDBUFF, "fid_all", "seconds"))
        staleness = f"{statistics.mean(curve['staleness'] for curve in own):.2f}"
        rows.append((arm, shown(ends(own, "seconds")), staleness, early, *(shown(ends(own, one)) for one in SHOWN)))
    headings = ("arm", "seconds", "staleness", f"{FID} all then", *(f"{FID} {name[4:]}" for name in SHOWN))
    note = f"; seconds: simulated, to the end; then: when {FEDBUFF} is through; the last three: at the end, after as"
    note = spread_note(curves, f"{note} many turns of clients")
    table = make_table("slow and fast clients on one clock", headings, rows, note)
    study.report([table, *clock_lines(curves)], study.figure)


def clock_curve(training: Training) -> dict[str, Any]:
    """Return a run's scores by simulated "seconds" and "turns" of clients, and its mean "staleness"."""
    times, rounds = read_times(training.place), rounds_of(training)
    every = [one.turns for one in times.values()]
    return scores_of(training, SHOWN) | {
        "seconds": [times[round].seconds for round in rounds],
        "staleness": sum(one.staleness * one.turns for one in times.values()) / sum(every),
        "turns": [sum(times[before].turns for before in range(round + 1)) for round in rounds],
    }


def clock_lines(curves: Curves) -> list[str]:
    seconds, fids, worst = ([ends(curves[arm], name) for arm in (FEDAVG, FEDBUFF)] for name in ("seconds", *SHOWN[::2]))
    early = at_the_end_of(curves, FEDAVG, FEDBUFF, "fid_all", "seconds")
    shares = [own / other for other, own in zip(*seconds)]
    time = f"{FEDBUFF} takes less simulated time for as many turns, as a share of {FEDAVG}'s less 1,"
    then = f"when {FEDBUFF} is through, its FID-all is lower than {FEDAVG}'s of that moment"
    return [
        paired_seeds.verdict_on(time, [[1.0] * len(early), shares], "less"),
        paired_seeds.verdict_on(then, [early, fids[1]], "less"),
        paired_seeds.verdict_on(f"FID-all after as many turns, {FEDBUFF} less {FEDAVG},", fids),
        paired_seeds.verdict_on(f"FID of the worst client after as many turns, {FEDBUFF} less {FEDAVG},", worst),
    ]


# ---- compressed updates ----

WHOLE = "whole"
COMPRESSORS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "QSGD, 8 bits": ("QSGD", {"bits": 8}),
    "QSGD, 4 bits": ("QSGD", {"bits": 4}),
    "top 5 %": ("TopK", {"share": 0.05}),
    "signs": ("ScaledSign", {}),
    "rank 2": ("PowerSGD", {"rank": 2}),
}
BYTES_COLOURS = dict(zip([WHOLE, *COMPRESSORS], ("0.35", "#1f5fa8", "#63a5e0", "#c4631b", "#2f8f5b", "#8a4fa3")))
MEGABYTE = 1e6


@dataclass(frozen=True)
class CompressedChoice(CheckedChoice):
    """Options of compressed-updates; its fields are options of the command.

    Args:
        cohort: clients of a round.
    """

    cohort: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds % self.checks:
            raise ValueError(
                f"rounds={self.rounds}, checks={self.checks}: evaluations come after as many rounds each; give e.g."
                f" rounds={self.checks * max(1, self.rounds // self.checks)}"
            )

    def arms(self) -> list[Arm]:
        options = {"communication_interval": self.interval, "cohort_size": self.cohort, "optimizer_state": "keep"}
        strategies = {WHOLE: component("fedgen.federated.FedAvgStrategy", **options)}
        for name, (kind, own) in COMPRESSORS.items():
            compression = component(f"fedgen.federated.compression.{kind}", **own)
            strategies[name] = component("fedgen.federated.FedAvgStrategy", **options, compression=compression)
        return [Arm(name, self.of_length(strategy, self.rounds)) for name, strategy in strategies.items()]


def compressed_updates(**options: Any) -> None:
    """Trains a federation with updates whole and compressed, and compares scores by the bytes that clients sent."""
    choice = CompressedChoice(**options)
    study = choice.study("compressed-updates")

    def bytes_curve(run: Training) -> dict[str, Any]:
        message = sum(message_bytes(run).values())
        sent = [(round + 1) * choice.cohort * message / MEGABYTE for round in rounds_of(run)]
        return scores_of(run) | {"megabytes": sent, "message": message}

    curves = choice.trained(study, choice.arms(), bytes_curve)
    with panels(study.figure, (6.5, 4)) as (_, ((axes,),)):
        draw_against(axes, curves, "megabytes", "MB sent by all clients", BYTES_COLOURS)
        axes.set_xscale("log")
        axes.set_ylabel(f"{FID} all")
        axes.legend(fontsize=9)
    rows = []
    for arm, own in curves.items():
        then = shown(at_the_end_of(curves, WHOLE, arm, "fid_all", "megabytes"))
        scores = [shown(ends(own, column)) for column in ("fid_all", "fid_avg")]
        rows.append((arm, in_bytes(own[0]["message"]), f"{own[0]['megabytes'][-1]:.3g} MB", *scores, then))
    headings = ("updates", "a message", "all", f"{FID} all", f"{FID} avg", f"{FID} all, whole then")
    note = ", at the end; whole then: of whole updates when their clients had sent as many bytes"
    note = spread_note(curves, note)
    table = make_table("updates whole and compressed, as many rounds", headings, rows, note)
    study.report([table, *bytes_lines(curves)], study.figure)


def bytes_lines(curves: Curves) -> list[str]:
    lines = []
    for arm in COMPRESSORS:
        then, own = at_the_end_of(curves, WHOLE, arm, "fid_all", "megabytes"), ends(curves[arm])
        text = f"{arm}: FID-all is lower than with whole updates of as many bytes"
        lines.append(paired_seeds.verdict_on(text, [then, own], "less"))
        text = f"{arm}: FID-all after as many rounds, less that of {WHOLE},"
        lines.append(paired_seeds.verdict_on(text, [ends(curves[WHOLE]), own]))
    return lines


# ---- choices of a flow ----

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
        recipe: of a federated flow with a cohort, moving average, labels, GroupNorm, OT coupling, logit-normal times.
        intervals: communication intervals besides the recipe's.
        cohorts: sizes besides the recipe's.
        iterations: of all clients together, the same in all arms: a whole number of rounds of each.
        widths: of the network, a smaller one than the recipe's.
        quick: two seeds of a few rounds, scored by 100 images' pixels, to see that it runs.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {
        "seeds": 2, "intervals": (1, 4), "cohorts": (4,), "iterations": 24, "widths": (8,), "num_images": 100,
    }  # fmt: skip
    LEAST: ClassVar[Mapping[str, float]] = {**CurvesChoice.LEAST, "widths": 1}

    recipe: Path = Path("recipes/flow_fashion_mnist.yaml")
    intervals: tuple[int, ...] = (1, 50)
    cohorts: tuple[int, ...] = (5,)
    iterations: int = 5000
    widths: tuple[int, ...] = (16, 32, 32)
    num_images: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        rising(1, intervals=self.intervals, cohorts=self.cohorts)
        for name, own in (("intervals", self.own_interval), ("cohorts", self.own_cohort)):
            if own in (others := getattr(self, name)):
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
        return 2 if self.quick else of_strategy(self.recipe)

    @cached_property
    def own_cohort(self) -> int:
        return of_strategy(self.recipe, "cohort_size")

    def _turns(self) -> dict[str, tuple[int, int]]:
        """Interval and cohort size by arm, the recipe's first."""
        own, cohort = self.own_interval, self.own_cohort
        return {
            CONTROL: (own, cohort),
            **{f"interval {interval}": (interval, cohort) for interval in self.intervals},
            **{f"cohort of {size}": (own, size) for size in self.cohorts},
        }

    def arms(self) -> list[Arm]:
        arms, turns = [], self._turns()
        for name, (interval, cohort) in (turns | dict.fromkeys(CHANGED, turns[CONTROL])).items():
            rounds = self.iterations // (interval * cohort)
            length = {"trainer.max_epochs": rounds, f"{EVALUATION}.every_n_rounds": rounds}
            turn = {f"{STRATEGY}.{INTERVAL}": interval, f"{STRATEGY}.cohort_size": cohort}
            arms.append(Arm(name, {**length, f"{NETWORK}.widths": list(self.widths), **turn, **CHANGED.get(name, {})}))
        return arms


def flow_choices(**options: Any) -> None:
    """Trains a federated flow with one choice changed at a time, and compares scores with the recipe's."""
    choice = FlowChoice(**options)
    study = choice.study("flow-choices")
    curves = choice.trained(study, choice.arms(), scores_of)
    draw_changes(curves, study.figure)
    study.report([flow_table(curves), *flow_lines(curves)], study.figure)


def changes_of(curves: Curves) -> dict[str, dict[str, Any]]:
    control = ends(curves[CONTROL])
    return {arm: paired_seeds.compare_pairs(control, ends(own)) for arm, own in curves.items() if arm != CONTROL}


def flow_lines(curves: Curves) -> list[str]:
    """Say of each change whether FID-all is the worse for it, as expected of all but a shorter interval."""
    lines = []
    for arm, row in changes_of(curves).items():
        if arm == "interval 1":
            lines.append(paired_seeds.difference(f"{arm}: FID-all, beside {CONTROL},", row))
        else:
            lines.append(paired_seeds.verdict(f"{arm}: FID-all is higher than {CONTROL}'s", row, "more"))
    return [*lines, paired_seeds.by_chance(len(lines))]


def flow_table(curves: Curves) -> Table:
    changes = {arm: paired_seeds.change_of(row) for arm, row in changes_of(curves).items()}
    names = "fid_all", "fid_avg"
    rows = [(arm, *(shown(ends(own, one)) for one in names), changes.get(arm, "")) for arm, own in curves.items()]
    note = spread_note(curves, f"; difference: in {FID} all, paired, its 95 % interval")
    headings = ("changed", f"{FID} all", f"{FID} avg", "difference")
    return make_table("one choice changed at a time, as many local iterations", headings, rows, note)


def draw_changes(curves: Curves, path: Path) -> None:
    control, rows = ends(curves[CONTROL]), changes_of(curves)
    with panels(path, (7, 0.6 + 0.4 * len(rows)), grid="x") as (_, ((axes,),)):
        for place, row in enumerate(rows.values()):
            axes.plot(row["interval"] if "interval" in row else [row["difference"]] * 2, [place, place], color="0.35")
            axes.plot(row["difference"], place, "|", color="0.1", markersize=12)
            differences = [own - other for own, other in zip(row["values"], control)]
            axes.plot(differences, [place] * len(differences), "o", color="#1f5fa8", markersize=4)
        axes.axvline(0, color="0.6", linewidth=0.8)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.invert_yaxis()
        axes.set_xlabel(f"{FID} all, less that of {CONTROL}; a point a seed, 95 % interval")
