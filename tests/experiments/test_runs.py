"""Trainings of an experiment."""

import subprocess

import pytest

from fedgen.experiments.runs import Training, train_all


def test_a_run_that_fails_is_reported_with_the_end_of_its_output(tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("model: {class_path: fedgen.models.Nothing}\n")
    with pytest.raises(ChildProcessError, match=r"failed with status 2; the end of .*with-0.log:\n(.*\n)*.*Nothing"):
        Training(bad, tmp_path / "with-0", seed=0).run()


def test_a_control_has_its_flag_and_is_found_in_a_folder_of_its_own(tmp_path, monkeypatch):
    commands = []

    def run(command, **options):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr("fedgen.experiments.runs.subprocess.run", run)
    control = Training(tmp_path / "a.yaml", tmp_path / "run", 3, ("--threads", "1"), "local_only")
    assert control.run() == control.place == tmp_path / "run-local_only"
    assert commands[0][-3:] == ["--threads", "1", "--local_only"]
    assert commands[0][commands[0].index("--trainer.default_root_dir") + 1] == str(tmp_path / "run")
    assert (tmp_path / "run-local_only.log").exists()


def test_a_missing_recipe_is_refused_before_any_run(tmp_path, monkeypatch):
    monkeypatch.setattr("fedgen.experiments.runs.subprocess.run", None)
    here = tmp_path / "here.yaml"
    here.touch()
    jobs = [Training(here, tmp_path / "a", 0), Training(tmp_path / "nowhere.yaml", tmp_path / "b", 0)]
    with pytest.raises(FileNotFoundError, match=r"nowhere.yaml does not exist.*--recipe"):
        train_all(jobs)
