"""How often each client has been part of a release, against cohorts counted one by one."""

import json
import math
from collections import Counter

import pytest

from fedgen.clients import sample_cohort
from fedgen.federated.aggregators.private_mean import RELEASES, Participations


def counted(*rounds, clients=6, cohort=2, seed=4):
    times = Counter(client for round in rounds for client in sample_cohort(clients, cohort, seed, round))
    return [times[client] for client in range(clients)]


def test_rounds_count_the_clients_that_they_draw():
    found = Participations(6, 2, seed=4)
    assert found.most == 0
    found.reach(5)
    found.reach(3)  # counted already
    assert (found.rounds, found.times) == (5, counted(*range(5)))
    assert found.most == max(counted(*range(5)))


def test_a_round_done_again_counts_again_and_one_that_was_missed_once():
    found = Participations(6, 2, seed=4)
    for round in (2, 3, 1, 2):
        found.add(round)
    assert (found.rounds, found.times) == (4, counted(0, 1, 2, 3, 1, 2))


def test_a_run_goes_on_from_its_file(tmp_path):
    first = Participations(6, 2, seed=4)
    first.load(tmp_path, 1.0)  # there is none yet
    first.add(0)
    first.save(tmp_path, 1.0)
    second = Participations(6, 2, seed=4)
    second.load(tmp_path, 1.0)
    second.add(0)
    assert (second.rounds, second.times) == (1, counted(0, 0))


@pytest.mark.parametrize(("clients", "noise"), [(5, 1.0), (6, 2.0)])
def test_counts_of_other_clients_or_other_noise_are_refused(clients, noise, tmp_path):
    Participations(6, 2, seed=4).save(tmp_path, 1.0)
    said = f"6 clients with noise 1, and this run has {clients} and noise {noise:g}: choose another folder"
    with pytest.raises(ValueError, match=said):
        Participations(clients, 2, seed=4).load(tmp_path, noise)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        json.dumps({"rounds": 1, "times": [-1], "noise_multiplier": 1.0}),
        json.dumps({"rounds": 1}),
        json.dumps({"rounds": 1, "times": [1], "noise_multiplier": "much"}),
        json.dumps({"rounds": 1, "times": [1], "noise_multiplier": 10**400}),
        json.dumps({"rounds": 1, "times": [1], "noise_multiplier": math.nan}),
    ],
)
def test_a_damaged_file_is_named(content, tmp_path):
    (tmp_path / RELEASES).write_text(content)
    with pytest.raises(ValueError, match="releases"):
        Participations(6, 2, seed=4).load(tmp_path, 1.0)


@pytest.mark.parametrize("change", [{"rounds": 1}, {"times": [0] * 6}, {"noise_multiplier": 2.0}, {"more": 1}])
def test_counts_that_somebody_changed_are_refused(change, tmp_path):
    """A digit that became another would make epsilon too small."""
    made = Participations(6, 2, seed=4)
    made.reach(3)
    made.save(tmp_path, 1.0)
    path = tmp_path / RELEASES
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match="releases"):
        Participations(6, 2, seed=4).load(tmp_path, 1.0)


def test_counts_of_before_there_was_a_hash_are_read(tmp_path):
    (tmp_path / RELEASES).write_text(json.dumps({"rounds": 1, "times": [1, 1, 0], "noise_multiplier": 1.0}))
    found = Participations(3, 2, seed=4)
    found.load(tmp_path, 1.0)
    assert (found.rounds, found.times) == (1, [1, 1, 0])
