"""Recipes of generators that need no training."""

import pytest

from fedgen.experiments.ranking.class_generators import KINDS, ClassChoice, ClassFederation, mixture_recipes, spread_out


def test_two_classes_are_mixed_in_each_share_and_more_in_equal_parts():
    found = mixture_recipes(["a", "b", "c"], (0.25, 0.5))
    assert list(found)[:2] == ["25% a, 75% b", "50% a, 50% b"]
    assert found["25% a, 75% b"].shares == {"a": 0.25, "b": 0.75}
    assert found["33% a, 33% b, 33% c"].shares == pytest.approx(dict.fromkeys("abc", 1 / 3))
    assert len(found) == 3 * 2 + 1
    assert all(sum(recipe.shares.values()) == pytest.approx(1) for recipe in found.values())


def test_the_default_of_five_classes_makes_a_hundred_generators_named_after_what_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipes = ClassFederation(ClassChoice("digits", embedding="pixels", components=4, num_images=40)).recipes
    kinds = [recipe.kind for recipe in recipes.values()]
    assert {kind: kinds.count(kind) for kind in KINDS} == {"class": 5, "mixture": 46, "neighbourhood": 50}
    largest = [name for name in recipes if name.startswith("640 nearest to 9 ")]
    assert [recipes[name].count for name in largest] == [640, 640]
    assert [str(recipes[name].anchor) for name in largest] == [name.rsplit(" ", 1)[1] for name in largest]


def test_unions_of_no_two_sizes_are_made_twice():
    found = mixture_recipes(["a", "b", "c", "d"], ())
    assert sorted(len(recipe.shares) for recipe in found.values()) == [3, 3, 3, 3, 4]
    assert mixture_recipes(["a"]) == {}


def test_names_are_taken_evenly_from_first_to_last():
    assert spread_out(list("abcdefghi"), 3) == ["a", "e", "i"]
    assert spread_out(list("ab"), 5) == ["a", "b"]
    assert spread_out(list("abc"), 1) == ["a"]
