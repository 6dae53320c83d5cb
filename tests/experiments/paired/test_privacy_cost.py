import pytest

from fedgen.clients import sample_cohort
from fedgen.experiments.engine.study import read_results, save_results
from fedgen.experiments.engine.trainings import start_of
from fedgen.experiments.paired.privacy import (
    CLIPPED,
    PLAIN,
    arms_of,
    compare_of,
    epsilons,
    lines_of,
    privacy_cost,
    table_of,
)
from fedgen.statistics import spent_epsilon
from tests.test_recipes import RECIPES

RECIPE = RECIPES / "wgan_gp_digits_private.yaml"


def scores(kid):
    return [{"fid_avg": 2.0, "fid_all": 1.0, "kid_all": value} for value in kid]


def test_every_arm_clips_alike_but_the_plain_mean():
    arms = arms_of([0.1, 1.0], 0.5, 1e-3)
    assert list(arms) == [PLAIN, CLIPPED, "noise 0.1", "noise 1"]
    assert arms[PLAIN] == {"class_path": "fedgen.federated.Mean"}
    for name, noise in ((CLIPPED, 0.0), ("noise 1", 1.0)):
        assert arms[name]["init_args"] == {"max_norm": 0.5, "noise_multiplier": noise, "delta": 1e-3}


def test_more_noise_spends_less():
    spent = epsilons(RECIPE, [1.0, 3.0], 1e-3, 10, [0])
    assert 0 < spent["noise 3"] < spent["noise 1"]


def test_epsilon_is_of_the_client_drawn_most_by_any_seed():
    drawn = [[client for round in range(10) for client in sample_cohort(100, 20, seed, round)] for seed in (0, 1, 2)]
    most = max(max(map(clients.count, clients)) for clients in drawn)
    spent = epsilons(RECIPE, [1.0], 1e-3, 10, [0, 1, 2])
    assert spent["noise 1"] == pytest.approx(spent_epsilon([1.0 / 2] * most, 1e-3, "rdp"))


@pytest.mark.slow
def test_a_finished_experiment_prints_the_present_epsilons(tmp_path, capsys):
    settings = {"noise": [1.0], "max_norm": 0.5, "delta": 1e-3, "rounds": 10, "seeds": 1, "num_images": 9}
    settings |= {"recipe": start_of(RECIPE), "seed": 0, "quick": False}
    kept = {PLAIN: scores([1.0]), CLIPPED: scores([1.2]), "noise 1": scores([5.0])}
    save_results(
        tmp_path, "privacy-cost", settings, {"scores": kept, "real": scores([0.1])[0], "epsilon": {"noise 1": 9e9}}
    )
    privacy_cost(output=tmp_path, noise=(1.0,), recipe=RECIPE, rounds=10, seeds=1, num_images=9, runs=tmp_path / "runs")
    present = epsilons(RECIPE, [1.0], 1e-3, 10, [0])
    assert f"epsilon {present['noise 1']:.3g}" in capsys.readouterr().out
    assert read_results(tmp_path, settings)["epsilon"] == present
    assert not (tmp_path / "runs").exists()


def test_what_is_expected_is_told_by_paired_seeds():
    found = {PLAIN: scores([1.0, 1.1, 0.9]), CLIPPED: scores([1.2, 1.3, 1.1]), "noise 1": scores([5.0, 5.3, 4.9])}
    lines = lines_of(found, {"noise 1": 7.0})
    assert lines[0].startswith("as expected: clipping alone is worse than the plain mean: kid_all: +0.2")
    assert lines[1].startswith("as expected: noise 1, epsilon 7, is worse than clipping alone: kid_all: +3.87")
    assert lines[2] == "as expected: kid_all rises with the noise"
    assert compare_of(found, PLAIN, CLIPPED)["improved"] == 0
    assert table_of(found, scores([0.1])[0], {"noise 1": 7.0}, 1e-3).row_count == 4
