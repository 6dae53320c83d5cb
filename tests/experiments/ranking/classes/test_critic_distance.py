"""Critics' and sliced distances of class generators, on digits."""

import json
from pathlib import Path

import pytest
import torch

from fedgen.experiments.ranking.classes import class_scores
from fedgen.experiments.ranking.classes import critic_distance as experiment
from fedgen.experiments.ranking.classes.class_deal import REAL
from fedgen.experiments.ranking.classes.class_federation import ClassChoice, ClassFederation
from fedgen.scores import CriticOptions, SlicedReference, WassersteinReference
from tests.experiments.ranking.classes.class_images import write_cifar10, write_cifar100

DIGITS = {"data": "digits", "embedding": "pixels", "components": 4, "num_images": 40}
SHORT = CriticOptions(hidden=8, max_steps=20)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiment, "QUICK_STEPS", 10)


def numbers_of(folder="out"):
    return json.loads((Path(folder) / "results.json").read_text())["numbers"]


@pytest.mark.slow
def test_it_calibrates_compares_and_does_not_measure_twice(capsys, monkeypatch):
    run = {**DIGITS, "output": Path("out"), "quick": True, "count": 3}
    experiment.wasserstein(**run)
    printed = capsys.readouterr().out
    numbers = numbers_of()
    assert list(numbers["calibration"]) == ["shift 0.25", "shift 0.5", "shift 1", "shift 2", "width 2", "width 4"]
    assert 0.2 < numbers["calibration"]["shift 2"]["w1 groupsort"] < 1.05
    assert numbers["calibration"]["shift 1"]["sw1"] == pytest.approx(1, abs=0.15)
    assert [numbers["found"]["scores"][score]["pairs"] for score in experiment.TITLES] == [3, 3, 3]
    names = [name for name in numbers["scores"] if name != REAL]
    assert (names[0], len(names)) == ("5", 3)
    real = numbers["scores"][REAL]["clients"]["sw1"]["all"]
    assert real < min(numbers["scores"][name]["clients"]["sw1"]["all"] for name in names)
    assert Path("out/wasserstein.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(experiment, "CriticMeasure", None)
    monkeypatch.setattr(class_scores, "ClassFederation", None)
    experiment.wasserstein(**run)
    assert capsys.readouterr().out == printed


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_numbers_of_an_unbroken_one(monkeypatch):
    run = {**DIGITS, "client_images": 60, "quick": True, "count": 2, "classes": ("0", "1")}
    experiment.wasserstein(**run, output=Path("whole"))
    measure = experiment.CriticMeasure.__call__

    def stopped(self, name):
        if name != REAL:
            raise KeyboardInterrupt
        return measure(self, name)

    monkeypatch.setattr(experiment.CriticMeasure, "__call__", stopped)
    with pytest.raises(KeyboardInterrupt):
        experiment.wasserstein(**run, output=Path("out"))
    assert list(numbers_of()["scores"]) == [REAL]
    monkeypatch.setattr(experiment.CriticMeasure, "__call__", measure)
    experiment.wasserstein(**run, output=Path("out"))
    assert numbers_of() == numbers_of("whole")


@pytest.mark.slow
@pytest.mark.parametrize("components", [0, 4])
def test_values_are_those_of_the_scores_on_the_same_features(components):
    choice = ClassChoice("digits", Path("data"), "pixels", None, None, None, 40, 60, "pixels", components)
    places = ClassFederation(choice)
    measure = experiment.CriticMeasure(places, {experiment.SORTED: SHORT}, projections=20, controls=1)
    found = measure("7")
    project = places.projection.project if components else torch.Tensor.double
    for where, federation in (("clients", places.federation), ("IID 0", places.federation.iid(0))):
        parts = [project(part).float() for part in federation.parts()]
        generated = project(places.draw("7")).float()
        critic = WassersteinReference.from_features(parts, SHORT).score(generated)
        assert found[where]["w1 groupsort"]["avg"] == pytest.approx(critic.values["avg"], rel=1e-6)
        sliced = SlicedReference.from_features(parts, projections=20).score(generated)
        assert found[where]["sw1"]["all"] == pytest.approx(sliced.values["all"], rel=1e-6)
        assert found[where]["sw1"]["errors"]["all"] == pytest.approx(sliced.error_parts["generated"]["all"], rel=1e-6)


def test_the_distance_of_the_means_by_hand():
    parts = [torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([[0.0, 4.0]] * 6)]
    found = experiment.distance_of_means(parts, torch.tensor([[1.0, 4.0]]))
    assert found["avg"] == pytest.approx((2 * 4 + 6 * 1) / 8)
    assert found["all"] == pytest.approx((0.75**2 + 1) ** 0.5)  # the pool's mean is (0.25, 3)


@pytest.mark.slow
def test_generators_may_be_the_classes_of_other_data_in_all_features(clip_weights):
    write_cifar10(Path("data"))
    write_cifar100(Path("data"), classes=(0, 50))
    experiment.wasserstein(
        Path("out"), data="cifar10", embedding="clip-vit-b-32", weights=clip_weights, generators="cifar100",
        components=0, controls=1, quick=True, last_activation=False, client_images=8, classes=("cat", "dog", "ship"),
    )  # fmt: skip
    assert len(numbers_of()["scores"]) == 3


@pytest.mark.parametrize("wrong", [{"count": 1}, {"controls": 0}, {"components": -1}, {"projections": 1}])
def test_what_ranks_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match="a ranking needs 2 generators, its evidence 1 control"):
        experiment.wasserstein(**{**DIGITS, **wrong})
