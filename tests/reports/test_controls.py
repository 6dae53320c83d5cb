"""The controls of a run: of folders beside it, or what its recipe brings along; in words, and as curves."""

import pytest

from fedgen.evaluation.runs.scores_file import append_records
from fedgen.reports.charts import panels
from fedgen.reports.controls import arm_of, read_controls
from fedgen.reports.figures.curves import draw_curves
from tests.reports.folders import make_records

OWN = [record for record in make_records() if record.is_model]


def test_what_a_recipe_brings_along_counts_where_no_such_run_lies_beside(tmp_path):
    folder = tmp_path / "run"
    (folder / "controls").mkdir(parents=True)
    append_records(folder / "controls" / "local_only.jsonl", make_records())
    assert read_controls(folder, OWN) == {"local only": OWN}
    beside = tmp_path / "run-local_only"
    beside.mkdir()
    append_records(beside / "scores.jsonl", make_records(rounds=(0,)))
    assert {record.round for record in read_controls(folder, OWN)["local only"]} == {0}
    assert (arm_of(folder), arm_of(beside)) == ("", "local_only")


def test_scores_under_other_conditions_are_no_control(tmp_path):
    (tmp_path / "run-centralised").mkdir()
    append_records(tmp_path / "run-centralised" / "scores.jsonl", make_records(seed=1))
    assert read_controls(tmp_path / "run", OWN) == {}


@pytest.mark.slow
def test_controls_are_curves_beside_the_runs(tmp_path):
    controls = {"centralised": OWN}
    (fid, _) = panels(OWN, controls)
    assert [(line["name"], line["aggregate"], line["values"]) for line in fid["controls"]] == [
        ("centralised", line["aggregate"], line["values"]) for line in fid["lines"]
    ]
    alone, beside = (draw_curves(OWN, tmp_path / f"{len(c)}.png", c) for c in ({}, controls))
    assert alone.read_bytes() != beside.read_bytes()
