"""Trainings of an experiment."""

import json
from pathlib import Path

import pytest
import yaml

from fedgen.experiments.engine.trainings import Training, arguments, kept_rounds, train_all
from tests.experiments.tiny_runs import train_in_forks


@pytest.mark.slow
def test_a_run_that_fails_is_reported_with_the_end_of_its_output(tmp_path, monkeypatch):
    train_in_forks(monkeypatch)
    bad = tmp_path / "bad.yaml"
    bad.write_text("model: {class_path: fedgen.models.Nothing}\n")
    with pytest.raises(ChildProcessError, match="Nothing"):
        Training(bad, tmp_path / "with-0", seed=0).run()


def test_a_control_has_its_flag_and_is_found_in_a_folder_of_its_own(tmp_path, monkeypatch):
    commands = []

    def run(arguments, output):
        commands.append(arguments)
        return 0

    monkeypatch.setattr("fedgen.experiments.engine.trainings.run_fit", run)
    (tmp_path / "a.yaml").touch()
    control = Training(tmp_path / "a.yaml", tmp_path / "run", 3, ("--threads", "1"), "local_only")
    assert control.run() == control.place == tmp_path / "run-local_only"
    assert commands[0][-3:] == ["--threads", "1", "--local_only"]
    assert commands[0][commands[0].index("--trainer.default_root_dir") + 1] == str(tmp_path / "run")
    assert (tmp_path / "run-local_only.log").exists()


def test_a_missing_recipe_is_refused_before_any_run(tmp_path, monkeypatch):
    monkeypatch.setattr("fedgen.experiments.engine.trainings.run_fit", None)
    here = tmp_path / "here.yaml"
    here.touch()
    jobs = [Training(here, tmp_path / "a", 0), Training(tmp_path / "nowhere.yaml", tmp_path / "b", 0)]
    with pytest.raises(FileNotFoundError, match="nowhere"):
        train_all(jobs)


@pytest.fixture
def commands(monkeypatch):
    """What would be run, in place of running it; each leaves a line of output."""
    found = []

    def run(arguments, output):
        found.append(arguments)
        output.write(f"output {len(found)}\n")
        return 0

    monkeypatch.setattr("fedgen.experiments.engine.trainings.run_fit", run)
    return found


def test_a_run_whose_costs_are_measured_has_a_new_process(tmp_path, commands, monkeypatch):
    new = []
    monkeypatch.setattr("fedgen.experiments.engine.trainings.run_new_fit", lambda given, output: new.append(given) or 0)
    (tmp_path / "a.yaml").touch()
    Training(tmp_path / "a.yaml", tmp_path / "run", 0, measured=True).run()
    assert (len(new), commands) == (1, [])


def test_what_a_run_said_is_kept_when_it_is_found_finished(tmp_path, commands):
    (tmp_path / "a.yaml").touch()
    training = Training(tmp_path / "a.yaml", tmp_path / "run", 0)
    training.run()
    training.run()
    assert (tmp_path / "run.log").read_text() == "output 1\noutput 2\n"


def test_no_process_is_started_for_a_run_that_is_done(tmp_path, commands):
    recipe = tmp_path / "a.yaml"
    recipe.write_text("seed_everything: 1")
    training = Training(recipe, tmp_path / "run", 0)
    training.run()
    training.place.mkdir()
    (training.place / "last.ckpt").touch()
    assert training.run() == training.place
    assert len(commands) == 1
    Training(recipe, tmp_path / "run", 0, ("--trainer.max_epochs", "9")).run()  # other settings
    assert len(commands) == 2
    recipe.write_text("seed_everything: 2  # another recipe")
    training.run()
    assert len(commands) == 3
    (training.place / "last.ckpt").unlink()
    training.run()
    assert len(commands) == 4


def test_runs_at_once_share_the_cores_and_take_no_more_than_their_recipes_want(tmp_path, commands, monkeypatch):
    monkeypatch.setattr("fedgen.experiments.engine.trainings.os.cpu_count", lambda: 8)
    for name, text in (("free", "model: {}"), ("small", "threads: 1"), ("empty", "")):
        (tmp_path / f"{name}.yaml").write_text(text)
    jobs = [Training(tmp_path / f"{name}.yaml", tmp_path / name, 0) for name in ("free", "small", "empty")]
    train_all(jobs)
    assert all("--threads" not in command for command in commands)
    commands.clear()
    train_all(jobs, parallel=2)
    threads = {command[command.index("--config") + 1]: command[command.index("--threads") + 1] for command in commands}
    assert list(map(threads.get, (str(job.recipe) for job in jobs))) == ["4", "1", "4"]
    commands.clear()
    train_all(jobs[:1], parallel=100)
    assert commands[0][-2:] == ["--threads", "1"]


def test_options_become_arguments_that_yaml_reads_as_they_were():
    given = {"a.text": "null-1", "a.path": Path("x/y"), "b": None, "c": False, "d": 0.5, "e": ["*"], "f": {"k": 1}}
    found = arguments(given)
    assert found[:4] == ("--a.text", "null-1", "--a.path", "x/y")
    values = [yaml.safe_load(text) for text in found[1::2]]
    assert values == ["null-1", "x/y", None, False, 0.5, ["*"], {"k": 1}]


def test_rounds_are_kept_and_nothing_is_scored():
    found = kept_rounds(10, 5, split_seed=7, more={"model.init_args.layers": ["*"]})
    assert dict(zip(found[::2], found[1::2])) == {
        "--trainer.max_epochs": "10",
        "--trainer.callbacks": json.dumps(
            [{"class_path": "fedgen.callbacks.RoundCheckpoint", "init_args": {"every_n_rounds": 5}}]
        ),
        "--trainer.logger": "false",
        "--data.init_args.seed": "7",
        "--data.init_args.held_out": "0.5",
        "--model.init_args.layers": '["*"]',
    }
    assert "--data.init_args.held_out" not in kept_rounds(10, 5, 7, {}, held_out=None)
