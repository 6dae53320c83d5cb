"""What is trained at every communication interval."""

import json
from pathlib import Path

import pytest

from fedgen.experiments.paired.communication_interval import IntervalChoice
from tests.experiments.tiny_runs import settings_of

RECIPES = Path(__file__).parents[3] / "recipes"


@pytest.fixture(scope="module")
def planned():
    return IntervalChoice(recipes=RECIPES).planned()


def test_all_intervals_and_controls_have_three_seeds_in_folders_of_their_own(planned):
    assert len(planned) == len({run.folder for run in planned}) == 2 * (5 + 2) * 3
    assert [run.name for run in planned[12:16]] == [
        "WGAN-GP, interval 640, seed 0",
        "WGAN-GP, interval 640, seed 1",
        "WGAN-GP, interval 640, seed 2",
        "WGAN-GP, local only, seed 0",
    ]
    assert planned[15].folder.name == "quickstart-whole-cohort-split0-interval40-rounds64-seed0-local_only"


def test_local_iterations_are_equal_and_so_are_those_at_checkpoints(planned):
    for kind, iterations in (("WGAN-GP", 2560), ("DDPM", 1280)):
        runs = [run for run in planned if run.series == kind]
        assert {run.rounds * run.interval for run in runs} == {iterations}
        kept = {
            run.interval: json.loads(settings_of(run.training)["--trainer.callbacks"])[0]["init_args"]["every_n_rounds"]
            for run in runs
        }
        # a fourth of the iterations apart, or a round where one is longer
        assert {interval: every * interval for interval, every in kept.items()} == {
            interval: max(iterations // 4, interval) for interval in (1, 10, 40, 160, 640)
        }


def test_every_client_is_in_every_cohort_and_the_pooled_control_takes_as_many_images(planned):
    given = [settings_of(run.training) for run in planned]
    assert {one["--trainer.strategy.init_args.cohort_size"] for one in given} == {"null"}
    assert {one["--data.init_args.seed"] for one in given} == {"0"}
    sizes = {
        (run.series, run.training.control): settings_of(run.training)["--data.init_args.batch_size"] for run in planned
    }
    assert sizes == {
        ("WGAN-GP", None): "32", ("WGAN-GP", "local_only"): "32", ("WGAN-GP", "centralised"): "320",
        ("DDPM", None): "8", ("DDPM", "local_only"): "8", ("DDPM", "centralised"): "80",
    }  # fmt: skip


def test_no_wgan_gp_has_a_moving_average_whose_span_would_follow_the_interval(planned):
    decays = {(run.series, settings_of(run.training).get("--model.init_args.ema_decay")) for run in planned}
    assert decays == {("WGAN-GP", "null"), ("DDPM", None)}  # the controls among them


def test_a_kind_may_be_left_out_and_iterations_changed():
    choice = IntervalChoice(kinds=("ddpm",), intervals=(6, 3), iterations=12, seeds=1, checkpoints=2, recipes=RECIPES)
    runs = choice.planned()
    assert [(run.series, run.interval, run.rounds) for run in runs] == [
        ("DDPM", 3, 4), ("DDPM", 6, 2), ("DDPM", 6, 2), ("DDPM", 6, 2),
    ]  # fmt: skip
    assert choice.settings()["iterations"] == {"ddpm": 12}
