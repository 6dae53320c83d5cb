"""Rankings and inversions on records written by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedgen.__main__ import main
from fedgen.evaluation import InvertedPair, Run, append_records, best_set, compare, inversions, select
from fedgen.evaluation.records import Columns, by_column
from fedgen.evaluation.runs.selection import default_column, reported
from fedgen.reports import conclusions
from tests.evaluation.samples import record


def column(name, values, error=0.1, **options):
    """One record a round: {round: value}."""
    score, aggregate = name.split("_")
    options |= {"standard_error": 5.0, "error_parts": {"generated": error, "real": 5.0}}
    return [
        record(score, aggregate, value, round, checkpoint=f"round={round:05d}.ckpt", **options)
        for round, value in values.items()
    ]


RECORDS = [
    *column("fid_avg", {0: 10.0, 1: 8.0, 2: 9.0}),
    *column("fid_all", {0: 7.0, 1: 6.0, 2: 5.0}),
    *column("kid_avg", {0: 3.0, 1: 2.0, 2: 1.0}),
    *column("kid_all", {0: 2.5, 1: 1.5, 2: 0.5}),
]


def test_the_lowest_value_comes_first():
    assert [(r.round, r.value) for r in select(RECORDS, "fid_avg")] == [(1, 8.0), (2, 9.0), (0, 10.0)]
    assert [r.round for r in select(RECORDS, "fid_all")] == [2, 1, 0]


def test_without_a_column_kid_all_ranks_else_fid_all_else_what_there_is_of_the_pool():
    fid = column("fid_all", {0: 7.0, 1: 6.0})
    kid = column("kid_all", {0: 2.5, 1: 3.5})
    assert [select(found)[0].round for found in (fid + kid, fid)] == [0, 1]
    recall = column("recall_avg", {0: 0.5, 1: 0.1}) + column("recall_all", {0: 0.1, 1: 0.5})
    assert [default_column(by_column(found)) for found in (fid + kid, kid + fid, fid, recall)] == [
        *("kid_all", "kid_all", "fid_all", "recall_all")
    ]
    elsewhere = column("fid_all", {0: 1.0}) + column("kid_all", {0: 1.0}, split="report")
    assert default_column(by_column(elsewhere)) == "fid_all"  # images of another split are not chosen by
    with pytest.raises(ValueError, match="no scores"):
        default_column({})


def test_the_default_column_has_scores_of_the_kind_that_is_asked_for(tmp_path):
    kid = column("kid_all", {0: 2.5, 1: 3.5}, num_generated=200)
    append_records(tmp_path / "scores.jsonl", column("fid_all", {0: 7.0, 1: 6.0}, num_generated=50) + kid)
    assert [select(tmp_path, kind=f"{number} images")[0].value for number in (50, 200)] == [6.0, 2.5]
    assert main(["select", str(tmp_path), "--kind", "50 images"]) == 0


def test_the_command_and_the_conclusions_read_a_run_by_the_same_column(tmp_path, capsys):
    append_records(tmp_path / "scores.jsonl", column("fid_all", {0: 7.0, 1: 6.0}) + column("kid_all", {0: 2.5, 1: 3.5}))
    assert main(["select", str(tmp_path)]) == 0
    assert "kid_all, lower is better" in " ".join(capsys.readouterr().out.split())
    assert any("--by kid_all` ranks" in line for line in conclusions(Run(tmp_path).records, tmp_path))


def test_the_earlier_of_equals_comes_first_and_the_untrained_model_is_no_choice():
    records = column("fid_avg", {3: 1.0, 1: 1.0, -1: 0.5})
    assert [r.round for r in select(records, "fid_avg")] == [1, 3]


def test_an_unknown_column_names_the_nearest_or_a_few():
    with pytest.raises(ValueError, match="fid_all"):
        select(RECORDS, "fid_al")
    with pytest.raises(ValueError, match="fid_avg"):
        select(RECORDS, "worst")


def test_paths_are_those_of_files_that_exist(tmp_path):
    append_records(tmp_path / "scores.jsonl", RECORDS)
    (tmp_path / "round=00002.ckpt").touch()
    best, second, _ = select(tmp_path, "fid_all")
    assert best.checkpoint == tmp_path / "round=00002.ckpt"
    assert second.checkpoint is None
    assert select(RECORDS, "fid_all")[0].checkpoint == Path("round=00002.ckpt")


def test_a_missing_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="folder"):
        select(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="has no scores"):
        select(tmp_path)


def test_optimised_columns_are_marked():
    assert select(column("fid_avg", {0: 1.0}, optimised_on=["pixels"]), "fid_avg")[0].optimised


def test_pairs_that_avg_and_all_order_differently_are_found():
    # by hand: rounds 1 and 2 (8 < 9 but 6 > 5); both differences 1 > 1.96 * 0.1 * sqrt(2)
    assert inversions(RECORDS) == [InvertedPair("fid_avg", "fid_all", 1, 2, True, True)]


def test_a_pair_within_its_errors_is_not_beyond_error():
    records = [*column("fid_avg", {1: 8.0, 2: 9.0}), *column("fid_all", {1: 5.2, 2: 5.0})]
    assert inversions(records) == [InvertedPair("fid_avg", "fid_all", 1, 2, False)]


def test_one_checkpoint_has_no_pair_and_other_splits_have_their_own():
    assert inversions(column("fid_avg", {0: 1.0}) + column("fid_all", {0: 1.0})) == []
    report = column("fid_avg", {1: 1.0, 2: 2.0}, split="report") + column("fid_all", {1: 2.0, 2: 1.0}, split="report")
    assert inversions(RECORDS + report)[1] == InvertedPair("report/fid_avg", "report/fid_all", 1, 2, True, True)


def test_the_selected_checkpoint_is_reported_on_other_images():
    report = column("fid_all", {2: 5.5}, split="report")
    fid_avg, fid_all = (next(r for r in RECORDS if (r.name, r.round) == (name, 2)) for name in ("fid_avg", "fid_all"))
    names, columns = Columns.of(RECORDS), by_column(RECORDS + report)
    assert reported(columns, names, fid_all).value == 5.5
    assert reported(columns, names, fid_avg) is None
    assert reported(by_column(RECORDS), names, fid_all) is None


PRECISION = [
    *column("precision_avg", {0: 0.5, 1: 0.7, 2: 0.6}, error=0.01),
    *column("precision_all", {0: 0.5, 1: 0.6, 2: 0.7}, error=0.01),
]


def test_the_highest_value_comes_first_where_higher_is_better():
    assert [(r.round, r.value) for r in select(PRECISION, "precision_avg")] == [(1, 0.7), (2, 0.6), (0, 0.5)]
    tied = column("recall_all", {3: 0.9, 1: 0.9, 2: 0.95})
    assert [r.round for r in select(tied, "recall_all")] == [2, 1, 3]


def test_pairs_say_which_round_is_better_whatever_the_direction():
    assert inversions(PRECISION) == [InvertedPair("precision_avg", "precision_all", 1, 2, True, True)]


def test_any_two_columns_can_be_compared():
    # fid_all prefers 2, 1, 0; kid_all too
    alike = compare(RECORDS, "fid_all", "kid_all")
    assert (alike.tau, alike.pairs, alike.checkpoints) == (1.0, [], 3)
    # fid_avg prefers 1, 2, 0 and fid_all 2, 1, 0: two pairs of three agree
    assert compare(RECORDS, "fid_avg", "fid_all").tau == pytest.approx(1 / 3)
    # a score of each direction: both prefer 1 to 2 to 0
    assert compare(RECORDS + PRECISION, "fid_avg", "precision_avg").tau == 1.0
    against = compare(RECORDS + PRECISION, "fid_all", "precision_avg")
    assert against.pairs == [InvertedPair("fid_all", "precision_avg", 2, 1, True, True)]


def test_a_column_of_one_value_has_no_tau_and_an_unknown_one_is_named():
    same = column("fid_all", {0: 1.0, 1: 1.0}) + column("kid_all", {0: 1.0, 1: 2.0})
    assert compare(same, "fid_all", "kid_all").tau is None
    assert compare(column("fid_all", {0: 1.0}), "fid_all", "fid_all").tau is None
    with pytest.raises(ValueError, match="kid_best"):
        compare(RECORDS, "fid_all", "kid_best")


def test_a_ranking_carries_errors_over_clients():
    records = column("fid_all", {0: 1.0}, error_over_clients=0.3)
    assert select(records, "fid_all")[0].error_over_clients == 0.3


def test_the_set_of_the_best_is_larger_than_what_lies_within_errors_of_it(tmp_path, capsys):
    values = [1.0, 1.3, 5.0, *[2.0 + 0.1 * step for step in range(10)]]
    records = column("fid_all", dict(enumerate(values)), error=0.4)
    found = best_set(records, "fid_all")
    assert [one.round for one in found][:2] == [0, 1]
    assert 2 not in [one.round for one in found]
    assert [one.round for one in best_set(column("fid_all", {0: 1.0, 1: 9.0}), "fid_all")] == [0]
    append_records(tmp_path / "scores.jsonl", records)
    assert main(["select", str(tmp_path), "--by", "fid_all"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"is among {len(found)} of 13 rounds (0, 1" in shown
    assert "Round 0 was chosen from 13: its score is" in shown


def test_scores_without_errors_have_no_line_on_the_best(tmp_path, capsys):
    append_records(tmp_path / "scores.jsonl", column("fid_all", {0: 1.0, 1: 2.0}, error=0.0))
    assert main(["select", str(tmp_path)]) == 0
    assert "With 95 %" not in capsys.readouterr().out


def test_where_an_error_is_unknown_nothing_is_sure_and_any_may_be_the_best():
    records = [*column("fid_avg", {0: 1.0, 1: 2.0, 2: 3.0}), *column("fid_all", {0: 3.0, 1: 2.0, 2: 1.0})]
    assert [pair.holds for pair in inversions(records)] == [True] * 3
    records = [replace(one, error_parts={"generated": float("inf")}) if one.round == 1 else one for one in records]
    assert [pair.holds for pair in inversions(records)] == [False] * 3
    assert [one.round for one in best_set(records, "fid_all")] == [2, 1]
    assert conclusions(records)
