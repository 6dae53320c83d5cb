"""Paired runs with and without a FID loss."""

import json
from pathlib import Path

import pytest
import yaml

from fedgen.evaluation import ScoreRecord, append_records
from fedgen.evaluation.scores_file import SCORES_FILE
from fedgen.experiments.digits_fid_loss import compare, digits_fid_loss, draw_pairs, last_scores, table_of
from fedgen.experiments.results import save_results

RECIPE = Path(__file__).parents[2] / "recipes" / "wgan_gp_digits_fid.yaml"


def record(value, optimised_on=()):
    return ScoreRecord(
        "fid", "all", value, 0.1, "train", "pixels", "abc", "digits", 10, 2, 0, round=1, optimised_on=list(optimised_on)
    )


def scores(values, optimised_on=()):
    return [{"fid_all": record(value, optimised_on)} for value in values]


def test_differences_are_paired_by_seed_with_students_interval():
    found = compare({"without": scores([4.0, 6.0]), "with": scores([3.0, 3.0], ["pixels"])})["fid_all"]
    assert found["difference"] == -2.0
    # differences -1 and -3: deviation sqrt(2), half width 12.7062 * sqrt(2) / sqrt(2)
    assert found["interval"] == pytest.approx([-14.7062, 10.7062], abs=1e-3)
    assert found["optimised"]


def test_the_table_counts_the_seeds_that_improved(tmp_path):
    numbers = compare({"without": scores([4.0, 6.0, 1.0]), "with": scores([3.0, 3.0, 2.0])})
    table = table_of(numbers)
    assert list(table.columns[5].cells) == ["2 of 3"]
    assert draw_pairs(numbers, tmp_path / "pairs.png").read_bytes().startswith(b"\x89PNG")


def test_too_few_seeds_or_no_recipe_are_refused_before_any_run(tmp_path):
    with pytest.raises(ValueError, match="seeds=1: a comparison needs at least 2"):
        digits_fid_loss(tmp_path / "out", RECIPE, seeds=1)
    with pytest.raises(FileNotFoundError, match=r"nowhere.yaml does not exist.*--recipe"):
        digits_fid_loss(tmp_path / "out", tmp_path / "nowhere.yaml")
    with pytest.raises(ValueError, match="LICENSE must say max_epochs"):
        digits_fid_loss(tmp_path / "out", RECIPE.parents[1] / "LICENSE")
    assert list(tmp_path.iterdir()) == []


def test_options_out_of_range_and_a_folder_of_other_results_are_refused_before_any_run(tmp_path):
    for options, message in (({"rounds": 0}, "rounds=0"), ({"parallel": 0}, "parallel=0"), ({"seed": -1}, "seed=-1")):
        with pytest.raises(ValueError, match=message):
            digits_fid_loss(tmp_path / "out", RECIPE, **options)
    before = save_results(tmp_path, "digits-fid-loss", {"recipe": str(RECIPE), "seeds": 3, "rounds": None}, {"a": 1})
    with pytest.raises(ValueError, match=r"results of other settings(.*\n)*  seeds: 3 there, 5 now"):
        digits_fid_loss(tmp_path, RECIPE)
    assert list(tmp_path.iterdir()) == [before]


@pytest.mark.slow
def test_the_recipe_runs_whole_in_both_arms(tmp_path, capsys):
    recipe = yaml.safe_load(RECIPE.read_text())
    recipe["trainer"]["callbacks"][0]["init_args"] |= {"num_images": 20, "embeddings": ["pixels"]}
    short = tmp_path / "short.yaml"
    short.write_text(yaml.safe_dump(recipe))
    digits_fid_loss(tmp_path / "out", short, seeds=2, rounds=2, parallel=2)
    stored = json.loads((tmp_path / "out" / "results.json").read_text())["numbers"]
    assert {"fid_avg", "fid_all", "kid_all", "report/fid_all"} <= set(stored)
    assert stored["fid_all"]["optimised"]
    assert stored["fid_all"]["with"] != stored["fid_all"]["without"]
    assert "trained on" in capsys.readouterr().out
    assert (tmp_path / "out" / "pairs.png").exists()


@pytest.mark.slow
def test_a_quick_run_has_two_short_pairs_in_a_folder_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    digits_fid_loss(recipe=RECIPE, rounds=1, seed=5, quick=True, parallel=2)
    folder = tmp_path / "checkpoints" / "digits-fid-loss-seed5-quick"
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {
        "with-5", "with-6", "without-5", "without-6"
    }  # fmt: skip
    numbers = json.loads((folder / "results.json").read_text())["numbers"]
    assert set(numbers) >= {"fid_all", "report/fid_all"}
    assert all("pixels" in row["title"] for row in numbers.values())


def test_a_run_of_another_length_is_not_taken_for_the_one_asked_for(tmp_path):
    append_records(tmp_path / SCORES_FILE, [record(1.0)])
    assert last_scores(tmp_path, rounds=2)["fid_all"].value == 1.0
    with pytest.raises(ValueError, match="holds a run of 2 rounds, not 5; choose another --output"):
        last_scores(tmp_path, rounds=5)
