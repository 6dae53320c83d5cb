"""Recipes are found by name: here, in a checkout, and installed."""

import tomllib
from pathlib import Path

import pytest

from fedgen.__main__ import main
from fedgen.cli.fit import MEANING
from fedgen.recipe import recipe_files
from fedgen.recipe.recipe_files import describe, find_recipe, known_recipes, name_of, recipe_folders, with_recipe

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """An environment that the package was installed into, without its checkout."""
    folder = tmp_path / "env" / recipe_files.INSTALLED
    folder.mkdir(parents=True)
    (folder / "quickstart.yaml").write_text("# A federation. More of it.\ntrainer: {}\n")
    monkeypatch.setattr(recipe_files, "CHECKOUT", tmp_path / "none")
    monkeypatch.setattr(recipe_files.sysconfig, "get_path", lambda name: str(tmp_path / "env"))
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_recipe_is_the_first_word_of_fit_or_a_name_behind_config():
    path = str(find_recipe("quickstart"))
    assert with_recipe(["quickstart", "--threads", "2"]) == ["--config", path, "--threads", "2"]
    assert with_recipe(["--local_only", "quickstart"]) == ["--local_only", "--config", path]
    assert with_recipe(["--config", "quickstart"]) == ["--config", path]
    assert with_recipe(["--config=quickstart"]) == [f"--config={path}"]
    assert with_recipe(["--trainer.max_epochs", "3"]) == ["--trainer.max_epochs", "3"]


def test_recipes_of_an_installed_package_are_found_without_a_checkout(installed):
    assert find_recipe("quickstart") == installed / "quickstart.yaml"
    assert installed in recipe_folders()
    assert next(iter(known_recipes())) == "quickstart"


def test_the_package_installs_its_recipes():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    assert settings == {recipe_files.INSTALLED: ["recipes/*.yaml", "recipes/*.jsonl"]}


def test_a_file_is_named_shortly_only_where_its_name_finds_it(installed):
    assert name_of(str(installed / "quickstart.yaml")) == "quickstart"
    own = installed.parent / "quickstart.yaml"
    own.write_text("trainer: {}\n")
    assert name_of(str(own)) == str(own)


def test_the_list_has_a_line_for_each(installed, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["recipes"]) == 0
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert (first, second) == ("quickstart", "  A federation")
    assert " ".join(rest).strip() == MEANING
    long = "A federation of clients that hold a class of images each, and of others that hold two or more"
    time = "Time: 2 min. FID-all: 3.2; real images: 1.1."
    (installed / "quickstart.yaml").write_text(f"# {long}. One more.\n# {time}\ntrainer: {{}}\n")
    assert main(["recipes"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == f"quickstart  {time}"
    assert max(map(len, rest)) <= 80
    assert " ".join(map(str.strip, rest[:2])) == long
    (installed / "quickstart.yaml").unlink()
    assert main(["recipes"]) == 0
    assert "no recipes here" in capsys.readouterr().out


def test_every_recipe_says_what_it_is_in_a_sentence():
    lengths = {path.stem: len(describe(path)) for path in (ROOT / "recipes").glob("*.yaml")}
    assert {name: length for name, length in lengths.items() if not 20 < length < 400} == {}


def test_other_commands_find_recipes_by_name_and_suggest(capsys):
    assert main(["deploy", "quickstrat", "app"]) == 2
    assert "did you mean" in capsys.readouterr().err
