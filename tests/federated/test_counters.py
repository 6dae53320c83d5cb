"""Integer and boolean tensors over a round: the largest, or what was declared."""

import pytest
import torch

from fedgen.federated.server_model import Counters


def play(counters, server, *clients, interval=3):
    """One round; gives back the server's numbers."""
    server = {name: torch.tensor(value) for name, value in server.items()}
    counters.start_round()
    for own in clients:
        counters.add({name: torch.tensor(own.get(name, server[name].tolist())) for name in server}, server)
    counters.end_round(server, interval)
    return {name: value.tolist() for name, value in server.items()}


def test_the_server_takes_the_largest_and_a_flag_that_one_client_has_set_is_set():
    counters = Counters()
    server = {"count": 5, "flag": False, "parts": [1, 2, 3]}
    clients = ({"count": 8, "parts": [1, 9, 3]}, {"count": 7, "flag": True, "parts": [4, 2, 3]}, {})
    assert play(counters, server, *clients) == {"count": 8, "flag": True, "parts": [4, 9, 3]}
    assert counters.seen == {"count", "flag", "parts"}


def test_what_nobody_changes_stays_and_a_new_round_forgets_the_one_before():
    counters = Counters()
    assert play(counters, {"count": 5}, {"count": 8}) == {"count": 8}
    assert play(counters, {"count": 5}, {}, {}) == {"count": 5}
    assert counters.changed == []
    assert play(counters, {"count": 5}) == {"count": 5}


def test_the_clients_tensors_are_copied():
    counters, live, server = Counters(), torch.tensor([4]), {"count": torch.tensor([1])}
    counters.add({"count": live}, server)
    live.fill_(9)
    counters.end_round(server, 3)
    assert server["count"].item() == 4


def test_a_tensor_that_decreased_is_no_counter_and_is_warned_of_once():
    """Of a queue's pointer the largest value means nothing, whoever else may have raised it."""
    counters = Counters()
    with pytest.warns(UserWarning, match="decreased"):
        assert play(counters, {"pointer": 5, "count": 1}, {"pointer": 7}, {"pointer": 2, "count": 2}) == {
            "pointer": 5,
            "count": 2,
        }
    assert play(counters, {"pointer": 5}, {"pointer": 2}) == {"pointer": 5}  # a second warning would be an error
    assert counters.seen == {"count"}


def test_a_declared_maximum_may_decrease_and_never_goes_below_the_servers():
    assert play(Counters(declared=["level"]), {"level": 5}, {"level": 3}, {"level": 4}) == {"level": 5}
    assert play(Counters(declared=["level"]), {"level": 5}, {"level": 3}, {"level": 6}) == {"level": 6}


def test_floating_tensors_may_be_declared_too():
    assert play(Counters(declared=["norm"]), {"norm": 0.5}, {"norm": 0.75}, {"norm": 0.25}) == {"norm": 0.75}


def test_an_advancing_counter_grows_by_the_interval_whatever_clients_count():
    counters = Counters(advancing=["seen"])
    assert play(counters, {"seen": 4}, {"seen": 1000}, {"seen": 0}, interval=7) == {"seen": 11}
    assert counters.changed == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [([8, 9, 10**9], 9), ([8, 9], 8), ([10**9], 5), ([6, 7, 8], 7)],
)
def test_robustly_it_is_the_lower_median_of_all_clients(values, expected):
    """Three clients: those that leave it alone have the server's 5."""
    clients = [{"count": value} for value in values] + [{}] * (3 - len(values))
    assert play(Counters(robust=True), {"count": 5}, *clients) == {"count": expected}


@pytest.mark.parametrize(("robust", "expected"), [(False, 9), (True, 7)])
def test_ranks_tell_each_other(robust, expected):
    """7, 9 and an unchanged 5 on one rank; 6 and 8 on the other: the largest is 9, the median of five 7."""
    counters = [Counters(robust=robust) for _ in range(2)]
    server = {"count": torch.tensor(5), "pointer": torch.tensor(5)}
    for one, values in zip(counters, ([7, 9, 5], [6, 8])):
        for value in values:
            one.add({"count": torch.tensor(value), "pointer": torch.tensor(5 if value != 6 else 0)}, server)
    told = [one.local_summary() for one in counters]
    for one in counters:
        one.merge_summaries(told)
        found = {name: value.clone() for name, value in server.items()}
        with pytest.warns(UserWarning, match="decreased"):
            one.end_round(found, 3)
        assert found["count"].item() == expected
        assert found["pointer"].item() == 5
