"""Every checkpoint of several runs: KID's gap is one number, FID's is not."""

import json

import pytest

from fedgen.experiments.engine.rankings import ScoredRows
from fedgen.experiments.ranking.trained_checkpoints import (
    inverted_text,
    run_table,
    wgan_gp_checkpoints,
)
from tests.experiments.tiny_runs import draw_unwritten, train_in_forks, write_recipe


def row(fid, kid, control=None):
    error = {"errors": {"avg": 0.01, "all": 0.01}}
    scores = {"fid": {"avg": fid[0], "all": fid[1], **error}, "kid": {"avg": kid[0], "all": kid[1], **error}}
    return {
        "clients": scores,
        "controls": [{"fid": {"avg": control[0], "all": control[1], **error}}] if control else [],
    }


def test_inverted_pairs_are_told_beside_those_of_the_control():
    rows = ScoredRows({"a": row((1, 5), (3, 2), (1, 1)), "b": row((2, 3), (2, 1), (2, 2))})
    found = rows.compared()
    assert inverted_text(found["fid"]) == "1 of 1 pairs inverted; over IID clients 0"
    assert inverted_text(found["kid"]) == "0 of 1 pairs inverted"


def test_the_table_names_the_round_that_each_score_calls_best():
    rows = ScoredRows({"a": row((1, 5), (3, 2)), "b": row((2, 3), (2, 1))})
    about = {name: {"run": "r", "interval": 2, "seed": 0, "round": place} for place, name in enumerate("ab", 10)}
    table = run_table(rows, about, {"images": 7, **row((0.5, 4), (1, 0))["clients"]})
    assert [next(iter(column.cells)) for column in table.columns] == ["2 / 0", "2", "3", "2", "1", "10", "11", "11"]
    assert list(table.columns[1].cells) == ["2", "0.5"]


def test_options_out_of_range_are_refused_before_any_training(tmp_path):
    with pytest.raises(ValueError, match="num_images"):
        wgan_gp_checkpoints(output=tmp_path, num_images=1)
    with pytest.raises(FileNotFoundError, match="quickstart"):
        wgan_gp_checkpoints(output=tmp_path, recipes=tmp_path)


@pytest.mark.slow
def test_a_quick_experiment_trains_its_runs_and_leaves_its_numbers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    train_in_forks(monkeypatch)
    draw_unwritten(monkeypatch)
    recipes = write_recipe(tmp_path / "recipes")
    wgan_gp_checkpoints(output=tmp_path / "out", intervals=(2, 4), seeds=1, recipes=recipes, parallel=2, quick=True)
    numbers = json.loads((tmp_path / "out" / "results.json").read_text())["numbers"]
    assert {one["interval"] for one in numbers["checkpoints"].values()} == {2, 4}
    assert all(one["round"] in (1, 2) for one in numbers["checkpoints"].values())
    assert "as expected: KID: avg - all is one number" in capsys.readouterr().out
