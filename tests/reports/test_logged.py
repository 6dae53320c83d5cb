"""Logged values of TensorBoard's events and CSV files."""

import sys
import time

import pytest
from torch.utils.tensorboard import SummaryWriter

from fedgen.reports.contents import read_contents
from fedgen.reports.logged import LoggedSeries, Logs, by_round, log_files, thinned
from fedgen.reports.page import write_report
from tests.reports.folders import write_run


def write_events(folder, values, tag="loss", purge=""):
    writer = SummaryWriter(folder, filename_suffix=purge)
    for step, value in values.items():
        writer.add_scalar(tag, value, step)
        writer.add_scalar("epoch", step // 2, step)
    writer.close()


def test_events_are_read_and_later_ones_when_asked_again(tmp_path):
    logs = Logs(tmp_path)
    writer = SummaryWriter(tmp_path / "logs")
    writer.add_scalar("loss", 3.0, 1)
    writer.add_scalar("loss", float("nan"), 2)
    writer.add_scalar("fid_clients/p10", 3.0, 1)
    writer.flush()
    logs.refresh()
    assert (logs.series["loss"].steps, logs.series["loss"].values) == ([1], [3.0])
    assert len(logs.series["loss"].times) == 1
    writer.add_scalar("loss", 2.0, 3)
    writer.close()
    logs.refresh()
    assert (logs.series["loss"].steps, set(logs.series)) == ([1, 3], {"loss"})


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0, 1e300])
def test_an_event_without_a_time_is_left_out_by_name_and_the_page_is_made(tmp_path, wrong):
    write_run(tmp_path)
    writer = SummaryWriter(tmp_path / "logs")
    for step, time_of_it in enumerate((1.0, wrong, 3.0)):
        writer.add_scalar("gan/loss", 1.0, step, time_of_it)
    writer.close()
    contents = read_contents(tmp_path)
    assert contents.series["gan/loss"].times == [1.0, 3.0]
    assert any("left out as it has no time: gan/loss of step 1" in line for line in contents.warnings)
    assert write_report([tmp_path]).stat().st_size > 1000


def test_a_run_that_went_on_replaces_what_it_measured_again(tmp_path):
    write_events(tmp_path / "version_0", {1: 1.0, 3: 2.0, 5: 9.0}, purge=".a")
    write_events(tmp_path / "version_1", {3: 4.0}, purge=".b")
    logs = Logs(tmp_path)
    logs.refresh()
    assert (logs.series["loss"].steps, logs.series["loss"].values) == ([1, 3], [1.0, 4.0])


def test_steps_become_rounds_and_scores_are_left_to_the_records(tmp_path):
    (tmp_path / "metrics.csv").write_text("epoch,step,loss,fid_all\n0,4,2.5,\n1,9,1.5,\n,1,,7.0\n")
    logs = Logs(tmp_path)
    logs.refresh()
    found, are_rounds = by_round(logs.series, frozenset({"fid_all"}))
    assert (list(found), found["loss"].steps, found["loss"].values, are_rounds) == (["loss"], [0, 1], [2.5, 1.5], True)


def test_scores_floors_and_percentiles_of_tensorboard_are_left_to_the_records_too(tmp_path):
    """A floor is one number: its panel would be a flat line."""
    write_run(tmp_path)
    names = ("fid/avg", "fid/all", "fid/all_floor", "kid/avg_floor", "fid/clients/p90", "loss_floor", "gan/loss")
    writer = SummaryWriter(tmp_path / "logs")
    for name in names:
        writer.add_scalar(name, 1.0, 0)
    writer.close()
    table = "step,fid_all_floor,fid_clients/p10,kid_avg\n0,1.0,2.0,3.0\n"
    (tmp_path / "logs" / "version_1").mkdir()
    (tmp_path / "logs" / "version_1" / "metrics.csv").write_text(table)
    assert sorted(read_contents(tmp_path).series) == ["gan/loss", "loss", "loss_floor", "lr-SGD"]


def test_steps_without_an_epoch_stay_steps():
    series = {"loss": LoggedSeries([1, 5], [2.0, 1.0]), "epoch": LoggedSeries([1], [0.0])}
    assert by_round(series, frozenset())[1] is False


def test_a_damaged_file_is_named_and_nothing_else_is_lost(tmp_path):
    write_events(tmp_path, {1: 1.0})
    (tmp_path / "zz.tfevents.1").write_bytes((3).to_bytes(8, "little") + bytes(4) + b"\xff\xff\xff" + bytes(4))
    (tmp_path / "metrics.csv").write_bytes(b"step,loss\n1,2,3\n")
    logs = Logs(tmp_path)
    logs.refresh()
    assert logs.series["loss"].values == [1.0]
    assert sorted(reason.split(":")[0] for reason in logs.unread) == ["metrics.csv", "zz.tfevents.1"]


def test_the_logs_of_runs_in_folders_below_are_not_a_runs(tmp_path):
    for name in ("logs", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.csv").write_text("step,loss\n1,2\n")
    (tmp_path / "other" / "scores.jsonl").write_text("")
    assert log_files(tmp_path) == [tmp_path / "logs" / "metrics.csv"]


def test_many_points_become_means_at_the_end_of_their_stretch():
    short = thinned(LoggedSeries(list(range(10)), [float(k) for k in range(10)]), 5)
    assert (short.steps, short.values) == ([1, 3, 5, 7, 9], pytest.approx([0.5, 2.5, 4.5, 6.5, 8.5]))
    whole = LoggedSeries([1, 2], [3.0, 4.0])
    assert thinned(whole, 5) is whole


def test_tables_of_a_run_that_went_on_are_joined(tmp_path):
    for number, text in enumerate(("step,loss\n1,3.0\n3,2.0\n5,9.0\n", "step,loss\n3,4.0\n")):
        (tmp_path / "logs" / f"version_{number}").mkdir(parents=True)
        (tmp_path / "logs" / f"version_{number}" / "metrics.csv").write_text(text)
    logs = Logs(tmp_path)
    logs.refresh()
    assert (logs.series["loss"].steps, logs.series["loss"].values) == ([1, 3], [3.0, 4.0])


def test_events_that_cannot_be_read_without_tensorboard_are_named_with_the_remedy(tmp_path, monkeypatch):
    write_events(tmp_path, {1: 1.0})
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    logs = Logs(tmp_path)
    logs.refresh()
    assert "fedgen[tensorboard]" in logs.unread[0]


@pytest.mark.parametrize("steps", [[9_999] * 10_000, [9_998, 9_999] * 5_000], ids=["the last again", "back and forth"])
def test_a_log_that_goes_back_takes_time_by_its_length(steps):
    """A table of 2 MB kept a report busy for hours: each row looked through all rows before."""
    series, start = LoggedSeries(), time.process_time()
    for step in [*range(10_000), *steps]:
        series.add(step, 1.0)
    assert series.steps == list(range(10_000))
    assert time.process_time() - start < 0.5


def test_a_log_of_nothing_but_holes_is_named(tmp_path):
    with open(tmp_path / "events.out.tfevents.1", "wb") as file:
        file.truncate(400_000_000)
    logs = Logs(tmp_path)
    logs.refresh()
    assert "a record without bytes at byte 0" in logs.unread[0]
