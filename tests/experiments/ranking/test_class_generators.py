"""FID and KID of class generators, on digits and on small files of the published data sets."""

import json
from pathlib import Path

import pytest

from fedgen.experiments.command import reproduce
from fedgen.experiments.ranking import class_generators as experiment
from fedgen.experiments.ranking.class_generators import ClassChoice, ClassFederation
from fedgen.experiments.ranking.sample_size import REAL
from fedgen.scores import FrechetReference, KernelReference
from tests.experiments.ranking.class_images import write_cifar10, write_cifar100, write_imagenet32
from tests.experiments.tiny_runs import draw_unwritten

DIGITS = {"data": "digits", "embedding": "pixels", "components": 4, "num_images": 40}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def numbers_of(folder="out"):
    return json.loads((Path(folder) / "results.json").read_text())["numbers"]


def test_scores_are_those_over_clients_and_over_iid_ones():
    choice = ClassChoice("digits", Path("data"), "pixels", None, None, None, 40, None, "pixels", 4)
    places = ClassFederation(choice)
    parts, generated = places.federation.parts(), places.draw("7")
    found = experiment.ClassMeasure(places, places.federation.with_iid(0, 2))(generated)
    fid, kid = FrechetReference.from_features(parts).score(generated), KernelReference.from_features(parts)
    assert found["clients"]["fid"]["all"] == pytest.approx(fid.values["all"], rel=1e-9)
    assert found["clients"]["kid"]["avg"] == pytest.approx(kid.score(generated).values["avg"], rel=1e-9)
    reduced = [places.projection.project(part) for part in parts]
    for name, bias in (("fid pca", "plug-in"), ("fidc pca", "corrected")):
        few = FrechetReference.from_features(reduced, bias=bias).score(places.projection.project(generated))
        assert found["clients"][name]["avg"] == pytest.approx(few.values["avg"], rel=1e-9)
    exact = FrechetReference.from_features(places.federation.iid(0, 1).parts()).score(generated)
    control = found["IID 1"]["fid"]
    for how in ("avg", "all"):
        assert control[how] == pytest.approx(exact.values[how], rel=1e-9)
        assert control["errors"][how] == pytest.approx(exact.error_parts["generated"][how], rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "clients", "write"), [("cifar10", 10, write_cifar10), ("imagenet32", 4, write_imagenet32)]
)
def test_the_papers_data_sets_are_read_from_their_published_files(data, clients, write, clip_weights, monkeypatch):
    draw_unwritten(monkeypatch)
    write(Path("data"))
    write_cifar100(Path("data"))
    options = ["--embedding", "clip-vit-b-32", "--weights", str(clip_weights), "--components", "4", "--output", "out"]
    assert reproduce(["class-generators", "--data", data, "--generators", "cifar100", "--controls", "1", *options]) == 0
    numbers = numbers_of()
    assert list(numbers["scores"])[:2] == [REAL, "apple"]
    assert numbers["found"]["scores"]["kid"]["pairs"] == 10
    assert numbers["found"]["scores"]["kid"]["inverted"] == []
    assert clients == len(ClassFederation(choice_of(data, clip_weights)).classes)


def choice_of(data, weights):
    return ClassChoice(data, Path("data"), "clip-vit-b-32", weights, None, "cifar100", None, None, "pixels", 4)


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_the_generators_that_are_missing(monkeypatch):
    monkeypatch.setattr(experiment, "QUICK_GENERATORS", 6)
    draw_unwritten(monkeypatch)
    run = {**DIGITS, "output": Path("out"), "quick": True, "classes": ("8", "9")}
    experiment.class_generators(**{**run, "output": Path("whole")})
    whole, known = experiment.ClassMeasure.__call__, []

    def stopped(self, generated):
        if len(known) == 3:
            raise KeyboardInterrupt
        known.append(generated)
        return whole(self, generated)

    monkeypatch.setattr(experiment.ClassMeasure, "__call__", stopped)
    with pytest.raises(KeyboardInterrupt):
        experiment.class_generators(**run)
    assert len(numbers_of()["scores"]) == 3
    monkeypatch.setattr(experiment.ClassMeasure, "__call__", lambda self, made: known.append(made) or whole(self, made))
    experiment.class_generators(**run)
    assert len(known) == len(numbers_of()["scores"])
    assert numbers_of() == numbers_of("whole")


def test_what_ranks_nothing_is_refused():
    for wrong in ("controls", "components"):
        with pytest.raises(ValueError, match=f"{wrong}=0: give at least 1"):
            experiment.class_generators(**{**DIGITS, wrong: 0})
    write_cifar10(Path("data"))
    write_cifar100(Path("data"), classes=(0,))
    with pytest.raises(ValueError, match="cifar100"):
        experiment.class_generators(
            output=Path("out"), data="cifar10", embedding="pixels", components=4, generators="cifar100"
        )


@pytest.mark.slow
def test_classes_named_by_numbers_may_be_given_as_numbers(monkeypatch):
    monkeypatch.setattr(experiment, "QUICK_GENERATORS", 6)
    draw_unwritten(monkeypatch)
    options = ["--data", "digits", "--embedding", "pixels", "--components", "4", "--quick", "True", "--output", "out"]
    assert reproduce(["class-generators", *options, "--classes", "[3, 1]", "--num_images", "20"]) == 0
    heading = numbers_of()["generators"]["heading"]
    assert heading.startswith("clients: digits/train, 3, 1, 146 to 147 images each; generators: 6 of digits/train, 20")
