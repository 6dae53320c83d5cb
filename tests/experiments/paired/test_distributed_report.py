"""Tables and outcomes of the distributed losses, from numbers by hand."""

from fedgen.experiments.paired.distributed_fid_loss import (
    ARMS,
    OBJECTIVES,
    apart,
    difference_table,
    digits_outcomes,
    digits_table,
    toy_outcomes,
    toy_table,
)


def cells(table, column):
    return list(table.columns[column].cells)


def test_the_toys_table_and_outcomes_are_means_over_seeds():
    ends = {"fid_all": 2.05, "fid_avg": 1.0, "kid_all": 2.0, "kid_avg": 2.5}
    toy = {
        f"seed {seed}": {
            "end": {name: [0, 0, end + shift, 1] for name, end in ends.items()},
            "kid gradients": 1e-15,
            "bytes": 288,
        }
        for seed, shift in enumerate((-0.1, 0.1))
    }
    assert cells(toy_table(toy), 2) == ["2.05 ± 0.1", "1 ± 0.1", "2 ± 0.1", "2.5 ± 0.1"]
    assert "288 bytes" in toy_table(toy).caption
    lines = toy_outcomes(toy)
    assert lines[0] == "as expected: FID-all leads to the variance 2.050, its optimum is 2"
    assert [line.split(":")[0] for line in lines[: len(OBJECTIVES)]] == ["as expected"] * 3 + ["not seen"]


def test_what_two_losses_change_is_told_beside_what_two_seeds_do():
    digits = {
        "marks": {"pixels/fid_all": "*"},
        "scores": {
            "pixels/fid_all": {arm: [1.0, 2.0] for arm in ARMS},  # of a seed nothing apart, of two seeds 1
            "pixels/fid_avg": {arm: [1.0, 2.0] if arm == "fid_avg" else [3.0, 4.5] for arm in ARMS},  # 2.25, and 1.25
        },
        "floor": {"pixels/fid_avg": 1.75},
        "real traces": {"pixels": {"pool": 4.0, "within": 2.0}},
        "traces": {"pixels": {arm: [3.0 if arm == "fid_all" else 2.0] * 2 for arm in ARMS}},
        "messages": {"value": {"all": 0.0}, "gradient": {"all": 1e-15}, "bytes": {"64": 17416}},
    }
    lines = digits_outcomes(digits)
    assert lines[0].startswith("not seen: FID-all and FID-avg train other models")
    assert lines[1].endswith("2.25 apart in FID-avg on average, two seeds of one of them 1.25")
    assert lines[1].startswith("as expected")
    assert lines[2].startswith("not seen: FID-all in pixels")
    assert lines[4].startswith("cannot be told from these 2 seeds: trained on FID-avg")
    assert lines[4].endswith("1.5, than held-out real ones, 1.75: -0.25 (-6.6 to +6.1)")
    assert lines[5].startswith("as expected: FID-avg leaves a lower trace")
    assert "0.50 of the pool's, than FID-all, 0.75 (within a client: 0.50): -0.25 (-0.25 to -0.25)" in lines[5]


def test_one_seed_has_nothing_to_compare_two_losses_with():
    assert apart({"fid_all": [1.0, 2.0, 4.0], "fid_avg": [1.0, 1.0, 1.0]}) == (4 / 3, 1.0)
    assert apart({"fid_all": [1.0], "fid_avg": [3.0]}) == (2.0, None)


def test_the_table_marks_what_was_trained_on_and_shows_traces_as_shares_of_the_pools():
    digits = {
        "scores": {name: {arm: [1.0, 3.0] for arm in ARMS} for name in ("fid_all", "pixels/fid_all")},
        "marks": {"fid_all": "", "pixels/fid_all": "*"},
        "floor": {"fid_all": 0.25},
        "traces": {"pixels": {arm: [2.0, 2.0] for arm in ARMS}},
        "real traces": {"pixels": {"pool": 4.0, "within": 1.0}},
    }
    table = digits_table(digits)
    assert cells(table, 0) == ["fid_all", "pixels/fid_all *", "trace, pixels *"]
    assert cells(table, 1) == ["2 ± 1", "2 ± 1", "0.5 ± 0"]
    assert cells(table, 5) == ["0.25", "-", "1 (a client: 0.25)"]


def test_differences_are_shown_for_held_out_images_in_embeddings_not_trained_on():
    row = {"difference": -0.5, "interval": [-1.0, 0.25]}
    columns = ("fid_all", "report/fid_all", "report/pixels/fid_all", "report/fid_worst")
    digits = {
        "against no loss": {arm: dict.fromkeys(columns, row) for arm in ARMS[1:]},
        "scores": {name: {} for name in columns[:3]},
        "marks": {"fid_all": "", "report/fid_all": "", "report/pixels/fid_all": "(*)"},
    }
    table = difference_table(digits)
    assert [column.header for column in table.columns] == ["trained on", "fid_all"]
    assert cells(table, 1) == ["-0.5 (-1 to +0.25)"] * 3
