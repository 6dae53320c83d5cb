import math

import pytest
import torch

from fedgen.models.round_clock import RoundMeans

CPU = torch.device("cpu")


def take(means):
    return means.take(lambda sums: sums, CPU)


def scalar(value, dtype=torch.float32):
    return torch.tensor(value, dtype=dtype)


def test_means_are_over_the_steps_that_had_a_value():
    means = RoundMeans("loss", "gap", "other")
    means.add({"loss": scalar(1.0), "gap": scalar(4.0)})
    means.add({"loss": scalar(2.0), "gap": scalar(6.0)})
    means.end_turn()
    means.add({"loss": scalar(6.0), "gap": scalar(5.0)})
    assert take(means) == {"loss": 3.0, "gap": 5.0}
    assert take(means) == {}


def test_sums_of_several_steps_count_as_many():
    means = RoundMeans("loss")
    means.add({"loss": scalar(9.0)}, steps=3)
    means.add({"loss": scalar(1.0)})
    means.add({}, steps=2)
    assert take(means) == {"loss": 2.5}


def test_turns_that_were_not_completed_leave_no_trace():
    means = RoundMeans("loss")
    for value, completed in ((1.0, True), (100.0, False), (3.0, True)):
        means.add({"loss": scalar(value)})
        means.end_turn(completed)
    assert take(means) == {"loss": 2.0}
    means.add({"loss": scalar(1.0)})
    means.end_turn(completed=False)
    assert take(means) == {}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_turn_with_a_value_that_is_not_finite_is_left_out_as_a_whole(bad):
    means = RoundMeans("loss", "gap")
    means.add({"loss": scalar(1.0), "gap": scalar(1.0)})
    means.end_turn()
    means.add({"loss": scalar(50.0), "gap": scalar(50.0)})
    means.add({"gap": scalar(bad)})
    means.end_turn()
    assert take(means) == {"loss": 1.0, "gap": 1.0}


def test_where_no_turn_was_finite_the_mean_says_so():
    means = RoundMeans("loss", "gap")
    means.add({"loss": scalar(math.nan)})
    found = take(means)
    assert found.keys() == {"loss"}
    assert math.isnan(found["loss"])


def test_processes_sums_are_added_whatever_each_of_them_has():
    """One with two steps, one with another value, one with nothing: in the same places."""
    processes = [RoundMeans("loss", "gap") for _ in range(3)]
    processes[0].add({"loss": scalar(1.0)})
    processes[0].add({"loss": scalar(2.0)})
    processes[1].add({"gap": scalar(5.0)})
    processes[1].add({"loss": scalar(6.0)})
    sent = []
    for means in processes[:2]:
        means.take(lambda sums: sent.append(sums) or sums, CPU)
    assert processes[2].take(lambda sums: sums + sum(sent), CPU) == {"loss": 3.0, "gap": 5.0}


def test_it_counts_and_sums_in_full_precision_where_tensors_are_born_in_half():
    """In bfloat16 a counter would stop at 256."""
    means = RoundMeans("loss")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        for _ in range(1000):
            means.add({"loss": scalar(0.5, torch.bfloat16)})
            means.end_turn()
    finally:
        torch.set_default_dtype(before)
    assert take(means) == {"loss": 0.5}
