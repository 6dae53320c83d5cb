"""Recipes of generators that need no training."""

import pytest

from fedgen.experiments.ranking.class_federation import (
    class_recipes,
    mixture_recipes,
    neighbourhood_recipes,
    spread_out,
)


def test_two_classes_are_mixed_in_each_share_and_more_in_equal_parts():
    found = mixture_recipes(["a", "b", "c"], (0.25, 0.5))
    assert list(found)[:2] == ["25% a, 75% b", "50% a, 50% b"]
    assert found["25% a, 75% b"].shares == {"a": 0.25, "b": 0.75}
    assert found["33% a, 33% b, 33% c"].shares == pytest.approx(dict.fromkeys("abc", 1 / 3))
    assert len(found) == 3 * 2 + 1
    assert all(sum(recipe.shares.values()) == pytest.approx(1) for recipe in found.values())


def test_the_default_of_five_classes_makes_a_hundred_generators():
    names = ["a", "b", "c", "d", "e"]
    near = neighbourhood_recipes({name: [place, place + 10] for place, name in enumerate(names)}, (1, 2, 4, 8, 16))
    assert len(class_recipes(names) | mixture_recipes(names) | near) == 5 + 46 + 50


def test_unions_of_no_two_sizes_are_made_twice():
    found = mixture_recipes(["a", "b", "c", "d"], ())
    assert sorted(len(recipe.shares) for recipe in found.values()) == [3, 3, 3, 3, 4]
    assert mixture_recipes(["a"]) == {}


def test_neighbourhoods_are_named_after_their_image_and_size():
    found = neighbourhood_recipes({"Bag": [7]}, (1000, 2000))
    assert list(found) == ["1,000 nearest to Bag 7", "2,000 nearest to Bag 7"]
    assert (found["2,000 nearest to Bag 7"].anchor, found["2,000 nearest to Bag 7"].count) == (7, 2000)


def test_names_are_taken_evenly_from_first_to_last():
    assert spread_out(list("abcdefghi"), 3) == ["a", "e", "i"]
    assert spread_out(list("ab"), 5) == ["a", "b"]
    assert spread_out(list("abc"), 1) == ["a"]
