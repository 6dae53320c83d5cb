"""What is said of the communication interval, from numbers that a person can check."""

import pytest

from fedgen.experiments.paired.communication_interval import (
    HELD_OUT,
    TRAINING,
    compare_intervals,
    gap_line,
    group_of,
    inversion_line,
    lines_of,
    quality_of,
    quality_table,
    tables_of,
    trend_line,
)


def row(fid, kid_all, control, gap=1.0):
    error = {"errors": {"avg": 0.01, "all": 0.01}}
    scores = {
        "fid": {"avg": fid[0], "all": fid[1], **error},
        "kid": {"avg": kid_all + gap, "all": kid_all, **error},
    }
    return {"clients": scores, "controls": [{"fid": {"avg": control[0], "all": control[1], **error}}]}


def numbers_of(inverted_at, gap=1.0):
    """Two seeds; at the intervals named, FID's aggregates order the two checkpoints of seed 0 differently.

    At interval 1 the last checkpoints have FID-avg 4 and 5, FID-all 2 and 3 (and 10 times that at interval 640).
    """
    about, scores = {}, {}
    for interval, control in ((1, None), (640, None), (40, "local_only")):
        scale = 10 if interval == 640 else 1
        for seed in (0, 1):
            first = (3 if interval in inverted_at and not seed else 9, 6)
            for place, fid in enumerate((first, (4 + seed, 2 + seed))):
                name = f"{interval}/{control}/{seed}/{place}"
                about[name] = {"series": "GAN", "interval": interval, "seed": seed, "control": control}
                fid = (scale * fid[0], scale * fid[1])
                one = row(fid, 0.1 * fid[1], (fid[1] + 1, fid[1]), gap + (place if gap != 1 else 0))
                scores[name] = {"pixels": {TRAINING: one, HELD_OUT: one}}
    real = {"pixels": {reference: row((1, 0.5), 0, (1, 1))["clients"] for reference in (TRAINING, HELD_OUT)}}
    numbers = {"checkpoints": about, "scores": scores, "real": real, "images": 9}
    numbers["quality"] = quality_of(numbers)
    numbers["found"] = compare_intervals(numbers)
    return numbers


def test_checkpoints_are_grouped_by_interval_or_control():
    assert group_of({"control": None, "interval": 40}) == "interval 40"
    assert group_of({"control": "local_only", "interval": 40}) == "local only"


def test_quality_is_that_of_the_last_checkpoints_by_seed():
    own = quality_of(numbers_of((1,)))["pixels"][HELD_OUT]["GAN"]
    assert list(own) == ["interval 1", "interval 640", "local only"]
    assert own["interval 1"]["fid avg"] == [4, 5]
    assert own["interval 640"]["fid all"] == [20, 30]
    assert own["local only"]["kid all"] == pytest.approx([0.2, 0.3])


def test_seeds_are_pooled_at_an_interval_and_controls_are_left_out():
    found = numbers_of((1,))["found"]["pixels"][TRAINING]
    assert list(found["GAN"]) == ["interval 1", "interval 640", "all"]
    # of (3, 6), (4, 2), (9, 6), (5, 3): the first is better than the second and the fourth by avg, worse by all
    assert found["GAN"]["interval 1"]["fid"]["pairs"] == 6
    assert len(found["GAN"]["interval 1"]["fid"]["inverted"]) == 2
    assert found["GAN"]["interval 1"]["fid"]["control inverted"] == [0]
    assert found["GAN"]["all"]["fid"]["pairs"] == 28
    assert found["gap"]["mean"] == pytest.approx(1)


def test_outcomes_are_seen_where_they_are_and_at_which_interval():
    both, one = numbers_of((1, 640)), numbers_of((1,))
    lines = [inversion_line(numbers["found"]["pixels"][TRAINING]["GAN"], "GAN") for numbers in (both, one)]
    assert lines[0].startswith("as expected: FID, GAN: ")
    assert lines[1].startswith("not seen: ")
    assert lines[1].endswith("at 1: 2 (2) of 6, IID 0 (0); 640: 0 (0) of 6, IID 0 (0)")


def test_the_gap_of_kid_is_one_number_or_it_is_not():
    flat, other = numbers_of((1,)), numbers_of((1,), gap=2.0)
    assert gap_line(flat["found"]["pixels"][TRAINING], "x", 12).startswith(
        "as expected: KID, x: avg - all is one number"
    )
    assert gap_line(other["found"]["pixels"][TRAINING], "x", 12).startswith("not seen")


def test_the_longest_interval_is_told_beside_the_shortest_with_its_interval():
    line = trend_line(numbers_of((1,))["quality"]["pixels"][HELD_OUT]["GAN"], "GAN")
    # differences 36 and 45, 18 and 27: mean 40.5 and 22.5, and 12.706 * 4.5 to either side
    assert line == (
        "GAN: FID-avg is best at interval 1, 10 times as high at 640 as at 1, by +40.5 (-16.7 to +97.7);"
        " FID-all is best at interval 1, 10 times as high at 640 as at 1, by +22.5 (-34.7 to +79.7)"
    )


def test_tables_and_lines_have_every_kind_interval_and_reference():
    numbers = numbers_of((1,))
    table = quality_table(numbers, "pixels", HELD_OUT)
    assert list(table.columns[1].cells) == ["interval 1", "interval 640", "local only", ""]
    assert list(table.columns[2].cells) == ["4.5 ± 0.71", "45 ± 7.1", "4.5 ± 0.71", "1"]
    assert [len(list(one.columns[0].cells)) for one in tables_of(numbers)] == [4, 4, 4]
    assert list(tables_of(numbers)[2].columns[0].cells) == ["FID at 1", "FID at 640", "FID at all", "KID at all"]
    assert len(lines_of(numbers)) == 2 + 2 + 1
