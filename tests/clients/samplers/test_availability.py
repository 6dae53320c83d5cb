"""Cohorts among the clients that are available."""

import pytest

from fedgen.clients import sample_cohort
from fedgen.clients.samplers import AvailabilitySampler, Shifts, SizeSampler

NAMES = ["a", "b", "c", "d", "e"]
SIZES = [5, 5, 5, 5, 80]


def started(trace, rounds=8, **options):
    sampler = AvailabilitySampler(trace, **options)
    sampler.start(NAMES, SIZES, rounds)
    return sampler


def cohorts(sampler, size, rounds=8, seed=3):
    return [sampler.draw(SIZES, size, seed, round) for round in range(rounds)]


def test_everybody_always_there_is_the_draw_without_a_trace():
    always = started(lambda client, round: True)
    for size in (None, 1, 3, 5):
        assert cohorts(always, size) == [sample_cohort(5, size, 3, round) for round in range(8)]


def test_cohorts_are_of_those_who_are_there_and_smaller_where_too_few_are():
    """In round r clients 0 to r - 1 are there: nobody, then one, ..."""
    found = cohorts(started(lambda client, round: client < round), 3)
    assert found[:4] == [[], [0], [0, 1], [0, 1, 2]]
    assert all(len(cohort) == 3 and max(cohort) < round for round, cohort in enumerate(found) if round > 3)
    assert any(cohort != [0, 1, 2] for cohort in found[4:])


def test_all_that_are_there_take_part_without_a_cohort_size():
    assert cohorts(started(Shifts(period=5, on=2)), None, rounds=3) == [[0, 1], [0, 4], [3, 4]]


def test_a_draw_is_a_function_of_seed_and_round():
    sampler = started(Shifts(period=4, on=3))
    assert sampler.draw(SIZES, 2, 3, 6) == cohorts(sampler, 2)[6] == started(Shifts(4, 3)).draw(SIZES, 2, 3, 6)
    assert cohorts(sampler, 2) != cohorts(sampler, 2, seed=4)


@pytest.mark.filterwarnings("ignore:2 of 5 clients are available in no planned round")
def test_a_period_begins_the_trace_anew():
    found = cohorts(started(lambda client, round: client == round, period=3), None)
    assert found == [[0], [1], [2], [0], [1], [2], [0], [1]]


def test_it_is_drawn_by_size_among_those_who_are_there():
    sampler = started(lambda client, round: client != 0 or round == 0, then=SizeSampler())
    assert sampler.weighs
    found = cohorts(sampler, 3, rounds=200)
    assert not any(0 in cohort for cohort in found[1:])
    assert sum(cohort.count(4) for cohort in found) / 600 == pytest.approx(80 / 95, abs=0.07)


@pytest.mark.parametrize(("rounds", "missing"), [(3, "d, e"), (4, "e"), (-1, "")])
def test_clients_that_are_never_there_are_named_at_start(rounds, missing, recwarn):
    started(lambda client, round: round == client, rounds=rounds)
    said = [str(one.message) for one in recwarn]
    count = len(missing.split(", ")) if missing else 0
    assert said == ([f"{count} of 5 clients are available in no planned round: {missing}"] if missing else [])


def test_of_a_file_without_end_those_are_named_that_it_lacks(tmp_path):
    (tmp_path / "trace.csv").write_text("client,first,last\na,0,3\nb,1000000,1000001\nc,0,1\nd,5,5\n")
    with pytest.warns(UserWarning, match="available"):
        started(str(tmp_path / "trace.csv"), rounds=-1)
    with pytest.warns(UserWarning, match="available"):
        started(tmp_path / "trace.csv", rounds=100)


def test_nobody_ever_there_is_an_error():
    with pytest.raises(ValueError, match="available"):
        started(lambda client, round: round > 7)


def test_values_out_of_range_are_named():
    with pytest.raises(ValueError, match="period"):
        AvailabilitySampler("trace.csv", period=0)
    with pytest.raises(ValueError, match="period"):
        Shifts(period=4, on=5)
    with pytest.raises(ValueError, match="period"):
        Shifts(period=4, on=0)


def test_a_file_is_read_when_fitting_starts():
    with pytest.raises(RuntimeError, match="fitting"):
        AvailabilitySampler("trace.csv").draw(SIZES, 2, 0, 0)
