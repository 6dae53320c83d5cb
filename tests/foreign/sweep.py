"""Writes docs/optimizers.md: `python -m tests.foreign.sweep`, three minutes on one core.

Every optimizer and schedule is trained by the strategy and in one plain Lightning fit (`tests.foreign.plain_fit`), and
the page says how far apart the weights are. The command ends with 1 if one is further apart than rounding.
"""

import logging
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch

from fedgen.clients import FederatedDataModule
from fedgen.clients.partitions import IID
from fedgen.data import Examples
from tests.foreign.cases import points
from tests.foreign.optimizers import GROUPS, Maker, Probe, Together
from tests.foreign.plain_fit import deviation, federated, plain
from tests.foreign.schedules import MADE, OPTIMIZERS, SET_BY_SCHEDULES, Scheduled

INTERVAL, TOLERANCE = 3, 3e-6
COMES_BACK = 8  # the seed of which rounds are of clients 2, 1, 2, 0 and 0
ALONE = "one client, keep"
COLUMNS: dict[str, tuple[bool, str, int]] = {  # whether there is one client, the mode, rounds
    ALONE: (True, "keep", 4),
    "three clients, keep": (False, "keep", 6),
    "three clients, reset": (False, "reset", 6),
    "one client, average": (True, "average", 4),
}
NEEDED: dict[str, dict[str, Any]] = {  # of a probe, by optimizers
    "Muon": {"bias": False},
    "spectralsphere": {"bias": False},
    "adahessian": {"create_graph": True},
    "sophiah": {"create_graph": True},
}
PAGE = Path(__file__).parents[2] / "docs" / "optimizers.md"
HEAD = """# Optimizers and schedules

With one client in each round, R rounds of k local iterations are one plain Lightning fit of R epochs of k batches.
Under `optimizer_state="keep"` a client's optimizers go on, and its first turn has new ones. Under "reset" each turn has
new ones, as `configure_optimizers` makes them; schedules and the hyperparameters that they set go on. Each number is
the largest difference of any weight between `FedAvgStrategy` and that fit (`tests/foreign/plain_fit.py`), in float32:
a net of 89 weights, 4 rounds of one client or 6 of three clients in turn, 3 iterations each. 0 is equality to the bit.

An optimizer's state is what it holds, wherever it holds it: `state`, what its steps change in `param_groups`, plain
attributes and random generators, and the same of optimizers that it wraps. All else in `param_groups` is a
hyperparameter and goes on from round to round. "average" takes the mean of floats over clients and the first client's
value of all else.

Schedule-free optimizers train other weights than they evaluate. In a turn the strategy calls their `train()` and, at
its end, `eval()`: the server has the weights that are evaluated, and a module's own calls between turns do nothing.

A schedule may be returned by `configure_optimizers` or kept by the module, which then moves it: "attribute" below.

This page is written by `python -m tests.foreign.sweep`; `pip install ".[foreign]"` installs the packages.
"""


def one_client() -> FederatedDataModule:
    """Twenty points of a single client."""
    known = points().examples
    alone = Examples(known.inputs[:20], known.labels[:20], "points/train", known.classes)
    return FederatedDataModule(alone, IID(1), batch_size=4, held_out=0.0, seed=0)


class NotInAPlainFitError(Exception):
    """An optimizer does not run in an ordinary Lightning fit of the probe."""


def settings_of(name: str) -> dict[str, Any]:
    """What a probe needs for an optimizer."""
    return {"by_hand": True} if "by hand" in name else NEEDED.get(name, {})


def alone_in_a_plain_fit(name: str, maker: Maker) -> L.LightningModule:
    """The probe after the plain fit of the first column.

    Raises:
        NotInAPlainFitError: of an optimizer that does not run in an ordinary fit at all.
    """
    try:
        return plain(lambda: Probe(maker, **settings_of(name)), one_client(), [0] * COLUMNS[ALONE][2], INTERVAL, "keep")
    except Exception as error:
        raise NotInAPlainFitError(" ".join(str(error).split())[:90] or type(error).__name__) from error


def fits_in(
    column: tuple[bool, str, int],
    make: Callable[[], L.LightningModule],
    expected: L.LightningModule | None = None,
    seed: int = 0,
    **carried: Any,
) -> tuple[Any, Any]:
    """The module that the strategy trains, and that of a plain fit, which may be at hand."""
    is_one, mode, rounds = column
    data = one_client() if is_one else points()
    found, cohort = federated(make, data, rounds, INTERVAL, mode, seed)
    return found, expected or plain(make, data, cohort, INTERVAL, mode, seed=seed, **carried)


def deviations_of_optimizer(name: str, maker: Maker) -> list[float]:
    """The deviations of an optimizer, by column."""
    alone, settings = alone_in_a_plain_fit(name, maker), settings_of(name)
    # of one client "keep" and "average" are the same fit: the mean of one client is what it has
    return [
        deviation(*fits_in(column, lambda: Probe(maker, **settings), alone if column[0] else None))
        for column in COLUMNS.values()
    ]


def deviations_together(makers: Mapping[str, Maker]) -> dict[str, list[float]]:
    """The deviations of each of some optimizers that one module has.

    One client under "keep" shows nothing that three do not. Under "reset" and "average" two rounds of one are as good
    as more.
    """
    found: dict[str, list[float]] = {name: [] for name in makers}
    for column in ((False, "keep", 3), (True, "reset", 2), (True, "average", 2)):
        pairs = fits_in(column, lambda: Together([Probe(makers[n], **settings_of(n)) for n in makers]), seed=COMES_BACK)
        for own, one, other in zip(found.values(), *(module.net for module in pairs), strict=True):
            own.append(deviation(one, other))
    return found


def deviations_of_schedule(
    schedule: str, optimizer: str, interval: str, columns: Sequence[tuple[bool, str, int]], seed: int = 0
) -> list[float]:
    """The deviations of a schedule, by column; "average" says nothing new of one."""
    make = MADE[schedule], OPTIMIZERS[optimizer]
    options = {"seed": seed, "carried": SET_BY_SCHEDULES}
    return [deviation(*fits_in(c, lambda: Scheduled(make[1], make[0], interval), **options)) for c in columns]


def intervals_of(schedule: str) -> tuple[str, ...]:
    """How a schedule can be moved: one that looks at a metric by the epoch alone."""
    return ("epoch",) if schedule == "ReduceLROnPlateau" else ("step", "epoch", "attribute")


def row(name: str, measure: Callable[[], Sequence[float]]) -> tuple[str, bool]:
    """A line of the table, and whether it is wrong."""
    try:
        found = measure()
    except NotInAPlainFitError as error:
        return f"| {name} | not in a plain fit: {error} |", False
    except Exception as error:  # one line of the table, whatever it is
        return f"| {name} | {type(error).__name__} |", True
    wrong = not max(found) <= TOLERANCE
    return f"| {name} | " + " | ".join(f"{value:.0e}" if value else "0" for value in found) + " |", wrong


def lines_of_optimizers() -> list[tuple[str, bool]]:
    """The tables of optimizers, a line each."""
    lines = []
    for title, makers in GROUPS.items():
        lines += [(f"\n## {title}\n", False), ("| Optimizer | " + " | ".join(COLUMNS) + " |", False)]
        lines += [("|---" * 5 + "|", False)]
        for name, maker in makers.items():
            lines.append(row(name, lambda name=name, maker=maker: deviations_of_optimizer(name, maker)))
            print(lines[-1][0], flush=True)
    return lines


def lines_of_schedules() -> list[tuple[str, bool]]:
    """The table of schedules."""
    lines = [
        ("\n## Schedules\n", False),
        ("| Schedule, moved by, optimizer | " + " | ".join([*COLUMNS][:3]) + " |", False),
    ]
    lines += [("|---" * 4 + "|", False)]
    for schedule in MADE:
        for interval in intervals_of(schedule):
            for optimizer in OPTIMIZERS:
                case = schedule, optimizer, interval, [*COLUMNS.values()][:3]
                lines.append(row(f"{schedule}, {interval}, {optimizer}", lambda c=case: deviations_of_schedule(*c)))
                print(lines[-1][0], flush=True)
    return lines


def main() -> int:
    """Writes the page; 1 if something deviates."""
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    lines = [*lines_of_optimizers(), *lines_of_schedules()]
    PAGE.write_text("\n".join([HEAD.rstrip(), *(line for line, _ in lines), ""]))
    return int(any(wrong for _, wrong in lines))


if __name__ == "__main__":
    sys.exit(main())
