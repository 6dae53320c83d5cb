"""The benchmark's number: ratios to the floor, and their interval."""

import math

import pytest

from fedgen.benchmark.claims import number_of, ratios_of
from tests.benchmark.entry_files import make_record, make_records


def runs_of(*ratios):
    return [ratios_of([r for r in make_records(seed, ratio) if r.score == "fid"]) for seed, ratio in enumerate(ratios)]


def test_a_run_whose_scores_are_all_twice_the_floor_has_the_number_two():
    number = number_of(runs_of(2.0, 2.0))
    assert number.value == pytest.approx(2.0)
    assert number.parts == {"avg": pytest.approx(2.0), "all": pytest.approx(2.0)}
    assert (number.low, number.high) == (pytest.approx(2.0), pytest.approx(2.0))


def test_embeddings_and_aggregates_count_alike_whatever_their_scale():
    values = {
        ("a", "avg"): (8.0, 1.0),
        ("a", "all"): (2.0, 1.0),
        ("b", "avg"): (100.0, 100.0),
        ("b", "all"): (0.1, 0.1),
    }
    records = []
    for key, (score, floor) in values.items():
        records += [make_record(*key, score), make_record(*key, floor, floor=True)]
    number = number_of([ratios_of(records)])
    assert number.value == pytest.approx(2.0)  # 8 x 2 x 1 x 1 is 2 to the fourth
    assert number.parts == {"avg": pytest.approx(8**0.5), "all": pytest.approx(2**0.5)}


def test_seeds_give_the_interval_by_students_t():
    number = number_of(runs_of(1.0, 4.0))
    assert number.value == pytest.approx(2.0)
    half = 12.7062 * (math.log(4.0) / 2**0.5) / 2**0.5  # t of one degree of freedom, times the error of the mean
    assert math.log(number.high / number.value) == pytest.approx(half, rel=1e-5)
    assert number.low * number.high == pytest.approx(number.value**2)


def test_errors_of_real_images_do_not_get_smaller_with_more_seeds():
    def runs(count):
        parts = {"error_parts": {"generated": 9.0, "real": 0.4}}
        return [
            ratios_of(
                [
                    *(make_record("a", name, 4.0, **parts) for name in ("avg", "all")),
                    *(make_record("a", name, 2.0, floor=True, standard_error=0.2 * 3**0.5) for name in ("avg", "all")),
                ]
            )
            for _ in range(count)
        ]

    half = 1.96 * math.hypot(0.4 / 4.0, 0.2 * 3**0.5 / 2.0)  # that of generated images is in what seeds differ by
    assert half == pytest.approx(1.96 * 0.2)
    for count in (2, 10):
        number = number_of(runs(count))
        assert math.log(number.high / number.value) == pytest.approx(half)


def test_one_seed_has_a_number_and_no_interval():
    number = number_of(runs_of(3.0))
    assert (number.value, number.low, number.high) == (pytest.approx(3.0), None, None)


@pytest.mark.parametrize("value", [math.inf, math.nan, 0.0])
def test_a_score_that_is_not_finite_leaves_no_number(value):
    scores, floors = (
        [make_record("a", name, one, floor=floor) for name in ("avg", "all")]
        for one, floor in ((value, False), (1.0, True))
    )
    number = number_of([ratios_of([*scores, *floors]), *runs_of(2.0)])
    assert (number.value, number.low, number.high, number.parts) == (None, None, None, {})


def test_a_run_without_a_floor_or_an_aggregate_is_refused():
    score, floor = make_record("a", "avg", 1.0), make_record("a", "avg", 1.0, floor=True)
    with pytest.raises(ValueError, match="it has no score in a all"):
        ratios_of([score, floor])
    with pytest.raises(ValueError, match="floor"):
        ratios_of([score, make_record("a", "all", 1.0), floor])
