"""Records and the columns they form."""

import json
import math
from dataclasses import replace

import pytest

from fedgen.evaluation import Columns, ScoreRecord, by_column
from fedgen.evaluation.score_choice import known_scores
from tests.evaluation.samples import record


def test_a_record_survives_json():
    full = record(terms={"mean": 0.5}, per_client=[1.0, 2.0], client_names=["a", "b"], optimised_on=["vgg16"], note="n")
    assert ScoreRecord.from_json(json.loads(json.dumps(full.to_json()))) == full


def test_a_record_of_unknown_provenance_survives_too():
    unknown = replace(record(), embedding_fingerprint="", embedding="", reference="")
    assert ScoreRecord.from_json(json.loads(json.dumps(unknown.to_json()))) == unknown


def test_json_leaves_out_what_is_empty_and_ignores_what_it_does_not_know():
    values = record().to_json()
    assert not {"terms", "per_client", "note", "optimised_on"} & set(values)
    assert ScoreRecord.from_json({**values, "of_a_later_release": 1}) == record()
    with pytest.raises(ValueError, match="record"):
        ScoreRecord.from_json({"score": "fid"})
    with pytest.raises(ValueError, match="its value is None"):
        ScoreRecord.from_json({**values, "value": None})


def test_columns_are_prefixed_where_split_or_embedding_is_not_the_first():
    records = [
        record(),
        record("kid", "all", split="report"),
        record("kid", "worst", embedding="vgg16"),
        record(split="report", embedding="vgg16"),
    ]
    columns = Columns.of(records)
    assert [columns.name(r) for r in records] == [
        "fid_avg",
        "report/kid_all",
        "vgg16/kid_worst",
        "report/vgg16/fid_avg",
    ]


def test_by_column_sorts_by_round_and_leaves_out_the_floor():
    records = [record(round=5), record(round=1), record(round=None, generator="floor"), record("kid", round=1)]
    columns = by_column(records)
    assert [r.round for r in columns["fid_avg"]] == [1, 5]
    assert list(columns) == ["fid_avg", "kid_avg"]


def test_a_score_is_marked_as_optimised_where_a_loss_used_its_embedding():
    assert record(optimised_on=["pixels"]).is_optimised
    assert record(optimised_on=["pixels/fid"]).is_optimised
    assert record(optimised_on=["fid_avg"]).is_optimised
    assert not record(optimised_on=["vgg16", "kid_avg", "pixels/kid"]).is_optimised


def test_the_direction_goes_by_the_scores_name_where_a_file_does_not_say():
    old = {key: value for key, value in record("precision").to_json().items() if key != "higher_is_better"}
    assert ScoreRecord.from_json(old).higher_is_better is True
    assert record("fid").higher_is_better is False
    assert record("precision", value=0.4).badness == -0.4
    assert record("fid", value=0.4).badness == 0.4
    assert record("precision", higher_is_better=False).higher_is_better is False


@pytest.mark.parametrize("score", ["precision", "recall", "density", "coverage", "is", "ll", "utility", "authenticity"])
def test_more_of_these_scores_is_better_by_their_classes(score):
    assert record(score).higher_is_better is True
    assert known_scores()[score]().higher_is_better is True


@pytest.mark.parametrize(
    "score", ["fid", "kid", "kid-rbf", "sw1", "w1", "loss", "memorisation", "mifid", "fld", "cmmd", "fd-dinov2"]
)
def test_less_of_these_scores_is_better(score):
    assert record(score).higher_is_better is False


@pytest.mark.parametrize("score", ["metric", "perplexity", "tests.flower.own_score.MeanShift", "os.system", ""])
def test_less_is_better_of_a_score_that_the_kit_does_not_have(score):
    assert record(score).higher_is_better is False
    old = {key: value for key, value in record(score).to_json().items() if key != "higher_is_better"}
    assert ScoreRecord.from_json(old).higher_is_better is False


def test_values_of_other_options_have_other_conditions():
    assert record("recall").conditions == record("recall", score_settings={}).conditions
    assert record("recall", score_settings={"k": 3}).conditions != record("recall").conditions
    assert ScoreRecord.from_json(record("recall", score_settings={"k": 3}).to_json()).score_settings == {"k": 3}


def test_scores_that_mean_one_embedding_need_not_name_it():
    records = [record(), record("cmmd", embedding="clip"), record("cmmd", embedding="clip", split="report")]
    assert [Columns.of(records).name(r) for r in records] == ["fid_avg", "cmmd_avg", "report/cmmd_avg"]


def test_models_scored_on_the_same_clients_differ_by_the_generated_part_of_their_errors():
    assert record(error_parts={"generated": 0.05, "real": 0.09}).generated_error == 0.05
    assert record(standard_error=0.1).generated_error == 0.1
    assert math.isnan(record(standard_error=None).generated_error)
    assert record("ll", error_parts={"real": 0.1}).generated_error == 0.0


def test_numbers_that_json_does_not_have_are_stored_as_text():
    numbers = {"per_client": [-math.inf, -2.0], "per_client_errors": [math.inf, 0.1], "error_over_clients": math.inf}
    names = {"client_names": ["inf", "nan"]}
    lost = record("ll", value=-math.inf, standard_error=math.inf, error_parts={"real": math.inf}, **numbers, **names)
    text = json.dumps(lost.to_json(), allow_nan=False)
    assert ScoreRecord.from_json(json.loads(text)) == lost
    old = json.loads(json.dumps({**record().to_json(), "value": -math.inf}))
    assert ScoreRecord.from_json(old).value == -math.inf


def test_memorisation_is_worse_the_farther_from_a_half():
    values = [record("memorisation", value=value).badness for value in (0.5, 0.6, 0.1)]
    assert values == sorted(values)
    assert values[0] == 0


def test_what_is_no_number_is_worst():
    assert record(value=math.nan).badness == record("precision", value=math.nan).badness == math.inf
