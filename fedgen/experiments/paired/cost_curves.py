"""Ways to train over clients, scored against what they cost: simulated seconds, bytes, rounds.

- FedAvg and FedBuff (Nguyen et al. 2022, arXiv 2106.06639) on one simulated clock, with slow and fast clients. As many
  turns of clients in both, so that work and bytes are equal: what differs is how long they take, how late updates
  arrive, and how often each client is heard.
- Scores by the bytes that clients have sent, with updates whole and compressed; as many rounds in all arms.
- Server optimizers and client algorithms: rounds and bytes to a given KID. FedAvg, FedAvgM, FedAdam, FedAdagrad and
  FedYogi (Reddi et al. 2021), FedProx (Li et al. 2020) and SCAFFOLD (Karimireddy et al. 2020), each with one setting.
  "What Do We Mean by Generalization in Federated Learning?" (Yuan et al. 2022, arXiv 2110.14216) says that the
  participation gap is about the same for all server optimizers.
"""

import re
import statistics
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from fedgen.evaluation import Run, by_column
from fedgen.evaluation.marks import title_of
from fedgen.evaluation.tables.gap_table import SPLITS
from fedgen.experiments.engine.gaps import PARTICIPATION, GapChoice, last, report_arms, run_arms
from fedgen.experiments.engine.gaps import Curve as GapCurve
from fedgen.experiments.engine.paired_seeds import mean_and_spread, verdict_on
from fedgen.experiments.engine.scored_checkpoints import message_bytes
from fedgen.experiments.engine.study import ArmsChoice, Study, at_least, make_table, panels
from fedgen.experiments.engine.trainings import (
    Arm,
    Training,
    by_seed,
    component,
    fingerprints,
    local_iterations,
    train_all,
    trainings_of,
)
from fedgen.federated.run_files import read_times
from fedgen.io.files import in_bytes

EVALUATION = "trainer.callbacks.init_args"
FID = title_of("fid")
Curve = Mapping[str, Any]
"""of a run: at its evaluations, values of each column, and what had been spent by each name"""
Curves = Mapping[str, Sequence[Curve]]
"""arm -> one curve a seed"""


@dataclass(frozen=True)
class CurvesChoice(ArmsChoice):
    """Options common to experiments that train arms of one recipe, and score them by FID while they train.

    Args:
        recipe: of a federation.
    """

    recipe: Path = Path("recipes/quickstart.yaml")

    def __post_init__(self) -> None:
        super().__post_init__()
        local_iterations(self.recipe)

    def resolved(self) -> dict[str, Any]:
        return {"recipes": fingerprints([self.recipe])}

    def arms(self) -> list[Arm]:
        raise NotImplementedError


def trained_curves(
    study: Study, choice: CurvesChoice, num_images: int, curve_of: Callable[[Training], Curve]
) -> dict[str, list[Curve]]:
    """Train all arms with all seeds, unless their curves are known, and return each arm's curves, one a seed."""
    common: dict[str, Any] = {f"{EVALUATION}.num_images": num_images, f"{EVALUATION}.scores": ["fid"]}
    if choice.quick:
        common[f"{EVALUATION}.embeddings"] = ["pixels"]

    def place(arm: Arm, seed: int) -> Path:
        return study.path(f"{folder_of(arm.name)}-{seed}")

    runs = trainings_of(choice.recipe, choice.arms(), choice.seeds_of, place, common)
    if study.missing("curves"):
        train_all(by_seed(runs), choice.parallel)
    return study.step("curves", lambda: {arm: [curve_of(run) for run in own] for arm, own in runs.items()})


def folder_of(arm: str) -> str:
    return "-".join(re.findall(r"\w+", arm))


def scores_of(training: Training, columns: Sequence[str] = ("fid_all", "fid_avg")) -> dict[str, Any]:
    found = by_column(Run(training.place).records)
    return {name: [record.value for record in found[name]] for name in columns}


def rounds_of(training: Training) -> list[int]:
    """Return the rounds of a run's evaluations, counted from 0."""
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
    return mean_and_spread(values, 2)


def spread_note(curves: Curves, more: str) -> str:
    return f"mean ± standard deviation over {len(next(iter(curves.values())))} seeds{more}"


def draw_against(axes: Any, curves: Curves, cost: str, label: str, colours: Mapping[str, str]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    for arm, own in curves.items():
        for place, curve in enumerate(own):
            style = {"color": colours[arm], "label": arm if not place else None, "linewidth": 1.2}
            axes.plot(curve[cost], curve["fid_all"], marker=".", alpha=0.8, **style)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.25, which="both")
    axes.set_xlabel(label)


# ---- slow and fast clients ----

FEDAVG, FEDBUFF = "FedAvg", "FedBuff"
CLOCK_COLOURS = {FEDAVG: "0.35", FEDBUFF: "#1f5fa8"}
CLOCK_COLUMNS = ("fid_all", "fid_avg", "fid_worst")


@dataclass(frozen=True)
class AsynchronousChoice(CurvesChoice):
    """Options of asynchronous-rounds; its fields are options of the command.

    Args:
        rounds: of FedAvg; FedBuff takes as many turns in more rounds.
        under_way: clients that train at once: FedAvg's cohort, and FedBuff's concurrency.
        buffer_size: updates to a step of FedBuff's server.
        staleness_power: of the discount of late updates; 0 for none.
        interval: local iterations of a turn.
        spread: standard deviation of the logarithm of clients' seconds an iteration, whose median is 1.
        checks: evaluations of a run.
        num_images: that each evaluation generates.
        quick: two seeds of 4 rounds at most, scored twice by 100 images' pixels, to see that it runs.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 2, "rounds": 4, "checks": 2, "num_images": 100}

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
        if self.rounds % self.checks or self.rounds // self.checks * self.under_way % self.buffer_size:
            raise ValueError(
                f"rounds={self.rounds}, checks={self.checks}: {self.checks} evaluations are to come after as many turns"
                f" of {self.under_way} clients a round and of {self.buffer_size}; give e.g."
                f" rounds={self.checks * self.buffer_size * 10}"
            )

    def arms(self) -> list[Arm]:
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
    """
    choice = AsynchronousChoice(**options)
    study = Study("asynchronous-rounds", output, choice.settings())
    curves = trained_curves(study, choice, choice.num_images, clock_curve)
    title = f"{choice.under_way} clients at once, {FEDBUFF} steps with {choice.buffer_size}; a line a seed"
    with panels(study.figure, (9, 3.8), 1, 2, title, sharey=True) as (_, ((left, right),)):
        draw_against(left, curves, "seconds", "simulated seconds", CLOCK_COLOURS)
        draw_against(right, curves, "turns", "turns of clients", CLOCK_COLOURS)
        left.set_ylabel(f"{FID} all")
        left.legend(fontsize=9)
    study.report([clock_table(curves), *clock_lines(curves)], study.figure)


def clock_curve(training: Training) -> dict[str, Any]:
    """Return a run's scores by simulated "seconds" and "turns" of clients, and its mean "staleness"."""
    times, rounds = read_times(training.place), rounds_of(training)
    every = [one.turns for one in times.values()]
    return scores_of(training, CLOCK_COLUMNS) | {
        "seconds": [times[round].seconds for round in rounds],
        "staleness": sum(one.staleness * one.turns for one in times.values()) / sum(every),
        "turns": [sum(times[before].turns for before in range(round + 1)) for round in rounds],
    }


def clock_lines(curves: Curves) -> list[str]:

    def both(name: str) -> list[list[float]]:
        return [ends(curves[arm], name) for arm in (FEDAVG, FEDBUFF)]

    early = at_the_end_of(curves, FEDAVG, FEDBUFF, "fid_all", "seconds")
    shares = [own / other for other, own in zip(*both("seconds"))]
    return [
        verdict_on(
            f"{FEDBUFF} takes less simulated time for as many turns, as a share of {FEDAVG}'s less 1,",
            [[1.0] * len(early), shares],
            "less",
        ),
        verdict_on(
            f"when {FEDBUFF} is through, its FID-all is lower than {FEDAVG}'s of that moment",
            [early, ends(curves[FEDBUFF])],
            "less",
        ),
        verdict_on(f"FID-all after as many turns, {FEDBUFF} less {FEDAVG},", both("fid_all")),
        verdict_on(f"FID of the worst client after as many turns, {FEDBUFF} less {FEDAVG},", both("fid_worst")),
    ]


def clock_table(curves: Curves) -> Table:
    """Time, staleness and scores of each arm, means and standard deviations over seeds."""
    rows = []
    for arm, own in curves.items():
        early = shown(at_the_end_of(curves, arm, FEDBUFF, "fid_all", "seconds"))
        staleness = f"{statistics.mean(curve['staleness'] for curve in own):.2f}"
        scores = (shown(ends(own, column)) for column in CLOCK_COLUMNS)
        rows.append((arm, shown(ends(own, "seconds")), staleness, early, *scores))
    headings = ("arm", "seconds", "staleness", f"{FID} all then", *(f"{FID} {name[4:]}" for name in CLOCK_COLUMNS))
    note = (
        f"; seconds: simulated, to the end; then: when {FEDBUFF} is"
        " through; the last three: at the end, after as many turns of clients"
    )
    return make_table("slow and fast clients on one clock", headings, rows, spread_note(curves, note))


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
class CompressedChoice(CurvesChoice):
    """Options of compressed-updates; its fields are options of the command.

    Args:
        rounds: of every arm.
        cohort: clients of a round.
        interval: local iterations of a turn.
        checks: evaluations of a run.
        num_images: that each evaluation generates.
        quick: two seeds of 4 rounds at most, scored twice by 100 images' pixels, to see that it runs.
    """

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 2, "rounds": 4, "checks": 2, "num_images": 100}

    rounds: int = 600
    cohort: int = 5
    interval: int = 2
    checks: int = 30
    num_images: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, cohort=self.cohort, interval=self.interval, checks=self.checks)
        if self.rounds % self.checks:
            raise ValueError(
                f"rounds={self.rounds}, checks={self.checks}: evaluations come after as many rounds each; give e.g."
                f" rounds={self.checks * max(1, self.rounds // self.checks)}"
            )

    def arms(self) -> list[Arm]:
        common = {"communication_interval": self.interval, "cohort_size": self.cohort, "optimizer_state": "keep"}
        length = {"trainer.max_epochs": self.rounds, f"{EVALUATION}.every_n_rounds": self.rounds // self.checks}
        compressions: dict[str, dict[str, Any]] = {WHOLE: {}} | {
            name: {"compression": component(f"fedgen.federated.compression.{kind}", **options)}
            for name, (kind, options) in COMPRESSORS.items()
        }
        return [
            Arm(name, {"trainer.strategy": component("fedgen.federated.FedAvgStrategy", **common, **own), **length})
            for name, own in compressions.items()
        ]


def compressed_updates(output: Path | None = None, **options: Any) -> None:
    """Trains a federation with updates whole and compressed, and compares scores by the bytes that clients have sent.

    Finished runs are kept and not run again; stopped ones go on.

    Args:
        output: folder of the runs, results.json and the figure; checkpoints/compressed-updates by default.
    """
    choice = CompressedChoice(**options)
    study = Study("compressed-updates", output, choice.settings())
    curves = trained_curves(study, choice, choice.num_images, partial(bytes_curve, cohort=choice.cohort))
    with panels(study.figure, (6.5, 4)) as (_, ((axes,),)):
        draw_against(axes, curves, "megabytes", "MB sent by all clients", BYTES_COLOURS)
        axes.set_xscale("log")
        axes.set_ylabel(f"{FID} all")
        axes.legend(fontsize=9)
    study.report([bytes_table(curves), *bytes_lines(curves)], study.figure)


def bytes_curve(training: Training, cohort: int) -> dict[str, Any]:
    """Return a run's scores by "megabytes" that all clients have sent, and the "message" of one, in bytes."""
    message = sum(message_bytes(training).values())
    sent = [(round + 1) * cohort * message / MEGABYTE for round in rounds_of(training)]
    return scores_of(training) | {"megabytes": sent, "message": message}


def bytes_lines(curves: Curves) -> list[str]:
    """Return what was expected of each compression and whether it was seen, and what it costs by rounds."""
    lines = []
    for arm in COMPRESSORS:
        then, own = at_the_end_of(curves, WHOLE, arm, "fid_all", "megabytes"), ends(curves[arm])
        text = f"{arm}: FID-all is lower than with whole updates of as many bytes"
        lines.append(verdict_on(text, [then, own], "less"))
        text = f"{arm}: FID-all after as many rounds, less that of {WHOLE},"
        lines.append(verdict_on(text, [ends(curves[WHOLE]), own]))
    return lines


def bytes_table(curves: Curves) -> Table:
    """Bytes and scores of each arm, means and standard deviations over seeds."""
    rows = []
    for arm, own in curves.items():
        then = shown(at_the_end_of(curves, WHOLE, arm, "fid_all", "megabytes"))
        scores = [shown(ends(own, column)) for column in ("fid_all", "fid_avg")]
        rows.append((arm, in_bytes(own[0]["message"]), f"{own[0]['megabytes'][-1]:.3g} MB", *scores, then))
    headings = ("updates", "a message", "all", f"{FID} all", f"{FID} avg", f"{FID} all, whole then")
    note = ", at the end; whole then: of whole updates when their clients had sent as many bytes"
    return make_table("updates whole and compressed, as many rounds", headings, rows, spread_note(curves, note))


SERVER, ALGORITHM = (f"trainer.strategy.init_args.{name}" for name in ("server_optimizer", "client_algorithm"))
REACHED = "kid all"
CONTROL = "FedAvg"
ADAPTIVE = ("FedAdam", "FedAdagrad", "FedYogi")


def arms_of(momentum_lr: float, adaptive_lr: Mapping[str, float], mu: float) -> list[Arm]:
    """FedAvg and what is compared with it; the adaptive ones in the form of Reddi et al. 2021."""
    momentum = Arm("FedAvgM", {SERVER: component("fedgen.federated.FedAvgM", lr=momentum_lr)})
    adaptive = [
        Arm(name, {SERVER: component(f"fedgen.federated.{name}", lr=rate, convention="reddi")})
        for name, rate in adaptive_lr.items()
    ]
    proximal = Arm("FedProx", {ALGORITHM: component("fedgen.federated.FedProx", mu=mu)})
    scaffold = Arm("SCAFFOLD", {ALGORITHM: component("fedgen.federated.Scaffold")})
    return [Arm(CONTROL), momentum, *adaptive, proximal, scaffold]


def server_optimizers(
    output: Path | None = None,
    checks: int = 10,
    kid: float | None = None,
    momentum_lr: float = 0.1,
    adaptive_lr: Sequence[float] = (0.005, 0.01, 0.005),
    mu: float = 0.1,
    **options: Any,
) -> None:
    """Rounds and bytes to a KID on unseen clients, and the gaps, by server optimizer and client algorithm.

    Args:
        output: folder of results.json and the figure.
        checks: evaluations of a run, evenly spaced: rounds are counted in these steps.
        kid: KID-all to be reached; by default the median of what all end with in the same repetition, so that at
            least half of them reach it.
        momentum_lr: FedAvgM's server learning rate; by default one with which a constant update moves the server as
            far as FedAvg's.
        adaptive_lr: those of FedAdam, FedAdagrad and FedYogi; the defaults did best in short runs of another seed.
        mu: FedProx's weight.
    """
    if len(adaptive_lr) != len(ADAPTIVE):
        raise ValueError(f"adaptive_lr={list(adaptive_lr)}: give three rates, of {', '.join(ADAPTIVE)}")
    choice = GapChoice(checks=checks, **options)
    own = {"kid": kid, "momentum_lr": momentum_lr, "adaptive_lr": list(adaptive_lr), "mu": mu}
    study = Study("server-optimizers", output, choice.settings() | own)
    arms = arms_of(momentum_lr, dict(zip(ADAPTIVE, adaptive_lr)), mu)
    found = run_arms(study, choice, arms)
    sizes = study.step("bytes", lambda: {arm.name: message_bytes(choice.training(arm, choice.seed)) for arm in arms})
    rounds = study.step("reached", lambda: reached(found.curves, kid))
    study.console.print(reach_table(rounds, sizes, "the median of what all end with" if kid is None else f"{kid:g}"))
    report_arms(study, found, "server optimizers", found.differences(CONTROL, (PARTICIPATION,)), CONTROL)


def reached(
    found: Mapping[str, Mapping[str, Mapping[str, GapCurve]]], target: float | None
) -> dict[str, list[int | None]]:
    """By arm, a number a repetition: the round, counted from 1, that is the first evaluated one to reach a target."""

    def target_of(seed: str) -> float:
        ends = [last(seeds[seed][REACHED], SPLITS[2]) for seeds in found.values()]
        return statistics.median_high(ends) if target is None else target

    return {
        arm: [reached_after(by_column[REACHED], target_of(seed)) for seed, by_column in seeds.items()]
        for arm, seeds in found.items()
    }


def reached_after(curve: GapCurve, target: float) -> int | None:
    """The first evaluated round, counted from 1, whose score on unseen clients is no worse than a target."""
    for round, value in zip(curve["rounds"], curve["values"][SPLITS[2]]):
        if value <= target:
            return int(round) + 1
    return None


def reach_table(
    reached_at: Mapping[str, Sequence[int | None]], sizes: Mapping[str, Mapping[str, int]], target: str
) -> Table:
    """Rounds and bytes to a target, by arm; a repetition that does not reach it has none."""
    rows = []
    for arm, found in reached_at.items():
        there = [round for round in found if round is not None]
        message = sum(sizes[arm].values())
        sent = in_bytes(round(statistics.mean(there) * message)) if there else ""
        rows.append((arm, ", ".join("-" if one is None else str(one) for one in found), in_bytes(message), sent))
    title = f"to {REACHED} on unseen clients of {target}"
    note = (
        "rounds: of every seed, - where it is not reached; sent: by a client that is in all of them, the mean of the"
        " seeds that reach it"
    )
    return make_table(title, ("trained", "rounds", "a message", "sent"), rows, note)
