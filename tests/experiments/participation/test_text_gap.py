"""A character model on books that it never saw, at a tiny size."""

import pytest
import yaml

from fedgen.experiments.engine.gaps import GapScores
from fedgen.experiments.participation.participation_gap import (
    CENTRAL,
    TextChoice,
    natural_tails,
    text_outcomes,
    verdicts,
)
from tests.experiments.participation.test_classifier_control import curves
from tests.experiments.participation.tiny_recipes import BOOKS, text_recipe


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return text_recipe()


def change(recipe, **data):
    settings = yaml.safe_load(recipe.read_text())
    settings["data"]["init_args"] |= data
    recipe.write_text(yaml.safe_dump(settings))


@pytest.mark.slow
def test_arms_are_the_books_their_sections_random_deals_and_training_in_one_place(recipe):
    choice = TextChoice(recipe=recipe)
    assert [arm.name for arm in choice.arms] == ["natural", "Dirichlet", "random", CENTRAL]
    assert choice.arms[-1].control == "centralised"
    assert len(choice.seeds_of) == 3  # repetitions, whose differences between arms have intervals
    assert [len(choice.federation(arm).everyone) for arm in choice.arms] == [10, 10, 10, 10]


def test_texts_without_labels_are_not_dealt_by_them(recipe, tmp_path):
    for name in BOOKS:
        (tmp_path / "books").mkdir(exist_ok=True)
        (tmp_path / "books" / f"{name}.txt").write_text(f"{name} went forth. " * 40)
    settings = {"class_path": "fedgen.data.TextFolder", "init_args": {"root": str(tmp_path / "books"), "length": 16}}
    change(recipe, data=settings)
    assert [arm.name for arm in TextChoice(recipe=recipe).arms] == ["natural", "random", CENTRAL]


def test_recipes_of_other_clients_are_refused(recipe):
    change(recipe, partition={"class_path": "fedgen.clients.partitions.IID", "init_args": {"num_clients": 10}})
    with pytest.raises(ValueError, match="natural"):
        TextChoice(recipe=recipe)


def test_what_was_published_is_held_against_what_was_found():
    found = {
        "natural": curves(1.0, 1.1, 1.2),
        "Dirichlet": curves(1.0, 1.1, 1.2),
        "random": curves(1.0, 1.1, 1.1),
        CENTRAL: curves(1.0, 1.2, 1.3, 0.001),
    }
    said = "\n".join(verdicts(GapScores(found), text_outcomes))
    for line in (
        "as expected: natural: the participation gap in loss avg is +0.1",
        "not seen: Dirichlet: the participation gap in loss avg is +0.1",
        "as expected: a larger participation gap of natural clients than of random ones: +0.1",
        "not seen: a larger participation gap of natural clients than of Dirichlet ones",
        "not seen: centralised, a smaller loss on unpart: +0.1",
    ):
        assert line in said
    unlabelled = {name: found[name] for name in ("natural", "random", CENTRAL)}
    assert "Dirichlet" not in "\n".join(verdicts(GapScores(unlabelled), text_outcomes))


def test_percentiles_compare_seen_and_unseen_books():
    own = {"part_val": {"pct95": [2.2], "pct50": [2.1]}, "unpart": {"pct95": [2.5], "pct50": [2.1]}}
    spread = {arm: {"0": {"loss": own}, "1": {"loss": own}} for arm in ("natural", CENTRAL)}
    said = natural_tails(spread, "losses")
    assert said[0].startswith("as expected: natural: the 95th percentile of the clients' losses")
    assert said[1].startswith("not seen: natural: the median")
