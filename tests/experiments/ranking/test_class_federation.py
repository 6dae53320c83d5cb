"""Clients of one class each, and generators of the others."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedgen.data.sets.pickled_images import FINE_CLASSES
from fedgen.experiments.ranking import class_generators
from fedgen.experiments.ranking.class_generators import ClassChoice, ClassFederation
from fedgen.statistics import Projection
from tests.experiments.ranking.class_images import write_cifar10, write_cifar100, write_imagenet32

DIGITS = ClassChoice("digits", Path("data"), "pixels", None, None, None, 20, None, "pixels", 4)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def seen(features):
    return {tuple(row.tolist()) for row in features}


def test_clients_generators_floor_and_public_images_are_disjoint():
    places = ClassFederation(DIGITS)
    assert places.classes == tuple("01234")
    clients = seen(torch.cat(places.federation.parts()))
    generated = set().union(*(seen(places.draw(name)) for name in places.recipes))
    floor = seen(places.floor())
    rest = torch.ones(1797, dtype=torch.bool)
    rest[places._floor] = False
    public = seen(places.clients.features[places.public_positions[rest[places.public_positions]]])
    sets = [clients, generated, floor, public]
    assert sum(map(len, sets)) == len(set().union(*sets))
    assert len(clients) + len(places._stock) + len(floor) + len(public) == 1797


def test_every_generator_draws_as_many_images_none_twice_and_the_same_ones_again():
    places = ClassFederation(DIGITS)
    for name in places.recipes:
        drawn = places.draw(name)
        assert drawn.shape == (20, 64)
        assert len(seen(drawn)) == 20
        assert torch.equal(drawn, places.draw(name))


def test_generators_hold_what_their_recipes_say():
    places = ClassFederation(DIGITS)
    labels = {tuple(row.tolist()): int(y) for row, y in zip(places.clients.features, places.clients.examples.labels)}
    drawn = [labels[tuple(row.tolist())] for row in places.draw("25% 5, 75% 8")]
    assert (drawn.count(5), drawn.count(8)) == (5, 15)
    name, recipe = next((name, one) for name, one in places.recipes.items() if one.kind == "neighbourhood")
    assert recipe.count == 20  # as many as are drawn: all of them
    stored = places.makers.features[places._stock]
    distances = (stored - stored[recipe.anchor]).norm(dim=1)
    assert seen(places.draw(name)) == seen(stored[distances.argsort()[:20]])


@pytest.mark.slow
def test_the_floor_has_the_clients_shares_and_the_projection_the_rest():
    write_cifar10(Path("data"))
    places = ClassFederation(replace(DIGITS, data="cifar10", num_images=10, client_images=7))
    assert places.federation.counts == (7,) * 5
    labels = places.public.examples.labels[places._floor]
    assert torch.bincount(labels).tolist() == [2] * 5
    rest = torch.ones(300, dtype=torch.bool)
    rest[places._floor] = False
    expected = Projection.fit(places.public.features[rest], 4)
    assert torch.allclose(places.projection.components, expected.components)
    assert places.projection.public == "cifar10/test"


def test_classes_of_other_data_are_generators_alone_and_all_classes_are_clients(clip):
    write_cifar10(Path("data"))
    write_cifar100(Path("data"))
    places = ClassFederation(replace(DIGITS, data="cifar10", embedding=clip, generators="cifar100", num_images=None))
    assert len(places.classes) == 10
    assert list(places.recipes) == [FINE_CLASSES[label] for label in (0, 20, 40, 60, 80)]
    assert places.num_images == 16  # all of the smallest class
    drawn = places.draw("apple")
    assert seen(drawn) == seen(places.makers.features[places.makers.examples.labels == 0])


def test_the_first_hundred_classes_of_imagenet32_are_clients_of_at_most_their_share(clip):
    write_imagenet32(Path("data"))
    write_cifar100(Path("data"))
    choice = replace(DIGITS, data="imagenet32", embedding=clip, generators="cifar100", num_images=None)
    places = ClassFederation(replace(choice, total_images=100))
    assert places.federation.names == ("1", "2", "3", "4")
    assert places.federation.counts == (25,) * 4
    assert ClassFederation(choice).federation.counts == (30,) * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": ("0", "x")}, "class 'x' is not there"),
        ({"classes": tuple("0123456789")}, "clients hold every class"),
        ({"client_images": 200}, "client_images=200: class '0' of digits/train has 143"),
        ({"client_images": 1}, "client_images=1: .* a client needs 2"),
        ({"num_images": 150}, "num_images=150: class '8' of digits/train allows 140; give --num_images 2 to 140"),
        ({"num_images": 1}, "num_images=1"),
        ({"classes": ("0",)}, r"classes=\['0'\]: avg and all of one client are the same"),
        ({"classes": ()}, r"classes=\[\]: .* give at least 2"),
        ({"neighbours": "pixel"}, "unknown embedding 'pixel'; did you mean pixels"),
        ({"num_images": 5000, "quick": True}, "num_images=5000: class '8' of digits/train allows 140"),
        ({"client_images": 5000, "quick": True}, "client_images=5000: class '0' of digits/train has 143"),
        ({"components": 400}, "400 components need more than the 335 public images"),
    ],
)
def test_what_the_data_cannot_give_is_refused_before_anything_is_embedded(change, message, monkeypatch):
    monkeypatch.setattr("fedgen.experiments.engine.features.embed", None)
    with pytest.raises(ValueError, match=message):
        ClassFederation(replace(DIGITS, **change))


def test_generators_of_other_features_or_of_the_clients_own_images_are_refused():
    for folder, side in (("small", 4), ("large", 8)):
        for grey in range(3):
            (Path(folder) / str(grey)).mkdir(parents=True)
            for number in range(12):
                image = Image.new("L", (side, side), 60 * grey)
                image.putpixel((0, 0), number)
                image.save(Path(folder) / str(grey) / f"{number}.png")
    shutil.copytree("small", "copy")
    choice = replace(DIGITS, data="small", num_images=2, components=1)
    with pytest.raises(ValueError, match="features"):
        ClassFederation(replace(choice, generators="large"))
    with pytest.raises(ValueError, match="train"):
        ClassFederation(replace(choice, generators="copy"))


def test_features_are_not_copied_for_the_generators(monkeypatch):
    places, made, own = ClassFederation(DIGITS), [], class_generators.EmpiricalGenerator
    note = lambda points, *groups: made.append(points) or own(points, *groups)  # noqa: E731
    monkeypatch.setattr(class_generators, "EmpiricalGenerator", note)
    for name in places.recipes:
        places.draw(name)
    assert {points.inputs.data_ptr() for points in made} == {places.makers.features.data_ptr()}
    assert all(points.labels is places.makers.examples.labels for points in made)


def test_a_title_says_who_holds_what():
    assert ClassFederation(DIGITS).describe(3) == (
        "clients: digits/train, 0, 1, 2, 3, 4, 142 to 147 images each; generators: 3 of digits/train, 20 images each"
    )
