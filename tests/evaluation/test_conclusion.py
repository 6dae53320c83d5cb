"""What a run's end says in words."""

from dataclasses import replace

from fedgen.evaluation.records import FLOOR
from fedgen.evaluation.runs.scores_file import append_records
from fedgen.evaluation.tables.conclusion import conclude
from tests.evaluation.samples import record


def run(avg, all_, error=0.1, **options):
    """FID of checkpoints 0, 1, ... in both aggregates."""
    pairs = [("avg", avg), ("all", all_)]
    return [
        record("fid", how, value, round, standard_error=error, **options)
        for how, values in pairs
        for round, value in enumerate(values)
    ]


def test_one_checkpoint_by_both_aggregates():
    assert conclude(run([9, 8, 7], [3, 2, 1])) == [
        "3 rounds, counted from 0 to 2; 3 checkpoints are scored.",
        "fid_avg and fid_all pick the same checkpoint, round 2 (fid_avg 7.00±0.10, fid_all 1.00±0.10); they order all 3"
        " pairs alike.",
    ]


def test_differences_within_errors_and_beyond_are_told_apart():
    within, beyond = run([9, 8.9], [3, 3.1]), run([9, 8], [3, 4])
    assert conclude(within)[1].endswith("they order 1 of 1 pairs differently, none beyond their errors.")
    assert conclude(beyond)[1].startswith("fid_avg picks round 1 and fid_all round 0 (fid_avg 8.00±0.10, fid_all 3.00")
    assert conclude(beyond)[1].endswith("they order 1 of 1 pairs differently, beyond their errors.")
    mixed = run([9, 8, 7.9], [3, 4, 4.1])
    assert conclude(mixed)[1].endswith("they order 3 of 3 pairs differently, 2 beyond their errors.")


def test_the_floor_is_near_or_far():
    records = run([9, 8], [3, 2])
    far = replace(records[-1], generator=FLOOR, round=None, value=1.0)
    near = replace(far, value=1.9)
    assert conclude([*records, far])[2] == (
        "Real images in the model's place score fid_all 1.00±0.10: the best checkpoint is 1.00±0.14 worse."
    )
    assert "the best checkpoint is not told from them" in conclude([*records, near])[2]


def test_one_checkpoint_has_nothing_to_rank_and_a_score_without_a_pool_is_told_alone():
    assert conclude(run([9], [3]))[0].endswith("one checkpoint is scored.")
    assert "two aggregates rank two checkpoints or more" in conclude(run([9], [3]))[1]
    assert conclude(run([9, 8], []))[1] == "fid_avg is best at round 1, 8.00±0.10."


def test_more_is_better_where_it_is():
    records = [replace(r, score="precision", higher_is_better=True) for r in run([0.5, 0.7], [0.2, 0.6])]
    floor = replace(records[-1], generator=FLOOR, round=None, value=0.99, standard_error=0.01)
    assert "pick the same checkpoint, round 1" in conclude([*records, floor])[1]
    assert "0.39±0.10 worse" in conclude([*records, floor])[2]


def test_controls_beside_the_run_are_compared_under_equal_conditions(tmp_path):
    (tmp_path / "quick-local_only").mkdir()
    (tmp_path / "quick-centralised").mkdir()
    append_records(tmp_path / "quick-local_only" / "scores.jsonl", run([9, 8], [3, 0.8]))
    append_records(tmp_path / "quick-centralised" / "scores.jsonl", run([9, 8], [3, 3.1], num_generated=7))
    own = run([9, 8], [3, 3.2])
    assert conclude(own, tmp_path / "quick")[-1] == (
        "Last checkpoints by fid_all: federated 3.20±0.10; local only 0.80±0.10, better."
    )
    append_records(tmp_path / "quick-centralised" / "scores.jsonl", run([9, 8], [3, 3.1]))
    assert conclude(own, tmp_path / "quick")[-1].endswith("centralised 3.10±0.10, not told apart.")
    (tmp_path / "quick").mkdir()
    append_records(tmp_path / "quick" / "scores.jsonl", own)
    assert conclude(run([9, 8], [3, 0.8]), tmp_path / "quick-local_only")[-1].startswith(
        "Last checkpoints by fid_all: local only 0.80±0.10; federated 3.20±0.10, worse; centralised"
    )


def test_nothing_is_said_where_no_model_was_scored():
    assert conclude([]) == []
    assert conclude([record(round=-1)]) == []
