"""The figure of scores against simulated time."""

import pytest

from fedgen.__main__ import main
from fedgen.federated.run_files import RoundTime, write_times
from fedgen.reports.figures import draw_over_time
from fedgen.reports.figures.curves import scores_over_time
from tests.reports.folders import write_run


def make_run(folder, seconds, **options):
    write_run(folder, pictures=False, **options)
    write_times(folder, [RoundTime(round, seconds * (round + 1), 2, 0.0, 0) for round in range(3)])
    return folder


def test_scores_stand_at_their_rounds_seconds(tmp_path):
    run = make_run(tmp_path / "a", 2.5, rounds=(-1, 0, 2))
    seconds, records = scores_over_time(run, "fid_all")
    assert seconds == [0.0, 2.5, 7.5]
    assert [record.value for record in records] == [9.0, 6.0, 3.0]


@pytest.mark.slow
def test_two_runs_are_drawn_with_the_page(tmp_path, capsys):
    runs = [make_run(tmp_path / name, seconds) for name, seconds in (("fedavg", 5.0), ("fedbuff", 2.0))]
    picture, page = tmp_path / "times.png", tmp_path / "page.html"
    command = ["report", *map(str, runs), "--output", str(page), "--over_time", str(picture), "--column", "kid_all"]
    assert main(command) == 0
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert page.exists()
    assert f"over time: {picture}" in capsys.readouterr().out


def test_a_run_without_simulated_time_is_named(tmp_path):
    write_run(tmp_path / "plain", pictures=False)
    with pytest.raises(FileNotFoundError, match="simulated_time"):
        draw_over_time([tmp_path / "plain"], tmp_path / "times.png")


def test_an_unknown_column_is_answered_with_those_there_are(tmp_path):
    with pytest.raises(ValueError, match="fid_avg"):
        draw_over_time([make_run(tmp_path / "a", 1.0)], tmp_path / "times.png", "is_all")
