"""Critics' and sliced distances of class generators, on digits."""

import json
from pathlib import Path

import pytest
import torch

from fedgen.experiments.ranking import critic_distance as experiment
from fedgen.experiments.ranking.class_generators import ClassChoice, ClassFederation
from fedgen.scores import CriticOptions, SlicedReference, WassersteinReference
from tests.experiments.ranking.class_images import write_cifar10, write_cifar100
from tests.experiments.tiny_runs import draw_unwritten

DIGITS = {"data": "digits", "embedding": "pixels", "components": 4, "num_images": 40}
SHORT = CriticOptions(hidden=8, max_steps=20)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiment, "QUICK_STEPS", 10)


def numbers_of(folder="out"):
    return json.loads((Path(folder) / "results.json").read_text())["numbers"]


@pytest.mark.slow
@pytest.mark.parametrize("components", [0, 4])
def test_values_are_those_of_the_scores_on_the_same_features(components):
    choice = ClassChoice("digits", Path("data"), "pixels", None, None, None, 40, 60, "pixels", components)
    places = ClassFederation(choice)
    sides = places.federation.with_iid(0, 1)
    found = experiment.CriticMeasure(places, sides, {experiment.SORTED: SHORT}, projections=20)(places.draw("7"))
    project = places.projection.project if components else torch.Tensor.double
    for where, federation in sides.items():
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
def test_generators_may_be_the_classes_of_other_data_in_all_features(clip_weights, monkeypatch):
    draw_unwritten(monkeypatch)
    write_cifar10(Path("data"))
    write_cifar100(Path("data"), classes=(0, 50))
    experiment.wasserstein(
        output=Path("out"), data="cifar10", embedding="clip-vit-b-32", weights=clip_weights, generators="cifar100",
        components=0, controls=1, quick=True, last_activation=False, client_images=8, classes=("cat", "dog", "ship"),
    )  # fmt: skip
    assert len(numbers_of()["scores"]) == 3


@pytest.mark.parametrize(("wrong", "least"), [("count", 2), ("projections", 2), ("controls", 1), ("components", 0)])
def test_what_ranks_nothing_is_refused(wrong, least):
    with pytest.raises(ValueError, match=f"{wrong}={least - 1}: give at least {least}"):
        experiment.wasserstein(**{**DIGITS, wrong: least - 1})
