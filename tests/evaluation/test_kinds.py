"""Scores of other numbers of images, weights or seeds stand beside the first; one kind is shown, and named."""

import pytest
import torch
import yaml

from fedgen import select
from fedgen.evaluation import Evaluator, Run, append_records, compare, evaluate_run, print_report, read_records
from fedgen.evaluation.runs.scores_file import RECIPE
from fedgen.evaluation.runs.selection import one_kind
from fedgen.reports.contents import read_contents
from tests.evaluation.samples import CLIENTS, record
from tests.evaluation.test_run import Painter, folder

__all__ = ["folder"]

BEST, ODD = {0: 3.0, 1: 1.0}, {0: 1.0, 1: 9.0}  # the checkpoint that is best differs


def column(values, **options):
    options = {"score": "fid", "aggregate": "all", "num_generated": 200, **options}
    return [record(value=value, round=round, **options) for round, value in values.items()]


def judge(**options):
    return Evaluator({"train": CLIENTS}, ["pixels"], **{"num_images": 40, "seed": 1, **options})


@pytest.mark.parametrize("other", [{"num_images": 20}, {"seed": 2}, {"weights": "uniform"}])
def test_another_number_of_images_seed_or_weights_adds_and_replaces_nothing(folder, other):
    before = evaluate_run(folder, Painter(), judge())
    evaluate_run(folder, Painter(), judge(**other))
    kept = read_records(folder / "scores.jsonl")
    assert [one for one in kept if one in before] == before
    assert len(kept) == 2 * len(before)


def test_the_same_settings_replace(folder):
    evaluate_run(folder, Painter(), judge())
    again = evaluate_run(folder, Painter(), judge())
    assert read_records(folder / "scores.jsonl") == again


def test_embeddings_of_other_weights_stand_beside(tmp_path):
    path = tmp_path / "scores.jsonl"
    append_records(path, column(BEST, embedding_fingerprint="a" * 8) + column(ODD, embedding_fingerprint="b" * 8))
    with pytest.warns(UserWarning, match="fingerprint"):
        assert select(tmp_path)[0].round == 1
    assert select(tmp_path, kind="fingerprint bbbbbbbb")[0].round == 0


def test_the_choice_is_the_recipes_else_of_most_checkpoints_else_of_most_images(tmp_path):
    path = tmp_path / "scores.jsonl"
    append_records(path, column(BEST) + column({**ODD, 2: 5.0}, num_generated=50))
    with pytest.warns(UserWarning, match="weights"):
        assert select(tmp_path)[0].round == 0
    callback = {"num_images": 200, "weights": "examples", "seed": None}
    asked = {"callbacks": [{"class_path": "fedgen.FederatedEvaluation", "init_args": callback}]}
    (tmp_path / RECIPE).write_text(yaml.safe_dump({"trainer": asked, "seed_everything": 0}))
    shown = "scores of 200 images, pixels, weights by examples, seed 0 are shown, not those of 50 images, pixels, .*"
    with pytest.warns(UserWarning, match=rf"{shown} \(3 checkpoints: fedgen select \S+ --kind '50 images'\)"):
        assert select(tmp_path)[0].round == 1
    assert select(tmp_path, kind="50 images")[0].round == 0
    assert [one.num_generated for one in one_kind(column(ODD, num_generated=50) + column(BEST))] == [200, 200]


def test_what_is_told_to_choose_by_chooses_that_kind_or_says_that_it_names_two(tmp_path):
    """Both other kinds were to be chosen by '50 images', which chose one of them and said nothing of the other."""
    fifty = {"num_generated": 50}
    append_records(tmp_path / "scores.jsonl", [*column({**BEST, 2: 5.0}), *column(BEST, **fifty)])
    append_records(tmp_path / "scores.jsonl", column(ODD, seed=7, **fifty))
    with pytest.warns(UserWarning, match="kind"):
        assert select(tmp_path)[0].round == 1
    assert select(tmp_path, kind="50 images, seed 7")[0].round == 0
    with pytest.warns(UserWarning, match="shown"):
        assert select(tmp_path, kind="50 images")[0].round == 1


def test_a_damaged_recipe_decides_nothing(tmp_path):
    append_records(tmp_path / "scores.jsonl", column(BEST) + column(ODD, num_generated=50))
    for text in ("[", "trainer: 3", "trainer: {callbacks: [3]}", "trainer: {callbacks: [{class_path: 3}]}"):
        (tmp_path / RECIPE).write_text(text)
        with pytest.warns(UserWarning, match="scores of 200 images"):
            assert select(tmp_path)[0].round == 1


def test_a_kind_that_is_not_there_is_answered_with_those_that_are(tmp_path):
    append_records(tmp_path / "scores.jsonl", column(BEST) + column(ODD, score="kid", num_generated=50))
    with pytest.raises(ValueError, match=r"no scores of '70 images'; it has: 200 images, .*; 50 images, "):
        select(tmp_path, kind="70 images")
    with pytest.raises(ValueError, match="fid_all"):
        select(tmp_path, "fid_all", kind="50 images")


def test_columns_of_one_kind_stay_and_say_nothing(tmp_path, recwarn):
    append_records(tmp_path / "scores.jsonl", column(BEST) + column(ODD, embedding="vgg16", num_generated=50))
    assert select(tmp_path, "vgg16/fid_all")[0].round == 0
    assert not recwarn


def test_floors_go_with_the_kind_that_is_shown():
    floors = [record("fid", "all", 0.5, generator="floor", num_generated=number, round=None) for number in (180, 50)]
    records = [*floors, *column(BEST), *column(ODD, num_generated=50)]
    shown = one_kind(records, wanted=lambda one: one.num_generated == 50)
    assert [one.num_generated for one in shown] == [50, 50, 50]
    assert [one.num_generated for one in one_kind(records)] == [180, 200, 200]
    assert one_kind(floors[:1] + column(ODD, num_generated=50))[0] == floors[0]


def test_models_that_clients_fine_tuned_are_of_the_models_kind():
    tuned = [record("fid", "all", 0.5, generator="fine-tuned 5", num_generated=number, round=0) for number in (50, 200)]
    records = [*column(BEST), *tuned[:1]]
    assert one_kind([*records, *column(ODD, num_generated=50)]) == column(BEST)
    assert one_kind([*column(BEST), *column(ODD, num_generated=50), *tuned]) == [*column(BEST), tuned[1]]


def test_records_of_several_kinds_are_compared_within_one():
    two = column(BEST) + column(BEST, aggregate="avg") + column(ODD, aggregate="avg", num_generated=50)
    assert compare(two, "fid_all", "fid_avg").checkpoints == 2
    assert not compare(two, "fid_all", "fid_avg").pairs


def test_tables_report_and_page_show_one_kind(tmp_path, capsys):
    append_records(tmp_path / "scores.jsonl", column(BEST) + column(ODD, num_generated=50))
    with pytest.warns(UserWarning, match="not those of 50 images"):
        print_report(tmp_path)
    assert "200 generated images" in (shown := capsys.readouterr().out)
    assert "9" not in shown.split("Selected")[0].replace("1.96", "")
    contents = read_contents(tmp_path)
    assert contents.records == column(BEST)
    assert any("not those of 50 images" in text for text in contents.warnings)


def test_a_record_of_a_pool_is_dropped_within_its_kind_alone(folder):
    def pools():
        return [one for one in read_records(Run(folder).scores_path) if one.aggregate == "all"]

    torch.manual_seed(0)
    evaluate_run(folder, Painter(), judge())
    before = pools()
    evaluate_run(folder, Painter(), judge(seed=2))
    assert len(pools()) == 2 * len(before)
