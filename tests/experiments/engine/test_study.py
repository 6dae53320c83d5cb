"""Steps that are kept, and experiments that go on where they stopped."""

import errno
import json
from pathlib import Path

import pytest

from fedgen.experiments.engine.study import Study, folder_name


def test_a_step_runs_once_and_its_numbers_outlive_the_process(tmp_path):
    calls = []
    for _ in range(2):
        study = Study("toy", tmp_path, {"seed": 0})
        assert study.step("sum", lambda: calls.append(1) or {"value": 3.5}) == {"value": 3.5}
    assert calls == [1]
    assert json.loads((tmp_path / "results.json").read_text())["numbers"] == {"sum": {"value": 3.5}}


def test_a_stopped_step_of_many_items_goes_on_with_those_that_are_missing(tmp_path):
    seen = []

    def measure(item):
        if item == 3:
            raise KeyboardInterrupt
        seen.append(item)
        return item * 10

    items = {"a": 1, "b": 2, "c": 3}
    with pytest.raises(KeyboardInterrupt):
        Study("toy", tmp_path, {}).each("scores", items, measure)
    again = Study("toy", tmp_path, {})
    assert again.missing("other")
    assert again.each("scores", items, lambda item: seen.append(item) or item * 10) == {"a": 10, "b": 20, "c": 30}
    assert seen == [1, 2, 3]


def test_other_settings_never_find_a_folders_numbers(tmp_path):
    Study("toy", tmp_path, {"k": 1}).step("one", lambda: 1)
    with pytest.raises(ValueError, match="k: 1 there, 2 now"):
        Study("toy", tmp_path, {"k": 2})


def test_the_usual_variants_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"data": "some/cifar10", "embedding": "pixels", "seed": 2, "quick": True, "k": 5}
    assert folder_name("toy", settings) == "toy-cifar10-pixels-seed2-quick"
    assert folder_name("toy", {"seed": 0, "quick": False}) == "toy"
    assert Study("toy", None, {"seed": 0}).folder == Path("checkpoints/toy")


def test_a_study_without_numbers_leaves_no_folder(tmp_path):
    study = Study("toy", tmp_path / "a" / "b", {})
    assert list(tmp_path.iterdir()) == []
    study.step("one", lambda: 1)
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["results.json"]


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_folder_that_cannot_be_is_refused_before_any_work(tmp_path, place):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(PermissionError, match="choose"):
        Study("toy", tmp_path / place, {})
    assert (tmp_path / "file").read_text() == "kept"


def test_a_folder_that_may_not_be_written_is_refused_before_any_work(tmp_path, monkeypatch):
    def refuse(*, dir):
        assert dir == tmp_path  # which is there; tmp_path / "new" is not
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("fedgen.io.files.tempfile.TemporaryFile", refuse)
    with pytest.raises(PermissionError, match="Permission"):
        Study("toy", tmp_path / "new", {})


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_no_training_would_take_is_refused(tmp_path, seed):
    with pytest.raises(ValueError, match=f"seed={seed}: give one from 0 to 4294967295"):
        Study("toy", tmp_path, {"seed": seed})


def test_it_says_where_numbers_and_figure_are(tmp_path, capsys):
    study = Study("toy", tmp_path, {})
    study.report(["a line"], study.path("toy.png"))
    printed = capsys.readouterr().out.replace("\n", "")
    assert "a line" in printed
    assert f"numbers: {tmp_path}/results.json" in printed
    assert f"figure: {tmp_path}/toy.png" in printed


def test_a_full_disk_is_named_and_what_was_written_before_is_kept(tmp_path, monkeypatch):
    study = Study("toy", tmp_path, {})
    study.step("one", lambda: 1)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("fedgen.io.files.os.fsync", full)
        with pytest.raises(OSError, match="results"):
            study.each("many", {"a": 1, "b": 2}, lambda item: item)
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
    again = Study("toy", tmp_path, {})
    assert again.numbers == {"one": 1}
    assert again.each("many", {"a": 1, "b": 2}, lambda item: item) == {"a": 1, "b": 2}
