"""What FedAvg and FedBuff are compared by, on curves that can be read off."""

from fedgen.experiments.paired.cost_curves import at_the_end_of, clock_lines, value_at

SLOW = {"seconds": [10.0, 20.0], "fid_all": [8.0, 4.0], "fid_avg": [9.0, 6.0], "fid_worst": [9.0, 7.0]}
FAST = {"seconds": [4.0, 9.0], "fid_all": [8.0, 5.0], "fid_avg": [9.0, 6.0], "fid_worst": [9.0, 8.0]}


def shifted(curve, by):
    return {name: [value + by for value in values] for name, values in curve.items()}


CURVES = {
    "FedAvg": [shifted(SLOW, by) for by in (0.0, 0.2, 0.1)],
    "FedBuff": [shifted(FAST, by) for by in (0.0, 0.1, 0.1)],
}


def test_a_score_at_a_time_is_the_last_one_before():
    assert [value_at(SLOW, "fid_all", "seconds", seconds) for seconds in (1.0, 10.0, 19.9, 20.0, 99.0)] == [
        8.0,
        8.0,
        8.0,
        4.0,
        4.0,
    ]


def test_arms_are_compared_at_the_moment_when_one_is_through():
    assert at_the_end_of(CURVES, "FedAvg", "FedBuff", "fid_all", "seconds") == [8.0, 8.2, 8.1]


def test_lines_say_what_was_seen():
    lines = clock_lines(CURVES)
    assert lines[0].startswith("as expected: FedBuff takes less simulated time for as many turns")
    assert "-0.55" in lines[0]  # of 9 s, 9.1 s and 9.1 s beside 20 s, 20.2 s and 20.1 s
    assert lines[1].startswith("as expected: when FedBuff is through, its FID-all is lower")
    assert lines[2].startswith("FID-all after as many turns, FedBuff less FedAvg, differs: +0.967")
    assert lines[3].startswith("FID of the worst client after as many turns, FedBuff less FedAvg, differs: +0.967")
