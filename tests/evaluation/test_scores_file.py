"""scores.jsonl holds whole records, each once."""

from contextlib import contextmanager
from dataclasses import replace
from threading import Thread

import numpy as np
import pytest

from fedgen.evaluation import append_records, by_column, drop_from, drop_round, read_records
from fedgen.evaluation.runs.scores_file import load_influences
from tests.evaluation.samples import record

FLOOR = record(round=None, generator="floor")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "scores.jsonl"


def test_no_file_has_no_records(path):
    assert read_records(path) == []


def test_records_are_appended_one_a_line(path):
    append_records(path, [record(round=0), record("kid", round=0)])
    append_records(path, [record(round=1)])
    assert len(path.read_text().splitlines()) == 3
    assert read_records(path) == [record(round=0), record("kid", round=0), record(round=1)]


def test_values_come_back_to_the_last_bit(path):
    append_records(path, [record(value=1 / 3), record("kid", value=-1e-17)])
    assert [r.value for r in read_records(path)] == [1 / 3, -1e-17]


def test_measuring_a_round_again_replaces_its_lines(path):
    append_records(path, [record(value=1.0, round=0), record(value=2.0, round=1), record("kid", value=3.0, round=1)])
    append_records(path, [record(value=5.0, round=1), record(value=6.0, round=2)])
    assert [(r.name, r.round, r.value) for r in read_records(path)] == [
        ("fid_avg", 0, 1.0),
        ("fid_avg", 1, 5.0),
        ("kid_avg", 1, 3.0),
        ("fid_avg", 2, 6.0),
    ]
    assert len(path.read_text().splitlines()) == 4


def test_columns_keep_their_names_when_the_first_embedding_is_measured_again(path):
    append_records(path, [FLOOR, record(round=0), record(round=1)])
    append_records(path, [record(round=r, embedding="vgg16") for r in range(2)])
    for again in (
        record(round=None, generator="floor", num_generated=99),
        *(record(value=9.0, round=r) for r in (0, 1)),
    ):
        append_records(path, [again])
    columns = by_column(read_records(path))
    assert {name: [r.embedding for r in group] for name, group in columns.items()} == {
        "fid_avg": ["pixels", "pixels"],
        "vgg16/fid_avg": ["vgg16", "vgg16"],
    }


def test_a_kill_while_lines_are_replaced_leaves_the_old_ones(path, monkeypatch):
    append_records(path, [record(value=1.0)])
    monkeypatch.setattr("fedgen.io.files.os.replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        append_records(path, [record(value=2.0)])
    assert read_records(path) == [record(value=1.0)]


@pytest.mark.parametrize("half", ["half a lin", ""])
def test_a_kill_while_lines_are_added_leaves_the_file_as_it_was(path, monkeypatch, half):
    append_records(path, [record(round=0)])
    before = path.read_bytes()

    @contextmanager
    def killed(target):
        with open(target.with_name(f".{target.name}.x1234567.tmp"), "w") as file:
            file.write(half)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr("fedgen.evaluation.runs.scores_file.atomic_write", killed)
    with pytest.raises(KeyboardInterrupt):
        append_records(path, [record(round=1)])
    assert path.read_bytes() == before
    monkeypatch.undo()
    drop_from(path, 1)  # as the next start does
    assert [file.name for file in path.parent.iterdir()] == ["scores.jsonl"]


def test_several_writers_lose_nothing(path):
    """An evaluation of a run's checkpoints while the run goes on."""

    def write(embedding):
        for round in range(8):
            append_records(path, [record(round=round, embedding=embedding)])

    writers = [Thread(target=write, args=(f"e{k}",)) for k in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(read_records(path)) == 32


def test_where_there_are_no_locks_records_are_written_all_the_same(path, monkeypatch):
    def refuse(*args):
        raise OSError("no locks here")

    monkeypatch.setattr("fcntl.flock", refuse)
    append_records(path, [record(round=0)])
    assert len(read_records(path)) == 1


def test_another_embedding_adds_lines(path):
    append_records(path, [record()])
    append_records(path, [record(embedding="vgg16")])
    assert len(read_records(path)) == 2


def test_a_torn_last_line_is_left_out_with_a_warning_and_gone_after_the_next_append(path):
    append_records(path, [record(round=0), record(round=1)])
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with pytest.warns(UserWarning, match="cut off"):
        assert read_records(path) == [record(round=0)]
    append_records(path, [record(round=1), record(round=2)])
    assert [r.round for r in read_records(path)] == [0, 1, 2]


def test_garbage_behind_the_last_line_is_torn_too(path):
    append_records(path, [record(round=0)])
    path.write_bytes(path.read_bytes() + b"\xff\x00\xfe")
    with pytest.warns(UserWarning, match="cut off"):
        assert read_records(path) == [record(round=0)]
    append_records(path, [record(round=1)])
    assert [r.round for r in read_records(path)] == [0, 1]


def test_a_line_that_lost_only_its_end_counts_as_torn(path):
    append_records(path, [record(round=0)])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="cut off"):
        assert read_records(path) == []


def test_a_damaged_line_in_the_middle_is_an_error_that_names_it(path):
    append_records(path, [record(round=0)])
    whole = path.read_bytes()
    for line in (b"{broken\n", b"\xff\n", b"[]\n", b"3\n", b"\n"):
        path.write_bytes(line + whole)
        with pytest.raises(ValueError, match="record"):
            read_records(path)


def test_resuming_at_a_round_drops_it_and_later_ones(path):
    append_records(path, [FLOOR, record(round=-1), *(record(round=r) for r in range(5))])
    drop_from(path, 3)
    assert [r.round for r in read_records(path)] == [None, -1, 0, 1, 2]


def test_starting_anew_drops_everything(path):
    append_records(path, [FLOOR, record(round=-1), record(round=0)])
    drop_from(path, 0)
    assert read_records(path) == []


def test_one_round_can_be_dropped(path):
    append_records(path, [record(round=r) for r in range(3)])
    drop_round(path, 1)
    assert [r.round for r in read_records(path)] == [0, 2]


def influential(round, value=1.0, **options):
    return replace(record("fid", "all", value, round, **options), real_influences=np.array([0.5, -0.5], np.float32))


def test_influences_of_real_images_lie_beside_the_records_and_come_back(path):
    append_records(path, [influential(0), influential(1)])
    append_records(path, [influential(1, embedding="vgg16")])
    records = read_records(path)
    assert all(one.real_influences is None for one in records)
    found = load_influences(path.parent, records)
    assert [one.real_influences.tolist() for one in found] == [[0.5, -0.5]] * 3
    assert sorted(file.name for file in (path.parent / "influences").iterdir()) == [
        "round=00000.npz",
        "round=00001.npz",
    ]


def test_influences_of_another_value_do_not_count(path):
    append_records(path, [influential(0)])
    append_records(path, [record("fid", "all", 2.0, 0)])
    assert load_influences(path.parent, read_records(path))[0].real_influences is None


def test_influences_of_a_record_that_is_stored_already_are_added(path):
    append_records(path, [record("fid", "all", 1.0, 0)])
    append_records(path, [influential(0)])
    assert load_influences(path.parent, read_records(path))[0].real_influences.tolist() == [0.5, -0.5]


def test_influences_go_with_their_round(path):
    append_records(path, [influential(0), influential(1)])
    drop_from(path, 1)
    assert [file.name for file in (path.parent / "influences").iterdir()] == ["round=00000.npz"]


def test_a_damaged_file_of_influences_is_left_out_with_a_warning(path):
    append_records(path, [influential(0)])
    (path.parent / "influences" / "round=00000.npz").write_bytes(b"PK\x03\x04 no archive")
    with pytest.warns(UserWarning, match=r"round=00000.npz is left out"):
        assert load_influences(path.parent, read_records(path))[0].real_influences is None
