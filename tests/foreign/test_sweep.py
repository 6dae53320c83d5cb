"""Optimizers and schedules of any origin do in clients' turns what they do in one plain Lightning fit."""

import pytest
import torch

from fedgen.federated import FedAvgStrategy
from fedgen.io.tensor_files import read_torch
from tests.foreign.optimizers import GROUPS
from tests.foreign.plain_fit import deviation
from tests.foreign.schedules import MADE, OPTIMIZERS, Scheduled
from tests.foreign.sweep import (
    COMES_BACK,
    PAGE,
    TOLERANCE,
    NotInAPlainFitError,
    alone_in_a_plain_fit,
    deviations_of_optimizer,
    deviations_of_schedule,
    deviations_together,
    intervals_of,
    one_client,
)
from tests.quick import first_quick
from tests.trainers import quiet_trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries, about their own calls
ALONE = {  # one of each family, which Lightning steps
    *("Adam", "AdamWScheduleFree", "SAM of SGD, momentum", "Lookahead of Adam (timm)"),
    "a count and a list in attributes",
}
CASES = [(group, first) for group, makers in GROUPS.items() for first in range(0, len(makers), 51)]
SCHEDULES = [
    (schedule, optimizer, interval)
    for schedule in MADE
    for interval in intervals_of(schedule)
    for optimizer in OPTIMIZERS
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "maker"), [(name, maker) for makers in GROUPS.values() for name, maker in makers.items() if name in ALONE]
)
def test_an_optimizer_keeps_and_resets_all_that_it_holds(name, maker) -> None:
    found = deviations_of_optimizer(name, maker)
    assert max(found) <= TOLERANCE, found


@pytest.mark.slow
@pytest.mark.parametrize(("group", "first"), CASES)
def test_every_other_optimizer_does_so_beside_those_of_its_package(group, first, monkeypatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # timm's kron takes half a minute of it
    makers = {name: GROUPS[group][name] for name in [*GROUPS[group]][first : first + 51] if name not in ALONE}
    for name in [name for name in makers if f"| {name} | not in a plain fit: " in PAGE.read_text()]:
        with pytest.raises(NotInAPlainFitError):
            alone_in_a_plain_fit(name, makers.pop(name))
    found = deviations_together(makers)
    assert all(value <= TOLERANCE for values in found.values() for value in values), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "optimizer", "interval"),
    # "CyclicLR" and "OneCycleLR" move momentum, too
    [case for case in SCHEDULES if case[1] == "Adam" or case[0] in ("CyclicLR", "OneCycleLR")],
)
def test_a_schedule_goes_on(schedule, optimizer, interval) -> None:
    """Each schedule under both modes, and every second one by steps, by rounds and in an attribute under each mode."""
    modes = ["keep", "reset"]
    if len(intervals_of(schedule)) > 1:
        modes = [modes[([*MADE].index(schedule) + (interval == "epoch")) % 2]]
    columns = [(False, mode, 5 if interval == "epoch" else 3) for mode in modes]
    found = deviations_of_schedule(schedule, optimizer, interval, columns, COMES_BACK)
    assert max(found) <= TOLERANCE, found


@pytest.mark.parametrize("schedule", first_quick([name for name in MADE if name != "ReduceLROnPlateau"], of=4))
def test_a_resumed_run_goes_on_with_a_schedule_and_its_file_holds_no_objects(tmp_path, schedule) -> None:
    def fit(rounds, path=None):
        torch.manual_seed(1)
        module = Scheduled(OPTIMIZERS["Adam"], MADE[schedule], "step")
        trainer = quiet_trainer(rounds, strategy=FedAvgStrategy(3, seed=0), limit_val_batches=0)
        trainer.fit(module, one_client(), ckpt_path=path)
        trainer.save_checkpoint(tmp_path / f"{rounds}.ckpt")
        return module

    fit(1)
    read_torch(tmp_path / "1.ckpt")
    assert deviation(fit(2, tmp_path / "1.ckpt"), fit(2)) == 0


def test_the_page_has_a_line_for_each_with_no_deviation_beyond_rounding() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "one client" not in line]
    names = [name for makers in GROUPS.values() for name in makers]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows[: len(names)]] == names
    assert len(rows) == len(names) + len(SCHEDULES)
    for row in rows:
        cells = row.strip("| ").split(" | ")[1:]
        assert cells[0].startswith("not in a plain fit") or all(float(cell) <= TOLERANCE for cell in cells), row
