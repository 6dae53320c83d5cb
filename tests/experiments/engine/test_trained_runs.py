"""What experiments train: recipes with seeds and communication intervals."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from fedgen.experiments.engine.scored_checkpoints import TrainedChoice
from fedgen.experiments.engine.study import ScoredArmsChoice
from fedgen.experiments.engine.trainings import (
    PROTOCOLS,
    Series,
    protocol_of,
    runs_of,
    spacing_of,
)
from tests.experiments.tiny_runs import settings_of, write_recipe

ROOT = Path(__file__).parents[3]
SERIES = Series("WGAN-GP", "quickstart.yaml", (1, 4))


@pytest.fixture
def choice(tmp_path):
    return ScoredArmsChoice(seeds=2, seed=7, runs=tmp_path / "runs", recipes=write_recipe(tmp_path / "recipes"))


def test_every_interval_is_trained_with_every_seed_at_equal_local_iterations(choice):
    runs = runs_of(SERIES, None, choice)
    assert [(run.interval, run.seed, run.rounds) for run in runs] == [(1, 7, 8), (1, 8, 8), (4, 7, 2), (4, 8, 2)]
    assert runs[2].name == "WGAN-GP, interval 4, seed 7"
    assert len({run.folder for run in runs}) == 4


def test_trainings_differ_in_seed_and_share_the_clients(choice):
    runs = runs_of(SERIES, 0.5, choice)
    assert [run.training.seed for run in runs] == [7, 8, 7, 8]
    given = [settings_of(run.training) for run in runs]
    assert {one["--data.init_args.seed"] for one in given} == {"7"}
    assert {one["--data.init_args.held_out"] for one in given} == {"0.5"}
    assert "--data.init_args.held_out" not in settings_of(runs_of(SERIES, None, choice)[0].training)


def test_checkpoints_are_kept_evenly_and_nothing_is_scored_while_training(choice):
    given = settings_of(runs_of(SERIES, None, choice, 2)[0].training)
    assert json.loads(given["--trainer.callbacks"]) == [
        {"class_path": "fedgen.callbacks.RoundCheckpoint", "init_args": {"every_n_rounds": 4}}
    ]


@pytest.mark.parametrize(
    ("rounds", "asked", "every"),
    # 800 and 200 divide evenly; of 799 rounds, one in 2 is 400, and all would be 799; of 500, all but 100 are asked for
    [(800, 20, 40), (800, 10, 80), (200, 10, 20), (799, 400, 2), (500, 400, 1), (3125, 20, 157), (3, 20, 1)],
)
def test_about_as_many_checkpoints_are_kept_as_are_asked_for(rounds, asked, every):
    assert spacing_of(rounds, asked) == every


def test_a_quick_run_is_a_twentieth_in_a_folder_of_its_own(choice):
    recipe = yaml.safe_load((choice.recipes / "quickstart.yaml").read_text())
    recipe["trainer"]["max_epochs"] = 400
    (choice.recipes / "quickstart.yaml").write_text(yaml.safe_dump(recipe))
    whole, quick = (runs_of(SERIES, None, choice, quick=on)[0] for on in (False, True))
    assert (whole.rounds, quick.rounds) == (800, 40)
    assert whole.folder != quick.folder


def test_another_kind_of_generator_is_another_series_of_the_same_clients(choice):
    write_recipe(choice.recipes, "ddpm_digits.yaml")
    trained = TrainedChoice(seeds=2, seed=7, intervals=(1, 4), runs=choice.runs, recipes=choice.recipes)
    runs = trained.planned()
    assert [run.series for run in runs] == ["WGAN-GP"] * 4 + ["DDPM"] * 2
    assert {settings_of(run.training)["--data.init_args.seed"] for run in runs} == {"7"}
    assert len({run.folder for run in runs}) == 6
    assert len(trained.planned(["wgan-gp"])) == 4


def test_a_series_may_have_fewer_seeds_and_checkpoints_and_iterations_of_its_own(choice):
    few = replace(SERIES, seeds=1, checkpoints=2, iterations=16)
    runs = runs_of(few, None, choice, 4)
    assert [(run.interval, run.seed, run.rounds) for run in runs] == [(1, 7, 16), (4, 7, 4)]
    kept = json.loads(settings_of(runs[0].training)["--trainer.callbacks"])
    assert kept[0]["init_args"]["every_n_rounds"] == 8
    assert settings_of(runs_of(replace(few, checkpoints=9), None, choice, 2)[0].training) == settings_of(
        runs[0].training
    )


def test_a_variant_and_a_control_have_folders_and_names_of_their_own(choice):
    plain, variant = (runs_of(replace(SERIES, variant=name), None, choice)[0] for name in ("", "whole-cohort"))
    assert variant.folder.name == f"quickstart-whole-cohort{plain.folder.name.removeprefix('quickstart')}"
    control = runs_of(replace(SERIES, control="local_only"), None, choice)[0]
    assert control.folder == plain.folder.with_name(f"{plain.folder.name}-local_only")
    assert control.name == "WGAN-GP, local only, seed 7"


def test_earlier_runs_of_the_wgan_gp_are_found_again():
    run = TrainedChoice(recipes=ROOT / "recipes").planned()[0]
    assert run.folder.name == "quickstart-split0-interval2-rounds2400-seed0"
    assert settings_of(run.training) == {
        "--trainer.max_epochs": "2400",
        "--trainer.strategy.init_args.communication_interval": "2",
        "--trainer.callbacks": json.dumps(
            [{"class_path": "fedgen.callbacks.RoundCheckpoint", "init_args": {"every_n_rounds": 120}}]
        ),
        "--trainer.logger": "false",
        "--data.init_args.seed": "0",
        "--data.init_args.held_out": "0.5",
    }


def test_a_missing_or_unfit_recipe_is_named(choice):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        runs_of(replace(SERIES, recipe="nowhere.yaml"), None, choice)
    (choice.recipes / "central.yaml").write_text("trainer: {max_epochs: 3}")
    with pytest.raises(ValueError, match="communication_interval"):
        runs_of(replace(SERIES, recipe="central.yaml"), None, choice)


def test_an_interval_that_would_train_longer_than_the_recipe_is_refused(choice):
    with pytest.raises(ValueError, match="quickstart"):
        runs_of(replace(SERIES, intervals=(4, 5)), None, choice)


def test_all_protocols_have_a_recipe_of_a_federation():
    for data in PROTOCOLS:
        assert all(run.rounds > 100 for run in TrainedChoice(data=data, recipes=ROOT / "recipes").planned())
    with pytest.raises(ValueError, match="mnist5k"):
        protocol_of("svhn")
