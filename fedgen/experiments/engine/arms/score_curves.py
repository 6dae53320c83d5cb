"""Scores of runs while they train, against what they cost: seconds, turns, bytes."""

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedgen.experiments.engine.study import Study
from fedgen.experiments.engine.trainings import Arm, Training, by_seed, train_all, trainings_of

EVALUATION = "trainer.callbacks.init_args"

Curve = Mapping[str, Any]
"""of a run: at its evaluations, values of each column, and what had been spent by each name"""


class CurvesChoice(Protocol):
    """Options of an experiment that trains arms of one recipe, and scores them by FID while they train."""

    @property
    def recipe(self) -> Path:
        """The recipe of all arms."""

    @property
    def num_images(self) -> int:
        """Images that each evaluation generates."""

    @property
    def quick(self) -> bool:
        """Whether to see only that it runs."""

    @property
    def parallel(self) -> int:
        """Runs at once."""

    @property
    def seeds_of(self) -> range:
        """The repetitions' seeds."""

    def arms(self) -> list[Arm]:
        """The arms."""


def trained_curves(
    study: Study, choice: CurvesChoice, curve_of: Callable[[Training], Mapping[str, Any]]
) -> dict[str, list[Mapping[str, Any]]]:
    """Train all arms with all seeds, unless their curves are known, and return each arm's curves, one a seed.

    Args:
        study: of the experiment, which keeps the curves.
        choice: its options.
        curve_of: a finished run's curve.
    """
    common: dict[str, Any] = {f"{EVALUATION}.num_images": choice.num_images, f"{EVALUATION}.scores": ["fid"]}
    if choice.quick:
        common[f"{EVALUATION}.embeddings"] = ["pixels"]

    def place(arm: Arm, seed: int) -> Path:
        return study.path(f"{folder_of(arm.name)}-{seed}")

    runs = trainings_of(choice.recipe, choice.arms(), choice.seeds_of, place, common)
    if study.missing("curves"):
        train_all(by_seed(runs), choice.parallel)
    found: dict[str, list[Mapping[str, Any]]] = study.step(
        "curves", lambda: {arm: [curve_of(run) for run in own] for arm, own in runs.items()}
    )
    return found


def folder_of(arm: str) -> str:
    """Return the words of an arm's name, with dashes between."""
    return "-".join(re.findall(r"\w+", arm))


def value_at(curve: Curve, column: str, cost: str, spent: float) -> float:
    """Return the last value that a run had when so much was spent; its first, if there was none.

    Args:
        curve: the run's.
        column: of the value.
        cost: name of what is spent.
        spent: how much of it.
    """
    return float(curve[column][max(0, bisect_right(curve[cost], spent) - 1)])


def ends(curves: Sequence[Curve], name: str) -> list[float]:
    """Return what each seed's run ends with."""
    return [curve[name][-1] for curve in curves]


def at_the_end_of(curves: Mapping[str, Sequence[Curve]], arm: str, other: str, column: str, cost: str) -> list[float]:
    """Return one arm's values, a seed each, when it has spent what another arm has at its end."""
    return [value_at(own, column, cost, until[cost][-1]) for own, until in zip(curves[arm], curves[other])]


def draw_against(
    axes: Any, curves: Mapping[str, Sequence[Curve]], cost: str, column: str, colours: Mapping[str, str]
) -> None:
    """Draws a column against a cost on axes, a line each seed, with values on a logarithmic scale."""
    from matplotlib.ticker import LogLocator, NullFormatter

    for arm, own in curves.items():
        for place, curve in enumerate(own):
            style = {"color": colours[arm], "label": arm if not place else None, "linewidth": 1.2}
            axes.plot(curve[cost], curve[column], marker=".", alpha=0.8, **style)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.25, which="both")
