"""The file of a run's simulated time."""

import pytest

from fedgen.federated.run_files import TIME_FILE, RoundTime, read_times, write_times

ROUNDS = [RoundTime(0, 1.5, 2, 0.0, 0), RoundTime(1, 4.0, 2, 1.5, 3)]


def test_what_is_written_is_read(tmp_path):
    write_times(tmp_path, ROUNDS)
    assert read_times(tmp_path) == {0: ROUNDS[0], 1: ROUNDS[1]}


def test_no_rounds_leave_no_file(tmp_path):
    write_times(tmp_path, ROUNDS)
    write_times(tmp_path, [])
    assert not (tmp_path / TIME_FILE).exists()
    assert read_times(tmp_path) == {}


@pytest.mark.parametrize("text", ["{", "[1]\n", '{"round": 0}\n', '{"round": 0, "seconds": -1, "turns": 1, '])
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / TIME_FILE).write_text(text)
    with pytest.raises(ValueError, match="simulated_time"):
        read_times(tmp_path)


def test_other_values_are_refused(tmp_path):
    write_times(tmp_path, [ROUNDS[0]._replace(seconds=-1.0)])
    with pytest.raises(ValueError, match="something other than rounds"):
        read_times(tmp_path)
