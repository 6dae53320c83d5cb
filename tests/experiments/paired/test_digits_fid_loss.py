"""Paired runs with and without a FID loss."""

import json
from pathlib import Path

import pytest
import yaml

from fedgen.evaluation import ScoreRecord, append_records
from fedgen.evaluation.runs.scores_file import SCORES_FILE
from fedgen.experiments.engine.results import save_results
from fedgen.experiments.paired import digits_fid_loss as module
from fedgen.experiments.paired.digits_fid_loss import compare, digits_fid_loss, draw_pairs, last_scores, table_of

RECIPE = Path(__file__).parents[3] / "recipes" / "wgan_gp_digits_fid.yaml"


def record(value, optimised_on=(), score="fid", split="train"):
    about = {"embedding": "pixels", "embedding_fingerprint": "abc", "reference": "digits", "num_generated": 10}
    common = {**about, "num_clients": 2, "seed": 0, "split": split, "standard_error": 0.1, "round": 1}
    return ScoreRecord(score, "all", value, optimised_on=list(optimised_on), **common)


def scores(values, optimised_on=(), **options):
    return [{"fid_all": record(value, optimised_on, **options)} for value in values]


def test_arms_are_paired_by_seed_and_what_was_trained_on_is_marked():
    found = compare(scores([4.0, 6.0]), scores([3.0, 3.0], ["pixels"]))["fid_all"]
    assert (found["without"], found["values"]) == ([4.0, 6.0], [3.0, 3.0])
    assert (found["difference"], found["improved"], found["mark"]) == (-2.0, 2, "*")
    held_out = compare(scores([4.0, 6.0]), scores([3.0, 3.0], ["pixels"], split="report"))["fid_all"]
    assert held_out["mark"] == "(*)"


def test_the_table_counts_the_seeds_that_improved_and_explains_its_marks(tmp_path):
    compared = compare(scores([4.0, 6.0, 1.0]), scores([3.0, 3.0, 2.0], ["pixels"]))
    table = table_of(compared)
    assert list(table.columns[0].cells) == ["fid_all *"]
    assert list(table.columns[4].cells) == ["2 of 3"]
    assert "proves little" in table.caption
    assert draw_pairs(compared, tmp_path / "pairs.png").read_bytes().startswith(b"\x89PNG")


def test_of_a_score_that_is_better_when_higher_more_is_an_improvement():
    compared = compare(scores([0.4, 0.6], score="recall"), scores([0.5, 0.5], score="recall"))
    table = table_of(compared)
    assert compared["fid_all"]["improved"] == 1
    better = compare(scores([0.4, 0.6], score="recall"), scores([0.5, 0.7], score="recall"))
    assert better["fid_all"]["improved"] == 2
    assert list(table.columns[0].cells) == ["fid_all, higher is better"]


def test_too_few_seeds_or_no_recipe_are_refused_before_any_run(tmp_path):
    with pytest.raises(ValueError, match="seeds=1: must be at least 2"):
        digits_fid_loss(tmp_path / "out", recipe=RECIPE, seeds=1)
    with pytest.raises(FileNotFoundError, match=r"nowhere.yaml does not exist.*--recipe"):
        digits_fid_loss(tmp_path / "out", recipe=tmp_path / "nowhere.yaml")
    with pytest.raises(ValueError, match=r"LICENSE (must say max_epochs|is no recipe)"):
        digits_fid_loss(tmp_path / "out", recipe=RECIPE.parents[1] / "LICENSE")
    assert list(tmp_path.iterdir()) == []


def test_options_out_of_range_and_a_folder_of_other_results_are_refused_before_any_run(tmp_path):
    for options, message in (({"rounds": 0}, "rounds=0"), ({"parallel": 0}, "parallel=0"), ({"seed": -1}, "seed=-1")):
        with pytest.raises(ValueError, match=message):
            digits_fid_loss(tmp_path / "out", recipe=RECIPE, **options)
    before = save_results(tmp_path, "digits-fid-loss", {"recipe": str(RECIPE), "seeds": 3, "rounds": None}, {"a": 1})
    with pytest.raises(ValueError, match=r"results of other settings(.*\n)*  seeds: 3 there, 5 now"):
        digits_fid_loss(tmp_path, recipe=RECIPE)
    assert list(tmp_path.iterdir()) == [before]


@pytest.mark.slow
def test_the_recipe_runs_whole_in_both_arms(tmp_path, capsys, monkeypatch):
    recipe = yaml.safe_load(RECIPE.read_text())
    recipe["trainer"]["callbacks"][0]["init_args"] |= {"num_images": 20, "embeddings": ["pixels"]}
    short = tmp_path / "short.yaml"
    short.write_text(yaml.safe_dump(recipe))
    digits_fid_loss(tmp_path / "out", recipe=short, seeds=2, rounds=2, parallel=2)
    stored = json.loads((tmp_path / "out" / "results.json").read_text())["numbers"]["compared"]
    assert {"fid_avg", "fid_all", "kid_all", "report/fid_all"} <= set(stored)
    assert stored["fid_all"]["mark"] == "*"
    assert stored["fid_all"]["values"] != stored["fid_all"]["without"]
    first = capsys.readouterr().out
    assert "proves little" in " ".join(first.split())
    assert (tmp_path / "out" / "pairs.png").exists()
    monkeypatch.setattr(module, "train_all", None)  # prints again without asking the runs
    digits_fid_loss(tmp_path / "out", recipe=short, seeds=2, rounds=2)
    assert capsys.readouterr().out == first


@pytest.mark.slow
def test_a_quick_run_has_two_short_pairs_in_a_folder_of_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    digits_fid_loss(recipe=RECIPE, rounds=1, seed=5, quick=True, parallel=2)
    folder = tmp_path / "checkpoints" / "digits-fid-loss-seed5-quick"
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {
        "with-5", "with-6", "without-5", "without-6"
    }  # fmt: skip
    numbers = json.loads((folder / "results.json").read_text())["numbers"]["compared"]
    assert set(numbers) >= {"fid_all", "report/fid_all"}
    assert all("pixels" in row["title"] for row in numbers.values())


def test_a_run_of_another_length_is_not_taken_for_the_one_asked_for(tmp_path):
    append_records(tmp_path / SCORES_FILE, [record(1.0)])
    assert last_scores(tmp_path, rounds=2)["fid_all"].value == 1.0
    with pytest.raises(ValueError, match="holds a run of 2 rounds, not 5; choose another --output"):
        last_scores(tmp_path, rounds=5)


def test_a_finished_experiment_asks_no_run_again(tmp_path, monkeypatch, capsys):
    def train_all(runs, parallel):
        for run in runs:
            run.folder.mkdir(parents=True)
            used = [] if run.folder.name.startswith("without") else ["pixels"]
            append_records(run.folder / SCORES_FILE, [record(3.0 + run.seed - len(used), used)])

    monkeypatch.setattr(module, "train_all", train_all)
    digits_fid_loss(tmp_path / "out", recipe=RECIPE, seeds=2)
    first = capsys.readouterr().out
    monkeypatch.setattr(module, "train_all", None)
    digits_fid_loss(tmp_path / "out", recipe=RECIPE, seeds=2)
    assert capsys.readouterr().out == first
    assert "-1 (-1 to -1)" in first
