"""Seconds of clients' turns: by hand, by distribution, and what is refused."""

import statistics

import pytest
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedgen.federated import ClientSpeeds


def test_a_turn_takes_its_iterations_and_its_messages():
    """20 iterations of 0.5 s, and 2,000 bytes at 100 bytes a second."""
    speeds = ClientSpeeds(seconds=[9.0, 0.5], bandwidth=[1.0, 100.0])
    assert speeds.turn_seconds(1, 0, seed=0, iterations=20, num_bytes=2000) == 20 * 0.5 + 20


def test_messages_take_no_time_without_a_bandwidth():
    assert ClientSpeeds(3.0, "equal").turn_seconds(0, 0, 0, iterations=2, num_bytes=10**9) == 6.0


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        ({"distribution": "log-normal", "spread": 0.5}, (0.607, 1.0, 1.649)),  # exp(-0.5), 1, exp(0.5): z = -1, 0, 1
        ({"distribution": "half-normal"}, (0.296, 1.0, 2.082)),  # quantiles of |z| at 0.159, 0.5, 0.841 / 0.6745
    ],
    ids=str,
)
def test_speeds_have_the_distributions_quantiles(options, shares):
    speeds = ClientSpeeds(2.0, **options)
    drawn = sorted(speeds.iteration_seconds(client, seed=0) / 2 for client in range(4000))
    found = [drawn[int(4000 * share)] for share in (0.1587, 0.5, 0.8413)]
    assert found == pytest.approx(shares, rel=0.06)


def test_a_client_keeps_its_speed_and_turns_vary_around_it():
    speeds = ClientSpeeds(jitter=0.3)
    usual = speeds.iteration_seconds(7, seed=1)
    turns = [speeds.turn_seconds(7, round, 1, iterations=1, num_bytes=0) for round in range(1000)]
    assert usual == speeds.iteration_seconds(7, seed=1) != speeds.iteration_seconds(7, seed=2)
    assert statistics.median(turns) == pytest.approx(usual, rel=0.05)
    assert len(set(turns)) == 1000
    assert turns[3] == speeds.turn_seconds(7, 3, 1, iterations=1, num_bytes=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": 0}, "seconds=0: an iteration takes some time"),
        ({"seconds": [1.0, -1.0]}, r"seconds=\[1.0, -1.0\]"),
        ({"seconds": float("nan")}, "seconds=nan"),
        ({"bandwidth": 0.0}, "bandwidth=0.0: a line carries"),
        ({"spread": -1.0}, "spread=-1.0: a standard deviation"),
        ({"jitter": float("inf")}, "jitter=inf"),
        ({"distribution": "normal"}, "distribution='normal': choose"),
    ],
    ids=str,
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ClientSpeeds(**options)


@pytest.mark.parametrize("name", ["seconds", "bandwidth"])
def test_a_list_of_other_clients_is_refused(name):
    with pytest.raises(MisconfigurationException, match=rf"{name}=\.\.\.\) lists 2 clients, and 3 train"):
        ClientSpeeds(**{name: [1.0, 2.0]}).check_clients(3)
