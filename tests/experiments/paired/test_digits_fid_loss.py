"""Paired runs with and without a FID loss."""

from pathlib import Path

import pytest

from fedgen.evaluation import ScoreRecord, append_records
from fedgen.evaluation.runs.scores_file import SCORES_FILE
from fedgen.experiments.engine.study import save_results
from fedgen.experiments.paired.fid_loss_gans import compare, digits_fid_loss, draw_pairs, last_scores, table_of

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


def test_a_folder_of_other_results_is_refused_before_any_run(tmp_path):
    before = save_results(tmp_path, "digits-fid-loss", {"recipe": str(RECIPE), "seeds": 3, "rounds": None}, {"a": 1})
    with pytest.raises(ValueError, match="settings"):
        digits_fid_loss(output=tmp_path, recipe=RECIPE)
    assert list(tmp_path.iterdir()) == [before]


def test_a_run_of_another_length_is_not_taken_for_the_one_asked_for(tmp_path):
    append_records(tmp_path / SCORES_FILE, [record(1.0)])
    assert last_scores(tmp_path, rounds=2)["fid_all"].value == 1.0
    with pytest.raises(ValueError, match="choose"):
        last_scores(tmp_path, rounds=5)
