"""Conclusions of records written by hand."""

import re
from dataclasses import replace

from fedgen.evaluation import best_set
from fedgen.evaluation.runs.scores_file import append_records
from fedgen.reports import conclusions
from fedgen.reports.sentences import findings, next_steps, verdict
from tests.evaluation.samples import record
from tests.reports.folders import make_records


def test_a_disagreement_beyond_errors_is_said_with_both_choices_and_the_floor():
    records = make_records(scores=["fid"])
    lines = conclusions(records, "runs/a b")
    # 2 ± 1.98 sqrt(0.2² + 0.2²): real images are the same for the model and the floor
    above = "By fid_all, round 2 is 1.43 to 2.57 worse than the floor (95 %): real images score 1.00±0.40."
    assert verdict(records, "runs/a b") == {
        "Take": ["Round 2, the best of 3 by fid_all 3.00±0.40; its score is 2.60 to 3.40 (95 %)."],
        "As good": [
            "With 95 % confidence the best by fid_all is round 2 on these real images, and on others from these"
            " clients."
        ],
        "Floor": [above],
        "avg and all": [
            "fid_avg prefers round 1 (fid_avg 25.00±0.40), fid_all round 2 (fid_all 3.00±0.40). Both orders hold on"
            " these real images (95 %), so the choice of aggregate decides.",
            "fid_avg and fid_all order 1 of 3 pairs of checkpoints differently, 1 for sure.",
        ],
        "Clients": ["By fid at round 2, minus the score of real images, no client is clearly served worst."],
        "Training": ["3 rounds, counted from 0; 3 checkpoints are scored."],
    }
    assert lines[2] == f"Floor: {above}"
    assert (
        "Next: `fedgen select 'runs/a b' --by fid_all` ranks the checkpoints and prints the best one's path." in lines
    )
    assert any(
        "--trainer.max_epochs 6` continues: fid_all was still improving" in line for line in lines
    )  # fid_all fell by 3 in the last round


def test_what_errors_cannot_tell_apart_is_said():
    records = make_records(scores=["fid"], error_parts={"generated": 4.0, "real": 0.0})
    lines = conclusions(records)
    found = verdict(records)
    assert "cannot tell which is better" in found["avg and all"][0]
    assert found["As good"][0].startswith(
        "With 95 % confidence the best by fid_all is among 3 of 3 rounds (0, 1, 2) on these real"
    )
    assert found["Floor"][0].startswith("By fid_all, round 2 is at the floor")
    assert not any("max_epochs" in line for line in lines)


def test_higher_may_be_better_and_a_model_may_be_better_than_its_floor():
    options = {"higher_is_better": True, "error_parts": {"generated": 0.01}}
    values = {"avg": 0.45, "all": 0.5}
    records = [record("precision", how, values[how] + 0.1 * r, r, **options) for r in (0, 1) for how in values]
    records += [record("precision", how, 0.4, None, generator="floor", **options) for how in ("avg", "all")]
    found = verdict(records)
    assert found["avg and all"][0].startswith("Both prefer round 1")
    assert "round 1 is 0.172 to 0.228 better than the floor" in found["Floor"][0]  # 0.2 ± 1.98 sqrt(2) 0.01


def test_stored_images_have_no_rounds_and_a_run_without_scores_says_so():
    stored = [replace(one, round=None, checkpoint=None) for one in make_records(rounds=(0,)) if one.is_model]
    assert conclusions(stored) == [
        "Scores: fid_avg 30.00±0.40, fid_all 9.00±0.40, kid_avg 30.00±0.40, kid_all 9.00±0.40.",
        "Clients: By kid, no client is clearly served worst.",
    ]
    assert conclusions([]) == ["Scores: No model has been scored yet: there is nothing to choose."]


def test_marked_scores_and_few_images_are_warned_of_and_an_unmarked_column_is_suggested():
    note = "mixture; fid of fewer images than the 64 features (50 generated) is too large"
    marked = make_records(scores=["fid"], optimised_on=["pixels"], note=note)
    other = [replace(one, embedding="vgg16", optimised_on=["pixels"], note="") for one in marked]
    lines = conclusions([*marked, *other])
    few = "fid of fewer images than the 64 features (50 generated) is too large."
    assert any(line.startswith(f"Caution: {few}") and "marked * or (*)" in line for line in lines)
    assert any("--by vgg16/fid_all`" in line for line in lines)


def test_what_is_doubtful_comes_right_behind_the_choice():
    note = "fid of fewer images than the 64 features (50 generated) is too large"
    found = verdict(make_records(scores=["fid"], note=note, optimised_on=["pixels"]))
    assert [*found][:3] == ["Take", "As good", "Caution"]
    assert len(found["Caution"]) == 2


def test_of_unknown_errors_nothing_is_said_to_be_sure():
    values = zip(range(3), (1.002, 1.001, 1.0))
    known = [record("fid", how, value, round) for round, value in values for how in ("avg", "all")]
    told = [*known, *(replace(one, split="report", value=3 - one.value) for one in known)]
    clients = {"per_client": [1.0, 2.0], "client_names": ["a", "b"]}
    unsure = [replace(one, standard_error=None, **clients) for one in told]
    assert [one.round for one in best_set(unsure, "fid_all")] == [2, 1, 0]
    said = " ".join(line for lines in verdict(unsure).values() for line in lines)
    assert "may be chance" in said
    assert not re.search("no chance|served best|With 95 %", said)


def test_of_two_generated_images_nothing_is_said_to_be_sure():
    said = " ".join(line for lines in verdict(make_records(num_generated=2)).values() for line in lines)
    assert "Of fewer than 20 generated images nothing is sure." in said
    assert "95 %" not in said


def test_a_score_that_needs_no_images_has_no_few_of_them():
    losses = make_records(scores=["loss"], num_generated=0, error_parts={})
    said = " ".join(line for lines in verdict([one for one in losses if one.is_model]).values() for line in lines)
    assert "nothing is sure" not in said
    assert "95 %" in said


def test_samples_in_another_range_are_a_caution():
    note = "fid is biased upwards: few; the model's samples look like [0, 1], not like [-1, 1]"
    found = verdict(make_records(note=note))["Caution"]
    assert found[1] == "the model's samples look like [0, 1], not like [-1, 1]."


def test_floors_of_another_number_of_images_are_told_once_for_all_scores():
    assert not any("approximate" in line for line in findings(make_records(num_generated=300)))
    records = [replace(one, num_generated=178) if one.is_floor else one for one in make_records(num_generated=300)]
    told = "The floor of fid_all uses 178 images and the model 300: the distance between them is approximate."
    assert [line for line in verdict(records)["Floor"] if "approximate" in line] == [told]


def test_a_best_round_on_held_out_images_is_told_where_it_is_another():
    own = run_of([9, 8, 7], [3, 2, 1])
    same = verdict([*own, *run_of([9, 8, 7], [3, 2, 1], split="report")])
    assert same["Held out"] == ["report/fid_all 1.00±0.10, also the best on these images."]
    assert verdict([*own, *run_of([9, 8, 7], [3, 1.5, 1.6], split="report")])["Held out"] == [
        "On held-out images round 1 is the best (report/fid_all 1.50±0.10), not round 2 (report/fid_all 1.60±0.10),"
        " which may be chance."
    ]


def test_a_run_without_a_recipe_gets_no_command_that_needs_one():
    lines = conclusions(make_records(), has_recipe=False)
    assert [line for line in lines if "`fedgen " in line] == [
        "Next: `fedgen select RUN --by kid_all` ranks the checkpoints and prints the best one's path."
    ]


def run_of(avg, all_, **options):
    """FID of checkpoints 0, 1, ... in both aggregates."""
    pairs = [("avg", avg), ("all", all_)]
    return [
        record("fid", how, value, round, standard_error=0.1, **options)
        for how, values in pairs
        for round, value in enumerate(values)
    ]


def test_pairs_are_counted_and_one_checkpoint_has_none():
    alike = verdict(run_of([9, 8, 7], [3, 2, 1]))["avg and all"]
    assert alike == ["fid_avg 7.00±0.10 and fid_all 1.00±0.10 both prefer round 2, and order all 3 pairs alike."]
    mixed = verdict(run_of([9, 8, 7.9], [3, 4, 4.1]))["avg and all"]
    assert "fid_avg and fid_all order 3 of 3 pairs of checkpoints differently, 2 for sure." in mixed
    assert findings(run_of([9], [3])) == [
        "Take: Round 0, the only one scored: fid_all 3.00±0.10.",
        "avg and all: fid_avg 9.00±0.10, fid_all 3.00±0.10.",
        "Training: 1 round, counted from 0; one checkpoint is scored.",
    ]


def test_a_score_of_the_generated_set_alone_is_one_number():
    assert "avg and all" not in verdict(run_of([9, 8, 7], [9, 8, 7]))


def test_a_score_without_a_pool_is_told_alone():
    assert verdict(run_of([9, 8], []))["Take"][0].startswith("Round 1, the best of 2 by fid_avg 8.00±0.10; its score")


def test_controls_beside_the_run_are_compared_under_equal_conditions(tmp_path):
    (tmp_path / "quick-local_only").mkdir()
    (tmp_path / "quick-centralised").mkdir()
    append_records(tmp_path / "quick-local_only" / "scores.jsonl", run_of([9, 8], [3, 0.8]))
    append_records(tmp_path / "quick-centralised" / "scores.jsonl", run_of([9, 8], [3, 3.1], num_generated=7))
    own, folder = run_of([9, 8], [3, 3.2]), tmp_path / "quick"
    told = "Last checkpoints by fid_all: federated 3.20±0.10; local only 0.80±0.10, better."
    assert verdict(own, folder)["Controls"] == [told]
    append_records(tmp_path / "quick-centralised" / "scores.jsonl", run_of([9, 8], [3, 3.1]))
    assert any(line.endswith("centralised 3.10±0.10, no clear difference.") for line in conclusions(own, str(folder)))
    folder.mkdir()
    append_records(folder / "scores.jsonl", own)
    said = verdict(run_of([9, 8], [3, 0.8]), tmp_path / "quick-local_only")["Controls"]
    start = "Last checkpoints by fid_all: local only 0.80±0.10; federated 3.20±0.10, worse; centralised"
    assert any(line.startswith(start) for line in said)


def test_controls_are_compared_in_the_column_that_is_chosen_by_in_whichever_embedding(tmp_path):
    records = [*run_of([9, 8], [3, 2]), record("kid", "all", 1.0, 1, embedding="other")]
    assert verdict(records, tmp_path, {"local only": records})["Controls"] == [
        "Last checkpoints by other/kid_all: federated 1.00±0.10; local only 1.00±0.10, no clear difference."
    ]


def test_nothing_to_do_is_named_where_no_checkpoint_was_scored():
    assert next_steps([], "run") == next_steps([record(round=-1)], "run") == {}


def served(values, floors, errors=0.1):
    """What is said of clients with these scores, of which real images in a generator's place have others."""
    names = {"client_names": list("abcde"[: len(values)]), "per_client_errors": [errors] * len(values)}
    model, floor = (
        record("fid", "avg", 1.0, round, generator=generator, per_client=list(per_client), **names)
        for round, generator, per_client in ((0, "model", values), (None, "floor", floors))
    )
    return verdict([model, floor])["Clients"][0]


def test_clients_are_served_worst_beside_their_own_real_images_where_errors_tell():
    # above the floors by 1, 2 and 4: client a has the largest score, and the largest floor
    said = (
        "By fid at round 0, minus the score of real images, client 'c' (4.00±0.14) is served worst and client 'a'"
        " (1.00±0.14) best."
    )
    assert served((9.0, 4.0, 6.0), (8.0, 2.0, 2.0)) == said
    assert "client 'c' (4.00±0.14) is served worst and client 'a' (1.00±0.14) or one other best" in served(
        (9.0, 3.0, 6.0), (8.0, 2.0, 2.0)
    )
    assert "no client is clearly served worst" in served((9.0, 4.0, 6.0), (8.0, 2.0, 2.0), errors=5.0)


def test_a_client_that_most_others_may_be_worse_than_is_not_named():
    assert served((9.0, 8.9, 8.8, 8.7, 2.0), (2.0,) * 5, errors=0.3).endswith("no client is clearly served worst.")
    assert served((9.0, 8.9, 3.0, 3.1, 3.2), (2.0,) * 5, errors=0.3).endswith("is served worst.")
