"""Who arrives when under buffered asynchronous rounds: by hand, in synchronous cases, and over a resume."""

import doctest

import pytest

from fedgen.federated import simulated_clock
from fedgen.federated.simulated_clock import BufferedClock, SimulatedClock


def make_clock(seconds, concurrency, buffer_size, draw=lambda free, places, round, draws: free[:places]):
    return BufferedClock(lambda client, round: seconds[client], len(seconds), concurrency, buffer_size, draw)


def rounds_of(clock, count, first=0):
    """Seconds, and client and staleness of each arrival, by round."""
    found = []
    for round in range(first, first + count):
        plan = clock.buffer_of(round)
        found.append((plan.seconds, [(turn.client, round - turn.version) for turn in plan.arrived]))
        clock.end_round(round, ())
    return found


def test_a_slow_client_arrives_stale():
    """Clients of 2, 3 and 7 s, all under way, a step with every second update.

    Steps: 3 s (0 at 2, 1 at 3), then both start again: 0 at 5, 1 at 6, so step 2 at 6. From there 2, since 0 s, is
    there at 7 after two steps, and 0 at 8: step 3 at 8 s.
    """
    clock = make_clock([2.0, 3.0, 7.0], concurrency=3, buffer_size=2)
    assert rounds_of(clock, 3) == [(3.0, [(0, 0), (1, 0)]), (6.0, [(0, 0), (1, 0)]), (8.0, [(2, 2), (0, 0)])]
    assert [tuple(one) for one in clock.rounds] == [(0, 3.0, 2, 0.0, 0), (1, 6.0, 2, 0.0, 0), (2, 8.0, 2, 1.0, 2)]
    assert clock.metrics == {"simulated_seconds": 8.0, "staleness": 1.0}


def test_a_place_that_becomes_free_is_filled_at_once_by_a_client_that_is_in_no_buffer():
    """Two places for clients of 1, 5 and 1 s: 0 arrives at 1 and 2 takes its place, at 2; 0 waits for the step."""
    clock = make_clock([1.0, 5.0, 1.0], concurrency=2, buffer_size=2)
    assert rounds_of(clock, 2) == [(2.0, [(0, 0), (2, 0)]), (4.0, [(0, 0), (2, 0)])]


def test_equally_fast_clients_arrive_in_synchronous_rounds():
    """As many under way as the buffer takes: nobody is stale, and the clock is the synchronous one."""
    draw = lambda free, places, round, draws: free[round % 2 :: 2][:places]  # noqa: E731
    asynchronous, synchronous = make_clock([4.0] * 6, 3, 3, draw), SimulatedClock(lambda client, round: 4.0)
    for round in range(5):
        arrived = asynchronous.buffer_of(round).arrived
        assert [(turn.client, turn.version) for turn in arrived] == [(c, round) for c in range(round % 2, 6, 2)]
        asynchronous.end_round(round, ())
        synchronous.end_round(round, range(3))
    assert asynchronous.rounds == synchronous.rounds


def test_of_one_moment_arrivals_that_find_the_buffer_full_are_a_step_stale():
    assert rounds_of(make_clock([1.0] * 3, 3, 2), 2) == [(1.0, [(0, 0), (1, 0)]), (2.0, [(2, 1), (0, 0)])]


def test_a_buffer_that_nobody_can_fill_is_closed_early():
    """Of three clients one is there: a step with each of its updates."""
    clock = make_clock([1.0, 1.0, 2.0], 2, 2, lambda free, places, round, draws: [c for c in free if c == 2])
    assert rounds_of(clock, 2) == [(2.0, [(2, 0)]), (4.0, [(2, 0)])]


def test_a_round_in_which_nobody_can_start_takes_no_time():
    clock = make_clock([1.0], 1, 1, lambda free, places, round, draws: free if round else [])
    assert rounds_of(clock, 2) == [(0.0, []), (1.0, [(0, 0)])]


def test_rounds_that_are_planned_ahead_are_the_same():
    ahead, step = (make_clock([2.0, 3.0, 7.0, 4.5], 3, 2) for _ in range(2))
    ahead.buffer_of(7)
    assert rounds_of(ahead, 8) == rounds_of(step, 8)


def test_a_clock_goes_on_from_its_state():
    whole, part, resumed = (make_clock([2.0, 3.0, 7.0, 4.5], 3, 2) for _ in range(3))
    expected = rounds_of(whole, 9)
    rounds_of(part, 4)
    part.buffer_of(5)
    resumed.load_state_dict(part.state_dict())
    resumed.begin_at(4)
    assert rounds_of(resumed, 5, first=4) == expected[4:]
    assert resumed.rounds == whole.rounds


def test_a_fit_may_begin_at_any_round():
    clock = make_clock([1.0, 1.0], 2, 2)
    clock.buffer_of(0)  # which somebody asked about before
    clock.begin_at(5)
    assert rounds_of(clock, 1, first=5) == [(1.0, [(0, 0), (1, 0)])]
    with pytest.raises(ValueError, match="over"):
        clock.buffer_of(5)


@pytest.mark.parametrize(
    "damage",
    [
        {"under_way": [(1.0, 9, 0)]},  # no such client
        {"under_way": [(-1.0, 0, 0)]},
        {"rounds": [(0, "1", 1, 0.0, 0)]},
    ],
    ids=str,
)
def test_a_damaged_state_is_refused(damage):
    clock = make_clock([1.0, 1.0], 2, 2)
    with pytest.raises(ValueError, match=r"turns under way|no times"):
        clock.load_state_dict({"rounds": [], "under_way": [], **damage})


def test_a_synchronous_round_lasts_as_long_as_its_slowest_client():
    clock = SimulatedClock(lambda client, round: [1.0, 4.0, 2.0][client])
    for round, clients in enumerate([[0, 2], [0, 1], [], [2, 2]]):  # one that counts twice takes one turn
        clock.end_round(round, clients)
    assert [one.seconds for one in clock.rounds] == [2.0, 6.0, 6.0, 8.0]
    assert [one.turns for one in clock.rounds] == [2, 2, 0, 1]


def test_the_examples_print_what_they_say():
    assert doctest.testmod(simulated_clock).failed == 0
