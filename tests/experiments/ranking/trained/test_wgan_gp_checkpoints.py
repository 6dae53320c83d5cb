"""Every checkpoint of several runs: KID's gap is one number, FID's is not."""

import json

import pytest

from fedgen.experiments.engine import trainings
from fedgen.experiments.engine.aggregate_rankings import compare
from fedgen.experiments.engine.scored_checkpoints import ScoredRows
from fedgen.experiments.ranking.trained.wgan_gp_checkpoints import (
    against_real,
    expected,
    inverted_text,
    run_table,
    wgan_gp_checkpoints,
)
from tests.experiments.tiny_runs import untrained, write_recipe


def row(fid, kid, control=None):
    error = {"errors": {"avg": 0.01, "all": 0.01}}
    scores = {"fid": {"avg": fid[0], "all": fid[1], **error}, "kid": {"avg": kid[0], "all": kid[1], **error}}
    return {
        "clients": scores,
        "controls": [{"fid": {"avg": control[0], "all": control[1], **error}}] if control else [],
    }


def found_of(rows):
    return {score: compare(rows.clients, rows.controls(score), score) for score in rows.scores}


def test_expected_outcomes_are_seen_in_numbers_that_have_them():
    # FID inverts the pair over the clients and not over IID ones; KID's gap is 1 in both
    rows = ScoredRows({"a": row((1, 5), (3, 2), (1, 1)), "b": row((2, 3), (2, 1), (2, 2))})
    lines = expected(found_of(rows), 64)
    assert [line.split(":")[0] for line in lines] == ["as expected"] * 4
    # gaps -4 and -1 over the clients, 0 and 0 over IID ones
    assert "avg - all spreads by 3, over IID clients by 0 at most" in lines[2]


def test_inverted_pairs_are_told_beside_those_of_the_control():
    rows = ScoredRows({"a": row((1, 5), (3, 2), (1, 1)), "b": row((2, 3), (2, 1), (2, 2))})
    found = found_of(rows)
    assert inverted_text(found["fid"]) == "1 of 1 pairs inverted; over IID clients 0"
    assert inverted_text(found["kid"]) == "0 of 1 pairs inverted"


def test_outcomes_that_are_not_there_are_not_seen():
    # the same inversion in the control; KID's gap is 1 and 2, and its two aggregates order the pair differently
    rows = ScoredRows({"a": row((1, 5), (3, 2), (1, 5)), "b": row((2, 3), (4, 1), (2, 3))})
    assert [line.split(":")[0] for line in expected(found_of(rows), 64)] == ["not seen"] * 4


def test_without_controls_nothing_is_said_of_them():
    rows = ScoredRows({"a": row((1, 5), (3, 2)), "b": row((2, 3), (2, 1))})
    assert [line.split(":")[1] for line in expected(found_of(rows), 64)] == [" KID", " KID"]


def test_the_table_names_the_round_that_each_score_calls_best():
    rows = ScoredRows({"a": row((1, 5), (3, 2)), "b": row((2, 3), (2, 1))})
    about = {name: {"run": "r", "interval": 2, "seed": 0, "round": place} for place, name in enumerate("ab", 10)}
    table = run_table(rows, about, {"images": 7, **row((0.5, 4), (1, 0))["clients"]})
    assert [next(iter(column.cells)) for column in table.columns] == ["2 / 0", "2", "3", "2", "1", "10", "11", "11"]
    assert list(table.columns[1].cells) == ["2", "0.5"]


def test_checkpoints_better_than_real_images_are_counted():
    rows = {"a": row((1, 5), (3, 2))["clients"], "b": row((2, 3), (2, 1))["clients"]}
    lines = against_real(rows, row((1.5, 1), (0, 0))["clients"])
    assert [line.split(" calls ")[1][:6] for line in lines] == ["1 of 2", "0 of 2"]
    assert against_real(rows, {}) == []


def test_options_out_of_range_are_refused_before_any_training(tmp_path):
    with pytest.raises(ValueError, match="num_images=1"):
        wgan_gp_checkpoints(tmp_path, num_images=1)
    with pytest.raises(FileNotFoundError, match=r"quickstart.yaml does not exist; .*--recipes"):
        wgan_gp_checkpoints(tmp_path, recipes=tmp_path)


@pytest.mark.slow
def test_scores_of_all_checkpoints_are_kept_and_printed_again_without_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainings.Training, "run", untrained)  # weights at random, and no training
    options = {"intervals": (2,), "seeds": 2, "num_images": 60, "dealings": 1, "recipes": write_recipe(tmp_path / "r")}
    wgan_gp_checkpoints(tmp_path / "out", **options)
    numbers = json.loads((tmp_path / "out" / "results.json").read_text())["numbers"]
    assert len(numbers["scores"]) == 4
    assert numbers["real"]["images"] == 60
    first = next(iter(numbers["scores"].values()))["clients"]
    assert numbers["found"]["kid"]["gap"]["mean"] == pytest.approx(first["kid"]["avg"] - first["kid"]["all"], rel=1e-9)
    assert "as expected: KID: avg - all is one number for all checkpoints" in capsys.readouterr().out
    assert (tmp_path / "out" / "wgan_gp_checkpoints.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(trainings.Training, "run", None)
    wgan_gp_checkpoints(tmp_path / "out", **options)
    assert "4 checkpoints" in capsys.readouterr().out


@pytest.mark.slow
def test_a_quick_experiment_trains_its_runs_and_leaves_its_numbers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    recipes = write_recipe(tmp_path / "recipes")
    wgan_gp_checkpoints(tmp_path / "out", intervals=(2, 4), seeds=1, recipes=recipes, parallel=2, quick=True)
    numbers = json.loads((tmp_path / "out" / "results.json").read_text())["numbers"]
    assert {one["interval"] for one in numbers["checkpoints"].values()} == {2, 4}
    assert all(one["round"] in (1, 2) for one in numbers["checkpoints"].values())
    assert "as expected: KID: avg and all order every pair alike" in capsys.readouterr().out
