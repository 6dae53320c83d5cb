"""Recipes read by experiments."""

import pytest
import yaml

from fedgen.experiments.engine.trainings import (
    component,
    embedded_loss,
    fingerprints,
    local_iterations,
    read_recipe,
    rounds_of,
)
from tests.experiments.tiny_runs import write_recipe


def test_a_recipe_says_its_rounds_and_local_iterations(tmp_path):
    recipe = write_recipe(tmp_path) / "quickstart.yaml"
    assert rounds_of(recipe) == 4
    assert local_iterations(recipe) == 8


def test_a_recipe_that_is_not_there_or_no_file_is_named(tmp_path):
    for path in (tmp_path / "nowhere.yaml", tmp_path):
        with pytest.raises(FileNotFoundError, match=f"{path} does not exist; .*--recipe or --recipes"):
            read_recipe(path)


@pytest.mark.parametrize("text", ["trainer: [", "\t- a: b: c"])
def test_a_damaged_recipe_is_named(tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    for read in (rounds_of, local_iterations, read_recipe):
        with pytest.raises(ValueError, match="yaml"):
            read(tmp_path / "a.yaml")


def test_what_a_recipe_does_not_say_is_named(tmp_path):
    recipe = tmp_path / "a.yaml"
    for text in ("", "- trainer\n", "trainer: {}", "trainer: {max_epochs: null}"):
        recipe.write_text(text)
        with pytest.raises(ValueError, match="max_epochs"):
            local_iterations(recipe)
    recipe.write_text("trainer: {max_epochs: 3, strategy: auto}")
    assert rounds_of(recipe) == 3
    with pytest.raises(ValueError, match="communication_interval"):
        local_iterations(recipe)


def test_fingerprints_follow_what_recipes_say_and_neither_comments_nor_folders(tmp_path):
    first = fingerprints([write_recipe(tmp_path / "here") / "quickstart.yaml"])
    other = write_recipe(tmp_path / "there") / "quickstart.yaml"
    other.write_text(f"# about two minutes\n{other.read_text()}")
    assert fingerprints([other]) == first
    assert len(first["quickstart.yaml"]) == 64
    recipe = yaml.safe_load(other.read_text())
    recipe["trainer"]["max_epochs"] += 1
    other.write_text(yaml.safe_dump(recipe))
    assert fingerprints([other]).keys() == first.keys()
    assert fingerprints([other]) != first


def test_parts_are_as_recipes_have_them():
    fid = component("fedgen.losses.FastFIDLoss")
    assert fid == {"class_path": "fedgen.losses.FastFIDLoss"}
    assert embedded_loss(fid, ("pixels",), weight=2.0) == [
        {
            "class_path": "fedgen.losses.EmbeddedLoss",
            "init_args": {"loss": fid, "embeddings": ["pixels"], "weight": 2.0},
        }
    ]
