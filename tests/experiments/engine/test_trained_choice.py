"""The options that experiments on trained checkpoints share."""

from pathlib import Path

import pytest

from fedgen.experiments.engine.scored_checkpoints import TrainedChoice
from fedgen.experiments.engine.study import RUNS
from tests.experiments.tiny_runs import write_recipe

OPTIONS = {
    "data": "digits", "embedding": None, "by_network": False, "weights": None, "seeds": None, "intervals": None,
    "checkpoints": None, "client_images": None, "components": 64, "dealings": 3, "runs": None, "output": None,
    "recipes": Path("recipes"), "parallel": 1, "device": "cpu", "seed": 5, "quick": False,
}  # fmt: skip


def choose(**changes):
    return TrainedChoice(**{**OPTIONS, **changes})


def test_the_datas_own_settings_stand_unless_others_are_given():
    own, other = choose(), choose(embedding="efficientnet-lite0-32", intervals=(3,), client_images=10)
    assert (own.protocol.embedding, own.protocol.series[0].intervals) == ("pixels", (2, 8))
    assert (other.protocol.embedding, other.protocol.series[0].intervals) == ("efficientnet-lite0-32", (3,))
    assert (own.settings()["client_images"], other.settings()["client_images"]) == (None, 10)
    assert choose(by_network=True).protocol.embedding == "efficientnet-lite0-32"


def test_the_datas_own_numbers_of_seeds_and_checkpoints_are_plain_settings():
    assert (choose().settings()["seeds"], choose().settings()["checkpoints"]) == (3, 20)
    own = choose(data="fashion-mnist").settings()
    assert (own["seeds"], own["checkpoints"]) == (1, 10)
    assert own == choose(data="fashion-mnist", seeds=1, checkpoints=10).settings()
    assert own != choose(data="fashion-mnist", seeds=2).settings()


def test_kinds_are_the_datas_unless_some_are_named():
    assert [one.name for one in choose().series()] == ["WGAN-GP", "DDPM"]
    assert [one.name for one in choose(data="cifar10").series(["DDPM"])] == ["DDPM"]
    for kinds in ([], ["vae"], ["ddpm", "DDPM"]):
        with pytest.raises(ValueError, match="give"):
            choose().series(kinds)


def test_seeds_follow_the_first_and_a_quick_run_has_few():
    assert list(choose().seeds_of) == [5, 6, 7]
    assert (choose().settings()["dealings"], choose(quick=True).settings()["dealings"]) == (3, 1)
    quick = choose(quick=True)
    assert (list(quick.seeds_of), quick.protocol.checkpoints) == ([5], 5)


def test_runs_are_shared_unless_the_experiment_has_a_folder_of_its_own():
    assert choose().folder == RUNS
    assert choose(output=Path("mine")).folder == Path("mine/runs")
    assert choose(output=Path("mine"), runs=Path("there")).folder == Path("there")


def test_paths_and_speed_are_no_settings_of_the_numbers():
    assert choose().settings() == choose(parallel=2, device="cpu:0", runs=Path("there")).settings()


def test_settings_hold_what_the_recipes_say(tmp_path):
    recipes = write_recipe(tmp_path)
    own = choose(recipes=recipes).settings(["wgan-gp"])
    assert list(own["recipes"]) == ["quickstart.yaml"]
    with pytest.raises(FileNotFoundError, match="ddpm_digits"):
        choose(recipes=recipes).settings()
    (recipes / "quickstart.yaml").write_text("trainer: {max_epochs: 5}")
    assert choose(recipes=recipes).settings(["wgan-gp"]) != own


def test_a_training_that_fails_is_told_with_the_remedy_for_runs_of_other_settings(monkeypatch):
    def fail(*args):
        raise ChildProcessError("holds a run of another recipe")

    monkeypatch.setattr("fedgen.experiments.engine.trainings.train_all", fail)
    with pytest.raises(ChildProcessError, match="recipe"):
        choose(runs=Path("there")).train([])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": "svhn"}, "no recipe for data 'svhn'"),
        ({"intervals": (2, 2)}, r"intervals=\[2, 2\]"),
        ({"intervals": (0,)}, r"intervals=\[0\]"),
        ({"device": "cuda:99"}, "device 'cuda:99' cannot be used here"),
        ({"seeds": 0}, "seeds=0: give at least 1"),
        ({"checkpoints": 1}, "checkpoints=1"),
        ({"client_images": 1}, "client_images=1: give at least 2"),
    ],
)
def test_what_cannot_be_is_refused_at_once(changes, message):
    with pytest.raises(ValueError, match=message):
        choose(**changes)
